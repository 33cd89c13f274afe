"""A call of an operator on sparse tensors of the device: what computes it, and PyTorch on the host where nothing does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, NoReturn, SupportsIndex, TypeVar

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves, tree_map

from macatensor.dispatch.errors import two_devices
from macatensor.dispatch.host_fallback import announce
from macatensor.dispatch.resize import write_out
from macatensor.dispatch.rowless import taken_apart
from macatensor.dispatch.signature import functional, of_in_place
from macatensor.runtime.boxed import Arguments, Keywords, Value
from macatensor.runtime.dispatch_keys import lazy_bits
from macatensor.runtime.tensor import MacaTensor, plain_data

_Function = TypeVar("_Function", bound=Callable[..., Value])
_Operator = Callable[..., Value]

# What makes a tensor of ours of one of the host, by its layout.
FROM_HOST: dict[torch.layout, Callable[[torch.Tensor], DeviceSparse]] = {}
# Decompositions of PyTorch's that ask a sparse tensor for nothing but operators; others look into the struct of PyTorch's
# own sparse tensors, which ours has not.
TAKEN_APART = frozenset(
    f"aten::{name}"
    for name in "_sparse_addmm _sparse_sum.dim full_like ones_like rand_like randn_like".split()
)


class DeviceSparse(torch.Tensor):
    """What sparse tensors of the device have in common: they are made by PyTorch's functions, never directly."""

    _IMPLEMENTATION: ClassVar[str]  # the name of PyTorch's own such tensors, for its words
    # By the name of an overload, "aten::mm": what computes it. NotImplemented says that a call is none of its cases.
    operators: ClassVar[dict[str, _Operator]] = {}

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls: type, *args: Value, **kwargs: Value) -> Value:
        if len(args) == 1 and isinstance(args[0], torch.Tensor) and kwargs.keys() == {"requires_grad"}:
            return torch.nn.Parameter(args[0], kwargs["requires_grad"])
        raise TypeError(
            f"{cls.__name__} cannot be made directly; use torch.sparse_coo_tensor, torch.sparse_csr_tensor or to_sparse()"
        )

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: OpOverload, types: Sequence[type], args: Arguments = (), kwargs: Keywords | None = None
    ) -> Value:
        if not all(issubclass(t, (DeviceSparse, MacaTensor)) or t is torch.Tensor for t in types):
            return NotImplemented
        kwargs = kwargs or {}
        name = func.name()
        if name != "aten::copy_":
            _check_devices(func, args)
        result = _computed(name, types, args, kwargs)
        if result is NotImplemented and name.startswith("aten::_foreach_"):
            result = _one_by_one(func, args, kwargs)
        if result is NotImplemented and "out" in kwargs:
            result = _into_out(func, types, args, kwargs)
        elif result is NotImplemented and not _is_known(name, types):
            result = _in_place(func, types, args, kwargs)
        if result is NotImplemented:
            result = taken_apart(func, args, kwargs, explicit=name in TAKEN_APART)
        return _on_host(func, args, kwargs) if result is NotImplemented else result

    def to_host(self, check: bool = False) -> torch.Tensor:
        """A copy on the host, in PyTorch's own tensor. ``check``: raises RuntimeError where indices are none of its."""
        raise NotImplementedError

    def hold(self, other: Value) -> None:
        """This tensor has the sizes and elements of ``other`` from now on, one of ours of the same layout."""
        raise NotImplementedError

    def write(self, new: Value) -> None:
        """The elements of ``new``, of the same layout and dtype, from now on: what an operator wrote in place."""
        self.hold(new)

    def _set_data(self, value: torch.Tensor) -> None:
        if isinstance(value, DeviceSparse) and value.layout is not self.layout:
            raise RuntimeError(
                f"cannot assign a tensor of layout {value.layout} to the data of one of {self.layout}; convert it first"
            )
        plain_data.__set__(self, value)  # refuses what is no tensor such as this
        self.hold(value)

    data = property(lambda self: plain_data.__get__(self), _set_data)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Value:
        return self._reduce_ex_internal(protocol)  # type: ignore[no-untyped-call]

    def untyped_storage(self) -> NoReturn:
        raise NotImplementedError(
            f"Cannot access storage of {self._IMPLEMENTATION}: its values() and indices() have one each"
        )

    def __repr__(self, *, tensor_contents: str | None = None) -> str:  # type: ignore[override]
        """PyTorch's text, in which a class of its own is a plain tensor."""
        text = str(torch._tensor_str._str(self, tensor_contents=tensor_contents))
        name, shown = f"{type(self).__name__}(", "tensor("
        if isinstance(self, torch.nn.Parameter):
            text = f"Parameter containing:\n{text.removeprefix('Parameter(')[:-1]}"
        return text.replace(name, shown, 1).replace("\n" + " " * len(name), "\n" + " " * len(shown))

    def tolist(self) -> NoReturn:
        raise RuntimeError(f"{type(self).__name__} has no list of its elements; use to_dense().tolist()")


