"""Operands of different dtypes, with and without dimensions, and numbers: kernels compute in PyTorch's own choice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from macatensor import maca
from macatensor.cli.kernels import kernel_facts
from macatensor.dispatch.promotion import common_dtype
from macatensor.dispatch.signature import read
from op_table import TABLE

_DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64, torch.complex128,
]  # fmt: skip
_REAL = _DTYPES[1:10]
_NUMBERS = [True, 3, 16777217, 300, -1, 2.5, 0.1, 1e-9]


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def tensors(dtypes: list[torch.dtype]) -> st.SearchStrategy[torch.Tensor]:
    """Tensors with and without dimensions whose elements tell in which dtype they were computed."""

    def make(dtype: torch.dtype, shape: tuple[int, ...], start: int) -> torch.Tensor:
        values = torch.tensor([16777217, 3, 255, 0, 1, -2, 2049, 7], dtype=torch.float64).roll(start)
        values = values + (0.1 if dtype.is_floating_point else 0)
        return (
            values[: max(1, shape[-1] if shape else 1)]
            .to(torch.int64 if dtype is torch.uint8 else dtype)
            .to(dtype)
            .reshape(shape if shape else ())
        )

    return st.builds(make, st.sampled_from(dtypes), st.sampled_from([(), (4,), (1,)]), st.integers(0, 7))


def operands(dtypes: list[torch.dtype], numbers: list[Any] = _NUMBERS) -> st.SearchStrategy[Any]:
    return st.one_of(tensors(dtypes), tensors(dtypes), st.sampled_from(numbers))


def common(name: str, *args: Any) -> torch.dtype | None:
    operator, _, overload = name.partition(".")
    func = getattr(getattr(torch.ops.aten, operator), overload or "default")
    return common_dtype(read(func), TABLE[name], list(args))


@given(operands(_DTYPES, [*_NUMBERS, 2j]), operands(_DTYPES, [*_NUMBERS, 2j]), st.booleans())
def test_two_operands_promote_to_the_result_type(a: Any, b: Any, wide: bool) -> None:
    with default_dtype(torch.float64 if wide else torch.float32):
        assert common("eq.Tensor", a, b) == torch.result_type(a, b)


@given(tensors(_REAL), operands(_REAL), operands(_REAL), st.booleans())
def test_three_operands_promote_as_clamp_does(a: torch.Tensor, low: Any, high: Any, wide: bool) -> None:
    tensor = isinstance(low, torch.Tensor)
    if tensor != isinstance(high, torch.Tensor):
        high = torch.tensor(high) if tensor else 2
    with default_dtype(torch.float64 if wide else torch.float32):
        expected = torch.clamp(a, low, high).dtype
        assert common("clamp.Tensor" if tensor else "clamp", a, low, high) == expected


@given(tensors([torch.bool, torch.uint8]), operands(_DTYPES), operands(_DTYPES))
def test_a_condition_does_not_promote(condition: torch.Tensor, a: Any, b: Any) -> None:
    assert common("where.self", condition, a, b) == torch.result_type(a, b)


def test_parameters_do_not_promote() -> None:
    whole = torch.ones(3, dtype=torch.int32)
    assert common("hardtanh", whole, 0.5, 2.5) == torch.int32
    assert common("add.Tensor", whole, whole, 2.5) == torch.int32
    assert common("add.Scalar", whole, 2, 2.5) == torch.int32
    assert common("masked_fill.Scalar", whole, whole > 0, 2.5) == torch.int32


def test_kernels_of_lists_are_told_nothing() -> None:
    lists = [torch.ones(3)], [torch.ones(3)], torch.ones(3)
    assert common("_foreach_add.Tensor", lists[0], lists[2], 1) is None
    assert common("sum", torch.ones(3)) is None


def test_kernel_authors_read_of_the_dtype() -> None:
    assert "common_dtype: ScalarType" in kernel_facts(TABLE["mul.Tensor"])["attributes"]
    assert "common_dtype: ScalarType" not in kernel_facts(TABLE["sum"])["attributes"]


def moved(value: Any) -> Any:
    return maca(value) if isinstance(value, torch.Tensor) else value


def same(name: str, *args: Any, **kwargs: Any) -> None:
    """The same dtype and the same bits as PyTorch's, or its error."""
    function = getattr(torch, name)
    try:
        expected = function(*args, **kwargs)
    except RuntimeError as error:
        with pytest.raises(type(error)):
            function(*map(moved, args), **kwargs)
        return
    got = function(*map(moved, args), **kwargs)
    assert got.dtype == expected.dtype
    torch.testing.assert_close(got.cpu(), expected, rtol=0, atol=0, equal_nan=True)


