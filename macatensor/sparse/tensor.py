"""The COO tensor of the device, and how a call of an operator on one finds what computes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn, SupportsIndex, TypeVar

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves, tree_map

from macatensor.dispatch.errors import two_devices
from macatensor.dispatch.host_fallback import announce
from macatensor.dispatch.rowless import taken_apart
from macatensor.runtime.boxed import Arguments, Keywords, Value
from macatensor.runtime.tensor import MacaTensor, device

_Function = TypeVar("_Function", bound=Callable[..., Value])

# By the name of an overload, "aten::mm": what computes it. NotImplemented says that a call is none of its cases.
OPERATORS: dict[str, Callable[..., Value]] = {}
# Decompositions of PyTorch's that ask a sparse tensor for nothing but operators; others look into the struct of PyTorch's
# own sparse tensors, which ours has not.
TAKEN_APART = frozenset({"aten::_sparse_addmm", "aten::_sparse_sum.dim"})


class SparseMacaTensor(torch.Tensor):
    """A tensor of layout ``torch.sparse_coo`` on ``maca:0``. Made by PyTorch's functions, never directly."""

    _coo_indices: torch.Tensor  # int64 [sparse_dim, nnz]
    _coo_values: torch.Tensor  # [nnz, *dense sizes]
    _coo_is_coalesced: bool  # are the indices sorted, and each there once?

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls: type, *args: Value, **kwargs: Value) -> Value:
        if len(args) == 1 and isinstance(args[0], torch.Tensor) and kwargs.keys() == {"requires_grad"}:
            return torch.nn.Parameter(args[0], kwargs["requires_grad"])
        raise TypeError(
            "SparseMacaTensor cannot be made directly; use torch.sparse_coo_tensor or to_sparse()"
        )

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: OpOverload, types: Sequence[type], args: Arguments = (), kwargs: Keywords | None = None
    ) -> Value:
        if not all(issubclass(t, (SparseMacaTensor, MacaTensor)) or t is torch.Tensor for t in types):
            return NotImplemented
        kwargs = kwargs or {}
        name = func.name()
        if name != "aten::copy_":
            _check_devices(func, args)
        found = OPERATORS.get(name)
        result = found(*args, **kwargs) if found is not None else NotImplemented
        if result is NotImplemented:
            result = taken_apart(func, args, kwargs, explicit=name in TAKEN_APART)
        return _on_host(func, args, kwargs) if result is NotImplemented else result

    def __reduce_ex__(self, protocol: SupportsIndex) -> Value:
        return self._reduce_ex_internal(protocol)  # type: ignore[no-untyped-call]

    def untyped_storage(self) -> NoReturn:
        raise NotImplementedError(
            "Cannot access storage of a sparse tensor; its values() and indices() have one each"
        )

    def tolist(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} has no list of its elements; use to_dense().tolist()")


def operator(*names: str) -> Callable[[_Function], _Function]:
    """Decorates what computes the overloads ``names`` ("mm", "add.Tensor") when an argument is sparse."""

    def register(function: _Function) -> _Function:
        for name in names:
            OPERATORS[f"aten::{name}"] = function
        return function

    return register


def coo(
    indices: torch.Tensor, values: torch.Tensor, size: Sequence[int], is_coalesced: bool = False
) -> SparseMacaTensor:
    """The tensor of ``size`` that has ``values`` [nnz, *dense sizes] at ``indices`` int64 [sparse_dim, nnz], both on maca."""
    made: SparseMacaTensor = torch.Tensor._make_wrapper_subclass(
        SparseMacaTensor, tuple(size), dtype=values.dtype, layout=torch.sparse_coo, device=device()
    )
    return become(made, indices, values, is_coalesced)


def become(
    tensor: SparseMacaTensor, indices: torch.Tensor, values: torch.Tensor, is_coalesced: bool
) -> SparseMacaTensor:
    """``tensor`` with these elements instead."""
    tensor._coo_indices, tensor._coo_values, tensor._coo_is_coalesced = indices, values, is_coalesced
    return tensor


def from_host(source: torch.Tensor) -> SparseMacaTensor:
    """A copy on the device of a COO tensor of the host."""
    return coo(source._indices().to("maca"), source._values().to("maca"), source.shape, source.is_coalesced())


def to_host(source: SparseMacaTensor) -> torch.Tensor:
    """A copy on the host, in PyTorch's own COO tensor."""
    return torch.sparse_coo_tensor(
        source._coo_indices.cpu(),
        source._coo_values.cpu(),
        source.shape,
        check_invariants=False,
        is_coalesced=source._coo_is_coalesced,
    )


def _check_devices(func: OpOverload, values: Iterable[Value]) -> None:
    for value in values:
        if (
            isinstance(value, torch.Tensor)
            and not isinstance(value, (SparseMacaTensor, MacaTensor))
            and value.dim()
        ):
            raise two_devices(str(func), value)


def _on_host(func: OpOverload, args: Arguments, kwargs: Keywords) -> Value:
    """What PyTorch computes on the host: the words of its errors, too, where it refuses."""
    _check_devices(func, tree_leaves((args, kwargs)))
    announce(func, "no kernel of maca takes these sparse tensors")
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []

    def down(value: Value) -> Value:
        if isinstance(value, torch.device) and value.type == "maca":
            return torch.device("cpu")
        if not isinstance(value, (SparseMacaTensor, MacaTensor)):
            return value
        for ours, theirs in pairs:
            if ours is value:
                return theirs
        pairs.append((value, to_host(value) if isinstance(value, SparseMacaTensor) else value.cpu()))
        return pairs[-1][1]

    def up(value: Value) -> Value:
        if not isinstance(value, torch.Tensor):
            return value
        for ours, theirs in pairs:
            if theirs is value:
                return ours
        return from_host(value) if value.layout is torch.sparse_coo else value.to("maca")

    asked = func._schema.arguments
    given = {a.name: value for a, value in zip(asked, args)} | kwargs
    result = func(*tree_map(down, args), **tree_map(down, kwargs))
    for argument in asked:
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        for ours, theirs in pairs:
            if ours is not given.get(argument.name):
                continue
            if isinstance(ours, SparseMacaTensor):
                _write(ours, theirs)
            else:
                ours.copy_(theirs)
    return tree_map(up, result)


def _write(ours: SparseMacaTensor, theirs: torch.Tensor) -> None:
    if ours.shape != theirs.shape:
        raise NotImplementedError(
            f"a sparse tensor of maca cannot change its sizes from {list(ours.shape)} to {list(theirs.shape)}; "
            "make another with torch.sparse_coo_tensor"
        )
    new = from_host(theirs)
    become(ours, new._coo_indices, new._coo_values, new._coo_is_coalesced)
