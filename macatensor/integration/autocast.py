"""``torch.autocast("maca")``: what PyTorch does for CUDA, on the same operators.

Each operator of PyTorch's lists has a wrapper on the device's autocast key. That key is masked while autocast is
off, so the wrappers cost nothing then. The lists are in op_table/autocast.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import NamedTuple, NoReturn

import torch
from torch._ops import OpOverload

from macatensor.operators import transformer
from macatensor.runtime.boxed import Value
from macatensor.runtime.ffi import native
from macatensor.runtime.tensor import MacaTensor
from macatensor.runtime.uncompiled import uncompiled
from op_table import autocast as lists

_BANNED = (
    "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
    "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
    "In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits\n"
    "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\n"
    "safe to autocast."
)


class _Kept(NamedTuple):
    """A cast of a leaf. The leaf is kept, so that its id stays its own, until the outermost autocast ends."""

    leaf: torch.Tensor
    version: int  # of the leaf when it was cast
    cast: torch.Tensor


# By the id of the leaf, the dtype, and whether the cast was recorded.
_casts: dict[tuple[int, torch.dtype, bool], _Kept] = {}
_clearing = False


def cached_casts() -> int:
    """Casts of weights that are kept for the rest of the outermost autocast region."""
    return len(_casts)


def _follow_clearing() -> None:
    """Empties the cache whenever PyTorch empties its own. Installed with the first cast that is kept."""
    global _clearing
    _clearing = True
    clear_pytorchs: Callable[[], None] = torch.clear_autocast_cache

    def clear_autocast_cache() -> None:
        _casts.clear()
        clear_pytorchs()

    torch.clear_autocast_cache = clear_autocast_cache


def _eligible(value: object) -> bool:
    if not isinstance(value, torch.Tensor):
        return False
    dtype = value.dtype
    if not dtype.is_floating_point or dtype == torch.float64:
        return False
    return type(value) is MacaTensor or value.device.type == "maca"


def _cast(value: Value, dtype: torch.dtype) -> Value:
    """``value`` in ``dtype`` if it is a tensor (or a list with some) that autocast may change."""
    if isinstance(value, (list, tuple)):
        return [_cast(item, dtype) for item in value] if any(map(_eligible, value)) else value
    if not _eligible(value) or value.dtype == dtype:
        return value
    if (
        dtype != torch.float32
        and value.dtype == torch.float32
        and value.requires_grad
        and value.is_leaf
        and not value._is_view()
        and torch.is_autocast_cache_enabled()
    ):
        return _cast_of_leaf(value, dtype)
    return value.to(dtype)


def _cast_of_leaf(leaf: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    # a cast made under no_grad would cut the graph of a later use
    key = (id(leaf), dtype, torch.is_grad_enabled())
    version = 0 if leaf.is_inference() else leaf._version
    kept = _casts.get(key)
    if kept is not None and kept.leaf is leaf and kept.version == version:
        return kept.cast
    if not _clearing:
        _follow_clearing()
    cast = leaf.to(dtype)
    _casts[key] = _Kept(leaf, version, cast)
    return cast


def _widest(values: Iterable[Value], dtype: torch.dtype, lower: torch.dtype) -> torch.dtype:
    for value in values:
        if isinstance(value, (list, tuple)):
            dtype = _widest(value, dtype, lower)
        elif _eligible(value):
            if torch.float32 in (dtype, value.dtype):
                dtype = torch.float32
            elif not dtype == value.dtype == lower:
                raise RuntimeError("Unexpected floating ScalarType in at::autocast::prioritize")
    return dtype


_key = torch._C._dispatch_key_parse("AutocastPrivateUse1")
_keys = torch._C.DispatchKeySet(_key)
# Whether operators of this thread pass autocast by. Whoever is called through its key was not passed by.
_rest: Callable[[bool], None] = functools.partial(torch._C._dispatch_tls_set_dispatch_key_excluded, _key)


def _below_autocast() -> AbstractContextManager[None]:
    return torch._C._ExcludeDispatchKeyGuard(_keys)


def _lower(func: OpOverload) -> Value:
    return native.CastCall(
        func._op, _rest, functools.partial(torch.get_autocast_dtype, "maca"), uncompiled(_cast)
    )


def _float32(func: OpOverload) -> Value:
    return native.CastCall(func._op, _rest, torch.float32, uncompiled(_cast))


def _float32_result(func: OpOverload) -> Value:
    position = next(i for i, a in enumerate(func._schema.arguments) if a.name == "dtype")

    def float32_result(*args: Value, **kwargs: Value) -> Value:
        with _below_autocast():
            # a tensor that autocast leaves alone keeps PyTorch's own promotion (a sum of integers)
            if _eligible(args[0]):
                if len(args) > position:
                    if args[position] is None:
                        args = (*args[:position], torch.float32, *args[position + 1 :])
                elif kwargs.get("dtype") is None:
                    kwargs["dtype"] = torch.float32
            return func(*args, **kwargs)

    return float32_result


def _float32_appended(func: OpOverload, with_dtype: OpOverload) -> Value:
    arguments = func._schema.arguments

    def float32_appended(*args: Value, **kwargs: Value) -> Value:
        with _below_autocast():
            given = list(args) + [kwargs.get(a.name, a.default_value) for a in arguments[len(args) :]]
            dtype = torch.float32 if _eligible(args[0]) else args[0].dtype
            return with_dtype(*given, dtype=dtype)

    return float32_appended


def _promoted(func: OpOverload) -> Value:
    def widest(*args: Value, **kwargs: Value) -> Value:
        with _below_autocast():
            lower = torch.get_autocast_dtype("maca")
            dtype = _widest((*args, *kwargs.values()), lower, lower)
            return func(*[_cast(a, dtype) for a in args], **{k: _cast(v, dtype) for k, v in kwargs.items()})

    return widest


def _banned(*args: Value, **kwargs: Value) -> NoReturn:
    raise RuntimeError(_BANNED)


_wrappers: torch.library.Library | None = None
_fallthrough: torch.library.Library | None = None


def _overload(name: str) -> OpOverload:
    packet, _, overload = name.partition(".")
    result: OpOverload = getattr(getattr(torch.ops.aten, packet), overload or "default")
    return result


def register() -> None:
    """Registers the wrappers, and the fallthrough for every other operator."""
    global _wrappers, _fallthrough
    _fallthrough = torch.library.Library("_", "IMPL")
    _fallthrough.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    _wrappers = torch.library.Library("aten", "IMPL")
    ways: list[tuple[Callable[[OpOverload], Callable[..., Value]], tuple[str, ...]]] = [
        (_lower, lists.LOWER_PRECISION + lists.RECURRENT),
        (_float32, lists.FLOAT32 + lists.FOURIER),
        (_float32_result, lists.FLOAT32_RESULT),
        (_promoted, lists.WIDEST + lists.WIDEST_OF_LIST),
    ]
    for wrap, names in ways:
        for name in names:
            _wrappers.impl(name, wrap(_overload(name)), "AutocastPrivateUse1")
    for name, with_dtype in lists.FLOAT32_APPENDED.items():
        wrapper = _float32_appended(_overload(name), _overload(with_dtype))
        _wrappers.impl(name, wrapper, "AutocastPrivateUse1")
    _wrappers.impl("binary_cross_entropy", _banned, "AutocastPrivateUse1")
    # Whole layers: their parts are cast one by one. PyTorch avoids these paths under CUDA's autocast only.
    for name, layer in (
        ("_native_multi_head_attention", transformer.native_multi_head_attention),
        ("_transformer_encoder_layer_fwd", transformer.transformer_encoder_layer),
    ):
        _wrappers.impl(name, layer, "AutocastPrivateUse1")
