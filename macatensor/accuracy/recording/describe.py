"""Arguments and results as JSON: made of strings, since a line through dataclasses and json takes 100 us."""

from __future__ import annotations

import functools
import json
import math
import warnings
from typing import Any

import torch

from macatensor.accuracy import elements
from macatensor.accuracy.recording.flatten import PLAIN, TENSORS, Found
from macatensor.accuracy.recording.identity import Identities, Value
from macatensor.accuracy.recording.measure import measure
from macatensor.accuracy.recording.parts import quantized_parts, shape_of, taken_apart
from macatensor.accuracy.recording.quiet import quiet
from macatensor.tensor import MacaTensor

_DEPTH = 6  # of values in values that are written
_LIMIT = 1 << 14  # texts kept
_TEXT = 1000  # characters of a value that are written


def value_text(value: Any) -> str:
    """What is no tensor, as JSON."""
    kind = type(value)
    if kind is int or kind is float and math.isfinite(value):
        return repr(value)
    if kind in _CONSTANT:
        return _constant(value)
    if kind is list and set(map(type, value)) == _INTEGERS and len(value) <= _TEXT:  # sizes, dimensions
        return str(value)
    return json.dumps(_plain(value))


_CONSTANT = frozenset((str, bool, torch.dtype, torch.device, torch.layout, torch.memory_format))
_INTEGERS = {int}


@functools.lru_cache(_LIMIT, typed=True)
def _constant(value: Any) -> str:
    return json.dumps(_plain(value))


def _plain(value: Any, depth: int = 0) -> Any:
    if isinstance(value, str):
        return value[:_TEXT]
    if value is None or isinstance(value, (bool, int, float)) and type(value) in (bool, int, float):
        return value
    if isinstance(value, (list, tuple)) and depth < _DEPTH and len(value) <= _TEXT:
        return [_plain(v, depth + 1) for v in value]
    if isinstance(value, dict) and depth < _DEPTH and len(value) <= _TEXT:
        return {str(k): _plain(v, depth + 1) for k, v in value.items()}
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        text = repr(value)[:_TEXT]
    except Exception as error:  # an object of the program's own
        text = f"repr raised {type(error).__name__}: {error}"
    return {"type": name, "repr": text}


class _Places(dict[str, str]):
    """How an argument at a place begins; found without a call of a function."""

    def __init__(self, ends: str):
        super().__init__()
        self._ends = ends

    def __missing__(self, place: str) -> str:
        if len(self) >= _LIMIT:
            self.clear()
        text = self[place] = f'{{"place":{json.dumps(place)}{self._ends}'
        return text


_place, _place_of_tensor = _Places(""), _Places(',"tensor":{')


class _Form:
    """What entries say of all tensors with these sizes, strides, dtype and device."""

    __slots__ = ("text", "grad_text")

    def __init__(self, tensor: torch.Tensor):
        shape, stride = [int(n) for n in tensor.shape], [int(n) for n in tensor.stride()]
        text = f'"dtype":"{elements.dtype_name(tensor.dtype)}","shape":{shape},"stride":{stride}'
        if str(tensor.device) != "cpu":
            text += f',"device":"{tensor.device}"'
        self.text = text.replace(", ", ",")
        self.grad_text = self.text + ',"requires_grad":true'


