"""Shapes, broadcasting, layouts and values that hypothesis thinks of, against the rows' bounds.

tests/test_parity.py draws every row from a fixed seed; here the search is wide and the families few.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from macatensor.parity.draw import Call
from macatensor.parity.reference import expected, judge
from macatensor.parity.samples import describe, overload
from macatensor.parity.transport import fetch, place, replace, tensors
from op_table import TABLE

_FLOATS = ["float32", "float64", "float16", "bfloat16"]
_INTEGERS = ["int64", "int32", "int16", "int8", "uint8"]

_UNARY = [
    "abs", "neg", "relu", "exp", "log", "sqrt", "tanh", "sigmoid", "sin", "cos", "floor", "isnan", "sign", "erf",
    "reciprocal", "rsqrt", "expm1", "log1p", "gelu", "silu",
]  # fmt: skip
_BINARY = [
    "add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "maximum", "minimum", "eq.Tensor", "lt.Tensor", "ge.Tensor",
    "logical_and", "atan2", "fmax", "hypot", "pow.Tensor_Tensor",
]  # fmt: skip
_REDUCTIONS = [
    "sum.dim_IntList",
    "mean.dim",
    "amax",
    "amin",
    "any.dims",
    "all.dims",
    "logsumexp",
    "linalg_vector_norm",
]

_sizes = st.lists(st.integers(0, 7), max_size=4).map(tuple)


@st.composite
def operand(draw, size, dtype: str, finite: bool = False, nonzero: bool = False):
    """A tensor of ``size``: values, order of dimensions in memory, steps, offset, expanded dimensions."""
    kind = getattr(torch, dtype)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    rank = len(size)
    expanded = draw(st.sets(st.integers(0, rank - 1), max_size=1)) if rank else set()
    stored = tuple(1 if d in expanded and n else n for d, n in enumerate(size))
    steps = tuple(draw(st.sampled_from([1, 1, 2, 3])) for _ in stored)
    order = draw(st.permutations(range(rank)))
    offset = draw(st.integers(0, 3))
    memory = tuple(stored[d] * steps[d] for d in order)
    count = torch.Size(memory).numel() + offset
    if kind.is_floating_point:
        flat = torch.randn(count, generator=generator, dtype=torch.float64) * 2.0 ** draw(st.integers(-6, 3))
        if not finite and count and draw(st.booleans()):
            special = torch.tensor(
                [float("nan"), float("inf"), -float("inf"), 0.0, -0.0], dtype=torch.float64
            )
            where = torch.randint(0, count, (max(1, count // 5),), generator=generator)
            flat[where] = special[torch.randint(0, 5, where.shape, generator=generator)]
        flat = flat.to(kind)
    elif kind is torch.bool:
        flat = torch.randint(0, 2, (count,), generator=generator).bool()
    else:
        low = 0 if dtype == "uint8" else -9
        flat = torch.randint(low, 10, (count,), generator=generator).to(kind)
        if nonzero:
            flat[flat == 0] = 1
    t = flat[offset:].reshape(memory)
    inverse = [order.index(d) for d in range(rank)]
    t = t.permute(inverse)
    for d in range(rank):
        t = t[(slice(None),) * d + (slice(None, None, steps[d]),)]
    return t.expand(size)


@st.composite
def broadcast_pair(draw):
    """Two sizes that broadcast."""
    size = draw(_sizes)
    second = [1 if draw(st.integers(0, 3)) == 0 else n for n in size]
    first = [1 if draw(st.integers(0, 5)) == 0 else n for n in size]
    return tuple(first), tuple(second[draw(st.integers(0, len(second))):])  # fmt: skip


def check(name: str, *args, **kwargs) -> None:
    row = TABLE[name]
    func = overload(row)
    want = expected(func, row, args, kwargs)
    assume(want.exact)
    ours_args, ours_kwargs = replace((args, kwargs), place)
    with torch.no_grad():
        results = tensors(func(*ours_args, **ours_kwargs))
    got = [fetch(t) for t in results + [t for t in tensors((ours_args, ours_kwargs)) if t is not None]]
    call = Call(args, kwargs)
    _, wrong = judge(row, want, got, args)
    shown = ", ".join(
        [describe(a) for a in call.args] + [f"{k}={describe(v)}" for k, v in call.kwargs.items()]
    )
    assert not wrong, f"{name}({shown}): {wrong[0]}; bound {row.bound}"
    sizes = {t.shape for t in tensors((args, kwargs)) if t is not None}
    for have, theirs in zip(results, want.native or []):
        # of broadcast operands PyTorch's CPU and meta kernels order dimensions differently
        if theirs is not None and have.numel() and sizes == {have.shape} and row.elementwise:
            ours = [s for n, s in zip(have.shape, have.stride()) if n > 1]
            assert ours == [s for n, s in zip(theirs.shape, theirs.stride()) if n > 1], (
                f"{name}({shown}): strides"
            )


@pytest.mark.parametrize("name", _UNARY)
@given(data=st.data())
def test_unary(name, data) -> None:
    dtype = data.draw(st.sampled_from([d for d in _FLOATS + _INTEGERS if d in TABLE[name].dtypes]))
    x = data.draw(operand(data.draw(_sizes), dtype))
    check(name, x)


@pytest.mark.parametrize("name", _BINARY)
@given(data=st.data())
def test_binary(name, data) -> None:
    floats = [d for d in _FLOATS if d in TABLE[name].dtypes]
    whole = [d for d in _INTEGERS if d in TABLE[name].dtypes] if name not in ("pow.Tensor_Tensor",) else []
    dtype = data.draw(st.sampled_from(floats + whole))
    first, second = data.draw(broadcast_pair())
    a = data.draw(operand(first, dtype))
    b = data.draw(operand(second, dtype, nonzero=True))
    check(name, a, b)


@given(data=st.data())
def test_mixed_dtypes(data) -> None:
    name = data.draw(
        st.sampled_from(["add.Tensor", "mul.Tensor", "div.Tensor", "maximum", "lt.Tensor", "where.self"])
    )
    first, second = data.draw(broadcast_pair())
    a = data.draw(operand(first, data.draw(st.sampled_from(_FLOATS + _INTEGERS)), finite=True))
    b = data.draw(operand(second, data.draw(st.sampled_from(_FLOATS + _INTEGERS)), finite=True, nonzero=True))
    if name == "where.self":
        check(name, data.draw(operand(second, "bool")), a, b)
    else:
        check(name, a, b)


@pytest.mark.parametrize("name", _REDUCTIONS)
@given(data=st.data())
def test_reduction(name, data) -> None:
    kinds = [d for d in _FLOATS + ["int64", "uint8"] if d in TABLE[name].dtypes]
    size = data.draw(_sizes)
    x = data.draw(operand(size, data.draw(st.sampled_from(kinds))))
    dims = (
        data.draw(st.lists(st.integers(0, max(len(size) - 1, 0)), unique=True, max_size=len(size)))
        if size
        else []
    )
    if name in ("amax", "amin", "logsumexp", "linalg_vector_norm"):
        assume(x.numel())
    keepdim = data.draw(st.booleans())
    if name == "linalg_vector_norm":
        check(name, x, data.draw(st.sampled_from([2, 1, float("inf")])), dims or None, keepdim)
    else:
        check(name, x, dims, keepdim)


@given(data=st.data())
def test_copy_and_cast(data) -> None:
    x = data.draw(
        operand(data.draw(_sizes), data.draw(st.sampled_from(_FLOATS + _INTEGERS + ["bool"])), finite=True)
    )
    forms = [torch.contiguous_format, torch.preserve_format] + ([torch.channels_last] if x.dim() == 4 else [])
    check("clone", x, memory_format=data.draw(st.sampled_from(forms)))
    if x.dtype.is_floating_point or x.dtype is torch.bool:
        check("_to_copy", x, dtype=getattr(torch, data.draw(st.sampled_from(_FLOATS))))


@given(data=st.data())
def test_matrix_product(data) -> None:
    m, k, n = (data.draw(st.integers(0, 9)) for _ in range(3))
    dtype = data.draw(st.sampled_from([*_FLOATS, "int32"]))
    check(
        "mm", data.draw(operand((m, k), dtype, finite=True)), data.draw(operand((k, n), dtype, finite=True))
    )


@given(data=st.data())
def test_cat(data) -> None:
    size = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    dim = data.draw(st.integers(0, len(size) - 1))
    dtype = data.draw(st.sampled_from(["float32", "bfloat16", "int64", "bool"]))
    parts = []
    for _ in range(data.draw(st.integers(1, 4))):
        part = list(size)
        part[dim] = data.draw(st.integers(0, 3))
        parts.append(data.draw(operand(tuple(part), dtype)))
    row, func = TABLE["cat"], overload(TABLE["cat"])
    want = expected(func, row, (parts, dim), {})
    with torch.no_grad():
        got = fetch(func([place(p) for p in parts], dim))
    _, wrong = judge(row, want, [got], (parts, dim))
    assert not wrong, wrong
