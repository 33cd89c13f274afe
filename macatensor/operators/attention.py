"""``scaled_dot_product_attention`` on a kernel of its own, forward and backward.

On a Python device PyTorch always takes its math path, which keeps the T x T matrix; so the operator is taken over
whole, on the autograd key.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.autograd.function import FunctionCtx

from macatensor.dispatch.errors import check_devices
from macatensor.dispatch.launcher import special
from macatensor.dispatch.named_kernels import launch
from macatensor.dispatch.plan import ABSENT, meta_tensor, program
from macatensor.dispatch.request import Declined, Operand, Request
from macatensor.dispatch.signature import read
from macatensor.dispatch.tracing import are_traced
from macatensor.operators.whole import whole
from macatensor.runtime import counters, plan_caches
from macatensor.runtime.boxed import Arguments, Keywords, Launcher, Value
from macatensor.runtime.double_backward import by_recomputation
from macatensor.runtime.meta import Meta, contiguous_meta, contiguous_strides, meta_of
from macatensor.runtime.plan_caches import PlanCache
from macatensor.runtime.tensor import MacaTensor, payload

if TYPE_CHECKING:
    from macatensor.runtime.ffi import Program


_IN_GRAPH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # with a gradient of PyTorch's
_IN_GRAPHS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def _math(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool = False,
) -> Tensor:
    """PyTorch's composite of matrix products and a softmax. It adds any mask: a boolean one is converted before."""
    if mask is not None and mask.dtype is torch.bool:
        mask = torch.where(mask, 0.0, torch.full((), -math.inf, dtype=query.dtype, device=query.device))
    result: tuple[Tensor, ...] = torch.ops.aten._scaled_dot_product_attention_math.default(
        query, key, value, mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )
    return result[0]


@functools.lru_cache(maxsize=1024)
def _like(meta: Meta) -> Meta:
    """What ``empty_like`` gives for a tensor of ``meta``."""
    return meta_of(meta.size, torch.empty_like(meta_tensor(meta)).stride(), meta.dtype)


def _output_meta(query: Meta, value: Meta) -> Meta:
    """[..., L, Ev], in the order of the query's dimensions as PyTorch's CPU kernel: merging heads stays a view."""
    if query.size[-1] == value.size[-1]:
        return _like(query)
    return contiguous_meta((*query.size[:-1], value.size[-1]), query.dtype)


def _results(query: Meta, value: Meta) -> list[Meta]:
    """Output and logsumexp [..., L] in float32 (float64 for float64)."""
    statistics = torch.float64 if query.dtype == torch.float64 else torch.float32
    return [_output_meta(query, value), contiguous_meta(query.size[:-1], statistics)]


def _forward(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool, scale: float
) -> list[MacaTensor]:
    """Output and logsumexp."""
    results: list[Meta | None] = [*_results(payload(query)[2], payload(value)[2])]
    return launch(
        "sdpa_forward", [query, key, value, mask], results, {"is_causal": is_causal, "scale": scale}
    )


