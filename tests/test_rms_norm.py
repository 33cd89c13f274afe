"""``rms_norm`` as one launch, and where PyTorch takes it apart."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad

from macatensor.runtime.counters import counters, reset_counters
from macatensor.runtime.tensor import MacaTensor

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def launches(call: Callable[[], object]) -> int:
    call()
    reset_counters()
    call()
    return counters()["launches"]


def test_a_step_is_two_launches() -> None:
    x = torch.randn(5, 70).maca().requires_grad_()
    weight, gradient = torch.randn(70).maca().requires_grad_(), torch.randn(5, 70).maca()
    assert launches(lambda: F.rms_norm(x, (70,), weight)) == 1
    y = F.rms_norm(x, (70,), weight)
    assert launches(lambda: torch.autograd.grad(y, (x, weight), gradient, retain_graph=True)) == 1


def test_no_dimension_is_all_of_them() -> None:
    """To the mean that PyTorch's own is made of; statistics of other rows are refused, where there are no elements as well."""
    x = torch.randn(4, 3, 7)
    found = torch.ops.aten._fused_rms_norm(x.maca(), [], None, 1e-5)
    for ours, expected in zip(found, torch.ops.aten._fused_rms_norm(x, [], None, 1e-5)):
        assert ours.shape == expected.shape
        assert torch.allclose(ours.cpu(), expected)
    for rows in ((4, 3, 7), (4, 1, 1)):
        with pytest.raises(RuntimeError, match="differ in shape"):
            torch.ops.aten._fused_rms_norm_backward(
                x.maca(), x.maca(), [], torch.ones(rows).maca(), None, [True] * 2
            )


@pytest.mark.parametrize("dtype", FLOATS)
def test_what_is_added_by_default(dtype: torch.dtype) -> None:
    """The epsilon of the dtype that is computed in: of halves float32's. Beside it these squares are small."""
    x = torch.full((3, 40), 1e-9 if dtype is torch.float64 else 2.0**-13, dtype=dtype)
    expected = F.rms_norm(x, (40,))
    assert torch.allclose(F.rms_norm(x.maca(), (40,)).cpu(), expected, 2 * torch.finfo(dtype).eps, 0)
    assert torch.allclose(
        torch.nn.RMSNorm(40).to("maca", dtype)(x.maca()).cpu(), expected, 4 * torch.finfo(dtype).eps, 0
    )


@pytest.fixture
def every_warning() -> Iterator[None]:
    """PyTorch says it each time, not once in a process."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


@pytest.mark.usefixtures("every_warning")
@pytest.mark.parametrize(
    "kind", ["channels last", "complex", "weight of another dtype", "nothing", "one number"]
)
def test_what_pytorch_takes_apart(kind: str) -> None:
    torch.manual_seed(0)
    weight: torch.Tensor | None = None
    if kind == "channels last":
        x = torch.randn(2, 6, 5, 7).to(memory_format=torch.channels_last)
    elif kind == "complex":
        x = torch.randn(4, 7, dtype=torch.complex64)
    elif kind == "weight of another dtype":
        x, weight = torch.randn(4, 7, dtype=torch.bfloat16), torch.randn(7)
    else:
        x = torch.randn(0, 7) if kind == "nothing" else torch.randn(7)
    with warnings.catch_warnings(record=True) as theirs:
        warnings.simplefilter("always")
        expected = F.rms_norm(x, (7,), weight, 1e-5)
    with warnings.catch_warnings(record=True) as ours:
        warnings.simplefilter("always")
        result = F.rms_norm(x.maca(), (7,), None if weight is None else weight.maca(), 1e-5)
    assert (result.dtype, result.stride()) == (expected.dtype, expected.stride())
    assert torch.allclose(result.cpu(), expected, 1e-2 if x.dtype is torch.bfloat16 else 1e-5, 0)
    assert [str(w.message) for w in ours] == [str(w.message) for w in theirs]


def test_transformed() -> None:
    """Under ``vmap``, forward derivatives and a second derivative."""
    torch.manual_seed(0)
    x, tangent = torch.randn(3, 4, 6, dtype=torch.float64), torch.randn(3, 4, 6, dtype=torch.float64)
    weight = torch.randn(3, 6, dtype=torch.float64)

    def values(of: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
        a, w = of(x), of(weight)
        found = [torch.vmap(lambda a, w: F.rms_norm(a, (6,), w, 1e-5))(a, w)]
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(a, of(tangent))
            found.append(forward_ad.unpack_dual(F.rms_norm(dual, (6,), w[0], 1e-5)).tangent)
        a = a.detach().requires_grad_()
        first = torch.autograd.grad(F.rms_norm(a, (6,), w[0], 1e-5).sin().sum(), a, create_graph=True)[0]
        return [*found, *torch.autograd.grad((first * first).sum(), a)]

    for ours, theirs in zip(values(MacaTensor.maca), values(torch.clone), strict=True):
        assert torch.allclose(ours.cpu(), theirs, 1e-12, 1e-13)


def test_wrong_operands() -> None:
    for x, shape, weight in [
        (torch.randn(4, 7), (6,), None),
        (torch.randn(4, 7), (), None),
        (torch.randn(4, 7), (7,), torch.randn(6)),
        (torch.arange(8), (8,), None),
    ]:
        with pytest.raises(Exception) as theirs:
            F.rms_norm(x, shape, weight)
        with pytest.raises(type(theirs.value)) as ours:
            F.rms_norm(x.maca(), shape, None if weight is None else weight.maca())
        assert str(ours.value) == str(theirs.value)
