"""Files of ``torch.save``, opened without running anything in them.

A pickle can name any function and have it called. Here a name is looked up in a list; what is not on it is refused, and
nothing is imported. Modules of ``torch.nn`` come back as inert holders of their state, tensors as descriptions whose
elements are read when asked for. What the list calls takes numbers and texts: it makes nothing larger than the pickle.
"""

from __future__ import annotations

import contextlib
import reprlib
import types
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from macatensor.accuracy.elements import dtype_name
from macatensor.accuracy.foreign.inert_pickle import Inert, InertClass, Known, Machine, Refused, a_set
from macatensor.files.untrusted import KEY, PICKLE_BYTES, readable, sizes

__all__ = ["HeldSummary", "HeldTensor", "Inert", "elements_of", "load"]

_STORAGES = {
    "DoubleStorage": torch.float64, "FloatStorage": torch.float32, "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16, "LongStorage": torch.int64, "IntStorage": torch.int32,
    "ShortStorage": torch.int16, "CharStorage": torch.int8, "ByteStorage": torch.uint8, "BoolStorage": torch.bool,
    "UntypedStorage": torch.uint8,
    "ComplexDoubleStorage": torch.complex128, "ComplexFloatStorage": torch.complex64,
}  # fmt: skip
_NAMES_OF_TORCH = ("memory_format", "layout", "qscheme")  # their values are pickled by name


@dataclass
class Storage:
    """Where elements lie in the archive."""

    dtype: torch.dtype
    key: str
    device: str
    count: int


@dataclass
class HeldTensor:
    """A tensor as the pickle describes it."""

    storage: Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    requires_grad: bool

    @property
    def dtype(self) -> str:
        return dtype_name(self.storage.dtype)


@dataclass
class HeldSummary:
    """What maca_tools keeps of a tensor at record level 1."""

    dtype: str
    size: tuple[int, ...]
    stride: tuple[int, ...]
    min: float | None
    max: float | None


def _tensor(
    storage: object, offset: int, size: object, stride: object, requires_grad: bool = False, *_: object
) -> HeldTensor:
    if not isinstance(storage, Storage):
        raise Refused("a tensor without a storage")
    size, stride, (offset,) = sizes(size), sizes(stride), sizes([offset])
    if len(size) != len(stride):
        raise Refused(f"a tensor of sizes {size} and strides {stride}")
    return HeldTensor(storage, offset, tuple(size), tuple(stride), requires_grad is True)


def _tensor_of_bytes(
    storage: object,
    offset: int,
    size: object,
    stride: object,
    requires_grad: bool,
    hooks: object,
    dtype: object,
    *_: object,
) -> HeldTensor:
    """A tensor whose storage has no dtype: of those that came after PyTorch's typed storages, such as uint16."""
    found = _tensor(storage, offset, size, stride, requires_grad)
    if not isinstance(dtype, torch.dtype):
        raise Refused("a tensor without a dtype")
    found.storage = replace(found.storage, dtype=dtype)
    return found


def _parameter(data: object, requires_grad: bool = True, *_: object) -> object:
    return replace(data, requires_grad=requires_grad is True) if isinstance(data, HeldTensor) else data


def _summary(dtype: object, size: object, stride: object, low: object, high: object) -> HeldSummary:
    if not isinstance(dtype, (str, torch.dtype)):
        raise Refused("a summary without a dtype")
    numbers = [float(v) if isinstance(v, (bool, int, float)) else None for v in (low, high)]
    name = str(dtype)[:KEY].removeprefix("torch.")
    return HeldSummary(name, tuple(sizes(size)), tuple(sizes(stride)), *numbers)


def _singleton(text: object) -> types.EllipsisType:
    if text != "Ellipsis":
        raise Refused(f"the expression {reprlib.repr(text)} is not evaluated")
    return ...


def _ordered(items: object = ()) -> OrderedDict[object, object]:
    """An empty one: its entries follow in the pickle."""
    if not isinstance(items, (list, tuple)) or items:
        raise Refused("a dictionary made of what is given to its class")
    return OrderedDict()


def _size(items: object = ()) -> tuple[int, ...]:
    return tuple(sizes(items))


def _plain(kind: Callable[..., object]) -> Callable[..., object]:
    """Of numbers, or tensors, alone."""

    def make(*args: object) -> object:
        if not all(isinstance(a, (bool, int, float, type(None), HeldTensor, HeldSummary)) for a in args):
            raise Refused(f"a {kind.__name__} of other things than numbers")
        return kind(*args)

    return make


def _device(*args: object) -> str:
    if not all(isinstance(a, (str, int)) for a in args):
        raise Refused("a device of other things than texts and numbers")
    return f"device({', '.join(str(a)[:KEY] for a in args)})"


_CALLS: dict[tuple[str, str], Callable[..., object]] = {
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _tensor_of_bytes,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _parameter,
    ("maca_tools.accuracy.record", "rebuild_tensor_wrapper"): _tensor,
    ("maca_tools.accuracy.record", "build_summary_wapper"): _summary,  # so spelled there
    ("torch", "Size"): _size,
    ("torch", "device"): _device,
    ("collections", "OrderedDict"): _ordered,
    ("builtins", "slice"): _plain(slice),
    ("builtins", "complex"): _plain(complex),
    ("builtins", "range"): _plain(range),
    ("builtins", "set"): a_set(set),
    ("builtins", "frozenset"): a_set(frozenset),
    ("dill._dill", "_eval_repr"): _singleton,
}
_KNOWN = {(module, name): Known(f"{module}.{name}", make) for (module, name), make in _CALLS.items()}


