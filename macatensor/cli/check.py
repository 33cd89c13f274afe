"""``macatensor check``: what is installed, what is in force, and a tensor as the proof."""

from __future__ import annotations

import platform
from collections import Counter
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from .check_distributed import check_distributed
from .console import Json, emit_json, out, table

if TYPE_CHECKING:
    from macatensor.runtime.switches import Switch


def check(
    as_json: Json = False,
    distributed: Annotated[
        bool,
        typer.Option("--distributed", help="Under torchrun: who carries what between ranks, and how fast."),
    ] = False,
) -> None:
    """Show versions, library, device, switches, and that a tensor works."""
    if distributed:
        check_distributed(as_json)
        return
    facts = gather()
    if as_json:
        emit_json(facts)
        return
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="cyan", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts["versions"].items():
        grid.add_row(name, str(value))
    pytorch = facts["pytorch"]
    if not pytorch["is_known"]:
        grid.add_row("", f"[yellow]not run with this PyTorch before; with {', '.join(pytorch['known'])}[/]")
        missing = ", ".join(pytorch["missing_names"]) or "none"
        grid.add_row("", f"names of PyTorch that macatensor uses and that are missing: {missing}")
    library = facts["library"]
    grid.add_row("library", f"{library['path']}")
    grid.add_row("", f"{library['library']}, ABI {library['abi']}")
    device = facts["device"]
    grid.add_row("device", f"[bold]{device['name']}[/] (maca:0)")
    grid.add_row("SIMD level", device["simd"])
    grid.add_row("threads", f"{device['threads']} (PyTorch: {device['pytorch_threads']})")
    grid.add_row("memory", f"{_gib(device['memory_free'])} free of {_gib(device['memory_total'])}")
    if device["libraries"]:
        grid.add_row("computes with", device["libraries"])
    kinds = ", ".join(f"{n} {kind}" for kind, n in facts["rows"].items())
    grid.add_row("kernels", f"{device['kernel_count']} in the library; rows of the op table: {kinds}")
    out.print(Panel(grid, title="macatensor", title_align="left", border_style="cyan"))

    page = table("Environment switches", "variable", "value", "origin", "meaning")
    for name, switch in facts["switches"].items():
        is_set = switch["value"] is not None
        shown = Text(str(switch["value"]), style="bold yellow") if is_set else Text("unset", style="dim")
        page.add_row(name, shown, switch["origin"], switch["meaning"])
    for name, nearest in facts["unknown_switches"].items():
        page.add_row(
            Text(name, style="red"),
            "",
            "environment",
            f"read by nothing; did you mean {nearest}?" if nearest else "read by nothing",
        )
    out.print(page)
    out.print(f"[green]torch.ones(2).maca()[/]  →  [bold]{facts['proof']}[/]", highlight=False)


class DeviceFacts(TypedDict):
    name: str
    simd: str
    threads: int
    pytorch_threads: int
    memory_free: int
    memory_total: int
    libraries: str
    kernel_count: int


class SwitchFacts(TypedDict):
    value: str | None
    origin: str
    meaning: str


class PyTorchFacts(TypedDict):
    known: list[str]  # versions with which this package has run
    is_known: bool
    missing_names: list[str]  # private ones that it uses; looked for where the version is unknown


class Facts(TypedDict):
    """What the command prints with ``--json``."""

    versions: dict[str, str]
    pytorch: PyTorchFacts
    library: dict[str, str]
    device: DeviceFacts
    rows: dict[str, int]
    switches: dict[str, SwitchFacts]
    unknown_switches: dict[str, str | None]
    proof: str


def gather() -> Facts:
    """The facts as JSON-able values. Raises ImportError where the library does not load."""
    import torch

    import macatensor
    from macatensor.integration import pytorch_versions
    from macatensor.runtime import switches
    from op_table import TABLE

    module = torch.get_device_module("maca")
    info = module.library_info()
    free, total = module.mem_get_info()
    is_known = pytorch_versions.running() in pytorch_versions.versions_seen()
    return {
        "versions": {
            "macatensor": macatensor.__version__,
            "PyTorch": torch.__version__,
            "Python": f"{platform.python_version()} ({platform.machine()}, {platform.system()})",
        },
        "pytorch": {
            "known": pytorch_versions.versions_seen(),
            "is_known": is_known,
            "missing_names": [] if is_known else pytorch_versions.missing_names(),
        },
        "library": {"path": info["path"], "library": info["library"], "abi": info["abi"]},
        "device": {
            "name": info["name"],
            "simd": info["simd"],
            "threads": info["multi_processor_count"],
            "pytorch_threads": torch.get_num_threads(),
            "memory_free": free,
            "memory_total": total,
            "libraries": info["libraries"],
            "kernel_count": info["kernel_count"],
        },
        "rows": dict(Counter(row.kind.value for row in TABLE.values()).most_common()),
        "switches": {name: _switch(switch) for name, switch in switches.ALL.items()},
        "unknown_switches": switches.unknown(),
        "proof": repr(torch.ones(2).to("maca")),
    }


def _switch(switch: Switch[object]) -> SwitchFacts:
    text = switch.text()
    return {
        "value": text,
        "origin": switch.origin,
        "meaning": switch.unset if text is None else switch.meaning,
    }


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB"
