"""``torch.Storage`` on maca: the bytes of a device buffer, with the methods that storages of other devices have.

PyTorch's C++ has no allocator for this device: there a storage that says ``device="maca"`` ended the process. So
``torch.UntypedStorage(8, device="maca")`` makes a :class:`MacaStorage`, and so does ``Tensor.untyped_storage()``: the
storage object of the tensor's own wrapper, which PyTorch's identities and weak references hang on, with these methods.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.types import Device
from torch.utils import backend_registration

from macatensor.dispatch.resize import adopt
from macatensor.runtime.boxed import Value
from macatensor.runtime.ffi import allocate, copy_bytes, ffi, own, resize
from macatensor.runtime.host_copies import download, host_address, upload
from macatensor.runtime.meta import meta_of, meta_of_tensor, overflow
from macatensor.runtime.ordinal import ordinal
from macatensor.runtime.tensor import MacaTensor, method, payload, wrap

if TYPE_CHECKING:
    from macatensor.runtime.ffi import Buffer

_UntypedStorage: Any = torch.UntypedStorage
_TypedStorage: Any = torch.TypedStorage
_host_copy: Any = torch.UntypedStorage.copy_
_host_set: Any = torch._C.TensorBase.set_
_rewrap: Any = torch.TypedStorage._new_wrapped_storage
_tokens: weakref.WeakKeyDictionary[Any, Any] = (
    weakref.WeakKeyDictionary()
)  # a storage of the host for each memory


class MacaStorage(_UntypedStorage):  # type: ignore[misc]
    """Bytes of device memory. Arguments and errors are those of :class:`torch.UntypedStorage`.

    ``data_ptr()`` is the opaque device address, which ``resize_()`` changes for all tensors over the storage.
    """

    _buffer: Buffer

    @staticmethod
    def __new__(cls: Any, *args: Value, device: Device = "maca") -> MacaStorage:
        ordinal(device)
        if len(args) > 1:
            raise TypeError(f"UntypedStorage() takes a size or a sequence, got {len(args)} arguments")
        given = args[0] if args else 0
        if not isinstance(given, int):
            return storage_over(allocate(len(given))).copy_(torch.UntypedStorage(given))
        if given < 0:
            raise RuntimeError(f"Storage size must be non-negative, got {given}")
        return storage_over(allocate(given))

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    @property
    def device(self) -> torch.device:
        return torch.device("maca", 0)

    @property
    def _untyped_storage(self) -> MacaStorage:
        return self  # torch.load() gives typed storages of the host's, of which PyTorch's content store asks this

    def get_device(self) -> int:
        return 0

    def data_ptr(self) -> int:
        own(self._buffer)
        return int(self._buffer.address) if self.nbytes() else 0

    def nbytes(self) -> int:
        return int(self._buffer.nbytes)

    size = nbytes
    __len__ = nbytes

    def element_size(self) -> int:
        return 1

    def _bytes(self) -> MacaTensor:
        return wrap(self._buffer, 0, meta_of((self.nbytes(),), (1,), torch.uint8))

    def __getitem__(self, index: int | slice) -> int | MacaStorage:
        if isinstance(index, slice):
            return storage_over(payload(self._bytes()[index].clone())[0])
        return int(self._bytes()[index].item())

    def __setitem__(self, index: int | slice, value: Value) -> None:
        self._bytes()[index] = value

    def __repr__(self) -> str:
        rows = "".join(f" {n}\n" for n in self.tolist())
        return f"{rows}[{torch.typename(self)}(device={self.device}) of size {len(self)}]"

    __str__ = __repr__

    def fill_(self, value: int) -> MacaStorage:
        self._bytes().fill_(value)
        return self

    def copy_(
        self, source: torch.UntypedStorage | torch.TypedStorage, non_blocking: bool = False
    ) -> MacaStorage:
        """Takes the bytes of a storage of this device or the host.

        Raises RuntimeError for another size, NotImplementedError for a storage of another device.
        """
        source = source._untyped_storage if isinstance(source, torch.TypedStorage) else source
        if not isinstance(source, torch.UntypedStorage):
            raise TypeError(f"copy_(): expected a storage, got {type(source).__name__}")
        if not isinstance(source, MacaStorage) and source.device.type != "cpu":
            raise NotImplementedError(
                f"a storage on maca takes bytes of maca or the host, got {source.device}"
            )
        n = self.nbytes()
        if n != source.nbytes():
            raise RuntimeError(f"size does not match, self was {n} bytes but src was {source.nbytes()} bytes")
        if isinstance(source, MacaStorage):
            copy_bytes(self._buffer, 0, source._buffer, 0, n)
        elif n:
            upload(self._buffer, 0, ffi.cast("void*", source.data_ptr()), n, non_blocking)
        return self

    def cpu(self) -> torch.UntypedStorage:
        return torch.UntypedStorage(self.nbytes()).copy_(self)

    def tolist(self) -> list[int]:
        numbers: list[Value] = self._bytes().tolist()
        return numbers

    def byteswap(self, dtype: torch.dtype) -> None:
        host = self.cpu()
        host.byteswap(dtype)
        self.copy_(host)

    def resize_(self, size: int) -> MacaStorage:
        """Gives the storage ``size`` bytes, of which the first are what it held. A tensor that is left outside raises
        RuntimeError where it is used.

        Raises RuntimeError for a negative size and where a captured graph uses the memory, torch.OutOfMemoryError.
        """
        if size < 0:
            raise RuntimeError(f"Storage size must be non-negative, got {size}")
        if size != self.nbytes():
            resize(self._buffer, size)
        return self

    def is_pinned(self, device: str | torch.device = "cuda") -> bool:
        return False

    def is_shared(self) -> bool:
        return False

    def share_memory_(self) -> NoReturn:
        raise RuntimeError(
            "maca storages cannot be shared between processes; to share memory, use a storage on the host"
        )

    def _weak_ref(self) -> int:
        """What ``StorageWeakRef`` takes: one for all tensors over the memory, as long as it lives."""
        token = _tokens.get(self._buffer)
        if token is None:
            token = _tokens.setdefault(self._buffer, _UntypedStorage(0))
        return int(token._weak_ref())

    def __reduce__(self) -> tuple[object, ...]:
        return _on_maca, (self.cpu(),)

    def __copy__(self) -> MacaStorage:
        return self.clone()

    def __deepcopy__(self, memo: dict[int, Any]) -> MacaStorage:
        return storage_over(copied_buffer(self._buffer, memo))

    def clone(self) -> MacaStorage:
        return type(self)(self.nbytes()).copy_(self)


def copied_buffer(buffer: Value, memo: dict[int, Value]) -> Value:
    """The copy of a buffer that ``deepcopy`` makes: one for all tensors and storages over it."""
    # by address: one buffer has many handles' worth of tensors, all with the same Python object
    copied = memo.get(id(buffer))
    if copied is None:
        copied = allocate(buffer.nbytes)
        copy_bytes(copied, 0, buffer, 0, buffer.nbytes)
        memo[id(buffer)] = copied
    return copied


def _on_maca(host: Any) -> MacaStorage:
    host = getattr(host, "_untyped_storage", host)  # torch.load() makes typed ones
    return MacaStorage(host.nbytes()).copy_(host)


@method("untyped_storage")
def storage_of(tensor: MacaTensor) -> MacaStorage:
    """The memory that a tensor and its views share: one :class:`MacaStorage` for as long as the tensor lives."""
    storage: Value = torch.Tensor.untyped_storage(tensor)
    if type(storage) is not MacaStorage:
        storage.__class__ = MacaStorage
    found: MacaStorage = storage
    found._buffer = tensor._payload[0]
    return found


def storage_over(buffer: Buffer) -> MacaStorage:
    """A storage of its own: a tensor's, since C++ asks its own object for the size (``torch.tensor(storage)``)."""
    return storage_of(wrap(buffer, 0, meta_of((int(buffer.nbytes),), (1,), torch.uint8)))


