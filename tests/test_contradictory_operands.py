"""Operands that contradict each other, given to internal operators directly: an exception, never a crash."""

from __future__ import annotations

from running import run_python

_PROGRAM = """
import faulthandler, itertools, sys, warnings
faulthandler.enable()
warnings.simplefilter("ignore")
import torch
import macatensor
from macatensor.parity.runner import select
from macatensor.parity.samples import overload, samples
from macatensor.parity.transport import place, replace
from op_table import Kind

part, parts = int(sys.argv[1]), int(sys.argv[2])
CHANGES = {
    "cut": lambda t: t[:1] if t.dim() else t,
    "emptied": lambda t: t.new_empty(0),
    "another dimension": lambda t: t.unsqueeze(0),
    "longer": lambda t: torch.cat([t, t]) if t.dim() else t.repeat(3),
    "another dtype": lambda t: t.to(torch.int64 if t.is_floating_point() else torch.float32),
    "large numbers": lambda t: t if t.is_floating_point() or t.is_complex() or t.dtype is torch.bool else t + (1 << 20),
}
rows = [r for r in select() if r.kind is Kind.KERNEL and ("_backward" in r.name or r.name.startswith("_"))]
rows = [r for r in rows if not r.random and not r.name.startswith("_foreach") and not r.name.startswith("_fused")]
calls = 0
for row in rows[part::parts]:
    name = next((d for d in ("float32", "int64") if d in row.dtypes), None)
    if name is None:
        continue
    func = overload(row)
    for call in itertools.islice(samples(row, getattr(torch, name), "contiguous", 0), 3):
        for i, a in enumerate(call.args):
            if not isinstance(a, torch.Tensor):
                continue
            for what, change in CHANGES.items():
                try:
                    wrong = change(a)
                except (RuntimeError, TypeError):
                    continue
                args = [replace(wrong if j == i else b, place) for j, b in enumerate(call.args)]
                print(row.name, i, what, flush=True)
                calls += 1
                try:
                    with macatensor.fallback("error"):
                        result = func(*args, **replace(dict(call.kwargs), place))
                    torch.maca.synchronize()
                except Exception:
                    pass
print("calls", calls)
"""


def _ask(part: int, parts: int) -> None:
    done = run_python(_PROGRAM, str(part), str(parts), timeout=280)
    assert int(done.stdout.split()[-1]) > 300


def test_first_half_of_internal_operators() -> None:
    _ask(0, 2)


def test_second_half_of_internal_operators() -> None:
    _ask(1, 2)
