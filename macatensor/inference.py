"""Composite operators that arrive whole under ``inference_mode`` and that models are made of, each as one launch.

PyTorch would take them apart into views, kernels and results that nobody reads, every one with a way through the
dispatcher: a linear layer took 126 us of host time, here 23; a batch norm 186, here 51 (small shapes, a busy machine).
Calls that are not plain go that way still, and so do those that PyTorch refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from macatensor import counting, flags
from macatensor.internal import launch
from macatensor.launcher import Launcher, remember, special
from macatensor.meta import Meta, contiguous_strides, meta_of
from macatensor.plan import meta_tensor, program
from macatensor.request import Declined, Request
from macatensor.rowless import without_row
from macatensor.tensor import MacaTensor

_WHOLE = "the call is not a plain one"


def _plain(meta: Meta) -> bool:
    return meta.dtype.is_floating_point and meta.dense and meta.numel > 0 and not (meta.conj or meta.neg)


@special("aten.linear.default")
def _linear(func: Any) -> Launcher:
    """One product of matrices on [..., k] seen as [rows, k]."""
    plans: dict[Any, Any] = {}
    flags.caches.append(plans)

    def create(x: Meta, weight: Meta, bias: Meta | None) -> Any:
        """None: not plain."""
        metas = [x, weight] if bias is None else [x, weight, bias]
        if not all(_plain(m) and m.dtype == x.dtype for m in metas):
            return None
        if len(x.size) < 2 or len(weight.size) != 2 or x.size[-1] != weight.size[1]:
            return None
        if x.stride != contiguous_strides(x.size) or (bias is not None and bias.size != weight.size[:1]):
            return None
        (n, k), dtype = weight.size, x.dtype
        rows = x.numel // k
        request = Request("mm" if bias is None else "addmm")
        factors = [
            meta_of((rows, k), (k, 1), dtype),
            meta_of((k, n), (weight.stride[1], weight.stride[0]), dtype),
        ]
        for meta in factors if bias is None else [bias, *factors]:
            request.add([(meta, -1)], is_list=False, is_output=False)
        request.add([(meta_of((rows, n), (n, 1), dtype), -1)], is_list=False, is_output=True)
        size = (*x.size[:-1], n)
        result = meta_of(size, contiguous_strides(size), dtype)
        try:
            made = program(request, "aten.linear.default", [False] * len(metas), [result], [-1])
        except Declined:
            return None
        counting.misses += 1
        return made

    def run(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        if kwargs or any(type(a) is not MacaTensor for a in args if a is not None):
            return without_row(func, args, kwargs, _WHOLE)
        payloads = [a._payload for a in args if a is not None]
        key = tuple([p[2] for p in payloads])
        try:
            plan = plans[key]
        except KeyError:
            plan = create(key[0], key[1], key[2] if len(key) == 3 else None)
            remember(plans, key, plan)
        if plan is None:
            return without_row(func, args, kwargs, _WHOLE)
        return plan((), payloads[2:] + payloads[:2], ())

    return run


@special("aten.batch_norm.default")
def _batch_norm(func: Any) -> Launcher:
    """Evaluation by running statistics, without the saved ones that only a backward reads."""

    def run(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        if not kwargs and len(args) == 9 and args[5] is False:
            x, parameters = args[0], args[1:5]
            if all(type(a) is MacaTensor for a in (x, *parameters)):
                meta = x._payload[2]
                channels = meta_of(meta.size[1:2], (1,), meta.dtype)
                if _plain(meta) and len(meta.size) > 1 and all(p._payload[2] is channels for p in parameters):
                    attributes = {"training": False, "momentum": args[6], "eps": args[7]}
                    try:
                        return launch("native_batch_norm", [x, *parameters], [meta, None, None], attributes)[
                            0
                        ]
                    except Declined:
                        pass
        return without_row(func, args, kwargs, _WHOLE)

    return run


@special("aten.conv2d.default")
def _conv2d(func: Any) -> Launcher:
    """The general convolution of a batch of images."""
    convolution = torch.ops.aten.convolution.default
    defaults: tuple[Any, ...] = (None, [1, 1], [0, 0], [1, 1], 1)

    def run(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        if (
            not kwargs
            and all(type(a) is MacaTensor for a in args[:3] if a is not None)
            and args[0].dim() == 4
        ):
            x, weight, bias, stride, padding, dilation, groups = (*args, *defaults[len(args) - 2 :])
            if x.dtype == weight.dtype and (bias is None or bias.dtype == x.dtype):
                return convolution(x, weight, bias, stride, padding, dilation, False, [0, 0], groups)
        return without_row(func, args, kwargs, _WHOLE)

    return run


@special("aten.reshape.default")
def _reshape(func: Any) -> Launcher:
    """A view where there is one."""
    viewed: dict[Any, bool] = {}
    flags.caches.append(viewed)
    view = torch.ops.aten.view.default

    def has_view(meta: Meta, size: tuple[int, ...]) -> bool:
        base = meta_tensor(meta)
        try:
            base.view(size)
        except RuntimeError:
            return False
        return True

    def run(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        if kwargs or type(args[0]) is not MacaTensor:
            return without_row(func, args, kwargs, _WHOLE)
        key = (args[0]._payload[2], tuple(args[1]))
        found = viewed.get(key)
        if found is None:
            found = has_view(*key)
            remember(viewed, key, found)
        return view(args[0], args[1]) if found else without_row(func, args, kwargs, _WHOLE)

    return run


def _in_other_words(name: str, other: Callable[..., Any]) -> None:
    """Under inference_mode ``name`` is what ``other`` makes of its arguments; NotImplemented: the call is not plain."""

    @special(name)
    def make(func: Any) -> Launcher:
        def run(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
            if not kwargs and type(args[0]) is MacaTensor:
                result = other(*args)
                if result is not NotImplemented:
                    return result
            return without_row(func, args, kwargs, _WHOLE)

        return run


def _to_dtype(x: Any, dtype: torch.dtype, *more: Any) -> Any:
    if more:
        return NotImplemented
    return x if x._payload[2].dtype is dtype else torch.ops.aten._to_copy.default(x, dtype=dtype)


def _softmax(x: Any, dim: int, dtype: torch.dtype | None = None) -> Any:
    return NotImplemented if dtype else torch.ops.aten._softmax.default(x, dim, False)


def _log_softmax(x: Any, dim: int, dtype: torch.dtype | None = None) -> Any:
    return NotImplemented if dtype else torch.ops.aten._log_softmax.default(x, dim, False)


def _layer_norm(
    x: Any,
    shape: list[int],
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Any:
    return torch.ops.aten.native_layer_norm.default(x, shape, weight, bias, eps)[0]


def _dropout(x: Any, p: float, train: bool) -> Any:
    return x if not train and 0 <= p <= 1 else NotImplemented


_in_other_words("aten.to.dtype", _to_dtype)
_in_other_words("aten.softmax.int", _softmax)
_in_other_words("aten.log_softmax.int", _log_softmax)
_in_other_words("aten.layer_norm.default", _layer_norm)
_in_other_words("aten.dropout.default", _dropout)