def registrar(kind: type[DeviceSparse]) -> Callable[..., Callable[[_Function], _Function]]:
    """Makes the decorator of what computes overloads ("mm", "add.Tensor") when an argument is a ``kind``."""

    def operator(*names: str) -> Callable[[_Function], _Function]:
        def register(function: _Function) -> _Function:
            for name in names:
                kind.operators[name if "::" in name else f"aten::{name}"] = function
            return function

        return register

    return operator


def _computed(name: str, types: Sequence[type], args: Arguments, kwargs: Keywords) -> Value:
    """By what one of the types has for the overload; NotImplemented where none has it."""
    for kind in types:
        found = kind.operators.get(name) if issubclass(kind, DeviceSparse) else None
        result = found(*args, **kwargs) if found is not None else NotImplemented
        if result is not NotImplemented:
            return result
    return NotImplemented


def _one_by_one(func: OpOverload, args: Arguments, kwargs: Keywords) -> Value:
    """A call of lists with each of their tensors by itself, as PyTorch does where one is sparse."""
    name = func._schema.name.removeprefix("aten::_foreach_")
    of_one = getattr(torch.ops.aten, name, None)
    given = {a.name: value for a, value in zip(func._schema.arguments, args)} | kwargs
    lists = {key: value for key, value in given.items() if isinstance(value, (list, tuple))}
    if of_one is None or "out" in given or len({len(value) for value in lists.values()}) != 1:
        return NotImplemented
    first, *others = given
    results = []
    for i, t in enumerate(given[first]):
        rest = {key: given[key][i] if key in lists else given[key] for key in others}
        operands = [rest.pop(key) for key in others if key not in ("alpha", "dtype", "value", "scalars")]
        if "scalars" in rest:
            number = rest.pop("scalars")
            rest |= {"value": number} if name.startswith("addc") else {}
            operands += [] if name.startswith("addc") else [number]
        results.append(of_one(t, *operands, **{k: v for k, v in rest.items() if v is not None}))
    return None if name.endswith("_") else results


def _into_out(func: OpOverload, types: Sequence[type], args: Arguments, kwargs: Keywords) -> Value:
    """``out``, with what the overload without it gives; NotImplemented where nothing computes that, or it does not fit."""
    without = functional(func)
    if without is None:
        return NotImplemented
    out = kwargs["out"]
    result = _computed(without.name(), types, args, {k: v for k, v in kwargs.items() if k != "out"})
    if isinstance(out, MacaTensor) and isinstance(result, MacaTensor):
        return write_out([out], result)
    # of one that has elements PyTorch refuses some sizes
    return written(out, result, resizes=isinstance(out, DeviceSparse) and not out._nnz())


def _is_known(name: str, types: Sequence[type]) -> bool:
    return any(issubclass(kind, DeviceSparse) and name in kind.operators for kind in types)


