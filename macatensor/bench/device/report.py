"""``macatensor bench --device-report``: everything that a short hour on a device can tell, in one file.

Each section runs in a process of its own with an end, and the file is written anew after each: a device that hangs, a
crash, or a lease that ends leaves what was found before. Nothing is compiled or fetched.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

_HERE = Path(__file__).parent
_SMALL = 1 << 12  # elements of each operand where only the way is tried
_WITHOUT_US = (("TORCH_DEVICE_BACKEND_AUTOLOAD", "0"),)  # a process where CUDA is the one accelerator


@dataclass(frozen=True)
class Section:
    """A command of Python's whose last line of output, or whole output, is JSON."""

    name: str
    arguments: Callable[[bool], list[str]]  # of ``quick``
    minutes: float  # after which it is ended
    environment: tuple[tuple[str, str], ...] = ()


def _cli(*words: str, quick: tuple[str, ...] = ()) -> Callable[[bool], list[str]]:
    return lambda is_quick: ["-m", "macatensor.cli", *words, *(quick if is_quick else ())]


def _script(name: str, *words: str, quick: tuple[str, ...]) -> Callable[[bool], list[str]]:
    return lambda is_quick: [str(_HERE / name), *words, *(quick if is_quick else ())]


def _workers() -> str:
    return str(min(os.cpu_count() or 1, 14))


_FACTS = "import json, torch, macatensor; print(json.dumps(macatensor.device.library_info()))"


def sections(library: Path, quick: bool) -> list[Section]:
    """What is asked, in the order of what one wants to know first. The library is asked of its rules by its path."""
    found = [
        Section("library", lambda _: ["-c", _FACTS], 1),
        Section("rules", _cli("conform", str(library), "--level", "0", "--level", "1", "--json", "--output",
                              os.devnull if quick else "device-report-conformance.html"), 2),
        Section("steps", _script("steps.py", "maca", quick=("--quick",)), 2),
    ]  # fmt: skip
    if torch.cuda.is_available():
        found.append(Section("steps of PyTorch for CUDA", _script("steps.py", "cuda", quick=("--quick",)), 2,
                             _WITHOUT_US))  # fmt: skip
    found += [
        Section("bandwidth", _script("bandwidth.py", quick=("--elements", str(_SMALL), "--seconds", "0.001")), 2),
        Section("products", _script("products.py", quick=("--small",)), 2),
        Section("operators", _cli("opinfo", "--short", "--anew", "--dtype", "float32", "--workers", _workers(), "--json",
                                  quick=("add",)), 3),
        Section("rows", _cli("parity", "--dtype", "float32", "--dtype", "bfloat16", "--json", quick=("add",)), 3),
    ]  # fmt: skip
    return found


def _last_json(text: str) -> object:
    """The whole text as JSON, or its last line."""
    for part in (text, text.strip().rpartition("\n")[2]):
        try:
            return json.loads(part)
        except ValueError:
            continue
    return None


def run(section: Section, library: Path, quick: bool) -> dict[str, object]:
    """What a section found, its status (None: it was ended), its seconds, and the end of what it said where it found nothing."""
    begin = time.monotonic()
    command = [sys.executable, "-W", "ignore", *section.arguments(quick)]
    environment = {
        **os.environ, "MACA_LIBRARY": str(library), "MACA_FALLBACK": "silent", **dict(section.environment)
    }  # fmt: skip
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60 * section.minutes,
            errors="replace",
        )
        status, said, complained = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as error:
        status = None
        said, complained = (
            t.decode(errors="replace") if isinstance(t, bytes) else t or ""
            for t in (error.stdout, error.stderr)
        )
    found = _last_json(said)
    result: dict[str, object] = {"status": status, "seconds": time.monotonic() - begin, "found": found}
    if found is None or status not in (0, 1):
        result["said"] = (said[-2000:] + complained[-4000:]).strip()
    return result


def report(library: Path, to: Path, quick: bool = False) -> Iterator[tuple[str, dict[str, object]]]:
    """Runs the sections one after the other and stores what is known so far in ``to``."""
    facts: dict[str, object] = {
        "python": platform.python_version(), "torch": torch.__version__, "machine": platform.machine(),
        "cores": os.cpu_count(), "library": str(library), "quick": quick, "sections": {},
    }  # fmt: skip
    kept = facts["sections"]
    assert isinstance(kept, dict)
    for section in sections(library, quick):
        kept[section.name] = run(section, library, quick)
        to.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        yield section.name, kept[section.name]
