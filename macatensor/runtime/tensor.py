"""MacaTensor: a tensor whose elements lie in device memory and whose operators come to ``__torch_dispatch__``."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from types import GetSetDescriptorType
from typing import TYPE_CHECKING, NoReturn, TypeAlias, TypeGuard, TypeVar

import torch

from macatensor.runtime.attributes import attributes
from macatensor.runtime.boxed import Value
from macatensor.runtime.ffi import native, own
from macatensor.runtime.meta import Meta, meta_of, meta_of_tensor
from macatensor.runtime.streams import Stream

if TYPE_CHECKING:
    from numpy import ndarray

    from macatensor.runtime.ffi import Buffer

# Memory, the offset of the first element in it, in elements, and what the tensor is.
Payload: TypeAlias = "tuple[Buffer, int, Meta]"
# Of _make_wrapper_subclass: class, sizes, strides, offset, memory format, dtype, layout, device.
WrapperArguments: TypeAlias = (
    "tuple[type[MacaTensor], tuple[int, ...], tuple[int, ...], int | None, None, torch.dtype, torch.layout, "
    "torch.device]"
)
_Method = TypeVar("_Method", bound=Callable[..., object])

_device = torch.device("cpu")  # becomes maca:0 when the device is registered
_make = torch.Tensor._make_wrapper_subclass
_STRIDED = torch.strided

plain_data: GetSetDescriptorType = torch.Tensor.data  # type: ignore[assignment]


def take_sizes(target: torch.Tensor, value: torch.Tensor) -> None:
    """Gives a wrapper the sizes, strides and dtype of another. Its version counter and autograd state stay."""
    with torch.utils._mode_utils.no_dispatch():
        plain_data.__set__(target, value)


class MacaTensor(torch.Tensor):
    """A tensor on device ``maca:0``. Made by ``maca()``, ``.to("maca")``, factories and operators, never directly."""

    # (buffer, offset in elements, Meta): one attribute, so that one store replaces all three. No slot: Module.to
    # swaps a Parameter with ours, and torch.utils.swap_tensors refuses types with other slots.
    _payload: Payload
    __dict__ = attributes

    __torch_function__ = native.FixedAttribute(torch._C._disabled_torch_function_impl)  # type: ignore[assignment]

    @staticmethod
    def __new__(cls: type, *args: Value, **kwargs: Value) -> Value:
        # type(parameter)(data, requires_grad=...) makes another Parameter, wherever the data is
        if len(args) == 1 and isinstance(args[0], torch.Tensor) and kwargs.keys() == {"requires_grad"}:
            return torch.nn.Parameter(args[0], kwargs["requires_grad"])
        raise TypeError("MacaTensor cannot be made directly; use macatensor.maca(data) or tensor.to('maca')")

    # (func, types, args=(), kwargs=None): calls launcher_of(func)(args, kwargs), after bind(func) the first time
    __torch_dispatch__ = native.dispatch

    def __format__(self, spec: str) -> str:
        # PyTorch formats 0-dim tensors as numbers when their type is Tensor itself
        number = self.dim() == 0 and (spec or not getattr(self, "_is_param", False))
        return self.item().__format__(spec) if number else object.__format__(self, spec)

    def tolist(self) -> list[object]:
        """The elements as Python numbers, nested as the dimensions are."""
        return self.detach().cpu().tolist()

    def numpy(self, *, force: bool = False) -> ndarray:
        """Refused as for a CUDA tensor, unless ``force=True`` copies to the host first."""
        if force:
            return self.detach().cpu().resolve_conj().resolve_neg().numpy()
        raise TypeError(
            "can't convert maca:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
        )

    def __array__(self, dtype: object = None, copy: object = None) -> ndarray:
        return self.numpy()

    def share_memory_(self) -> NoReturn:
        """Refused: a tensor sent to another process is copied."""
        raise RuntimeError(
            "maca tensors cannot be shared between processes. Sent through a torch.multiprocessing queue or pipe they "
            "are copied; to share memory, use a tensor on the host"
        )

    def is_shared(self) -> bool:
        return False

    def _typed_storage(self) -> torch.TypedStorage:
        return torch.TypedStorage(wrap_storage=self.untyped_storage(), dtype=self.dtype, _internal=True)

    def storage(self) -> torch.TypedStorage:
        torch.storage._warn_typed_storage_removal(stacklevel=2)
        return self._typed_storage()

    def data_ptr(self) -> int:
        """The opaque device address of the first element; 0 for an empty tensor. It cannot be dereferenced."""
        buffer, offset, meta = self._payload
        own(buffer)
        return int(buffer.address) + offset * meta.itemsize if meta.numel else 0

    def record_stream(self, s: torch.Stream | Stream) -> None:
        """Says that stream ``s`` uses this tensor. The runtime knows already: memory that is freed is handed out again
        in the order of the streams that used it. Raises TypeError for what is no ``torch.maca.Stream``."""
        if not isinstance(s, Stream):
            raise TypeError(
                f"record_stream(): argument 's' must be torch.maca.Stream, not {type(s).__name__}"
            )


def method(*names: str) -> Callable[[_Method], _Method]:
    """Makes a function, of modules that need this one, a method of :class:`MacaTensor` under each of the names."""

    def define(function: _Method) -> _Method:
        for name in names:
            setattr(MacaTensor, name, function)
        return function

    return define


def use_device(device: torch.device) -> None:
    """Says, once it has been registered, which device the tensors made from now on are on."""
    global _device
    _device = device


def device() -> torch.device:
    """The device that tensors are made on."""
    return _device


def wrapper_arguments(meta: Meta, offset: int = 0) -> WrapperArguments:
    """What ``_make_wrapper_subclass`` is called with for a tensor ``offset`` elements into its memory."""
    # PyTorch takes 0.15 us to read a number, even this one
    return MacaTensor, meta.size, meta.stride, offset or None, None, meta.dtype, _STRIDED, _device


def wrap(buffer: Buffer, offset: int, meta: Meta) -> MacaTensor:
    """A tensor over ``buffer`` whose first element is ``offset`` elements into it.

    The one place where Python gives a tensor its memory. Raises RuntimeError where it would reach outside.
    """
    meta.check_within(buffer.nbytes, offset)
    result: MacaTensor = _make(*wrapper_arguments(meta, offset))
    result._payload = (buffer, offset, meta)
    if meta.conj:
        torch._C._set_conj(result, True)
    if meta.neg:
        torch._C._set_neg(result, True)
    return result


# The payload of a tensor that PyTorch's functions gave back for one of ours, and whose type is that of any tensor.
payload: Callable[[torch.Tensor], Payload] = attrgetter("_payload")


def plain(tensor: MacaTensor) -> MacaTensor:
    """The same memory without the lazy conjugate and negative bits."""
    buffer, offset, meta = tensor._payload
    return wrap(buffer, offset, meta_of(meta.size, meta.stride, meta.dtype))


def physical(tensor: MacaTensor) -> MacaTensor:
    """``tensor`` itself, or a copy in which its lazy bits are resolved."""
    meta = tensor._payload[2]
    if not (meta.conj or meta.neg):
        return tensor
    result = plain(tensor)
    if meta.conj:
        result = torch.ops.aten._conj_physical.default(result)
    if meta.neg:
        result = torch.ops.aten.neg.default(result)
    return result


def refresh(tensor: MacaTensor) -> None:
    """Takes the payload's metadata from the wrapper again, after an operator changed the wrapper itself."""
    buffer = tensor._payload[0]
    offset, meta = int(tensor.storage_offset()), meta_of_tensor(tensor)
    meta.check_within(buffer.nbytes, offset)
    tensor._payload = (buffer, offset, meta)


def is_maca(value: object) -> TypeGuard[MacaTensor]:
    return isinstance(value, MacaTensor)