def _in_place(func: OpOverload, types: Sequence[type], args: Arguments, kwargs: Keywords) -> Value:
    """The first operand, with what the overload that writes nothing gives; NotImplemented where it does not fit."""
    without = of_in_place(func)
    if without is None:
        return NotImplemented
    return put(args[0], _computed(without.name(), types, args, kwargs))


def _check_devices(func: OpOverload, values: Iterable[Value]) -> None:
    for value in values:
        if (
            isinstance(value, torch.Tensor)
            and not isinstance(value, (DeviceSparse, MacaTensor))
            and value.dim()
        ):
            raise two_devices(str(func), value)


def is_one_number(value: Value) -> bool:
    """A number, or a dense tensor of no dimensions, by which every element is multiplied."""
    return not isinstance(value, DeviceSparse) and (not isinstance(value, torch.Tensor) or value.dim() == 0)


def held(t: DeviceSparse, new: Value) -> Value:
    """``t``, which becomes ``new`` of its own layout and dtype; NotImplemented where ``new`` is."""
    if new is NotImplemented:
        return NotImplemented
    t.hold(new)
    return t


def written(t: Value, new: Value, resizes: bool = False) -> Value:
    """``t``, whose elements are those of ``new`` now; NotImplemented where they cannot be.

    ``resizes``: may it take other sizes?
    """
    if not isinstance(t, DeviceSparse) or not isinstance(new, torch.Tensor) or new.layout is not t.layout:
        return NotImplemented
    if (new.shape != t.shape and not resizes) or not torch.can_cast(new.dtype, t.dtype):
        return NotImplemented
    t.write(new if new.dtype == t.dtype else new.to(t.dtype))
    return t


def put(t: Value, result: Value) -> Value:
    """``t``, dense or sparse, whose elements are those of ``result`` now; NotImplemented where they cannot be."""
    if not isinstance(t, MacaTensor):
        return written(t, result)
    fits = (
        isinstance(result, MacaTensor) and result.shape == t.shape and torch.can_cast(result.dtype, t.dtype)
    )
    return t.copy_(result) if fits else NotImplemented


def from_host(source: torch.Tensor) -> torch.Tensor:
    """A copy on the device of a tensor of the host, of whatever layout."""
    make = FROM_HOST.get(source.layout)
    return source.to("maca") if make is None else make(source)


def _on_host(func: OpOverload, args: Arguments, kwargs: Keywords) -> Value:
    """What PyTorch computes on the host: the words of its errors, too, where it refuses."""
    _check_devices(func, tree_leaves((args, kwargs)))
    announce(func, "no kernel of maca takes these sparse tensors")
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []

    def down(value: Value) -> Value:
        if isinstance(value, torch.device) and value.type == "maca":
            return torch.device("cpu")
        if not isinstance(value, (DeviceSparse, MacaTensor)):
            return value
        for ours, theirs in pairs:
            if ours is value:
                return theirs
        # kernels of the host trust indices, and would read elsewhere
        pairs.append((value, value.to_host(check=True) if isinstance(value, DeviceSparse) else value.cpu()))
        return pairs[-1][1]

    def up(value: Value) -> Value:
        if not isinstance(value, torch.Tensor):
            return value
        for ours, theirs in pairs:
            if theirs is value:
                return ours
        return from_host(value)

    asked = func._schema.arguments
    given = {a.name: value for a, value in zip(asked, args)} | kwargs
    with lazy_bits():
        result = func(*tree_map(down, args), **tree_map(down, kwargs))
    for argument in asked:
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        written_ones = {id(leaf) for leaf in tree_leaves(given.get(argument.name))}
        for ours, theirs in pairs:
            if id(ours) not in written_ones:
                continue
            if isinstance(ours, DeviceSparse):
                ours.hold(from_host(theirs))
            else:
                ours.resize_(theirs.shape).copy_(theirs)
    return tree_map(up, result)
