"""Composite operators that arrive whole under ``inference_mode`` and that models are made of, each as one launch.

PyTorch would take them apart into views, kernels and results that nobody reads, every one with a way through the
dispatcher: a linear layer took 126 us of host time, here 23; a batch norm 186, here 51 (small shapes, a busy machine).
Calls that are not plain go that way still, and so do those that PyTorch refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch._ops import OpOverload

from macatensor.dispatch.launcher import Run, special
from macatensor.dispatch.named_kernels import launch
from macatensor.dispatch.plan import meta_tensor, program
from macatensor.dispatch.request import Declined, Operand, Request, Scalar
from macatensor.dispatch.rowless import without_row
from macatensor.dispatch.signature import Role, read
from macatensor.dispatch.view_calls import Special, View, ViewLauncher, Views
from macatensor.runtime import counters, plan_caches
from macatensor.runtime.boxed import Arguments, Keywords, Launcher, Value
from macatensor.runtime.ffi import native
from macatensor.runtime.meta import Meta, contiguous_meta, contiguous_strides, meta_of
from macatensor.runtime.plan_caches import PlanCache
from macatensor.runtime.tensor import MacaTensor, Payload, payload
from op_table import TABLE

if TYPE_CHECKING:
    from macatensor.runtime.ffi import Program

_WHOLE = "the call is not a plain one"


def _plain(meta: Meta) -> bool:
    return meta.dtype.is_floating_point and meta.dense and meta.numel > 0 and not (meta.conj or meta.neg)


class WholeLauncher(native.KernelCall):
    """Calls of one composite operator, each one launch of the program that ``create`` makes.

    ``create`` gets every argument and returns a ``Program``, or None where the call is not plain.
    """

    def __init__(self, func: OpOverload, create: Callable[..., Program | None]):
        self.func = func
        self.create = create
        self.signature = read(func)
        self.cache: PlanCache[Run] = PlanCache()
        super().__init__(
            self.signature.letters,
            self.cache,
            self.signature.tensors_end,
            False,
            self.signature.names,
            self.signature.defaults,
            {},
        )

    def odd_operand(self, value: object, args: Arguments) -> tuple[Hashable, float]:
        """What is no MacaTensor makes the call one that is not plain."""
        return ("odd", type(value)), 0.0

    def miss(self, key: Hashable, args: Arguments) -> Run:
        """What runs calls of a signature that is met for the first time."""
        generation = plan_caches.generation
        full = self.signature.fill(args, None)
        run: Run | None = None
        if all(
            v is None or type(v) is MacaTensor
            for a, v in zip(self.signature.arguments, full)
            if a.role is Role.TENSOR
        ):
            try:
                run = self.create(*full)
            except Declined:
                pass
        if run is None:
            run = self.otherwise
        else:
            counters.count("plan_misses")
        self.cache.remember(key, run, generation)
        return run

    def otherwise(self, args: Arguments, payloads: Sequence[Payload], scalars: Sequence[Scalar]) -> Value:
        split = self.signature.positional
        return without_row(self.func, args[:split], self.signature.named(args), _WHOLE)


@special("aten.linear.default")
def _linear(func: OpOverload) -> Launcher:
    """One product of matrices on [..., k] seen as [rows, k]."""

    def create(input: Tensor, weight: Tensor, bias: Tensor | None) -> Program | None:
        operands = [input, weight] if bias is None else [input, weight, bias]
        metas = [payload(t)[2] for t in operands]
        x, w = metas[:2]
        if not all(_plain(m) and m.dtype == x.dtype for m in metas):
            return None
        if len(x.size) < 2 or len(w.size) != 2 or x.size[-1] != w.size[1]:
            return None
        if x.stride != contiguous_strides(x.size) or any(m.size != w.size[:1] for m in metas[2:]):
            return None
        (n, k), dtype = w.size, x.dtype
        rows = x.numel // k
        request = Request("mm" if bias is None else "addmm")
        factors = [
            meta_of((rows, k), (k, 1), dtype),
            meta_of((k, n), (w.stride[1], w.stride[0]), dtype),
        ]
        for meta in [*metas[2:], *factors]:
            request.add([Operand(meta)], is_list=False, is_output=False)
        request.add([Operand(meta_of((rows, n), (n, 1), dtype))], is_list=False, is_output=True)
        result = contiguous_meta((*x.size[:-1], n), dtype)
        order = (0, 1) if bias is None else (2, 0, 1)
        return program(request, "aten.linear.default", [False] * len(metas), [result], [-1], order=order)

    return WholeLauncher(func, create)


@special("aten.layer_norm.default")
def _layer_norm(func: OpOverload) -> Launcher:
    """The results; nobody sees the statistics, which only a backward reads."""

    def create(
        input: Tensor,
        shape: list[int],
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        cudnn_enable: bool,
    ) -> Program | None:
        x, size = payload(input)[2], tuple(shape)
        parameters = [payload(t)[2] if t is not None else None for t in (weight, bias)]
        if (
            not _plain(x)
            or x.dtype not in (torch.float32, torch.float64)
            or x.stride != contiguous_strides(x.size)
        ):
            return None
        if not size or x.size[-len(size) :] != size:
            return None
        if any(m is not None and (m.size != size or m.dtype != x.dtype or not _plain(m)) for m in parameters):
            return None
        request = Request("native_layer_norm")
        for meta in (x, *parameters):
            request.add([Operand(meta)], is_list=False, is_output=False)
        statistics = contiguous_meta((*x.size[: -len(size)], *[1] * len(size)), x.dtype)
        results = [x, statistics, statistics]
        for result in results:
            request.add([Operand(result)], is_list=False, is_output=True)
        request.attributes = [("normalized_shape", list(size)), ("eps", eps)]
        request.by_rows = TABLE["native_layer_norm"].by_rows
        return program(request, "aten.layer_norm.default", [False] * 3, results, [-1], fusible=True)

    return WholeLauncher(func, create)


@special("aten.batch_norm.default")
def _batch_norm(func: OpOverload) -> Launcher:
    """Evaluation by running statistics, without the saved ones that only a backward reads."""

    def run(args: Arguments, kwargs: Keywords | None) -> Value:
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
def _conv2d(func: OpOverload) -> Launcher:
    """The general convolution of a batch of images."""
    convolution = torch.ops.aten.convolution.default
    defaults: Arguments = (None, [1, 1], [0, 0], [1, 1], 1)

    def run(args: Arguments, kwargs: Keywords | None) -> Value:
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


class _ReshapeLauncher(ViewLauncher):
    """A view where there is one."""

    def __init__(self, func: OpOverload):
        super().__init__(torch.ops.aten.view.default)
        self.whole = func

    def general(self, args: Arguments, kwargs: Keywords | None) -> Value:
        if kwargs or type(args[0]) is not MacaTensor:
            return without_row(self.whole, args, kwargs, _WHOLE)
        return super().general(args, None)

    def build(self, args: Arguments, key: Hashable) -> View | Views | Special:
        try:
            meta_tensor(args[0]._payload[2]).view(args[1])
        except RuntimeError:
            found = Special(None)
            self.cache.remember(key, found, plan_caches.generation)
            return found
        return super().build(args, key)

    def many(self, args: Arguments, found: Views | Special) -> Value:
        return without_row(self.whole, args, None, _WHOLE)


special("aten.reshape.default")(_ReshapeLauncher)


def _in_other_words(name: str, other: Callable[..., Value]) -> None:
    """Under inference_mode ``name`` is what ``other`` makes of its arguments; NotImplemented: the call is not plain."""

    @special(name)
    def make(func: OpOverload) -> Launcher:
        def run(args: Arguments, kwargs: Keywords | None) -> Value:
            if not kwargs and type(args[0]) is MacaTensor:
                result = other(*args)
                if result is not NotImplemented:
                    return result
            return without_row(func, args, kwargs, _WHOLE)

        return run


def _to_dtype(x: Tensor, dtype: torch.dtype, *more: object) -> Value:
    if more:
        return NotImplemented
    return x if payload(x)[2].dtype is dtype else torch.ops.aten._to_copy.default(x, dtype=dtype)


def _softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Value:
    return NotImplemented if dtype else torch.ops.aten._softmax.default(x, dim, False)


def _log_softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Value:
    return NotImplemented if dtype else torch.ops.aten._log_softmax.default(x, dim, False)


def _dropout(x: Tensor, p: float, train: bool) -> Value:
    return x if not train and 0 <= p <= 1 else NotImplemented


_in_other_words("aten.to.dtype", _to_dtype)
_in_other_words("aten.softmax.int", _softmax)
_in_other_words("aten.log_softmax.int", _log_softmax)
_in_other_words("aten.dropout.default", _dropout)
