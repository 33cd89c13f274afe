"""Arguments and results as JSON: made of strings, since a line through dataclasses and json takes 100 us."""

from __future__ import annotations

import functools
import json
import math
import warnings
from collections.abc import Hashable
from typing import Any

import torch

from macatensor.accuracy import elements
from macatensor.accuracy.recording.flatten import PLAIN, PLAIN_VALUES, TENSORS, taken_apart
from macatensor.accuracy.recording.operators import operator
from macatensor.accuracy.recording.parts import parts_of, quantized_parts, shape_of
from macatensor.accuracy.recording.quiet import quiet
from macatensor.accuracy.recording.summary import measure
from macatensor.runtime.boxed import Value
from macatensor.runtime.ffi import native_recorder
from macatensor.runtime.uncompiled import uncompiled

_DEPTH = 6  # of values in values that are written
_LIMIT = 1 << 14  # texts kept
_TEXT = 1000  # characters of a value that are written


@uncompiled
def value_text(value: Value) -> str:
    """What is no tensor, as JSON."""
    kind = type(value)
    if kind is int or kind is float and math.isfinite(value):
        return repr(value)
    if kind in (list, tuple) and len(value) <= _TEXT and set(map(type, value)) == {int}:  # sizes, dimensions
        return str(list(value))
    return _constant(value) if any(kind is one for one in _CONSTANT) else json.dumps(_plain(value))


_CONSTANT = (str, bool, torch.dtype, torch.device, torch.layout, torch.memory_format)


@functools.lru_cache(_LIMIT, typed=True)
def _constant(value: Hashable) -> str:
    return json.dumps(_plain(value))


def _plain(value: object, depth: int = 0) -> object:
    try:
        return _held(value, depth)
    except Exception as error:  # an object of the program's own
        return _named(value, f"{type(error).__name__} was raised")


def _held(value: object, depth: int) -> object:
    if isinstance(value, str):
        return value[:_TEXT]
    if value is None or isinstance(value, (bool, int, float)) and type(value) in (bool, int, float):
        return value
    if isinstance(value, (list, tuple)) and depth < _DEPTH and len(value) <= _TEXT:
        return [_plain(v, depth + 1) for v in value]
    if isinstance(value, dict) and depth < _DEPTH and len(value) <= _TEXT:
        return {str(k): _plain(v, depth + 1) for k, v in value.items()}
    try:
        text = repr(value)[:_TEXT]
    except Exception as error:
        text = f"repr raised {type(error).__name__}: {error}"
    return _named(value, text)


def _named(value: object, text: str) -> dict[str, str]:
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return {"type": name, "repr": text}


def _form(tensor: torch.Tensor) -> tuple[str, str, bool]:
    """What entries say of all tensors with these sizes, strides, dtype and device, of those that require a gradient,
    and whether it is all that there is to say but the elements' numbers."""
    shape, stride = [int(n) for n in tensor.shape], [int(n) for n in tensor.stride()]
    text = f'"dtype":"{elements.dtype_name(tensor.dtype)}","shape":{shape},"stride":{stride}'
    if str(tensor.device) != "cpu":
        text += f',"device":"{tensor.device}"'
    text = text.replace(", ", ",")
    return text, text + ',"requires_grad":true', not tensor.is_quantized


