"""A run of benchmarks as a JSON document: what was measured, and on what."""

from __future__ import annotations

import json
import os
import platform
import reprlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from macatensor.bench.result import Result
from macatensor.files.untrusted import json_of, made

SCHEMA = "macatensor.bench/2"  # /1, without this key, had neither quartiles nor rates


@dataclass(frozen=True)
class Run:
    """Results, and what they depend on."""

    results: Sequence[Result]
    threads: int
    rounds: int
    quick: bool
    pytorch: str
    device: str
    simd: str
    processor: str
    cores: int
    load: float | None = None  # when the run began
    ceilings: dict[str, float | None] = field(default_factory=dict)  # bytes and operations a second

    @property
    def passed(self) -> bool:
        """Whether no bar was missed."""
        return all(r.verdict != "missed" for r in self.results)

    def facts(self) -> dict[str, object]:
        """JSON-able values."""
        others = {name: value for name, value in vars(self).items() if name != "results"}
        return {
            "schema": SCHEMA,
            **others,
            "results": [r.facts() for r in self.results],
            "passed": self.passed,
        }


def described(
    results: Sequence[Result], rounds: int, threads: int, quick: bool, load: float | None = None
) -> Run:
    """Results of this machine."""
    from macatensor.bench.ceilings import ceilings

    module = torch.get_device_module("maca")
    measured = asdict(ceilings(threads, quick)) if any(r.rate for r in results) else {}
    return Run(
        results, threads, rounds, quick, torch.__version__, module.get_device_name(),
        module.get_device_properties().simd, _processor(), os.cpu_count() or 1, load, measured,
    )  # fmt: skip


def save(run: Run, path: Path) -> None:
    """Raises OSError. An interrupted process leaves what was stored before."""
    if path.is_dir():  # else the file beside it would be left
        raise IsADirectoryError(f"{path} is a folder; name a file")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: there is no folder {path.parent}")
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps(run.facts(), indent=1) + "\n", encoding="utf-8")
    new.replace(path)


def load(path: Path) -> Run:
    """The run that :func:`save` or ``--json`` wrote.

    Raises OSError for a file that cannot be read, ValueError for one that is no such run.
    """
    try:
        facts = json_of(path)
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    held = facts if isinstance(facts, dict) else {}
    schema = held.get("schema")
    if schema != SCHEMA:
        older = schema is None and "results" in held
        got = (
            f"schema {reprlib.repr(schema)}"
            if schema
            else "a run of an older version"
            if older
            else "no schema"
        )
        raise ValueError(
            f"{path} has {got}; expected {SCHEMA!r}, as `macatensor bench --save` writes it. Measure it again"
        )
    known: dict[str, object] = {name: held[name] for name in Run.__dataclass_fields__ if name in held}
    results = known.get("results")
    if isinstance(results, list):
        known["results"] = [Result.known(r) for r in results]
    return made(Run, known, f"{path} says {SCHEMA!r} and is damaged")


def _processor() -> str:
    """Its name as the system says it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:  # not Linux
        pass
    return platform.processor() or platform.machine()
