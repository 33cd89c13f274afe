"""Calls that only make metadata: views, and operators that change the wrapper itself."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

import torch
from torch._ops import OpOverload

from macatensor.dispatch.consultation import reject
from macatensor.dispatch.launcher import special
from macatensor.dispatch.plan import meta_tensor
from macatensor.dispatch.resize import adopt
from macatensor.dispatch.signature import read
from macatensor.runtime import plan_caches, tensor
from macatensor.runtime.boxed import Arguments, Keywords, Launcher, Value
from macatensor.runtime.ffi import native
from macatensor.runtime.meta import Meta, meta_of
from macatensor.runtime.plan_caches import PlanCache
from macatensor.runtime.tensor import MacaTensor, wrap


class View(NamedTuple):
    """One view, as ``ViewCall`` makes it without a look at the buffer where it ``is_plain``."""

    meta: Meta
    delta: int  # elements from the base's first to its own
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    is_plain: bool  # inside of its base, and without a lazy bit


class Views(NamedTuple):
    """Several views of one call; ``ViewCall`` reads the first field and the sixth."""

    views: list[View]
    delta: None
    size: None
    stride: None
    dtype: None
    is_plain: bool


class Placed(NamedTuple):
    """A view whose offset is an argument, and does not follow the base's."""

    meta: Meta


class Recast(NamedTuple):
    """A view with elements of another size than the base's, in which its offset counts."""

    meta: Meta
    delta: int


class Special(NamedTuple):
    """Whatever ``ViewCall`` leaves to :meth:`ViewLauncher.many`."""

    what: Placed | Recast | None  # None: no view at all
    delta: None = None
    size: None = None
    stride: None = None
    dtype: None = None
    is_plain: bool = False


class ViewLauncher(native.ViewCall):
    """Calls of one overload that only makes metadata.

    Called with (args, kwargs). The base class, written in C, makes a view that was made before; others come here.
    """

    def __init__(self, func: OpOverload):
        self.func = func
        self.signature = read(func)
        self.cache: PlanCache[View | Views | Special] = PlanCache()
        super().__init__(self.cache)

    def general(self, args: Arguments, kwargs: Keywords | None) -> Value:
        if kwargs:
            args = tuple(self.signature.fill(args, kwargs))
        base = args[0]
        buffer, offset, meta = base._payload
        key = (meta, *[tuple(a) if type(a) is list else a for a in args[1:]])
        found = self.cache.get(key)
        if found is None:
            found = self.build(args, key)
        if not isinstance(found, View):
            return self.many(args, found)
        if torch.is_inference_mode_enabled() and not base.is_inference():
            with torch.inference_mode(False):
                return wrap(buffer, offset + found.delta, found.meta)
        return wrap(buffer, offset + found.delta, found.meta)

    def build(self, args: Arguments, key: Hashable) -> View | Views | Special:
        generation = plan_caches.generation
        full = self.signature.fill(args, None)
        base = meta_tensor(args[0]._payload[2])
        try:
            result = self.signature.call(self.func, [base, *full[1:]])
        except Exception as error:
            reject(self.signature, full, error)
        found: View | Views | Special
        if not isinstance(result, torch.Tensor):
            views = [_view(r, args[0]._payload[2]) for r in result]
            found = Views(views, None, None, None, None, all(v.is_plain for v in views))
        elif "storage_offset" in self.signature.positions:
            found = Special(Placed(_view_meta(result)))
        else:
            found = _view(result, args[0]._payload[2])
            if found.meta.itemsize != base.itemsize:
                found = Special(Recast(found.meta, found.delta))
        # keys compare by value: 1 and True would meet, but no view takes either where it takes the other
        self.cache.remember(key, found, generation)
        return found

    def many(self, args: Arguments, found: Views | Special) -> MacaTensor | list[MacaTensor]:
        """Views that are several, may leave the memory, or have elements of another size."""
        if torch.is_inference_mode_enabled() and not args[0].is_inference():
            with torch.inference_mode(False):
                return self.many(args, found)
        base = args[0]
        buffer, offset, _ = base._payload
        if isinstance(found, Views):
            return [wrap(buffer, offset + view.delta, view.meta) for view in found.views]
        if isinstance(found.what, Recast):
            meta, delta = found.what
            start, rest = divmod(offset * base.element_size(), meta.itemsize)
            if rest:
                ratio = meta.itemsize // base.element_size()
                raise RuntimeError(
                    f"self.storage_offset() must be divisible by {ratio} to view {base.dtype} as {meta.dtype} "
                    f"(different element sizes), but got {offset}"
                )
            return wrap(buffer, start + delta, meta)
        assert found.what is not None
        start = self.signature.fill(args, None)[self.signature.positions["storage_offset"]]
        return wrap(buffer, offset if start is None else start, found.what.meta)


def _view(result: torch.Tensor, base: Meta) -> View:
    """``ViewCall`` looks at no buffer: what may reach out of its base (``_reshape_alias`` takes any strides) is not plain."""
    meta, delta = _view_meta(result), int(result.storage_offset())
    is_inside = not meta.numel or meta.bytes_from(delta) <= base.nbytes
    return View(meta, delta, meta.size, meta.stride, meta.dtype, is_inside and not (meta.conj or meta.neg))


def _view_meta(result: torch.Tensor) -> Meta:
    return meta_of(tuple(result.shape), result.stride(), result.dtype, result.is_conj(), result.is_neg())


@special("aten.as_strided_.default")
def _as_strided_(func: OpOverload) -> Launcher:
    def run(args: Arguments, kwargs: Keywords | None) -> Value:
        # what the wrapper itself knows of memory ends with the view that it was made for
        adopt(args[0], torch.ops.aten.as_strided.default(*args, **(kwargs or {})))
        return args[0]

    return run


def change_wrapper(func: OpOverload) -> Launcher:
    """Operators like ``t_`` change sizes and strides of the wrapper itself; the memory stays."""

    def run(args: Arguments, kwargs: Keywords | None) -> Value:
        with torch.utils._mode_utils.no_dispatch():
            func(*args, **(kwargs or {}))
        tensor.refresh(args[0])
        return args[0]

    return run
