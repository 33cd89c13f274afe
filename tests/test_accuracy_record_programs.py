"""Programs that transform, trace, compile or checkpoint run as ever while they are recorded."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from macatensor import accuracy
from macatensor.accuracy.records import Call, read

DEVICES = ("cpu", "maca")


def recorded(folder: Path, program: Any, level: int = 1, **options: Any) -> tuple[Any, list[Call]]:
    with accuracy.record(folder, record_level=level, **options):
        result = program()
    process = read(folder).processes[0]
    assert not process.cut_off
    return result, process.calls


def test_compiled_with_the_eager_backend(tmp_path: Path) -> None:
    x = torch.randn(4)
    function = torch.compile(lambda t: torch.tanh(t) * 2, backend="eager")
    expected = function(x)
    result, calls = recorded(tmp_path, lambda: function(x))
    assert torch.equal(result, expected) and any(c.op == "aten.tanh.default" for c in calls)
    fresh = torch.compile(lambda t: torch.sigmoid(t) * 2, backend="eager")
    result, calls = recorded(tmp_path, lambda: fresh(x))
    assert torch.equal(result, torch.sigmoid(x) * 2) and any(c.op == "aten.sigmoid.default" for c in calls)
    assert torch.equal(fresh(x), torch.sigmoid(x) * 2)


def test_traced(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    x = torch.randn(2, 3)
    plain = torch.jit.trace(model, x)
    traced, calls = recorded(tmp_path, lambda: torch.jit.trace(model, x, check_trace=False))
    assert [n.kind() for n in traced.inlined_graph.nodes()] == [n.kind() for n in plain.inlined_graph.nodes()]
    torch.testing.assert_close(traced(torch.ones(5, 3)), model(torch.ones(5, 3)))
    assert any(c.op == "torch.nn.functional.linear" for c in calls)


def test_transforms(tmp_path: Path) -> None:
    w, x = torch.randn(3), torch.randn(5, 3)

    def program() -> Any:
        loss = lambda w, x: torch.tanh(w * x).sum()  # noqa: E731
        per_sample = torch.func.vmap(torch.func.grad(loss), (None, 0))(w, x)
        return (
            per_sample,
            torch.func.jvp(torch.sin, (w,), (w,)),
            torch.func.hessian(lambda v: loss(v, x[0]))(w),
        )

    result, calls = recorded(tmp_path, program)
    expected = program()
    for a, b in zip(torch.utils._pytree.tree_leaves(result), torch.utils._pytree.tree_leaves(expected)):
        assert torch.equal(a, b)
    tanh = next(c for c in calls if c.op == "torch.tanh")
    assert tanh.outputs[0].tensor is not None and tanh.outputs[0].tensor.hash is not None


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode: Any, device: str, tmp_path: Path) -> None:
    model = nn.Conv2d(2, 3, 3).to(device)
    x = torch.randn(1, 2, 5, 5).to(device)

    def program() -> Any:
        with mode():
            y = model(x)
            return y.mul_(2)

    result, calls = recorded(tmp_path, program)
    assert torch.equal(result.cpu(), program().cpu())
    call = next(c for c in calls if c.op == "torch.Tensor.mul_")
    assert call.outputs[0].tensor is not None and call.inputs[0].tensor is not None
    assert call.outputs[0].tensor.norm == pytest.approx(2 * call.inputs[0].tensor.norm)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint(reentrant: bool, device: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(3, 3).to(device)
    x = torch.randn(2, 3).to(device).requires_grad_()

    def program() -> Any:
        layer.zero_grad()
        checkpoint(lambda t: torch.tanh(layer(t)), x, use_reentrant=reentrant).sum().backward()
        return layer.weight.grad.cpu()

    expected = program()
    result, calls = recorded(tmp_path, program)
    assert torch.equal(result, expected)
    again = [c for c in calls if c.op == "torch.tanh" and c.direction == "fwd"]
    assert len(again) == 2  # the second time in backward
    assert sum(c.op == "torch.tanh" and c.direction == "bwd" for c in calls) == 1


@pytest.mark.parametrize("device", DEVICES)
def test_double_backward_and_autograd_grad(device: str, tmp_path: Path) -> None:
    x = torch.tensor([1.0, 2.0]).to(device).requires_grad_()

    def program() -> Any:
        (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        return second.detach().cpu()

    result, calls = recorded(tmp_path, program)
    assert torch.equal(result, torch.tensor([6.0, 12.0]))
    assert sum(c.direction == "bwd" and c.level == "api" and "pow" in c.op for c in calls) == 1


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return torch.mul(gradient, 2)


def test_functions_of_the_program(tmp_path: Path) -> None:
    x = torch.ones(3, requires_grad=True)
    _, calls = recorded(tmp_path, lambda: torch.tanh(Doubled.apply(x)).sum().backward())
    inside = [
        c for c in calls if c.op == "aten.mul.Tensor" and c.direction == "bwd" and "Doubled" in str(c.node)
    ]
    assert inside or any(c.op == "torch.mul" for c in calls)


def test_errors_are_recorded_and_raised(tmp_path: Path) -> None:
    def program() -> None:
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            nn.Linear(3, 4)(torch.ones(2, 5))
        torch.relu(torch.ones(2))

    _, calls = recorded(tmp_path, program)
    failed = {c.op: c.error for c in calls if c.error}
    assert "mat1 and mat2" in failed["torch.nn.Linear"] and "torch.nn.functional.linear" in failed
    assert next(c for c in calls if c.op == "torch.relu").parent is None


def test_a_failing_block_still_ends_its_record(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="mine"), accuracy.record(tmp_path, record_level=0):
        torch.relu(torch.ones(2))
        raise KeyError("mine")
    assert not read(tmp_path).processes[0].cut_off and torch._C._len_torch_dispatch_stack() == 0


def test_modes_of_the_program_keep_their_order(tmp_path: Path) -> None:
    class Seen(TorchDispatchMode):
        ops: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.ops.append(str(func))
            return func(*args, **(kwargs or {}))

    class Functions(TorchFunctionMode):
        ops: list[str] = []

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.ops.append(getattr(func, "__name__", "?"))
            return func(*args, **(kwargs or {}))

    x = torch.ones(3)
    with Seen(), Functions(), torch.device("cpu"):
        session = accuracy.start_record(output_dir=tmp_path, record_level=1)
        torch.relu(x)
    torch.tanh(x)
    session.stop()
    assert Seen.ops == ["aten.relu.default"] and [n for n in Functions.ops if n != "device"] == ["relu"]
    assert torch._C._len_torch_dispatch_stack() == 0 and torch._C._len_torch_function_stack() == 0
    ops = [c.op for c in read(tmp_path).processes[0].calls]
    assert ops == ["torch.relu", "aten.relu.default", "torch.tanh", "aten.tanh.default"]


def test_fake_tensors_have_no_numbers(tmp_path: Path) -> None:
    from torch._subclasses import FakeTensorMode

    def program() -> None:
        with FakeTensorMode() as mode:
            torch.relu(mode.from_tensor(torch.ones(2)))

    _, calls = recorded(tmp_path, program)
    call = next(c for c in calls if c.op == "torch.relu")
    assert call.outputs[0].tensor is not None and call.outputs[0].tensor.hash is None


def test_subclasses(tmp_path: Path) -> None:
    class Mine(torch.Tensor):
        pass

    x = torch.ones(3).as_subclass(Mine)
    result, calls = recorded(tmp_path, lambda: torch.relu(x))
    assert isinstance(result, Mine)
    call = next(c for c in calls if c.op == "torch.relu")
    assert call.outputs[0].tensor is not None and call.outputs[0].tensor.mean == 1


def test_modules_that_cannot_be_hashed_by_path(tmp_path: Path) -> None:
    class Makes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.ReLU()(x)

    _, calls = recorded(tmp_path, lambda: nn.Sequential(Makes())(torch.ones(2)))
    assert next(c for c in calls if c.op == "torch.nn.ReLU").module == "0.<ReLU>"


@pytest.mark.parametrize("device", DEVICES)
def test_autocast(device: str, tmp_path: Path) -> None:
    layer, x = nn.Linear(4, 4).to(device), torch.randn(2, 4).to(device)

    def program() -> Any:
        with torch.autocast(device, torch.bfloat16):
            return F.gelu(layer(x))

    result, calls = recorded(tmp_path, program, level=2)
    assert torch.equal(result.cpu(), program().cpu()) and result.dtype == torch.bfloat16
    call = next(c for c in calls if c.op == "torch.nn.functional.linear")
    assert call.inputs[0].tensor is not None and call.inputs[0].tensor.dtype == "float32"
    assert call.outputs[0].tensor is not None and call.outputs[0].tensor.dtype == "bfloat16"


# -- what the manual of mcPyTorch's tool (chapter 5.4) says it cannot record ------------------------------------


@dataclasses.dataclass
class Out:
    loss: torch.Tensor
    parts: tuple[torch.Tensor, ...]


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> Out:
        y = self.layer(x) * scale
        return Out(y.sum(), (y, y.detach()))


@pytest.mark.parametrize("device", DEVICES)
def test_limit_of_tuples_dataclasses_and_named_tensors(device: str, tmp_path: Path) -> None:
    model = Several().to(device)
    x, scale = torch.randn(2, 3).to(device), torch.full((3,), 2.0).to(device)
    _, calls = recorded(tmp_path, lambda: model(x, scale=scale).loss.backward())
    call = next(c for c in calls if c.op.endswith("Several"))
    assert {a.place for a in call.inputs} == {"0", "scale"}
    assert {a.place: a.tensor.shape for a in call.outputs if a.tensor} == {
        "loss": [], "parts.0": [2, 3], "parts.1": [2, 3],
    }  # fmt: skip
    given = next(a.tensor for a in call.inputs if a.place == "scale")
    assert given is not None and given.mean == 2
    back = next(c for c in calls if c.op == "torch.nn.Linear" and c.direction == "bwd")
    assert {a.place for a in back.outputs} == {"weight", "bias"} and back.inputs[0].tensor is not None


@pytest.mark.parametrize("device", DEVICES)
def test_limit_dropout(device: str, tmp_path: Path) -> None:
    layer, x = nn.Dropout(0.5), torch.ones(64).to(device).requires_grad_()

    def program() -> torch.Tensor:
        torch.manual_seed(1)
        x.grad = None
        layer(x).sum().backward()
        return x.grad.cpu()  # type: ignore[union-attr]

    expected = program()
    result, calls = recorded(tmp_path, program, level=2)
    assert torch.equal(result, expected)
    forward = next(c for c in calls if c.op == "torch.nn.Dropout" and c.direction == "fwd")
    backward = next(c for c in calls if c.op == "torch.nn.Dropout" and c.direction == "bwd")
    made, gradient = forward.outputs[0].tensor, backward.outputs[0].tensor
    assert made is not None and gradient is not None and made.hash == gradient.hash and made.max == 2
    assert any(c.random for c in calls if c.level == "aten")


@pytest.mark.parametrize("device", DEVICES)
def test_limit_in_place_operators_that_are_differentiated(device: str, tmp_path: Path) -> None:
    x = torch.tensor([-1.0, 2.0]).to(device).requires_grad_()

    def program() -> None:
        y = x * 1
        y.mul_(2)
        y[0] = 3
        y.sum().backward()

    _, calls = recorded(tmp_path, program)
    places = {c.name: [a.tensor.mean for a in c.outputs if a.tensor] for c in calls if c.level == "api"}
    assert places["torch.Tensor.mul_.0.fwd"] == [1] and places["torch.Tensor.__setitem__.0.fwd"] == [3.5]
    assert places["torch.Tensor.mul_.0.bwd"] == [1]  # of [0, 1], twice


@pytest.mark.parametrize("device", DEVICES)
def test_limit_operators_newer_than_its_lists(device: str, tmp_path: Path) -> None:
    x = torch.randn(2, 8).to(device)
    _, calls = recorded(tmp_path, lambda: F.rms_norm(x, (8,)))  # PyTorch 2.4
    call = next(c for c in calls if c.op == "torch.nn.functional.rms_norm")
    assert call.outputs[0].tensor is not None and call.outputs[0].tensor.norm == pytest.approx(4, rel=1e-3)
    assert any(c.parent == call.number and c.level == "aten" for c in calls)


@pytest.mark.parametrize("device", DEVICES)
def test_limit_operators_of_the_program(device: str, tmp_path: Path) -> None:
    @torch.library.custom_op("macatensor_test_limits::thrice", mutates_args=())
    def thrice(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    x = torch.ones(2).to(device)
    result, calls = recorded(tmp_path, lambda: thrice(x))
    assert torch.equal(result.cpu(), torch.full((2,), 3.0))
    call = next(c for c in calls if "thrice" in c.op)
    assert call.outputs[0].tensor is not None and call.outputs[0].tensor.mean == 3


def test_no_hook_of_modules_is_left(tmp_path: Path) -> None:
    """torch.compile warns of any."""
    recorded(tmp_path, lambda: nn.Linear(3, 4)(torch.ones(3)))
    assert not torch.nn.modules.module._has_any_global_hook()