class _Context(FunctionCtx):
    saved_tensors: tuple[Tensor, ...]
    is_causal: bool
    scale: float


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Context,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        is_causal: bool,
        scale: float,
    ) -> Tensor:
        output, logsumexp = _forward(query, key, value, mask, is_causal, scale)
        ctx.save_for_backward(query, key, value, mask, output, logsumexp)  # type: ignore[arg-type]  # or None
        ctx.is_causal, ctx.scale = is_causal, scale
        return output

    @staticmethod
    def backward(ctx: _Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, mask, output, logsumexp = ctx.saved_tensors
        if torch.is_grad_enabled():
            is_causal, scale = ctx.is_causal, ctx.scale
            grouped = query.shape[:-2] != key.shape[:-2]

            def again(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
                return _math(query, key, value, mask, 0.0, is_causal, scale, grouped)

            return (*by_recomputation(again, (query, key, value), (grad,)), None, None, None)
        results: list[Meta | None] = [_like(payload(t)[2]) for t in (query, key, value)]
        grads = launch(
            "sdpa_backward",
            [grad, query, key, value, mask, output, logsumexp],
            results,
            {"is_causal": ctx.is_causal, "scale": ctx.scale},
        )
        return (*grads, None, None, None)


_attend: Callable[..., Tensor] = _Attention.apply


def _check(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> None:
    """PyTorch's own error for operands of several dtypes, of too few dimensions, or a mask of integers."""
    dtype = query.dtype
    if (
        dtype != key.dtype
        or dtype != value.dtype
        or min(query.dim(), key.dim(), value.dim()) < 2
        or (mask is not None and mask.dtype not in (torch.bool, torch.float32, dtype))
    ):
        on_meta = [t if t is None else t.detach().to("meta") for t in (query, key, value, mask)]
        torch.ops.aten.scaled_dot_product_attention.default(*on_meta)


# Without a mask and a gradient, by the operands' metas and the options: each token of a growing cache brings new
# keys, and what is decided above need not be decided once a layer.
_programs: PlanCache[Program] = PlanCache()
# The same of calls with a gradient: their scale.
_recorded: PlanCache[float] = PlanCache()
_unwatched = launch  # tools that look at every launch put one of their own in the place of `launch`


def _key(query: Tensor, key: Tensor, value: Tensor, *options: object) -> Hashable:
    return payload(query)[2], payload(key)[2], payload(value)[2], options


def _needs_gradient(query: Tensor, key: Tensor, value: Tensor) -> bool:
    return torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)


def _known(query: Tensor, key: Tensor, value: Tensor, *options: object) -> Tensor | None:
    """What a call that was met before gives, or None."""
    if not (type(query) is type(key) is type(value) is MacaTensor):
        return None
    found = _key(query, key, value, *options)
    if not _needs_gradient(query, key, value):
        made = _programs.get(found)
        return None if made is None else _run(made, query, key, value)
    scale = _recorded.get(found)
    return None if scale is None else _attend(query, key, value, None, options[0], scale)


def _run(known: Program, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    payloads = [payload(query), payload(key), payload(value), ABSENT]
    with torch._C._AutoDispatchBelowAutograd():
        output: Tensor = known((), payloads, ())
    return output


def _inference_program(operands: list[Meta], is_causal: bool, scale: float) -> Program:
    """The output alone. Raises Declined."""
    request = Request("sdpa_forward")
    for operand in (*operands, None):
        request.add([Operand(operand)], is_list=False, is_output=False)
    results = _results(operands[0], operands[2])
    for meta in results:
        request.add([Operand(meta)], is_list=False, is_output=True)
    request.attributes = [("is_causal", is_causal), ("scale", scale)]
    counters.count("plan_misses")
    return program(request, "aten.scaled_dot_product_attention.default", [False] * 4, results, [-1])


@whole("scaled_dot_product_attention.default")
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """PyTorch's operator. Dropout, masks that need a gradient and odd shapes take the math path."""

    def by_math() -> Tensor:
        return _math(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)

    fused = torch._C._get_flash_sdp_enabled() or torch._C._get_mem_efficient_sdp_enabled()
    options = is_causal, scale, enable_gqa
    if fused and attn_mask is None and dropout_p == 0.0 and launch is _unwatched:
        known = _known(query, key, value, *options)
        if known is not None:
            return known
    _check(query, key, value, attn_mask)
    operands = [query, key, value] + ([attn_mask] if attn_mask is not None else [])
    in_graph = are_traced(operands)
    plain = (
        (in_graph or all(type(t) is MacaTensor for t in operands))
        and dropout_p == 0.0
        and query.dim() >= 3
        and key.shape[:-1] == value.shape[:-1]
        and query.shape[:-3] == key.shape[:-3]
        and (query.shape[-3] == key.shape[-3] or (enable_gqa and query.shape[-3] % key.shape[-3] == 0))
        and query.shape[-1] == key.shape[-1]
        and query.numel() > 0
        and key.numel() > 0
        and value.numel() > 0
        and not (attn_mask is not None and attn_mask.requires_grad)
    )
    if not plain or not fused:
        if not torch._C._get_math_sdp_enabled():
            raise RuntimeError("No available kernel. Aborting execution.")
        return by_math()
    if scale is None:
        scale = 1.0 / math.sqrt(query.shape[-1])
    mask = None if attn_mask is None else attn_mask.expand(*query.shape[:-1], key.shape[-2])
    if in_graph:
        if query.dim() != 4 or query.shape[-1] != value.shape[-1] or query.dtype not in _IN_GRAPHS:
            return by_math()
        output: Tensor = _IN_GRAPH.default(query, key, value, 0.0, is_causal, attn_mask=mask, scale=scale)[0]
        return output
    try:
        if _needs_gradient(query, key, value):
            generation = plan_caches.generation
            output = _attend(query, key, value, mask, is_causal, scale)
            if mask is None:
                _recorded.remember(_key(query, key, value, *options), scale, generation)
            return output
        if mask is None and launch is _unwatched:
            metas = [payload(t)[2] for t in (query, key, value)]
            generation = plan_caches.generation
            made = _inference_program(metas, is_causal, scale)
            _programs.remember(_key(query, key, value, *options), made, generation)
            return _run(made, query, key, value)
        with torch._C._AutoDispatchBelowAutograd():
            return _forward(query, key, value, mask, is_causal, scale)[0]
    except Declined:
        return by_math()


def _scale(query: Tensor) -> float:
    width = query.shape[-1]
    return 1.0 / math.sqrt(width) if width else math.inf


@special("aten._scaled_dot_product_flash_attention_for_cpu.default")
def _forward_in_graph(func: OpOverload) -> Launcher:
    """What stands for attention in a traced program; layouts are those of PyTorch's meta kernel."""

    def run(args: Arguments, kwargs: Keywords | None) -> Value:
        options = read(func).fill(args, kwargs)
        query, key, value, dropout_p, is_causal, mask, scale = options
        if dropout_p:
            raise NotImplementedError(f"{func} got dropout_p={dropout_p}; maca accepts 0")
        check_devices(str(func), (query, key, value, mask))
        batch, heads, length, _ = query.shape
        scale = _scale(query) if scale is None else scale
        statistics = torch.float64 if query.dtype == torch.float64 else torch.float32
        results: list[Meta | None] = [
            _like(query._payload[2]),
            meta_of((batch, heads, length), (length * heads, 1, heads), statistics),
        ]
        return tuple(
            launch(
                "sdpa_forward", [query, key, value, mask], results, {"is_causal": is_causal, "scale": scale}
            )
        )

    return run


@special("aten._scaled_dot_product_flash_attention_for_cpu_backward.default")
def _backward_in_graph(func: OpOverload) -> Launcher:
    def run(args: Arguments, kwargs: Keywords | None) -> Value:
        grad, query, key, value, output, logsumexp, _, is_causal, mask, scale = read(func).fill(args, kwargs)
        check_devices(str(func), (grad, query, key, value, output, logsumexp, mask))
        scale = _scale(query) if scale is None else scale
        results: list[Meta | None] = []
        for t in (query, key, value):
            by_length = contiguous_strides((t.shape[0], t.shape[2], t.shape[1], t.shape[3]))
            strides = by_length[0], by_length[2], by_length[1], by_length[3]
            results.append(meta_of(tuple(t.shape), strides, t.dtype))
        return tuple(
            launch(
                "sdpa_backward",
                [grad, query, key, value, mask, output, logsumexp],
                results,
                {"is_causal": is_causal, "scale": scale},
            )
        )

    return run
