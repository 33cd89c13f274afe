"""Tensors of users' classes on the device: a class with ``__torch_function__``, or with methods and attributes of its own.

``tensor.as_subclass(T)`` gives PyTorch's tensor another class of Python. One of the device has a class already, by which
its operators come to us, so it gets one made of both, once for each ``T``: it has the name of ``T``, its methods and its
``__torch_function__``, which is called with ``T`` itself and sees no other class.
"""

from __future__ import annotations

import copyreg
import functools
import types
import weakref
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_map

from macatensor.dispatch.resize import adopt
from macatensor.integration.display import text_of
from macatensor.integration.serialization import deepcopy, reduce, shallow_copy
from macatensor.runtime.attributes import whole_attributes
from macatensor.runtime.boxed import Arguments, Keywords, Value
from macatensor.runtime.tensor import MacaTensor, method, wrap

_Tensor: Any = torch.Tensor
_Parameter: Any = torch.nn.Parameter
_host_as_subclass: Any = torch.Tensor.as_subclass
_host_make_subclass: Any = torch.Tensor._make_subclass
_host_parameter: Any = torch.nn.Parameter.__new__
_host_swap: Any = torch.utils.swap_tensors
_disabled: Any = torch._C._disabled_torch_function_impl
_without_functions: Any = torch._C.DisableTorchFunctionSubclass
_rebuild: Any = torch._tensor._rebuild_from_type_v2
_made: weakref.WeakKeyDictionary[type, weakref.ref[type[SubclassedMacaTensor]]] = weakref.WeakKeyDictionary()


class SubclassedMacaTensor(MacaTensor):
    """A tensor on the device of a user's class as well: what those that are made of both inherit."""

    users_class: ClassVar[type[torch.Tensor]]

    @staticmethod
    def __torch_dispatch__(  # type: ignore[override]
        func: OpOverload, types: Sequence[type], args: Arguments = (), kwargs: Keywords | None = None
    ) -> Value:
        if not all(issubclass(t, MacaTensor) for t in types):
            return NotImplemented
        stand_ins: dict[int, tuple[SubclassedMacaTensor, MacaTensor]] = {}

        def plain(value: Value) -> Value:
            if not isinstance(value, SubclassedMacaTensor):
                return value
            if id(value) not in stand_ins:
                stand_ins[id(value)] = value, wrap(*value._payload)
            return stand_ins[id(value)][1]

        with _without_functions():
            result = MacaTensor.__torch_dispatch__(func, (), tree_map(plain, args), tree_map(plain, kwargs))
            for ours, stand_in in stand_ins.values():
                if stand_in._payload is not ours._payload:  # resize_, t_, set_
                    adopt(ours, stand_in)
        given = {id(stand_in): ours for ours, stand_in in stand_ins.values()}
        return tree_map(lambda value: given.get(id(value), value), result)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        with _without_functions():
            return text_of(self, type(self).__name__)

    def __reduce_ex__(self, protocol: Any) -> Any:
        plain = wrap(*self._payload).requires_grad_(self.requires_grad)
        assert isinstance(plain, MacaTensor)
        rebuild, args = reduce(plain, protocol)[:2]
        return _rebuild, (rebuild, self.users_class, args, _state(self))

    def __deepcopy__(self, memo: dict[int, Value]) -> Value:
        with _without_functions():
            copied = deepcopy(self, memo)
            copied.__class__ = type(self)
        return copied

    def __copy__(self) -> Value:
        with _without_functions():
            copied: Any = shallow_copy(self)
            copied.__class__ = type(self)
        return copied


def _state(t: MacaTensor) -> Value:
    """What ``t`` holds beside its elements, as its class says it."""
    if getattr(type(t), "__getstate__", None) is getattr(object, "__getstate__", None):
        return dict(vars(t))
    return torch._utils._get_obj_state(t)


def class_for(users_class: type[torch.Tensor]) -> type[MacaTensor]:
    """The class of tensors of ``users_class`` on the device.

    Raises TypeError for a class with ``__torch_dispatch__``, whose operators would come to it and not to the device, and
    for one with ``__slots__``.
    """
    if issubclass(users_class, MacaTensor):
        return users_class
    held = _made.get(users_class)
    found = held() if held is not None else None  # a class that nobody uses may go, and its user's with it
    if found is None:
        name = f"{users_class.__module__}.{users_class.__qualname__}"
        if users_class.__torch_dispatch__ is not _Tensor.__torch_dispatch__:
            raise TypeError(
                f"{name} has a __torch_dispatch__ of its own: on maca let it hold a tensor and be made by "
                "torch.Tensor._make_wrapper_subclass"
            )
        if copyreg._slotnames(users_class):  # type: ignore[attr-defined]
            raise TypeError(f"{name} has __slots__; on maca a tensor's class has attributes instead")
        found = _class_of_both(users_class)
        _made[users_class] = weakref.ref(found)
    return found


