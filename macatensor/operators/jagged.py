"""Nested tensors of layout ``torch.jagged``: PyTorch's class of Python holds values and offsets, which lie on the device.

Its operators are PyTorch's Python over operators of dense tensors. Here is what those lack: the ways between packed and
padded sequences, and attention, for which PyTorch goes by nested tensors of C++ that need memory of the host.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from macatensor.dispatch.launcher import special
from macatensor.operators.composites import composite
from macatensor.operators.dynamic import dynamic
from macatensor.runtime.after_import import after_import
from macatensor.runtime.boxed import Arguments, Keywords, Launcher, Value

_OPS = "torch.nested._internal.ops"
_NO_WAY = "No viable backend for scaled_dot_product_attention was found."


def _ends(name: str, offsets: list[Tensor]) -> Tensor:
    """The only offsets, int [batch + 1]. Raises RuntimeError as PyTorch's CPU kernels do."""
    if len(offsets) != 1:
        raise RuntimeError(f"{name}(): only a single jagged dim is supported for now")
    if offsets[0].dim() != 1:
        raise RuntimeError(f"{name}(): expected 1D offsets, but got offsets.dim() == {offsets[0].dim()}")
    return offsets[0]


def _filling(number: float, dtype: torch.dtype) -> float:
    """The number as C++ casts it to a dtype, without asking whether it fits; of an infinity bool and integers have the end
    of their range."""
    if dtype.is_floating_point or dtype.is_complex or abs(number) != float("inf"):
        return torch.tensor(number, dtype=torch.float64, device="cpu").to(dtype).item()
    if dtype is torch.bool:
        return float(number > 0)
    limits = torch.iinfo(dtype)
    return limits.max if number > 0 else limits.min


@composite
def jagged_to_padded(
    values: Tensor, offsets: list[Tensor], max_lengths: list[int], padding_value: float = 0.0
) -> Tensor:
    """[batch, length, *]: of ``values`` [total, *] the rows ``offsets[i]`` to ``offsets[i + 1]``, then the padding.

    Sequences longer than ``length`` are cut. Nothing is read from the device. Raises RuntimeError for several jagged
    dimensions. After ``_jagged_to_padded_dense_forward_cpu`` of PyTorch.
    """
    ends = _ends("_jagged_to_padded_dense_forward", offsets)
    batch, total, rest = ends.shape[0] - 1, values.shape[0], values.shape[1:]
    size = (batch, max_lengths[0], *rest)
    padding = _filling(padding_value, values.dtype)
    if values.numel() == 0 or batch * max_lengths[0] == 0:
        return values.new_full(size, padding)
    place = torch.arange(max_lengths[0], device=values.device)
    is_padding = place >= ends.diff().unsqueeze(1)
    at = (ends[:-1].unsqueeze(1) + place).clamp_(0, total - 1)
    padded = values.index_select(0, at.flatten()).reshape(size)
    return padded.masked_fill_(is_padding.reshape(batch, max_lengths[0], *[1] * len(rest)), padding)


@dynamic
def padded_to_jagged(dense: Tensor, offsets: list[Tensor], total_L: int | None = None) -> Tensor:
    """[total, *]: of each ``dense[i]`` [length, *] the first rows, as many as from ``offsets[i]`` to ``offsets[i + 1]``.

    Raises RuntimeError where the offsets end elsewhere than at ``total_L`` or a sequence is longer than ``length``. After
    ``_padded_dense_to_jagged_forward_cpu`` of PyTorch.
    """
    name = "_padded_dense_to_jagged_forward"
    ends = _ends(name, offsets)
    if dense.dim() < 2:
        raise RuntimeError(f"{name}(): expected padded dim >= 2, but padded.dim() == {dense.dim()}")
    at: list[int] = ends.tolist()
    total, length = at[-1], dense.shape[1]
    if total_L is not None and total_L != total:
        raise RuntimeError(f"{name}(): final offset should match total_L value")
    for first, last in zip(at, at[1:]):
        if last - first > length:
            raise RuntimeError(
                f"{name}(): found batch item of length {last - first} when max length specified by padded input is "
                f"{length}"
            )
    result = (total, *dense.shape[2:])
    if dense.numel() == 0 or total == 0:
        return dense.new_empty(result)
    # a row of what is packed lies so much further on in what is padded
    shift = torch.tensor([i * length - first for i, first in enumerate(at[:-1])], device=dense.device)
    row = torch.arange(total, dtype=ends.dtype, device=dense.device)
    place = row + shift.index_select(0, torch.searchsorted(ends[1:], row, right=True))
    if at[0] != 0:
        place = place.clamp(min=0)  # rows before the first sequence hold anything
    return dense.flatten(0, 1).index_select(0, place)


