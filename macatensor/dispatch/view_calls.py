"""Calls that only make metadata: views, and operators that change the wrapper itself."""

from __future__ import annotations

from typing import Any

import torch

from macatensor.dispatch.consultation import reject
from macatensor.dispatch.launcher import Launcher, special
from macatensor.dispatch.plan import meta_tensor
from macatensor.dispatch.resize import adopt
from macatensor.dispatch.signature import read
from macatensor.runtime import plan_caches, tensor
from macatensor.runtime.ffi import native
from macatensor.runtime.meta import Meta, meta_of
from macatensor.runtime.plan_caches import PlanCache
from macatensor.runtime.tensor import wrap


class ViewLauncher(native.ViewCall):  # type: ignore[misc]
    """Calls of one overload that only makes metadata.

    Called with (args, kwargs). The base class, written in C, makes a view that was made before; others come here.
    """

    def __init__(self, func: Any):
        self.func = func
        self.signature = read(func)
        self.cache = PlanCache()
        super().__init__(self.cache)

    def general(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        if kwargs:
            args = tuple(self.signature.fill(args, kwargs))
        base = args[0]
        buffer, offset, meta = base._payload
        key = (meta, *[tuple(a) if type(a) is list else a for a in args[1:]])
        found = self.cache.get(key)
        if found is None:
            found = self.build(args, key)
        result_meta, delta = found[0], found[1]
        if delta is None:  # several results, or an offset that does not follow the base's
            return self.many(args, found)
        if torch.is_inference_mode_enabled() and not base.is_inference():
            with torch.inference_mode(False):
                return wrap(buffer, offset + delta, result_meta)
        return wrap(buffer, offset + delta, result_meta)

    def build(self, args: tuple[Any, ...], key: Any) -> Any:
        generation = plan_caches.generation
        full = self.signature.fill(args, None)
        base = meta_tensor(args[0]._payload[2])
        try:
            result = self.signature.call(self.func, [base, *full[1:]])
        except Exception as error:
            reject(self.signature, full, error)
        found: Any
        if not isinstance(result, torch.Tensor):
            views = [_view(r, args[0]._payload[2]) for r in result]
            found = (views, None, None, None, None, all(v[5] for v in views))
        elif "storage_offset" in self.signature.positions:
            found = _outside(_view_meta(result))
        else:
            found = _view(result, args[0]._payload[2])
            if found[0].itemsize != base.itemsize:  # the base's offset counts elements of another size
                found = _outside(found[:2])
        # keys compare by value: 1 and True would meet, but no view takes either where it takes the other
        self.cache.remember(key, found, generation)
        return found

    def many(self, args: tuple[Any, ...], found: Any) -> Any:
        """Views that are several, may leave the memory, or have elements of another size."""
        if torch.is_inference_mode_enabled() and not args[0].is_inference():
            with torch.inference_mode(False):
                return self.many(args, found)
        base = args[0]
        buffer, offset, _ = base._payload
        if isinstance(found[0], list):
            return [wrap(buffer, offset + view[1], view[0]) for view in found[0]]
        if isinstance(found[0], tuple):
            meta, delta = found[0]
            start, rest = divmod(offset * base.element_size(), meta.itemsize)
            if rest:
                ratio = meta.itemsize // base.element_size()
                raise RuntimeError(
                    f"self.storage_offset() must be divisible by {ratio} to view {base.dtype} as {meta.dtype} "
                    f"(different element sizes), but got {offset}"
                )
            return wrap(buffer, start + delta, meta)
        start = self.signature.fill(args, None)[self.signature.positions["storage_offset"]]
        return wrap(buffer, offset if start is None else start, found[0])


def _view(result: torch.Tensor, base: Meta) -> tuple[Any, ...]:
    """What ``ViewCall`` makes a view of: Meta, offset from the base's, sizes, strides, dtype, is it plain?

    ``ViewCall`` looks at no buffer: what may reach out of its base (``_reshape_alias`` takes any strides) is not plain.
    """
    meta, delta = _view_meta(result), int(result.storage_offset())
    is_inside = not meta.numel or meta.bytes_from(delta) <= base.nbytes
    return meta, delta, meta.size, meta.stride, meta.dtype, is_inside and not (meta.conj or meta.neg)


def _outside(found: Any) -> tuple[Any, ...]:
    """What only :meth:`ViewLauncher.many` can make."""
    return found, None, None, None, None, False


def _view_meta(result: torch.Tensor) -> Meta:
    return meta_of(tuple(result.shape), result.stride(), result.dtype, result.is_conj(), result.is_neg())


@special("aten.as_strided_.default")
def _as_strided_(func: Any) -> Launcher:
    def run(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        # what the wrapper itself knows of memory ends with the view that it was made for
        adopt(args[0], torch.ops.aten.as_strided.default(*args, **(kwargs or {})))
        return args[0]

    return run


def change_wrapper(func: Any) -> Launcher:
    """Operators like ``t_`` change sizes and strides of the wrapper itself; the memory stays."""

    def run(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        with torch.utils._mode_utils.no_dispatch():
            func(*args, **(kwargs or {}))
        tensor.refresh(args[0])
        return args[0]

    return run
