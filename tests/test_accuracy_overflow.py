"""NaN and infinity are found where they are made; float16's two ends are counted; one-ULP steps of inputs."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from macatensor import accuracy
from macatensor.accuracy.local.overflows import NonFiniteError
from macatensor.accuracy.local.perturbations import moved_by_one


@pytest.mark.parametrize("device", ["maca", "cpu"])
def test_the_first_nan_of_a_forward_pass(device: str, tmp_path: Path) -> None:
    x = torch.tensor([1.0, 0.0]).to(device)
    with pytest.raises(NonFiniteError, match="div.Tensor makes 1 NaN from inputs without") as caught:
        with accuracy.overflow(output_dir=tmp_path) as seen:
            y = x * 2
            (y / x).exp()
    event = caught.value.event
    assert seen.first is event and event.op == "div.Tensor" and event.number == 1
    assert event.origin.direction == "fwd" and event.origin.line.startswith(f"{__file__}:")
    assert [t.tolist() for t in event.inputs] == [[2.0, 0.0], [1.0, 0.0]]
    assert [t.tolist() for t in load_file(event.file).values()] == [[2.0, 0.0], [1.0, 0.0]]
    facts = json.loads(event.file.with_suffix(".json").read_text())
    assert facts["nan"] == 1 and any(__file__ in frame for frame in facts["stack"])


def test_in_backward_the_forward_line_is_named() -> None:
    x = torch.tensor([0.0, 4.0]).maca().requires_grad_()
    with pytest.raises(NonFiniteError) as caught, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # autograd's own traceback
        with accuracy.overflow():
            x.sqrt().sum().backward()
    event = caught.value.event
    assert event.inf == 1 and event.origin.direction == "bwd" and event.origin.node == "SqrtBackward0"
    assert event.origin.line.endswith("test_in_backward_the_forward_line_is_named")


def test_all_are_listed_but_what_was_there() -> None:
    x = torch.tensor([1.0, 0.0]).maca()
    with accuracy.overflow(stop=False) as seen:
        y = x / x  # NaN
        (y + 1).exp()
        x.masked_fill(x > 0, -torch.inf).exp()  # given, not made
        torch.full((2,), torch.inf, device="maca") * 2
        x.log()  # -inf
        x[:0].log()
    assert [(e.op, e.nan, e.inf) for e in seen.events] == [("div.Tensor", 1, 0), ("log", 0, 1)]
    assert "div.Tensor makes 1 NaN" in str(seen) and seen.calls > 5
    with accuracy.overflow(stop=False, most=1) as seen:
        x.log(), x.log()
    assert len(seen.events) == 1


def test_infinity_that_becomes_nan_is_new() -> None:
    x = torch.tensor([float("inf"), 1.0]).maca()
    with accuracy.overflow(stop=False) as seen:
        x - x
    assert [(e.op, e.nan) for e in seen.events] == [("sub.Tensor", 1)]


def test_written_operands_are_looked_at() -> None:
    x = torch.tensor([3e38, 1.0]).maca()
    with pytest.raises(NonFiniteError, match="mul_.Tensor makes 1 Inf"), accuracy.overflow():
        x.mul_(2)
    with pytest.raises(NonFiniteError, match="_foreach_mul_.Scalar makes 1 Inf"), accuracy.overflow():
        torch._foreach_mul_([torch.tensor([3e38]).maca()], 3.0)


def test_both_ends_of_float16_are_counted() -> None:
    large = torch.tensor([30000.0, 40000.0, 60000.0]).half().maca()
    small = torch.tensor([1e-4, 1e-2]).half().maca().requires_grad_()
    with accuracy.overflow() as seen:
        large * 1.0
        (small * 1e-3).sum().backward()
        (small * small * 1e-4).sum().backward()
    counts = seen.halves["mul.Tensor"]
    assert counts.near_overflow == 2
    assert counts.flushed == 2 and counts.subnormal >= 2 and counts.gradients >= 4
    assert "2 of" in str(seen) and "above 32752" in str(seen)


def test_an_error_of_the_program_passes_through() -> None:
    with pytest.raises(ZeroDivisionError), accuracy.overflow():
        raise ZeroDivisionError
    with pytest.raises(ValueError, match="accepted: maca, cuda, cpu"), accuracy.overflow(device="x"):
        pass


# --- one unit in the last place


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_elements_move_by_one_unit(dtype: torch.dtype) -> None:
    x = torch.tensor([1.5, -3.25, 0.0, float("inf"), float("nan"), 1e-3]).to(dtype)
    moved = moved_by_one(x, torch.Generator().manual_seed(0))
    up, down = (
        torch.nextafter(x, torch.tensor(torch.inf).to(dtype)),
        torch.nextafter(x, torch.tensor(-torch.inf).to(dtype)),
    )
    plain = torch.tensor([0, 1, 5])
    assert bool(((moved == up) | (moved == down))[plain].all())
    assert moved[2] == 0 and moved[3] == torch.inf and moved[4].isnan()
    assert torch.equal(moved_by_one(plain, torch.Generator()), plain)
    wide = torch.ones(1, dtype=dtype).expand(5)
    assert moved_by_one(wide, torch.Generator()).unique().numel() == 1
    assert moved_by_one(x.to(torch.complex64), torch.Generator())[0].real != 1.5


def test_unstable_operators_are_told_from_steady_ones() -> None:
    x = torch.rand(6, 6).maca()
    nearly = torch.ones(3, 3).maca() + 1e-5 * torch.rand(3, 3).maca()
    moved = accuracy.perturbation(lambda: ((x @ x).tanh(), torch.linalg.inv(nearly)))
    assert moved.verdict == "unstable model" and [c.op for c in moved.unstable] == ["linalg_inv_ex"]
    assert all(c.gain < 3 for c in moved.calls if c.op in ("mm", "tanh"))
    with accuracy.perturbation(op_list=["mm"]) as moved:
        x @ x + 1
    assert moved.verdict == "steady" and [c.op for c in moved.calls] == ["mm"]
    assert "gain" in str(moved)


def test_a_wrong_kernel_is_not_called_unstable() -> None:
    from macatensor.runtime.tensor import MacaTensor

    plain = MacaTensor.__dict__["__torch_dispatch__"]

    def wrong(func, types, args=(), kwargs=None):
        result = plain(func, types, args, kwargs)
        if func is torch.ops.aten.tanh.default:
            return plain(torch.ops.aten.mul.Tensor, types, (result, 1.001), None)
        return result

    x = torch.rand(6, 6).maca()
    type.__setattr__(MacaTensor, "__torch_dispatch__", staticmethod(wrong))
    try:
        moved = accuracy.perturbation(lambda: (x @ x).tanh())
    finally:
        type.__setattr__(MacaTensor, "__torch_dispatch__", plain)
    assert moved.verdict == "wrong kernel" and [c.op for c in moved.wrong] == ["tanh"]


def test_a_clean_training_step_is_steady() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2)).to("maca")
    x = torch.randn(4, 6).maca()
    moved = accuracy.perturbation(lambda: model(x).square().mean().backward())
    assert not moved.wrong, str(moved)
    assert len(moved.calls) > 8 and moved.skipped


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: torch.full((2,), 300.0, device="maca", dtype=torch.float16) * 300, "float16 ends at 65504"),
        (lambda: torch.ones(2, device="maca") / torch.zeros(2, device="maca"), "a divisor is zero"),
        (lambda: torch.zeros(2, device="maca").log(), "zero or negative"),
    ],
    ids=["float16", "division", "logarithm"],
)
def test_a_remedy_is_named(make: Callable[[], torch.Tensor], words: str) -> None:
    with pytest.raises(NonFiniteError, match=words), accuracy.overflow():
        make()


def test_a_program_beside_the_device_is_told() -> None:
    for judge in (accuracy.parity, accuracy.perturbation):
        with pytest.raises(ValueError, match="<lambda> runs no operator on a maca tensor; move"):
            judge(lambda: torch.ones(3) + 1, device="maca")
        with pytest.warns(UserWarning, match="the block runs no operator on a maca tensor"):
            with judge(device="maca"):
                torch.ones(3) + 1
