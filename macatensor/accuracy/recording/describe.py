"""Arguments and results as JSON: made of strings, since a line through dataclasses and json takes 100 us."""

from __future__ import annotations

import dataclasses
import functools
import json
import warnings
from collections.abc import Callable
from typing import Any

import torch

from macatensor.accuracy import elements
from macatensor.accuracy.recording.identity import Identities, Value
from macatensor.accuracy.recording.numbers import measure
from macatensor.accuracy.recording.quiet import quiet
from macatensor.meta import Meta
from macatensor.tensor import MacaTensor

_DEPTH = 6  # of nested arguments that are looked into
_LIMIT = 1 << 14  # texts kept
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_TEXT = 1000  # characters of a value that are written

Found = list[tuple[str, Any]]  # places and what is there


def flatten(value: Any, place: str, found: Found, depth: int = 0) -> bool:
    """Appends what is in ``value``, with its place; a list, tuple or dict without tensors stays whole.

    Returns whether there were tensors."""
    if isinstance(value, torch.Tensor):
        found.append((place, value))
        return True
    if depth < _DEPTH:
        inner: Any = None
        if isinstance(value, (list, tuple)):
            inner = enumerate(value)
        elif isinstance(value, dict):
            inner = value.items()
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            inner = [(f.name, getattr(value, f.name, None)) for f in dataclasses.fields(value)]
        if inner is not None:
            start = len(found)
            some = False
            for name, held in inner:
                some |= flatten(held, f"{place}.{name}" if place else str(name), found, depth + 1)
            if some:
                return True
            del found[start:]
    found.append((place, value))
    return False


def flatten_call(args: Any, kwargs: Any) -> Found:
    """Positional arguments by number, others by name."""
    found: Found = []
    for i, value in enumerate(args):
        if isinstance(value, torch.Tensor):
            found.append((str(i), value))
        else:
            flatten(value, str(i), found)
    if kwargs:
        for name, value in kwargs.items():
            flatten(value, name, found)
    return found


def flatten_result(result: Any) -> Found:
    """A single result is at place 0."""
    if result is None:
        return []
    if isinstance(result, torch.Tensor):
        return [("0", result)]
    found: Found = []
    nested = isinstance(result, (list, tuple, dict)) or dataclasses.is_dataclass(result)
    if nested and flatten(result, "", found):
        return found
    return [("0", result)]


_values: dict[Any, str] = {}


def value_text(value: Any) -> str:
    """What is no tensor, as JSON."""
    kind = type(value)
    if kind in (int, bool, str, float):
        key = (kind, value)
        found = _values.get(key)
        if found is None:
            if len(_values) >= _LIMIT:
                _values.clear()
            found = _values[key] = json.dumps(_plain(value))
        return found
    return json.dumps(_plain(value))


@functools.lru_cache(_LIMIT)
def _place(place: str) -> str:
    return '{"place":' + json.dumps(place)


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