# The largest storage of PyTorch: in it every tensor lies that has a right to be asked for.
_MOST_BYTES = 2**63 - 1


def over(
    source: torch.UntypedStorage | torch.TypedStorage, dtype: torch.dtype, *place: Value, **named: Value
) -> MacaTensor:
    """A tensor over a storage of this device; tensors of one storage share one buffer.

    The other arguments are those of ``Tensor.set_``: ``storage_offset``, ``size`` and ``stride`` in elements, or none
    for all of the storage. A storage that is too small grows, as on the CPU. Raises RuntimeError for a storage of
    another device and for one of another dtype, and what PyTorch raises for arguments that are no offset, sizes and
    strides.
    """
    if isinstance(source, torch.TypedStorage):
        if source.dtype != dtype:
            raise RuntimeError(
                f"Expected a Storage of type {dtype} or an UntypedStorage, but got {source.dtype}"
            )
        source = source._untyped_storage
    if not isinstance(source, MacaStorage):
        raise RuntimeError(
            'Attempted to set the storage of a tensor on device "maca:0" to a storage on different device '
            f'"{source.device}".  This is no longer allowed; the devices must match.'
        )
    with torch.utils._mode_utils.no_dispatch():  # a mode would see operators that nobody called
        described = torch.empty(0, dtype=dtype, device="meta")
        room = _MOST_BYTES if place or named else source.nbytes()
        described.set_(_UntypedStorage(room, device="meta"), *place, **named)
    # in place of strides that it has no use for, negative ones, PyTorch takes others
    given: Value = named.get("stride", place[2] if len(place) > 2 else ())
    if described.numel() and any(n > 1 and step < 0 for n, step in zip(described.shape, given)):
        raise overflow(tuple(described.shape), tuple(given))
    offset, meta = int(described.storage_offset()), meta_of_tensor(described)
    needed = meta.bytes_from(offset)
    if needed > source.nbytes():
        source.resize_(needed)
    return wrap(source._buffer, offset, meta)