def _find(module: str, name: str) -> object:
    module = "builtins" if module == "__builtin__" else module  # so named up to protocol 2
    known = _KNOWN.get((module, name))
    if known is not None:
        return known
    if (module, name) == ("builtins", "Ellipsis"):
        return ...
    if module in ("torch", "torch.storage") and name in _STORAGES:
        return _STORAGES[name]
    if module == "torch":
        value = getattr(torch, name, None) if name.isidentifier() else None
        if isinstance(value, torch.dtype):
            return value
        if type(value).__name__ in _NAMES_OF_TORCH:
            return str(value)
    if (module.startswith("torch.nn.") and name.isidentifier()) or (module, name) == (
        "torch._C",
        "Generator",
    ):
        return InertClass(f"{module}.{name}"[:KEY])
    raise Refused(f"it names {module[:KEY]}.{name[:KEY]}, which is not on the list of what a record may hold")


def _storage(pid: object) -> Storage:
    if not (
        isinstance(pid, tuple) and len(pid) == 5 and pid[0] == "storage" and isinstance(pid[1], torch.dtype)
    ):
        raise Refused("a persistent object of a kind that no record has")
    _, dtype, key, device, count = pid
    if not (isinstance(key, str) and isinstance(device, str) and len(key) + len(device) < KEY):
        raise Refused("a storage whose key or device is no text")
    return Storage(dtype, key, device, *sizes([count]))


@contextlib.contextmanager
def _archive(path: Path) -> Iterator[Callable[[str, int | None], bytes | None]]:
    """Opens a file of torch.save, and gives what reads one of its entries, None if there is none.

    Entries are stored, never compressed, so that none is larger than the file. What is damaged raises of any class.
    """
    size = path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        entries: dict[str, zipfile.ZipInfo] = {}
        for entry in archive.infolist():
            entries.setdefault(entry.filename.partition("/")[2], entry)

        def read(ending: str, most: int | None) -> bytes | None:
            entry = entries.get(ending)
            if entry is None:
                return None
            if (
                entry.compress_type != zipfile.ZIP_STORED
                or not entry.file_size == entry.compress_size <= size
            ):
                raise Refused(
                    f"its entry {ending[:KEY]} is compressed, to {entry.file_size} bytes; torch.save stores entries as "
                    "they are: load it where it comes from, and save it with torch.save"
                )
            if most is not None and entry.file_size > most:
                raise Refused(
                    f"its entry {ending[:KEY]} has {entry.file_size} bytes, more than the {most} that are read; record "
                    "fewer steps"
                )
            return archive.read(entry)

        yield read


def load(path: Path) -> object:
    """What a file of ``torch.save`` holds, tensors as :class:`HeldTensor` or :class:`HeldSummary`.

    Raises:
        ValueError: the file is missing, cut off, no archive of ``torch.save``, holds too much, or its pickle names what
            is not allowed.
    """
    try:
        with _archive(path) as read:
            data = read("data.pkl", PICKLE_BYTES)
        if data is None:
            raise KeyError("data.pkl")
    except Refused as error:
        raise ValueError(f"accuracy: {path} is refused: {error}") from error
    except Exception as error:  # an archive that is damaged fails in any way it likes
        raise ValueError(
            f"accuracy: {path} is no complete file of torch.save ({error}); it is read by its zip archive only"
        ) from error
    try:
        return Machine(_find, _storage).run(data)
    except Refused as error:
        raise ValueError(f"accuracy: {path} is refused: {error}") from error
    except Exception as error:  # as is a pickle
        raise ValueError(
            f"accuracy: the pickle in {path} cannot be read: {type(error).__name__}: {error}"
        ) from error


def elements_of(path: Path, held: HeldTensor) -> torch.Tensor:
    """The elements of a tensor of a file, on the host with its strides.

    Raises:
        ValueError: they are missing or do not fit the description.
    """
    storage = held.storage
    shown = f"sizes {held.size}, strides {held.stride}, offset {held.offset}"
    try:
        readable(list(held.size), list(held.stride))
        with _archive(path) as read:
            order = (read("byteorder", KEY) or b"little").strip()
            data = read(f"data/{storage.key}", None)
        if data is None:
            raise KeyError(storage.key)
        if order != b"little":
            raise ValueError(f"{order.decode(errors='replace')}-endian elements; only little is read")
        usable = len(data) // storage.dtype.itemsize
        if 0 in held.size:
            return torch.empty_strided(held.size, held.stride, dtype=storage.dtype, device="cpu")
        if held.offset + sum((n - 1) * s for n, s in zip(held.size, held.stride)) >= usable:
            raise ValueError(f"it reaches beyond its {usable} elements; the file is cut off")
        memory = torch.frombuffer(bytearray(data), dtype=storage.dtype, count=usable)
        return memory.as_strided(held.size, held.stride, held.offset)
    except Exception as error:  # an archive that is damaged fails in any way it likes
        raise ValueError(
            f"accuracy: cannot read the elements {storage.key} of {path} ({shown}): {error}"
        ) from error
