"""Wrong fused programs are found, named and taken apart, by who asks."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from running import run_python

import macatensor
from macatensor.compiling.backend import maca

DRIVER = """
import ctypes, json, os, warnings
import torch, macatensor
from macatensor.compiling.backend import maca
library = ctypes.CDLL(os.environ["MACA_LIBRARY"])
assert library.interposer_fault(b"wrong_program")

def function(x):
    y = ((x * 2 + 1).relu() - 0.5).cumsum(0)
    return (y / 3).exp() + 1, x.sum()

x = torch.randn(65, generator=torch.Generator().manual_seed(1)).to("maca")
expected = function(x)
found = {}
for check in (False, True):
    torch._dynamo.reset()
    macatensor.reset_counters()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled = torch.compile(function, backend=maca, options={"check": check})
        for _ in range(2):
            result = compiled(x)
    found[str(check)] = {
        "right": all(torch.equal(a, b) for a, b in zip(result, expected)),
        "warnings": [str(w.message) for w in caught if "fused" in str(w.message)],
        "apart": macatensor.counters()["programs_taken_apart"],
    }
print(json.dumps(found))
"""


BROKEN = """
import ctypes, os
import torch, macatensor
if "MACA_INTERPOSER_TARGET" in os.environ:
    assert ctypes.CDLL(os.environ["MACA_LIBRARY"]).interposer_fault(b"wrong_program")
compiled = torch.compile(lambda x: ((x @ x).softmax(-1) * 2 + 1).relu(), backend="maca")
try:
    compiled(torch.ones(4, 4, device="maca"))
except Exception as error:
    print(error.__cause__ or error)
"""


def test_the_minifier_sees_a_wrong_program(interposer: Path, tmp_path: Path) -> None:
    """And the file that it writes runs: without the fault it finds nothing."""
    target = macatensor.device.library_info()["path"]
    asked = {"TORCHDYNAMO_REPRO_AFTER": "dynamo", "TORCHDYNAMO_REPRO_LEVEL": "4",
             "TORCH_COMPILE_DEBUG_DIR": str(tmp_path)}  # fmt: skip
    right = run_python(BROKEN, **asked)
    assert "Bad accuracy" not in right.stdout and "runtime exception" not in right.stderr
    wrong = run_python(BROKEN, MACA_LIBRARY=interposer, MACA_INTERPOSER_TARGET=target, **asked)
    assert "Bad accuracy detected" in wrong.stdout
    (launcher,) = tmp_path.rglob("minifier_launcher.py")
    said = subprocess.run(
        [sys.executable, launcher], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert "Input graph does not fail accuracy testing" in said.stderr


def test_wrong_programs_are_taken_apart(interposer: Path) -> None:
    target = macatensor.device.library_info()["path"]
    done = run_python(DRIVER, MACA_LIBRARY=interposer, MACA_INTERPOSER_TARGET=target)
    found = json.loads(done.stdout)
    assert not found["False"]["right"] and found["True"]["right"]
    assert found["False"]["apart"] == 0 and found["True"]["apart"] == 2
    first, second = found["True"]["warnings"]
    assert "mul, add, relu, sub is wrong" in first and "div, exp, add is wrong" in second


TOOLS = """
import ctypes, json, os
import torch, macatensor
from macatensor import accuracy
if "MACA_INTERPOSER_TARGET" in os.environ:
    assert ctypes.CDLL(os.environ["MACA_LIBRARY"]).interposer_fault(b"wrong_program")

def function(x):
    y = ((x * 2 + 1).relu() - 0.5).cumsum(0)
    return (y / 3).exp() + 1, x.sum(), x[x > 0]

model = torch.nn.Linear(4, 4).to("maca")
compiled, trained = torch.compile(function), torch.compile(lambda x: (model(x).sigmoid() * 2).sum())
x = torch.randn(65, generator=torch.Generator().manual_seed(1)).to("maca")

def program():
    torch.manual_seed(1)
    for _ in range(2):
        compiled(x)
        trained(x[:64].view(16, 4)).backward()
    return torch.rand(2, device="maca").tolist()

expected = program()
found = accuracy.bisect(program, try_repro=False)
with accuracy.parity() as errors:
    assert program() == expected
assert found.finding is None and not errors.failures and errors.calls, (found, errors)
print(json.dumps([[str(w) for w in report.programs] for report in (found, errors)]))
assert ("is wrong" in str(found)) == ("FAIL" in str(errors)) == bool(found) == bool(errors.programs)
"""


def test_tools_judge_programs_beside_operators(interposer: Path) -> None:
    """Of a graph that runs in parts, too; what the program itself sees is as without them."""
    assert json.loads(run_python(TOOLS).stdout) == [[], []]
    target = macatensor.device.library_info()["path"]
    done = run_python(TOOLS, MACA_LIBRARY=interposer, MACA_INTERPOSER_TARGET=target)
    for said in json.loads(done.stdout):
        assert any("mul, add, relu, sub is wrong" in s for s in said)
        assert any("sigmoid, mul" in s for s in said)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.nn.functional.dropout(x * 2 + 1, 0.5).relu(),
        lambda x: (x.mul_(2).add_(1).relu() * 3, x.bfloat16().exp().float() * 2),
        lambda x: (x.exp().sin() / 0).nan_to_num() + (x > 0).float(),
    ],
    ids=["random", "writes", "not finite"],
)
def test_right_programs_stay(function: Any) -> None:
    def inputs() -> torch.Tensor:
        torch.manual_seed(2)
        return torch.randn(33, generator=torch.Generator().manual_seed(1)).to("maca")

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=maca, options={"check": True}, fullgraph=True)
    before = macatensor.counters()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for _ in range(2):
            x, y = inputs(), inputs()
            torch.manual_seed(2)
            expected = function(x)
            torch.manual_seed(2)
            torch.testing.assert_close(compiled(y), expected, rtol=0, atol=0, equal_nan=True)
            assert torch.equal(x, y)
    after = macatensor.counters()
    assert after["programs_taken_apart"] == before["programs_taken_apart"]
    assert after["tapes"] == before["tapes"] + 1
