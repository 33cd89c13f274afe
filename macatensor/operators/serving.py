"""``torch.ops.maca``: operators of servers that write text for many at once, after those of vLLM.

Keys and values of all sequences lie in blocks of common caches [blocks, block size, kv heads, E]; a table says which blocks a
sequence has, and a slot is a place in a cache: block times block size, and where in the block. On other devices the
operators are composites of PyTorch's. None has a gradient of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.nn import functional

from macatensor.dispatch.errors import check_devices
from macatensor.dispatch.launcher import special
from macatensor.dispatch.named_kernels import launch
from macatensor.dispatch.rowless import with_a_next_way
from macatensor.runtime.boxed import Arguments, Keywords, Launcher, Value
from macatensor.runtime.meta import contiguous_meta

_HALVES = (torch.float16, torch.bfloat16)


def _require(holds: bool, name: str, what: str) -> None:
    if not holds:
        raise RuntimeError(f"{name}: {what}")


def _check_attention(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, block_tables: Tensor, seq_lens: Tensor
) -> None:
    name = "paged_attention"
    _require(query.dim() == 3, name, f"expected query [sequences, heads, E], got {list(query.shape)}")
    _require(
        key_cache.dim() == 4
        and key_cache.shape == value_cache.shape
        and key_cache.shape[3] == query.shape[2]
        and query.shape[1] % max(1, key_cache.shape[2]) == 0,
        name,
        "expected caches [blocks, block size, kv heads, E], of which E is the query's and kv heads divide its heads; got "
        f"{list(key_cache.shape)} and {list(value_cache.shape)} with a query {list(query.shape)}",
    )
    _require(
        block_tables.dim() == 2 and block_tables.shape[0] == query.shape[0] == seq_lens.numel(),
        name,
        f"expected block_tables [sequences, most blocks] and seq_lens [sequences], got {list(block_tables.shape)} and "
        f"{list(seq_lens.shape)} for {query.shape[0]} sequences",
    )
    for what, tensor in (("block_tables", block_tables), ("seq_lens", seq_lens)):
        _require(tensor.dtype is torch.int32, name, f"expected {what} of int32, got {tensor.dtype}")
    dtypes = {query.dtype, key_cache.dtype, value_cache.dtype}
    _require(len(dtypes) == 1, name, f"expected one dtype, got {query.dtype} and {key_cache.dtype}")


def _attend(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, block_tables: Tensor, seq_lens: Tensor, scale: float,
    *, alibi_slopes: Tensor | None = None, window: int = -1, softcap: float = 0.0,
) -> Tensor:  # fmt: skip
    """:func:`paged_attention` by PyTorch's operators: the blocks of each sequence beside each other."""
    _check_attention(query, key_cache, value_cache, block_tables, seq_lens)
    sequences, heads, width = query.shape
    _, block, kv_heads, _ = key_cache.shape
    most = block_tables.shape[1] * block
    place = torch.arange(most, device=query.device)
    lengths = seq_lens.long().unsqueeze(1)
    used = place[::block] < lengths  # what stands in a table beyond its sequence is never looked at
    tables = torch.where(used, block_tables.long(), 0)
    high = torch.promote_types(query.dtype, torch.float32)
    keys, values = (
        c[tables].reshape(sequences, most, kv_heads, width).to(high) for c in (key_cache, value_cache)
    )
    grouped = query.reshape(sequences, kv_heads, heads // kv_heads, width).to(high)
    scores = torch.einsum("skge,stke->skgt", grouped, keys) * scale
    if softcap > 0:
        scores = softcap * (scores / softcap).tanh()
    behind = place - lengths + 1
    if alibi_slopes is not None:
        scores = scores + alibi_slopes.to(high).view(1, kv_heads, -1, 1) * behind.to(high)[:, None, None]
    seen = behind <= 0 if window < 0 else (behind <= 0) & (behind >= -window)
    weights = scores.masked_fill(~seen[:, None, None], float("-inf")).softmax(-1)
    weights = weights.masked_fill(~seen[:, None, None], 0.0)  # of no token at all, too
    return torch.einsum("skgt,stke->skge", weights, values).reshape(query.shape).to(query.dtype)


def _paged_attention(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, block_tables: Tensor, seq_lens: Tensor, scale: float,
    *, alibi_slopes: Tensor | None = None, window: int = -1, softcap: float = 0.0,
) -> Tensor:  # fmt: skip
    """[sequences, heads, E]: each sequence's last token looks at the first ``seq_lens`` tokens of its blocks, or at itself
    and ``window`` before it. Raises RuntimeError for other shapes or dtypes, IndexError for a block that is not there."""
    _check_attention(query, key_cache, value_cache, block_tables, seq_lens)
    attributes = {"scale": float(scale), "window": int(window), "softcap": float(softcap)}
    slopes = alibi_slopes.float() if alibi_slopes is not None else None
    result = contiguous_meta(query.shape, query.dtype)
    operands = [query, key_cache, value_cache, block_tables, seq_lens, slopes]
    return launch("paged_attention", operands, [result], attributes)[0]


def _check_cache(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    name = "reshape_and_cache"
    _require(
        key.dim() == 3
        and key.shape == value.shape
        and key_cache.dim() == 4
        and key_cache.shape == value_cache.shape
        and key_cache.shape[2:] == key.shape[1:],
        name,
        "expected key and value [tokens, kv heads, E] and caches [blocks, block size, kv heads, E], got "
        f"{list(key.shape)}, {list(value.shape)}, {list(key_cache.shape)} and {list(value_cache.shape)}",
    )
    _require(slots.shape == key.shape[:1], name, f"expected a slot for each token, got {list(slots.shape)}")
    _require(slots.dtype is torch.int64, name, f"expected slot_mapping of int64, got {slots.dtype}")


def _put(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor) -> None:
    """:func:`reshape_and_cache` by PyTorch's operators."""
    _check_cache(key, value, key_cache, value_cache, slot_mapping)
    there = slot_mapping >= 0
    slots = slot_mapping[there]
    for new, cache in ((key, key_cache), (value, value_cache)):
        block = cache.shape[1]
        cache[slots // block, slots % block] = new[there].to(cache.dtype)


def _reshape_and_cache(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
) -> None:
    """Puts keys and values into their slots; a token whose slot is below 0 is nobody's. Raises IndexError for others."""
    _check_cache(key, value, key_cache, value_cache, slot_mapping)
    operands = [key, value, key_cache, value_cache, slot_mapping]
    launch("paged_write", operands, [], {}, written=(2, 3))


def _rotary_embedding(
    positions: Tensor,
    query: Tensor,
    key: Tensor | None,
    head_size: int,
    cos_sin_cache: Tensor,
    is_neox: bool = True,
) -> None:
    """Turns queries and keys [tokens, heads * head_size] in place by the angles of their positions [tokens].

    ``cos_sin_cache`` [positions, turned]: cosines, then sines. ``is_neox``: halves of a head are turned against each other,
    else neighbours. What of a head is beyond ``turned`` stays.
    """
    angles = cos_sin_cache[positions.flatten()].unsqueeze(1)
    turned = angles.shape[-1]
    for tensor in (query, key):
        if tensor is None:
            continue
        heads = tensor.reshape(angles.shape[0], -1, head_size)[..., :turned]
        cosine, sine = (a.to(tensor.dtype) for a in angles.chunk(2, -1))
        if is_neox:
            first, second = heads.chunk(2, -1)
        else:
            first, second = heads[..., ::2], heads[..., 1::2]
        one, other = first * cosine - second * sine, second * cosine + first * sine
        found = torch.cat((one, other), -1) if is_neox else torch.stack((one, other), -1).flatten(-2)
        tensor.view(angles.shape[0], -1, head_size)[..., :turned].copy_(found)


def _rms_norm(input: Tensor, weight: Tensor, epsilon: float = 1e-6) -> Tensor:
    """Of the last dimension."""
    return functional.rms_norm(input, weight.shape, weight, epsilon)


def _fused_add_rms_norm(input: Tensor, residual: Tensor, weight: Tensor, epsilon: float = 1e-6) -> None:
    """``residual`` becomes the sum of both, and ``input`` what it is normalized."""
    residual.add_(input)
    input.copy_(functional.rms_norm(residual, weight.shape, weight, epsilon))


def _silu_and_mul(input: Tensor) -> Tensor:
    """[..., 2 n] -> [..., n]: silu of the first half times the second."""
    first, second = input.chunk(2, -1)
    return functional.silu(first) * second


def _gelu_and_mul(input: Tensor, approximate: str = "none") -> Tensor:
    """[..., 2 n] -> [..., n]: gelu of the first half times the second."""
    first, second = input.chunk(2, -1)
    return functional.gelu(first, approximate=approximate) * second


def _sample(
    logits: Tensor,
    temperature: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
) -> Tensor:
    """int64 [sequences], a word for each row of logits [sequences, words], by the device's random numbers.

    Each of the others has a number a sequence: ``temperature``, at 0 the likeliest word; ``top_k`` likeliest words, below 1
    all; the fewest likeliest that are ``top_p`` together.
    """
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if temperature is not None:
        heat = temperature.to(scores.dtype).unsqueeze(1)
        scores = scores / torch.where(heat > 0, heat, 1.0)
    words = None
    if top_k is not None or top_p is not None:
        scores, words = scores.sort(-1, descending=True)
        rank = torch.arange(scores.shape[1], device=scores.device)
        if top_k is not None:
            most = top_k.unsqueeze(1)
            scores = scores.masked_fill((rank >= most) & (most > 0), float("-inf"))
        if top_p is not None:
            chances = scores.softmax(-1)
            before = chances.cumsum(-1) - chances
            scores = scores.masked_fill(
                (before >= top_p.to(scores.dtype).unsqueeze(1)) & (rank > 0), float("-inf")
            )
    # the largest of chances over exponential numbers is of each word as often as its chance says
    drawn = (scores.softmax(-1) / torch.empty_like(scores).exponential_()).argmax(-1)
    if words is not None:
        drawn = words.gather(1, drawn.unsqueeze(1)).squeeze(1)
    return drawn if temperature is None else torch.where(temperature > 0, drawn, logits.argmax(-1))


_OPERATORS: dict[str, tuple[str, Callable[..., Any]]] = {
    "rotary_embedding": (
        "(Tensor positions, Tensor(a!) query, Tensor(b!)? key, int head_size, Tensor cos_sin_cache, bool is_neox=True) -> ()",
        _rotary_embedding,
    ),
    "rms_norm": ("(Tensor input, Tensor weight, float epsilon=1e-06) -> Tensor", _rms_norm),
    "fused_add_rms_norm": (
        "(Tensor(a!) input, Tensor(b!) residual, Tensor weight, float epsilon=1e-06) -> ()",
        _fused_add_rms_norm,
    ),
    "silu_and_mul": ("(Tensor input) -> Tensor", _silu_and_mul),
    "gelu_and_mul": ("(Tensor input, str approximate='none') -> Tensor", _gelu_and_mul),
    "sample": (
        "(Tensor logits, Tensor? temperature=None, Tensor? top_k=None, Tensor? top_p=None) -> Tensor",
        _sample,
    ),
}  # fmt: skip
# those with kernels: the schema, the composite, and what launches
_WITH_KERNELS: dict[str, tuple[str, Callable[..., Any], Callable[..., Any]]] = {
    "paged_attention": (
        "(Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_tables, Tensor seq_lens, float scale, *, "
        "Tensor? alibi_slopes=None, int window=-1, float softcap=0.0) -> Tensor",
        _attend,
        _paged_attention,
    ),
    "reshape_and_cache": (
        "(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor slot_mapping) -> ()",
        _put,
        _reshape_and_cache,
    ),
}
_library = torch.library.Library("maca", "DEF")


def register() -> None:
    """Defines the operators."""
    for name, (schema, composite) in _OPERATORS.items():
        _library.define(name + schema)
        _library.impl(name, composite, "CompositeImplicitAutograd")
    for name, (schema, composite, _) in _WITH_KERNELS.items():
        _library.define(name + schema)
        _library.impl(name, composite, "CompositeExplicitAutograd")
    torch.library.register_fake("maca::paged_attention", lambda query, *_, **__: query.new_empty(query.shape))
    torch.library.register_fake("maca::reshape_and_cache", lambda *_: None)


@special(*(f"maca.{name}.default" for name in _WITH_KERNELS))
def _on_device(func: OpOverload) -> Launcher:
    function = with_a_next_way(func, _WITH_KERNELS[func._schema.name.partition("::")[2]][2])

    def run(args: Arguments, kwargs: Keywords | None) -> Value:
        check_devices(str(func), [*args, *(kwargs or {}).values()])
        return function(*args, **(kwargs or {}))

    return run