class Describer:
    """Tensors as entries. ``level`` is the session's record_level; ``save`` is given what level 2 writes."""

    def __init__(self, level: int, identities: Identities):
        self.level = level
        self.identities = identities
        self.file: str | None = None  # where the elements of what is described now go
        self.saves: dict[str, torch.Tensor] = {}
        self._structures: dict[Any, str] = {}
        self._warned: set[str] = set()

    def arguments(self, found: Found, kind: str, call: int = -1, written: Any = ()) -> str:
        """Places and what is there as a JSON list. ``kind`` is the call's level; of results ``call`` is the number
        of the call and ``written`` the ids of those that were there before."""
        parts = []
        for place, value in found:
            if isinstance(value, torch.Tensor):
                entry = self.tensor(value, kind, call, id(value) in written, place)
                parts.append(f'{_place(place)},"tensor":{entry}}}')
            elif value is None:
                parts.append(_place(place) + "}")
            else:
                parts.append(f'{_place(place)},"value":{value_text(value)}}}')
        return "[" + ",".join(parts) + "]"

    def tensor(self, tensor: torch.Tensor, kind: str, call: int, written: bool, place: str) -> str:
        """One tensor's entry. Where a tensor of an unknown kind cannot be read, its structure, and a warning."""
        try:
            return self._tensor(tensor, kind, call, written, place)
        except Exception as error:  # a subclass that forbids what others allow must not stop the program
            name = type(tensor).__name__
            if name not in self._warned:
                self._warned.add(name)
                warnings.warn(f"accuracy: a {name} is recorded without numbers: {error}", stacklevel=2)
            shape = json.dumps(_plain(list(tensor.shape)))
            return f'{{"dtype":"{elements.dtype_name(tensor.dtype)}","shape":{shape},"layout":"{name}"}}'

    def _tensor(self, tensor: torch.Tensor, kind: str, call: int, written: bool, place: str) -> str:
        value: Value | None = None
        needs = tensor.requires_grad
        if isinstance(tensor, MacaTensor):
            value = self.identities.maca(tensor)
            key: Any = (tensor._payload[2], needs)
        else:
            try:  # most have a storage; asking each for its layout first would take as long as all else
                value = self.identities.host(tensor) if type(tensor) in _PLAIN else None
            except (NotImplementedError, RuntimeError):
                value = None
            key = None
        if value is not None:
            known = value.texts.get((kind, needs)) if call < 0 else value.results.get(needs)
            if known is not None:
                if call >= 0:
                    self.identities.made_by(tensor, value, kind, call, written)
                return known
        if key is None:
            if (
                type(tensor) not in _PLAIN
                or tensor.layout is not torch.strided
                or tensor.is_nested
                or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
            ):
                tensor, parts, layout = _taken_apart(tensor)
                if parts is not None:
                    return self._of_parts(tensor, parts, layout, kind, call, written, place)
                if isinstance(tensor, MacaTensor):
                    return self._tensor(tensor, kind, call, written, place)
                value = None if tensor.device.type == "meta" else self.identities.host(tensor)
            if tensor.is_quantized:
                with quiet():
                    parts = _quantized_parts(tensor)
                return self._of_parts(tensor, parts, "quantized", kind, call, written, place)
            if tensor.device.type == "meta":
                return "{" + self._structure(tensor, None) + "}"
            key = (tensor.dtype, tensor.shape, tensor.stride(), needs, tensor.device)
        structure = self._structures.get(key) or self._structure(tensor, key)
        if value is None:
            value = Value(0, False)
        elif call >= 0:
            self.identities.made_by(tensor, value, kind, call, written)
        text = "{" + structure
        if call < 0 and (made := value.made.get(kind)) is not None:
            text += f',"made_by":{made}'
        if self.level and not value.is_blank:
            if value.numbers is None:
                found = measure(tensor)
                value.numbers = "," + found.text() if found is not None else ""
            text += value.numbers
            if self.level == 2:
                if value.file is None and self.file is not None:
                    value.file, value.key = self.file, place
                    with quiet():
                        self.saves[place] = elements.writable(tensor)
                text += f',"file":"{value.file}","key":"{value.key}"'
        text += "}"
        if call < 0:
            value.texts[kind, needs] = text
        else:
            value.results[needs] = text
        return text

    def _structure(self, tensor: torch.Tensor, key: Any) -> str:
        shape, stride = [int(n) for n in tensor.shape], [int(n) for n in tensor.stride()]
        text = f'"dtype":"{elements.dtype_name(tensor.dtype)}","shape":{shape},"stride":{stride}'
        if str(tensor.device) != "cpu":
            text += f',"device":"{tensor.device}"'
        if tensor.requires_grad:
            text += ',"requires_grad":true'
        text = text.replace(", ", ",")
        if key is not None:
            if len(self._structures) >= _LIMIT:
                self._structures.clear()
            self._structures[key] = text
        return text

    def _of_parts(
        self,
        tensor: torch.Tensor,
        parts: dict[str, torch.Tensor],
        layout: str,
        kind: str,
        call: int,
        written: bool,
        place: str,
    ) -> str:
        shape = json.dumps(_shape(tensor), separators=(",", ":"))
        dtype = elements.dtype_name(tensor.dtype)
        text = f'{{"dtype":"{dtype}","shape":{shape},"layout":"{layout}"'
        if str(tensor.device) != "cpu":
            text += f',"device":"{tensor.device}"'
        if tensor.requires_grad:
            text += ',"requires_grad":true'
        inner = [
            f'"{name}":{self._tensor(part, kind, call, written, f"{place}.{name}")}'
            for name, part in parts.items()
        ]
        return text + ',"parts":{' + ",".join(inner) + "}}"


