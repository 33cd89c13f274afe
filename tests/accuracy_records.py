"""Small accuracy records for tests, written without running a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from macatensor.accuracy import elements
from macatensor.accuracy.records import (
    CALLS,
    ENVIRONMENT,
    FORMAT,
    Argument,
    Call,
    TensorEntry,
    line_of_call,
    line_of_stack,
    read,
)


class Record:
    """A process's record in the making: calls are added one by one; tensors know which call made them."""

    def __init__(self, folder: Path, level: int = 2, device: str = "cpu", rank: int = 0, **environment: Any):
        self.folder = folder / f"process-{rank}-{1 + rank}"
        self.folder.mkdir(parents=True)
        self.level, self.device, self.count = level, device, 0
        self.made: dict[int, int] = {}
        self.kept: list[torch.Tensor] = []
        facts = {"format": FORMAT, "rank": rank, "device": device, "of": str(folder), **environment}
        (self.folder / ENVIRONMENT).write_text(json.dumps(facts))
        self.names: dict[str, int] = {}
        self.lines = (self.folder / CALLS).open("w")

    def entry(self, tensor: torch.Tensor, place: str, saves: dict[str, torch.Tensor]) -> TensorEntry:
        held = elements.writable(tensor)
        found = TensorEntry(
            elements.dtype_name(tensor.dtype),
            list(tensor.shape),
            device=self.device,
            made_by=self.made.get(id(tensor)),
        )
        if self.level and held.numel():
            values = held.double()
            finite = values[values.isfinite()]
            found.nan, found.inf = int(values.isnan().sum()), int(values.isinf().sum())
            if finite.numel():
                found.min, found.max = float(finite.min()), float(finite.max())
                found.mean, found.norm = float(finite.mean()), float(finite.norm())
            found.hash = str(hash(held.reshape(-1).view(torch.uint8).numpy().tobytes()))
        if self.level == 2:
            found.file, found.key = f"tensors/{self.count:06d}.safetensors", place
            saves[place] = held.clone()
        return found

    def call(
        self,
        op: str,
        inputs: dict[str, torch.Tensor] | None = None,
        outputs: dict[str, torch.Tensor] | None = None,
        **more: Any,
    ) -> int:
        """Writes one call; returns its number."""
        saves: dict[str, torch.Tensor] = {}
        direction = more.pop("direction", "fwd")
        level = more.pop("level", "aten" if op.startswith("aten.") else "api")
        index = self.names.get(op, 0)
        self.names[op] = index + 1
        values = more.pop("values", {})
        made = Call(self.count, level, f"{op}.{index}.{direction}", op, direction, **more)
        made.inputs = [Argument(p, self.entry(t, f"in.{p}", saves)) for p, t in (inputs or {}).items()]
        made.inputs += [Argument(p, value=v) for p, v in values.items()]
        for tensor in (outputs or {}).values():
            self.made[id(tensor)] = self.count
            self.kept.append(tensor)  # its id stays its own
        made.outputs = [Argument(p, self.entry(t, f"out.{p}", saves)) for p, t in (outputs or {}).items()]
        if saves:
            elements.save(self.folder / f"tensors/{self.count:06d}.safetensors", saves)
        self.lines.write(line_of_call(made))
        self.count += 1
        return self.count - 1

    def stack(self, number: int, *frames: str) -> None:
        self.lines.write(line_of_stack(number, list(frames)))

    def close(self) -> None:
        self.lines.write('{"end": true}\n')
        self.lines.close()


def calls_of(folder: Path) -> list[Call]:
    run = read(folder)
    assert len(run.processes) == 1
    assert not run.processes[0].cut_off
    return run.processes[0].calls


def named(calls: list[Call], name: str) -> Call:
    found = [c for c in calls if c.name == name]
    assert len(found) == 1, f"{name} is not one of {[c.name for c in calls]}"
    return found[0]


def at(arguments: list[Argument], place: str) -> Any:
    return next(a for a in arguments if a.place == place)