def is_storage(value: object) -> bool:
    return isinstance(value, (torch.UntypedStorage, torch.TypedStorage))


@method("is_set_to")
def _is_set_to(self: Any, tensor: Any) -> bool:
    """Are both the same view of the same memory?"""
    if not isinstance(tensor, MacaTensor):
        return bool(torch.Tensor.is_set_to(self, tensor))
    (held, start, meta), (other, at, seen) = self._payload, tensor._payload
    return held is other and start == at and (meta.size, meta.stride) == (seen.size, seen.stride)


@method("set_")
def _set(self: Any, source: Any = None, *args: Any, **kwargs: Any) -> Any:
    if source is None and not args and not kwargs:
        source = torch.UntypedStorage(0, device="maca")
    elif isinstance(source, MacaTensor) and (args or kwargs):
        source = source.untyped_storage()
    if is_storage(source):
        source, args, kwargs = over(source, self.dtype, *args, **kwargs), (), {}
    operands: Any = () if source is None else (source, *args)
    return _host_set(self, *operands, **kwargs)


def _take_storage(self: MacaTensor, source: Any, *place: Any) -> MacaTensor:
    """``set_`` by C++, as ``torch.tensor(storage)`` calls it, past ``__torch_dispatch__``."""
    adopt(self, over(source, self.dtype, *place))
    return self


def _set_unbound(self: Any, *args: Any, **kwargs: Any) -> Any:
    return (_set if isinstance(self, MacaTensor) else _host_set)(self, *args, **kwargs)


@method("new")
def _new_tensor(self: Any, *args: Any, **kwargs: Any) -> Any:
    if args and is_storage(args[0]):
        return over(args[0], self.dtype)
    return torch.Tensor.new(self, *args, **kwargs)


@functools.wraps(_host_copy)
def _copy_(self: Any, source: Any, non_blocking: Any = None) -> Any:
    if not isinstance(source, MacaStorage):
        return _host_copy(self, source) if non_blocking is None else _host_copy(self, source, non_blocking)
    n = source.nbytes()
    if self.nbytes() != n:
        raise RuntimeError(f"size does not match, self was {self.nbytes()} bytes but src was {n} bytes")
    if n:
        host = torch.empty(0, dtype=torch.uint8, device="cpu").set_(self)
        host_address(host)
        download(host, source._buffer, 0, n, bool(non_blocking))
    return self


def _new(cls: Any, *args: Any, **kwargs: Any) -> Any:
    device = kwargs.get("device")
    if cls is torch.UntypedStorage and device is not None and torch.device(device).type == "maca":
        return MacaStorage(*args, **kwargs)
    return torch._C.StorageBase.__new__(cls, *args, **kwargs)


@functools.wraps(_rewrap)
def _new_wrapped_storage(self: Any, untyped_storage: Any) -> Any:
    if isinstance(untyped_storage, MacaStorage):  # PyTorch's takes its own class only
        return _TypedStorage(wrap_storage=untyped_storage, dtype=self.dtype, _internal=True)
    return _rewrap(self, untyped_storage)


def _of_memory(name: str, ours: Callable[[Buffer], Value]) -> None:
    """``torch._C.NAME`` of a tensor's memory, which PyTorch's C++ does not know for this device."""
    plain: Any = getattr(torch._C, name)

    @functools.wraps(plain)
    def ask(tensor: torch.Tensor) -> Any:
        return ours(payload(tensor)[0]) if isinstance(tensor, MacaTensor) else plain(tensor)

    setattr(torch._C, name, ask)


_library: Any = None


def register() -> None:
    """Makes storages on maca possible: ``UntypedStorage(..., device="maca")``, ``.maca()``, ``.is_maca``, copies."""
    global _library
    _library = torch.library.Library("aten", "IMPL")
    for name in ("set_.source_Storage", "set_.source_Storage_storage_offset"):
        _library.impl(name, _take_storage, "PrivateUse1")
    _of_memory("_is_cow_tensor", lambda buffer: buffer.is_lazy)
    _of_memory("_data_address", lambda buffer: int(buffer.address))
    _of_memory("_storage_address", lambda buffer: int(buffer.handle))
    _TypedStorage._new_wrapped_storage = _new_wrapped_storage
    torch.serialization.add_safe_globals([_on_maca])
    _UntypedStorage.__new__ = staticmethod(_new)
    _UntypedStorage.copy_ = _copy_
    # called unbound, PyTorch's own looks for an operator of Python that takes a storage, and fails an assertion
    torch.Tensor.set_ = functools.wraps(_host_set)(_set_unbound)  # type: ignore[method-assign]
    backend_registration._generate_storage_methods_for_privateuse1_backend("maca")
