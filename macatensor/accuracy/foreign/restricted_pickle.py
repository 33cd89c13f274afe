"""Files of ``torch.save``, opened without running anything in them.

A pickle can name any function and have it called. Here a name is looked up in a list; what is not on it is refused, and
nothing is imported. Modules of ``torch.nn`` come back as inert holders of their state, tensors as descriptions whose
elements are read when asked for.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from macatensor.accuracy.elements import dtype_name

_STORAGES = {
    "DoubleStorage": torch.float64, "FloatStorage": torch.float32, "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16, "LongStorage": torch.int64, "IntStorage": torch.int32,
    "ShortStorage": torch.int16, "CharStorage": torch.int8, "ByteStorage": torch.uint8, "BoolStorage": torch.bool,
    "ComplexDoubleStorage": torch.complex128, "ComplexFloatStorage": torch.complex64,
}  # fmt: skip
_NAMES_OF_TORCH = ("memory_format", "layout", "qscheme")  # their values are pickled by name


class Refused(pickle.UnpicklingError):
    """The pickle asks for what no record needs."""


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


class Inert:
    """An object of a class that is not made: its name, and what it would have held."""

    name = ""

    def __init__(self, *args: Any, **kwargs: Any):
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __repr__(self) -> str:
        return f"<{self.name}>"


def _tensor(
    storage: Any, offset: int, size: Any, stride: Any, requires_grad: bool = False, *_: Any
) -> HeldTensor:
    if not isinstance(storage, Storage):
        raise Refused("a tensor without a storage")
    return HeldTensor(storage, int(offset), tuple(size), tuple(stride), bool(requires_grad))


def _parameter(data: Any, requires_grad: bool = True, *_: Any) -> Any:
    if isinstance(data, HeldTensor):
        data.requires_grad = bool(requires_grad)
    return data


def _summary(dtype: Any, size: Any, stride: Any, low: Any, high: Any) -> HeldSummary:
    numbers = [None if v is None or isinstance(v, complex) else float(v) for v in (low, high)]
    return HeldSummary(str(dtype).removeprefix("torch."), tuple(size), tuple(stride), *numbers)


def _singleton(text: str) -> Any:
    if text != "Ellipsis":
        raise Refused(f"the expression {text!r} is not evaluated")
    return ...


def _inert(name: str) -> type[Inert]:
    return type(name.rpartition(".")[2], (Inert,), {"name": name})


def _text(prefix: str) -> Callable[..., str]:
    return lambda *args: f"{prefix}({', '.join(str(a) for a in args)})"


_ALLOWED: dict[tuple[str, str], Any] = {
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _parameter,
    ("maca_tools.accuracy.record", "rebuild_tensor_wrapper"): _tensor,
    ("maca_tools.accuracy.record", "build_summary_wapper"): _summary,  # so spelled there
    ("torch", "Size"): tuple,
    ("torch", "device"): _text("device"),
    ("torch._C", "Generator"): _inert("torch.Generator"),
    ("collections", "OrderedDict"): OrderedDict,
    ("builtins", "Ellipsis"): ...,
    ("builtins", "slice"): slice,
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "complex"): complex,
    ("builtins", "range"): range,
    ("dill._dill", "_eval_repr"): _singleton,
}


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, path: Path):
        super().__init__(io.BytesIO(data))
        self.path = path

    def find_class(self, module: str, name: str) -> Any:
        module = "builtins" if module == "__builtin__" else module  # so named up to protocol 2
        found = _ALLOWED.get((module, name))
        if found is not None:
            return found
        if module == "torch":
            if name in _STORAGES:
                return _STORAGES[name]
            value = getattr(torch, name, None) if name.isidentifier() else None
            if isinstance(value, torch.dtype):
                return value
            if type(value).__name__ in _NAMES_OF_TORCH:
                return str(value)
        if module.startswith("torch.nn.") and name.isidentifier():
            return _inert(f"{module}.{name}")
        raise Refused(f"it names {module}.{name}, which is not on the list of what a record may hold")

    def persistent_load(self, pid: Any) -> Storage:
        if not (
            isinstance(pid, tuple)
            and len(pid) == 5
            and pid[0] == "storage"
            and isinstance(pid[1], torch.dtype)
        ):
            raise Refused(f"a persistent object of a kind that no record has: {pid!r:.80}")
        return Storage(pid[1], str(pid[2]), str(pid[3]), int(pid[4]))


def _member(archive: zipfile.ZipFile, ending: str) -> str:
    for name in archive.namelist():
        if name.partition("/")[2] == ending:
            return name
    raise KeyError(ending)


def load(path: Path) -> Any:
    """What a file of ``torch.save`` holds, tensors as :class:`HeldTensor` or :class:`HeldSummary`.

    Raises:
        ValueError: the file is missing, cut off, no archive of ``torch.save``, or its pickle names what is not allowed.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            data = archive.read(_member(archive, "data.pkl"))
    except (OSError, zipfile.BadZipFile, KeyError) as error:
        raise ValueError(
            f"accuracy: {path} is no complete file of torch.save ({error}); it is read by its zip archive only"
        ) from error
    try:
        return _Unpickler(data, path).load()
    except Refused as error:
        raise ValueError(f"accuracy: {path} is refused: {error}") from error
    except Exception as error:  # a pickle that is damaged or made to harm fails in any way it likes
        raise ValueError(
            f"accuracy: the pickle in {path} cannot be read: {type(error).__name__}: {error}"
        ) from error


def elements_of(path: Path, held: HeldTensor) -> torch.Tensor:
    """The elements of a tensor of a file, on the host with its strides.

    Raises:
        ValueError: they are missing or do not fit the description.
    """
    storage = held.storage
    try:
        with zipfile.ZipFile(path) as archive:
            try:
                order = archive.read(_member(archive, "byteorder")).strip()
            except KeyError:
                order = b"little"
            data = bytearray(archive.read(_member(archive, f"data/{storage.key}")))
    except (OSError, zipfile.BadZipFile, KeyError) as error:
        raise ValueError(f"accuracy: cannot read the elements {storage.key} of {path}: {error}") from error
    if order != b"little":
        raise ValueError(
            f"accuracy: {path} has {order.decode(errors='replace')}-endian elements; only little is read"
        )
    usable = len(data) // storage.dtype.itemsize
    last = held.offset + sum((n - 1) * s for n, s in zip(held.size, held.stride))
    if 0 in held.size:
        return torch.empty_strided(held.size, held.stride, dtype=storage.dtype)
    if (
        held.offset < 0
        or len(held.size) != len(held.stride)
        or min(held.stride, default=0) < 0
        or last >= usable
    ):
        raise ValueError(
            f"accuracy: a tensor of {path} reaches beyond its {usable} elements; the file is cut off"
        )
    return torch.frombuffer(data, dtype=storage.dtype).as_strided(held.size, held.stride, held.offset)
