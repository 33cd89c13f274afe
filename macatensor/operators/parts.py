"""Copies of parts into tensors of the caller, as ``fully_shard`` asks for: what it has gathered is split into parameters,
gradients are put side by side for all ranks. Without a result in between, of as many bytes again."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch._ops import OpOverload

from macatensor.dispatch.launcher import special
from macatensor.dispatch.signature import Form, find_row
from macatensor.operators import composites
from macatensor.runtime.boxed import Arguments, Keywords, Launcher, Value
from macatensor.runtime.tensor import MacaTensor


def _general(func: OpOverload) -> Launcher:
    found = find_row(func)
    assert found is not None and found[1] is Form.OUT, func
    return composites.launcher(func, *found)


def _is_plain(tensors: Sequence[Value], dtype: torch.dtype) -> bool:
    return all(type(t) is MacaTensor and t.dtype == dtype for t in tensors)


@special("aten.split_with_sizes_copy.out", "aten.split_copy.Tensor_out")
def _split(func: OpOverload) -> Launcher:
    general = _general(func)
    split = (
        torch.ops.aten.split_with_sizes.default
        if "sizes" in func._schema.name
        else torch.ops.aten.split.Tensor
    )

    def run(args: Arguments, kwargs: Keywords | None) -> Value:
        named = dict(kwargs or {})
        outs = named.pop("out")
        source = args[0]
        if all(type(t) is MacaTensor for t in [source, *outs]):
            parts = split(*args, **named)
            if [t.shape for t in parts] == [t.shape for t in outs]:
                if _is_plain(outs, source.dtype) and parts:
                    torch._foreach_copy_(outs, parts)
                else:  # a copy casts, as PyTorch's does here, whatever out= takes elsewhere
                    for out, part in zip(outs, parts):
                        out.copy_(part)
                return None
        return general(args, kwargs)

    return run


@special("aten._chunk_cat.out")
def _chunk_cat(func: OpOverload) -> Launcher:
    general = _general(func)

    def run(args: Arguments, kwargs: Keywords | None) -> Value:
        out = (kwargs or {})["out"]
        if len(args) != 3 or not _is_rows(*args, out):
            return general(args, kwargs)
        tensors, _, rows = args
        targets, sources, first = [], [], 0
        for tensor in tensors:
            height, width = _of_row(tensor, rows)
            place = out.narrow(1, first, width).unflatten(1, (height, *tensor.shape[1:]))
            first += width
            full, rest = divmod(tensor.shape[0], height)
            if full:
                targets.append(place[:full])
                sources.append(tensor[: full * height].unflatten(0, (full, height)))
            if rest:
                targets.append(place[full, :rest])
                sources.append(tensor[full * height :])
                place[full, rest:].zero_()
            place[full + bool(rest) :].zero_()
        torch._foreach_copy_(targets, sources)
        return out

    return run


def _of_row(tensor: torch.Tensor, rows: int) -> tuple[int, int]:
    """Of so many rows, into which a tensor is cut: its indices in the first dimension, and elements."""
    height = -(-tensor.shape[0] // rows)
    return height, height * math.prod(tensor.shape[1:])


def _is_rows(tensors: Sequence[Value], dim: int, rows: int, out: Value) -> bool:
    """Is ``out`` of the right size, and memory of its own? Are all tensors of its dtype, with elements?"""
    if dim != 0 or rows < 1 or not tensors or not _is_plain([*tensors, out], out.dtype):
        return False
    if any(t.dim() == 0 or not t.numel() or t._payload[0] is out._payload[0] for t in tensors):
        return False
    return bool(out.shape == (rows, sum(_of_row(t, rows)[1] for t in tensors)))