def _class_of_both(users_class: Any) -> Any:
    def __torch_function__(
        func: Value, types: Sequence[type], args: Arguments = (), kwargs: Keywords | None = None
    ) -> Value:
        seen = tuple(t.users_class if issubclass(t, SubclassedMacaTensor) else t for t in types)
        return users_class.__torch_function__(func, seen, args, kwargs or {})

    def __new__(cls: type, *args: Value, **kwargs: Value) -> Value:
        made = users_class.__new__(users_class, *args, **kwargs)
        if isinstance(made, users_class) and not isinstance(
            made, cls
        ):  # Python initializes what is of `cls` alone
            made.__init__(*args, **kwargs)
        return made

    has_none = users_class.__torch_function__ is _disabled
    held = {
        "__module__": users_class.__module__,
        "__qualname__": users_class.__qualname__,
        "__doc__": users_class.__doc__,
        "__new__": staticmethod(__new__),
        "__torch_function__": _disabled if has_none else staticmethod(__torch_function__),
        "users_class": users_class,
    }
    if hasattr(users_class, "cls_to_become"):  # of a lazy module: what it is once its sizes are known
        held["cls_to_become"] = MacaTensor
    bases = (users_class, SubclassedMacaTensor)
    made: Any = types.new_class(users_class.__name__, bases, {}, lambda names: names.update(held))
    return made


@method("as_subclass")
def as_subclass(self: MacaTensor, cls: type[torch.Tensor]) -> Value:
    """The same memory as a tensor of class ``cls``, with its place in the autograd graph, as PyTorch's."""
    if not (isinstance(cls, type) and issubclass(cls, torch.Tensor)):
        return _host_as_subclass(torch.empty(0, device="cpu"), cls)  # PyTorch's error
    with _without_functions():
        return _classed(torch.ops.aten.alias.default(self), cls)


def _classed(made: Value, cls: type[torch.Tensor]) -> Value:
    """``made``, a tensor that nobody else has, as one of class ``cls``."""
    if issubclass(cls, torch.nn.Parameter):
        made._is_param = True
    if cls not in (torch.Tensor, torch.nn.Parameter, MacaTensor):
        made.__class__ = class_for(cls)
    return made


@functools.wraps(_host_as_subclass)
def _as_subclass(self: Value, cls: Value) -> Value:
    if isinstance(self, MacaTensor):
        return as_subclass(self, cls)
    return _host_as_subclass(self, getattr(cls, "users_class", cls))


# with the parameters by which Dynamo knows it
def _make_subclass(cls: Value, data: Value, requires_grad: bool = False, **kwargs: Value) -> Value:
    """PyTorch's ``Tensor._make_subclass``, which classes call in ``__new__``: a leaf over the memory of ``data``."""
    requires_grad = kwargs.pop("require_grad", requires_grad)  # its name in C++
    if not isinstance(data, MacaTensor):
        return _host_make_subclass(cls, data, requires_grad, **kwargs)
    with _without_functions():
        made = _classed(data.detach(), cls)
        return made.requires_grad_() if requires_grad else made  # functorch's transforms refuse to be asked


@functools.wraps(_host_parameter)
def _parameter(cls: Value, data: Value = None, requires_grad: bool = True) -> Value:
    """Parameters of a class of the user's own, or without a gradient, take a tensor of the device as one of the host."""
    if type(data) is MacaTensor and (cls is not torch.nn.Parameter or not requires_grad):
        return _make_subclass(cls, data, requires_grad)
    return _host_parameter(cls, data, requires_grad)


@functools.wraps(_host_swap)
def _swap(t1: Value, t2: Value) -> None:
    """``torch.utils.swap_tensors``: with their attributes two tensors exchange their memory."""
    with whole_attributes():
        _host_swap(t1, t2)


def register() -> None:
    """Lets what classes of users call of PyTorch take tensors of the device."""
    torch.utils.swap_tensors = _swap
    _Tensor.as_subclass = _as_subclass
    _Tensor._make_subclass = staticmethod(_make_subclass)
    _Parameter.__new__ = staticmethod(_parameter)