@uncompiled
class Describer(native_recorder.RecordedEntries):
    """Tensors as entries. ``level`` is the session's record_level.

    The base class, written in C, describes what was met before; here is what is new.
    """

    def __init__(self, level: int):
        self._forms: dict[Hashable, native_recorder.Form] = {}
        super().__init__(self._forms)
        self.has_numbers = level > 0  # of the base class
        self.has_files = level == 2
        self.file: str | None = None  # where the elements of what is described now go
        self.saves: dict[str, torch.Tensor] = {}  # what level 2 has to write
        self._warned: set[str] = set()

    def new_form(self, key: Hashable, tensor: torch.Tensor) -> native_recorder.Form:
        """For the base class: the form that this key tells from others."""
        if len(self._forms) >= _LIMIT:
            self._forms.clear()
        found = self._forms[key] = _form(tensor)
        return found

    def entry(self, tensor: torch.Tensor, level: int, call: int, wrote: bool, place: str) -> str:
        """For the base class: what an entry says of a tensor that is not plain. Where one of an unknown kind cannot be
        read, its structure, and a warning."""
        try:
            return self._entry(tensor, level, call, wrote, place)
        except Exception as error:  # a subclass that forbids what others allow must not stop the program
            name = type(tensor).__name__
            if name not in self._warned:
                self._warned.add(name)
                warnings.warn(f"accuracy: a {name} is recorded without numbers: {error}", stacklevel=2)
            plain: Any = torch.Tensor  # whose attributes a subclass cannot forbid
            shape, dtype = plain.shape.__get__(tensor), plain.dtype.__get__(tensor)
            return f'"dtype":"{elements.dtype_name(dtype)}","shape":{json.dumps(_plain(list(shape)))},"layout":"{name}"'

    def _entry(self, tensor: torch.Tensor, level: int, call: int, wrote: bool, place: str) -> str:
        if type(tensor) not in TENSORS or type(tensor) in PLAIN and not _is_strided(tensor):
            tensor, parts, layout = parts_of(tensor)
            if parts is not None:
                return self._of_parts(tensor, parts, layout, level, call, wrote, place)
        if tensor.is_quantized:
            with quiet():
                parts = quantized_parts(tensor)
            return self._of_parts(tensor, parts, "quantized", level, call, wrote, place)
        text: str | None = self.strided(tensor, level, call, wrote, place)  # the base class keeps it
        if text is None:
            form = _form(tensor)
            text = form[1] if tensor.requires_grad else form[0]
            if self.has_numbers and tensor.device.type != "meta":
                text += self.numbers(tensor, place)
        return text

    def numbers(self, tensor: torch.Tensor, place: str) -> str:
        """What follows the text of a tensor's form: its elements' numbers and, at level 2, where they are kept."""
        found = measure(tensor)
        if found is None:  # no elements: a meta tensor, or its memory was given back
            return ""
        text = "," + found.text()
        if self.has_files and self.file is not None:
            with quiet():
                self.saves[place] = elements.writable(tensor)
            text += f',"file":"{self.file}","key":{json.dumps(place)}'
        return text

    def _of_parts(
        self,
        tensor: torch.Tensor,
        parts: dict[str, torch.Tensor],
        layout: str,
        level: int,
        call: int,
        wrote: bool,
        place: str,
    ) -> str:
        shape = json.dumps(shape_of(tensor), separators=(",", ":"))
        dtype = elements.dtype_name(tensor.dtype)
        text = f'"dtype":"{dtype}","shape":{shape},"layout":"{layout}"'
        if str(tensor.device) != "cpu":
            text += f',"device":"{tensor.device}"'
        if tensor.requires_grad:
            text += ',"requires_grad":true'
        inner = [
            f'"{name}":{{{self._entry(part, level, call, wrote, f"{place}.{name}")}}}'
            for name, part in parts.items()
        ]
        return text + ',"parts":{' + ",".join(inner) + "}"


def _is_strided(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and not tensor.is_nested
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


native_recorder.configure(
    tensor=torch.Tensor,
    storage=torch.UntypedStorage,
    exchange=getattr(torch.Tensor, "__dlpack_c_exchange_api__", None),
    parameter=torch.nn.Parameter,
    plain_values=PLAIN_VALUES,
    taken_apart=taken_apart,
    value_text=value_text,
    escaped=json.dumps,
    plainly=torch._C.DisableTorchFunction,
    modes=torch._C._len_torch_function_stack,
    current_node=torch._C._current_autograd_node,
    sequence=torch._C._autograd._get_sequence_nr,
    is_grad_enabled=torch.is_grad_enabled,
    read_operator=operator,
)