_BINARY = [
    "add",
    "sub",
    "mul",
    "eq",
    "ne",
    "lt",
    "ge",
    "maximum",
    "minimum",
    "bitwise_and",
    "logical_or",
    "true_divide",
]


@given(st.sampled_from(_BINARY), tensors(_DTYPES), operands(_DTYPES))
def test_mixed_binary_operators_have_pytorchs_bits(name: str, a: torch.Tensor, b: Any) -> None:
    if name in ("maximum", "minimum") and not isinstance(b, torch.Tensor):
        b = torch.tensor(b)
    same(name, a, b)


@given(tensors([torch.bool]), operands(_DTYPES), operands(_DTYPES))
def test_mixed_selection_has_pytorchs_bits(condition: torch.Tensor, a: Any, b: Any) -> None:
    same("where", condition, a, b)


@given(tensors(_REAL), st.one_of(tensors(_REAL), st.none()), st.sampled_from(_NUMBERS), st.booleans())
def test_mixed_clamp_has_pytorchs_bits(a: torch.Tensor, bound: Any, number: Any, low: bool) -> None:
    limit = number if bound is None else bound
    same("clamp", a, limit, None) if low else same("clamp", a, None, limit)


@given(tensors(_DTYPES), tensors([torch.bool]), st.sampled_from(_NUMBERS))
def test_masked_fill_keeps_the_tensors_dtype(a: torch.Tensor, mask: torch.Tensor, number: Any) -> None:
    same("masked_fill", a, mask, number)


@given(st.sampled_from(["add_", "mul_", "sub_", "div_"]), tensors(_DTYPES), operands(_DTYPES))
def test_in_place_results_are_cast_as_pytorch_does(name: str, a: torch.Tensor, b: Any) -> None:
    try:
        expected = getattr(a.clone(), name)(b)
    except RuntimeError:
        with pytest.raises(RuntimeError):
            getattr(maca(a.clone()), name)(moved(b))
        return
    got = getattr(maca(a.clone()), name)(moved(b))
    torch.testing.assert_close(got.cpu(), expected, rtol=0, atol=0, equal_nan=True)


@given(st.sampled_from(["add", "mul"]), tensors(_DTYPES), tensors(_DTYPES), st.sampled_from(_DTYPES))
def test_out_results_are_cast_as_pytorch_does(
    name: str, a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype
) -> None:
    shape = torch.broadcast_shapes(a.shape, b.shape)
    out, out_maca = torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype, device="maca")
    try:
        getattr(torch, name)(a, b, out=out)
    except RuntimeError:
        with pytest.raises(RuntimeError):
            getattr(torch, name)(maca(a), maca(b), out=out_maca)
        return
    getattr(torch, name)(maca(a), maca(b), out=out_maca)
    torch.testing.assert_close(out_maca.cpu(), out, rtol=0, atol=0, equal_nan=True)


def test_comparison_with_a_number_follows_its_kind() -> None:
    whole = torch.tensor([16777216, 16777217, 16777218])
    for number in (16777217, 16777217.0, True, 16777217 + 0j):
        assert torch.equal((maca(whole) == number).cpu(), whole == number)


@pytest.mark.parametrize("name", ["threshold_backward", "hardshrink_backward", "softshrink_backward"])
def test_gradients_of_whole_numbers_promote(name: str) -> None:
    backward = getattr(torch.ops.aten, name).default
    results = [
        backward(torch.tensor([1, 2, 3], device=d), torch.tensor([-2.0, 0.25, 2.0], device=d), 0.5)
        for d in ("cpu", "maca")
    ]
    assert results[1].dtype is torch.float32 and torch.equal(results[0], results[1].cpu())


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float16])
def test_safe_softmax_converts_to_the_dtype_asked(dtype: torch.dtype) -> None:
    x = torch.tensor([[0, 1, 3], [1, 1, 0]], dtype=dtype)
    want = torch._safe_softmax(x, 1, torch.float32)
    torch.testing.assert_close(torch._safe_softmax(x.maca(), 1, torch.float32).cpu(), want)