def _shape(tensor: torch.Tensor) -> list[int]:
    if tensor.is_nested and tensor.layout is torch.strided:
        return [int(tensor.size(0)), *[-1] * (tensor.dim() - 1)]
    return [int(n) if type(n) is int else -1 for n in tensor.shape]  # -1: a ragged dimension


_Apart = tuple[torch.Tensor, "dict[str, torch.Tensor] | None", str]


def _taken_apart(tensor: torch.Tensor) -> _Apart:
    """A tensor that is not plain and strided: itself or what it wraps, its parts, and its layout."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    with quiet():
        if tensor.layout is torch.sparse_coo:
            held = tensor if tensor.is_coalesced() else tensor.detach().coalesce()
            return tensor, {"indices": held._indices(), "values": held._values()}, "sparse_coo"
        if tensor.layout in _COMPRESSED:
            held = tensor.detach()
            rows = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
            names = ("crow_indices", "col_indices") if rows else ("ccol_indices", "row_indices")
            parts = {name: getattr(held, name)() for name in (*names, "values")}
            return tensor, parts, str(tensor.layout).removeprefix("torch.")
        if tensor.is_nested and tensor.layout is torch.jagged:
            jagged: Any = tensor
            return tensor, {"values": jagged._values, "offsets": jagged._offsets}, "jagged"
        if tensor.is_nested:
            return tensor, {str(i): part for i, part in enumerate(tensor.detach().unbind())}, "nested"
        if tensor.layout is torch._mkldnn:  # type: ignore[attr-defined]
            return tensor, {"values": tensor.detach().to_dense()}, "_mkldnn"
        if type(tensor) in _PLAIN or isinstance(tensor, MacaTensor):
            return tensor, None, ""
        if hasattr(tensor, "__tensor_flatten__"):
            names, _ = tensor.__tensor_flatten__()
            return tensor, {name: getattr(tensor, name) for name in names}, type(tensor).__name__
        return _unwrapped(tensor), None, ""


def _unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """A subclass that holds its elements as any tensor does, as one of no class; a wrapper as a meta tensor."""
    if _has_elements(tensor):
        return tensor.as_subclass(torch.Tensor)
    sizes = [int(n) for n in tensor.shape]
    strides = [int(n) for n in tensor.stride()]
    return torch.empty_strided(sizes, strides, dtype=tensor.dtype, device="meta")


def _has_elements(tensor: torch.Tensor) -> bool:
    if "__torch_dispatch__" in dir(type(tensor)) and (
        type(tensor).__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl
    ):
        return False
    return True


_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def _quantized_parts(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    held = tensor.detach()
    parts = {"values": held.int_repr()}
    if held.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        parts["scale"] = torch.tensor(held.q_scale(), dtype=torch.float64)
        parts["zero_point"] = torch.tensor(held.q_zero_point())
    else:
        parts["scale"], parts["zero_point"] = held.q_per_channel_scales(), held.q_per_channel_zero_points()
        parts["axis"] = torch.tensor(held.q_per_channel_axis())
    return parts


Save = Callable[[str, dict[str, torch.Tensor]], None]
__all__ = ["Describer", "Meta", "flatten", "flatten_call", "flatten_result", "value_text"]
