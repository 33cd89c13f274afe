"""``scaled_dot_product_attention`` on a kernel of its own, forward and backward.

On a Python device PyTorch always takes its math path, which keeps the T x T matrix; so the operator is taken over
whole, on the autograd key.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from macatensor.dispatch.launcher import Launcher, special
from macatensor.dispatch.named_kernels import launch
from macatensor.dispatch.plan import ABSENT, meta_tensor, program
from macatensor.dispatch.request import Declined, Request
from macatensor.runtime import counters, plan_caches
from macatensor.runtime.double_backward import by_recomputation
from macatensor.runtime.meta import Meta, contiguous_strides, meta_of
from macatensor.runtime.plan_caches import PlanCache
from macatensor.runtime.tensor import MacaTensor


def _math(
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool = False,
) -> Any:
    """PyTorch's composite of matrix products and a softmax. It adds any mask: a boolean one is converted before."""
    if mask is not None and mask.dtype is torch.bool:
        mask = torch.where(mask, 0.0, torch.full((), -math.inf, dtype=query.dtype, device=query.device))
    result: Any = torch.ops.aten._scaled_dot_product_attention_math.default(
        query, key, value, mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )
    return result[0]


@functools.lru_cache(maxsize=1024)
def _like(meta: Meta) -> Meta:
    """What ``empty_like`` gives for a tensor of ``meta``."""
    return meta_of(meta.size, torch.empty_like(meta_tensor(meta)).stride(), meta.dtype)


def _row_major(size: tuple[int, ...], dtype: torch.dtype) -> Meta:
    return meta_of(size, contiguous_strides(size), dtype)


def _output_meta(query: Meta, value: Meta) -> Meta:
    """[..., L, Ev], in the order of the query's dimensions as PyTorch's CPU kernel: merging heads stays a view."""
    if query.size[-1] == value.size[-1]:
        return _like(query)
    return _row_major((*query.size[:-1], value.size[-1]), query.dtype)


def _results(query: Meta, value: Meta) -> list[Meta]:
    """Output and logsumexp [..., L] in float32 (float64 for float64)."""
    statistics = torch.float64 if query.dtype == torch.float64 else torch.float32
    return [_output_meta(query, value), _row_major(query.size[:-1], statistics)]


def _forward(query: Any, key: Any, value: Any, mask: Any, is_causal: bool, scale: float) -> list[Any]:
    """Output and logsumexp."""
    results: list[Meta | None] = [*_results(query._payload[2], value._payload[2])]
    return launch(
        "sdpa_forward", [query, key, value, mask], results, {"is_causal": is_causal, "scale": scale}
    )


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, mask: Any, is_causal: bool, scale: float) -> Any:
        output, logsumexp = _forward(query, key, value, mask, is_causal, scale)
        ctx.save_for_backward(query, key, value, mask, output, logsumexp)
        ctx.options = {"is_causal": is_causal, "scale": scale}
        return output

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        query, key, value, mask, output, logsumexp = ctx.saved_tensors
        if torch.is_grad_enabled():
            is_causal, scale = ctx.options["is_causal"], ctx.options["scale"]
            grouped = query.shape[:-2] != key.shape[:-2]

            def again(query: Any, key: Any, value: Any) -> Any:
                return _math(query, key, value, mask, 0.0, is_causal, scale, grouped)

            return (*by_recomputation(again, (query, key, value), (grad,)), None, None, None)
        results: list[Meta | None] = [_like(t._payload[2]) for t in (query, key, value)]
        grads = launch(
            "sdpa_backward", [grad, query, key, value, mask, output, logsumexp], results, ctx.options
        )
        return (*grads, None, None, None)


_attend: Any = _Attention.apply


def _check(query: Any, key: Any, value: Any, mask: Any) -> None:
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
_programs = PlanCache()
_unwatched = launch  # tools that look at every launch put one of their own in the place of `launch`


def _key(query: Any, key: Any, value: Any, *options: Any) -> Any:
    return query._payload[2], key._payload[2], value._payload[2], options


def _known(query: Any, key: Any, value: Any, *options: Any) -> Any:
    """The program of a call that was met before and needs no gradient, or None."""
    if not (type(query) is type(key) is type(value) is MacaTensor):
        return None
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
        return None
    return _programs.get(_key(query, key, value, *options))


def _run(known: Any, query: Any, key: Any, value: Any) -> Any:
    payloads = [query._payload, key._payload, value._payload, ABSENT]
    with torch._C._AutoDispatchBelowAutograd():
        return known((), payloads, ())


def _inference_program(operands: list[Meta], is_causal: bool, scale: float) -> Any:
    """The output alone. Raises Declined."""
    request = Request("sdpa_forward")
    for operand in (*operands, None):
        request.add([(operand, -1)], is_list=False, is_output=False)
    results = _results(operands[0], operands[2])
    for meta in results:
        request.add([(meta, -1)], is_list=False, is_output=True)
    request.attributes = [("is_causal", is_causal), ("scale", scale)]
    counters.count("plan_misses")
    return program(request, "aten.scaled_dot_product_attention.default", [False] * 4, results, [-1])


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """PyTorch's operator. Dropout, masks that need a gradient and odd shapes take the math path."""

    def by_math() -> Any:
        return _math(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)

    fused = torch._C._get_flash_sdp_enabled() or torch._C._get_mem_efficient_sdp_enabled()
    options = is_causal, scale, enable_gqa
    if fused and attn_mask is None and dropout_p == 0.0 and launch is _unwatched:
        known = _known(query, key, value, *options)
        if known is not None:
            return _run(known, query, key, value)
    _check(query, key, value, attn_mask)
    operands = [query, key, value] + ([attn_mask] if attn_mask is not None else [])
    plain = (
        all(type(t) is MacaTensor for t in operands)
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
    try:
        if torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value)):
            return _attend(query, key, value, mask, is_causal, scale)
        if mask is None and launch is _unwatched:
            metas = [t._payload[2] for t in (query, key, value)]
            generation = plan_caches.generation
            made = _inference_program(metas, is_causal, scale)
            _programs.remember(_key(query, key, value, *options), made, generation)
            return _run(made, query, key, value)
        with torch._C._AutoDispatchBelowAutograd():
            return _forward(query, key, value, mask, is_causal, scale)[0]
    except Declined:
        return by_math()


@special("aten.scaled_dot_product_attention.default")
def _undecomposed(func: Any) -> Launcher:
    """Under inference_mode the operator arrives whole."""

    def run(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        return attention(*args, **(kwargs or {}))

    return run


_library: Any = None


def register() -> None:
    """Takes the operator over on the autograd key."""
    global _library
    _library = torch.library.Library("aten", "IMPL")
    _library.impl("scaled_dot_product_attention", attention, "AutogradPrivateUse1")
