"""PyTorch's references are called without Dynamo until somebody loads it."""

from __future__ import annotations

from running import run_python

PROGRAM = """
import sys, torch, macatensor
from macatensor.integration.references import _KNOWN, _disabled_functions

functions = _disabled_functions()
assert len(functions) > 100
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.GELU(), torch.nn.Flatten(), torch.nn.Linear(288, 4)
)
x = torch.rand(2, 3, 8, 8)
with torch.no_grad():
    want = torch.nn.functional.softmax(model(x), -1)
got = torch.nn.functional.softmax(model.to("maca")(x.to("maca")), -1)
got.var().backward()
torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-4)
assert "torch._dynamo" not in sys.modules

compiled = torch.compile(lambda t: torch.where(t > 0.5, t.tanh(), t) * 2, fullgraph=True)
t = torch.rand(8, device="maca")
assert "torch._dynamo" in sys.modules
assert not any(vars(f).get(_KNOWN) is f for f in functions)
torch.testing.assert_close(compiled(t).cpu(), torch.where(t > 0.5, t.tanh(), t).mul(2).cpu())
"""


def test_dynamo_is_loaded_by_who_compiles() -> None:
    run_python(PROGRAM)