class Describer:
    """Tensors as entries. ``level`` is the session's record_level."""

    def __init__(self, level: int, identities: Identities):
        self.level = level
        self.identities = identities
        self.file: str | None = None  # where the elements of what is described now go
        self.saves: dict[str, torch.Tensor] = {}  # what level 2 has to write
        self._forms: dict[Any, _Form] = {}
        self._warned: set[str] = set()

    def arguments(self, found: Found, level: int, call: int = -1, written: Any = ()) -> str:
        """Places and what is there as a JSON list. ``level`` is the call's; of results ``call`` is the number of the
        call and ``written`` the ids of those that were there before."""
        parts = []
        identities = self.identities
        on_maca, host = identities.on_maca, self._on_host
        prefix, plain = _place_of_tensor, PLAIN
        # one loop without a call of Python's for a tensor that was met before: an optimizer's step describes 5000
        for place, held in found:
            kind = type(held)
            if kind is MacaTensor:
                buffer, offset, meta = held._payload
                allocation = on_maca.get(id(buffer))
                value: Value | None = None
                if allocation is not None and allocation.writes == buffer.writes:
                    value = allocation.values.get((offset, meta))
                if value is None:
                    value = identities.maca(held)
            elif kind in plain:
                value = host(held)
            elif isinstance(held, torch.Tensor):
                value = None
            else:
                end = "}" if held is None else f',"value":{value_text(held)}}}'
                parts.append(_place[place] + end)
                continue
            if value is None:
                text = self.entry(held, None, level, call, id(held) in written, place)
                parts.append(f"{prefix[place]}{text}}}}}")
                continue
            text = (value.grad_text if held.requires_grad else value.text) or self.entry(
                held, value, level, call, False, place
            )
            if call >= 0:
                value.made[level] = call
                if written and id(held) in written:
                    identities.wrote_last(held, level, call)
                parts.append(f"{prefix[place]}{text}}}}}")
            elif (made := value.made[level]) >= 0:
                parts.append(f'{prefix[place]}{text},"made_by":{made}}}}}')
            else:
                parts.append(f"{prefix[place]}{text}}}}}")
        return f"[{','.join(parts)}]"

    def value_of(self, tensor: torch.Tensor) -> Value | None:
        """What is known of a tensor's elements; None where nothing can be."""
        if isinstance(tensor, MacaTensor):
            return self.identities.maca(tensor)
        return self._on_host(tensor) if type(tensor) in PLAIN else None

    def _on_host(self, tensor: torch.Tensor) -> Value | None:
        try:  # most have a storage; asking each for its layout first would take as long as all else
            return self.identities.host(tensor, self._form(tensor))
        except (NotImplementedError, RuntimeError):
            return None

    def _form(self, tensor: torch.Tensor) -> _Form:
        dtype = tensor.dtype
        key: Any = (tensor.shape, tensor.stride(), dtype, tensor.device)
        if dtype.is_complex or tensor.is_neg():
            key = (*key, tensor.is_conj(), tensor.is_neg())
        return self._forms.get(key) or self._new_form(key, tensor)

    def _new_form(self, key: Any, tensor: torch.Tensor) -> _Form:
        if len(self._forms) >= _LIMIT:
            self._forms.clear()
        found = self._forms[key] = _Form(tensor)
        return found

    def entry(
        self, tensor: torch.Tensor, value: Value | None, level: int, call: int, wrote: bool, place: str
    ) -> str:
        """What an entry says of a tensor whose text is not known; without a value who made it, too. Where one of an
        unknown kind cannot be read, its structure, and a warning."""
        if value is not None and type(tensor) is MacaTensor:
            meta = value.form
            return self._text(tensor, self._forms.get(meta) or self._new_form(meta, tensor), value, place)
        try:
            return self._entry(tensor, value, level, call, wrote, place)
        except Exception as error:  # a subclass that forbids what others allow must not stop the program
            name = type(tensor).__name__
            if name not in self._warned:
                self._warned.add(name)
                warnings.warn(f"accuracy: a {name} is recorded without numbers: {error}", stacklevel=2)
            shape = json.dumps(_plain(list(tensor.shape)))
            return f'"dtype":"{elements.dtype_name(tensor.dtype)}","shape":{shape},"layout":"{name}"'

    def _entry(
        self, tensor: torch.Tensor, value: Value | None, level: int, call: int, wrote: bool, place: str
    ) -> str:
        if type(tensor) not in TENSORS or type(tensor) in PLAIN and not _is_strided(tensor):
            tensor, parts, layout = taken_apart(tensor)
            if parts is not None:
                return self._of_parts(tensor, parts, layout, level, call, wrote, place)
        if tensor.is_quantized:
            with quiet():
                parts = quantized_parts(tensor)
            return self._of_parts(tensor, parts, "quantized", level, call, wrote, place)
        if value is not None:
            return self._text(tensor, value.form, value, place)
        form = self._form(tensor)
        if tensor.device.type == "meta":
            return form.grad_text if tensor.requires_grad else form.text
        value = self.value_of(tensor)
        if value is None:
            return self._text(tensor, form, Value(form, 0, False, [], None), place)
        text = self._text(tensor, form, value, place)
        if call >= 0:
            value.made[level] = call
            if wrote:
                self.identities.wrote_last(tensor, level, call)
        elif (made := value.made[level]) >= 0:
            text += f',"made_by":{made}'
        return text

    def _text(self, tensor: torch.Tensor, form: _Form, value: Value, place: str) -> str:
        """What is said of a strided tensor, kept with the value."""
        numbers = ""
        if self.level:
            if value.numbers is None:
                value.numbers = self._numbers(tensor, place)
            numbers = value.numbers
        if tensor.requires_grad:
            text = value.grad_text = form.grad_text + numbers
        else:
            text = value.text = form.text + numbers
        return text

    def _numbers(self, tensor: torch.Tensor, place: str) -> str:
        found = measure(tensor)
        if found is None:  # no elements: a meta tensor, or its memory was given back
            return ""
        text = "," + found.text()
        if self.level == 2 and self.file is not None:
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
            f'"{name}":{{{self._entry(part, None, level, call, wrote, f"{place}.{name}")}}}'
            for name, part in parts.items()
        ]
        return text + ',"parts":{' + ",".join(inner) + "}"


def _is_strided(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and not tensor.is_nested
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )
