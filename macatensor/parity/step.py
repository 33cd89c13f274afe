"""Checks every operator of one training step against a float64 reference from the operator's own inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from macatensor.parity.watch import Seen, Verdict, Watch
from macatensor.runtime import layout
from op_table import Kind


@dataclass
class OpRecord:
    """What became of one operator's calls in a step, by layout.

    ``seconds`` is the device's time for all calls, reference not included. ``max_ulp`` and ``max_rel`` are None where
    nothing was compared; ``verdict`` is ``"pass"``, ``"FAIL: ..."`` or ``"n/a: reason"``.
    """

    op: str
    kernel: str
    row_kind: str
    calls: int
    layout_in: str
    layout_out: str
    seconds: float
    max_ulp: float | None
    max_rel: float | None
    bound: str
    verdict: str


def layout_text(t: torch.Tensor | None) -> str:
    """``"NHWC"`` or ``"NCHW"`` of a 4-D tensor, else rank and whether it is row-major."""
    if t is None:
        return ""
    if t.dim() in (4, 5) and min(t.shape) > 0:
        if layout.is_channels_last(t):
            return "NHWC" if t.dim() == 4 else "NDHWC"
        if t.is_contiguous():
            return "NCHW" if t.dim() == 4 else "NCDHW"
    if any(n > 1 and s == 0 for n, s in zip(t.shape, t.stride())):
        return f"{t.dim()}-D expanded"
    return f"{t.dim()}-D" if t.is_contiguous() else f"{t.dim()}-D strided"


class _Step(Watch):
    """Collects the records of a step."""

    def __init__(self) -> None:
        super().__init__()
        self.records: dict[tuple[str, str, str], OpRecord] = {}

    def before(self, seen: Seen) -> None:
        seen.held = layout_text(_first(seen.operands))

    def after(self, seen: Seen) -> None:
        verdict = self.verdict(seen)
        assert isinstance(seen.held, str)  # by `before`
        with self.lock:
            self.note(seen, verdict, seen.held, layout_text(_first(seen.results)))

    def note(self, seen: Seen, verdict: Verdict, before: str, after: str) -> None:
        row = seen.row
        assert row is not None  # on maca the parts of an operator without a row are seen
        key = (seen.name, before, after)
        record = self.records.get(key)
        if record is None:
            kernel = row.kernel_name if row.kind is Kind.KERNEL else ""
            record = self.records[key] = OpRecord(
                seen.name,
                kernel,
                row.kind.value,
                0,
                before,
                after,
                0.0,
                None,
                None,
                verdict.bound,
                verdict.text,
            )
        record.calls += 1
        record.seconds += seen.seconds
        if not verdict.text.startswith("n/a"):
            record.max_ulp = max(record.max_ulp or 0.0, verdict.worst.ulp)
            record.max_rel = max(record.max_rel or 0.0, verdict.worst.relative)
        if not record.verdict.startswith("FAIL"):
            record.verdict = verdict.text if verdict.text.startswith("FAIL") else record.verdict


def _first(found: list[torch.Tensor | None]) -> torch.Tensor | None:
    return next((t for t in found if isinstance(t, torch.Tensor)), None)


def check_step(step: Callable[[], object]) -> list[OpRecord]:
    """Runs ``step()``; every operator of it that reaches maca is also computed on the host in float64.

    Forward, backward and optimizer, in-place, foreach and fused operators included. Returns one record for each
    operator and layout, in order of appearance; a wrong result is in the verdict, it does not raise.
    """
    watch = _Step()
    with watch.watching():
        step()
    return list(watch.records.values())