@special("aten._nested_get_jagged_dummy.default")
def _dummy(func: OpOverload) -> Launcher:
    """The nested tensor by which PyTorch's C++ comes to the class of Python."""
    from torch.nested._internal.nested_tensor import _nt_view_dummy

    def run(args: Arguments, kwargs: Keywords | None) -> Value:
        return _nt_view_dummy()

    return run


def _sequences(nested: Value) -> tuple[Tensor, ...]:
    """[1, heads, length, width] of each sequence of a jagged [batch, heads, *, width]."""
    lengths: list[int] = nested.offsets().diff().tolist()
    return tuple(t.unsqueeze(0) for t in nested.values().split(lengths, dim=1))


def _attend(
    query: Value,
    key: Value,
    value: Value,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Value:
    from torch.nested._internal.nested_tensor import nested_view_from_values_offsets

    operands = (query, key, value)
    if not all(t.dim() == 4 and t._ragged_idx == 2 and t.lengths() is None for t in operands):
        raise RuntimeError(
            f"{_NO_WAY} maca attends over jagged [batch, heads, *, width], each the transpose(1, 2) of [batch, *, heads, "
            f"width], without holes; got {query._size}, {key._size} and {value._size}"
        )
    batches = [t.offsets().shape[0] - 1 for t in operands]
    if len(set(batches)) != 1:
        raise RuntimeError(f"{_NO_WAY} Query, key and value have batches of {batches} sequences")
    attend = functools.partial(
        torch.nn.functional.scaled_dot_product_attention,
        dropout_p=dropout_p,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=enable_gqa,
    )
    # [length, heads, width]: what merges heads after attention is then a view, as in PyTorch
    outputs = [attend(*parts)[0].transpose(0, 1) for parts in zip(*map(_sequences, operands))]
    if not outputs:
        outputs = [value.values().transpose(0, 1)]
    packed = nested_view_from_values_offsets(
        torch.cat(outputs),
        query.offsets(),
        min_seqlen=query._maybe_min_seqlen,
        max_seqlen=query._maybe_max_seqlen,
    )
    return packed.transpose(1, 2)


def _attention(plain: Callable[..., Value]) -> Callable[..., Value]:
    """PyTorch's attention of jagged tensors, which on maca attends over one sequence after the other."""
    from torch.nested._internal import sdpa

    @functools.wraps(plain)
    def attention(
        query: Value,
        key: Value,
        value: Value,
        attn_mask: Value = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Value:
        if query.device.type != "maca":
            return plain(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        query, key, value, attn_mask = sdpa._autocast(query, key, value, attn_mask)
        sdpa._validate_sdpa_input(query, key, value, attn_mask, dropout_p, is_causal, scale)
        if query._ragged_idx == 1 and all(t.dim() > 3 for t in (query, key, value)):  # a batch of dense ones
            return plain(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        return _attend(query, key, value, dropout_p, is_causal, scale, enable_gqa)

    return attention


def _take_over() -> None:
    ops: Any = sys.modules[_OPS]
    ops.jagged_scaled_dot_product_attention = _attention(ops.jagged_scaled_dot_product_attention)


def register() -> None:
    """Takes over attention of jagged tensors of the device, once PyTorch has loaded their operators."""
    after_import(_OPS, _take_over)
