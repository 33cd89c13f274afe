"""safetensors, which knows devices by a list of its own: files are read to maca, and weights that lie NHWC there are
written as what they are.

In place before the device is loaded: programs keep ``safe_open`` by its name. Names of safetensors 0.4 to 0.8.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

import torch
from maca_autoload.after_import import after_import


def adapt() -> None:
    """Adapts safetensors when it is imported. What was being imported the last time is asked again."""
    after_import("safetensors", lambda: _once(sys.modules["safetensors"], "safe_open", _opening))
    after_import("safetensors.torch", _adapt_torch)


def _adapt_torch() -> None:
    module = sys.modules["safetensors.torch"]
    _once(module, "safe_open", _opening)  # what load_file calls
    for name in ("_flatten_as_ptr", "_flatten"):
        _once(module, name, _flattening)


def _once(module: ModuleType, name: str, make: Any) -> None:
    theirs = getattr(module, name, None)
    if theirs is not None and not hasattr(theirs, "of_safetensors"):
        ours = make(theirs)
        ours.of_safetensors = theirs
        setattr(module, name, ours)


def _is_ours(device: Any) -> bool:
    """Is it maca? A number is a device of CUDA."""
    return isinstance(device, (str, torch.device)) and torch.device(device).type == "maca"


def _flattening(theirs: Any) -> Any:
    """What ``save``, ``save_file`` and ``save_model`` lay tensors out with."""

    @functools.wraps(theirs)
    def flatten(tensors: Any, *rest: Any) -> Any:
        if not isinstance(tensors, dict):
            return theirs(tensors, *rest)  # which refuses it
        # what is one tensor stays one: what shares memory is refused
        rows = {_place(t): t for t in tensors.values() if _lies_anew(t)}
        rows = {place: t.contiguous() for place, t in rows.items()}
        return theirs({n: rows[_place(t)] if _lies_anew(t) else t for n, t in tensors.items()}, *rest)

    return flatten


def _place(t: torch.Tensor) -> object:
    return t.data_ptr(), t.shape


def _lies_anew(t: Any) -> bool:
    """Is it a whole image that the transfer to maca laid out anew? A file holds elements row by row, and safetensors
    refuses what lies otherwise, lest it be a part of something."""
    ours = (
        isinstance(t, torch.Tensor) and t.device.type == "maca" and t.layout is torch.strided and t.dim() == 4
    )
    return bool(ours and t.is_contiguous(memory_format=torch.channels_last) and not t.is_contiguous())


class _Opened:
    """A file that safetensors reads to the host, whose tensors come to maca."""

    def __init__(self, held: Any) -> None:
        self._held = held

    def __getattr__(self, name: str) -> Any:
        return getattr(self._held, name)

    def __enter__(self) -> _Opened:
        self._held.__enter__()
        return self

    def __exit__(self, *raised: Any) -> Any:
        return self._held.__exit__(*raised)

    def get_tensor(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._held.get_tensor(name).to("maca")
        return tensor

    def get_tensors(self, *names: Any) -> dict[str, torch.Tensor]:
        return {name: t.to("maca") for name, t in self._held.get_tensors(*names).items()}

    def get_slice(self, name: str) -> _Slice:
        return _Slice(self._held.get_slice(name))


class _Slice:
    """A tensor of such a file, of which what is asked for is read."""

    def __init__(self, held: Any) -> None:
        self._held = held

    def __getattr__(self, name: str) -> Any:
        return getattr(self._held, name)

    def __getitem__(self, index: Any) -> torch.Tensor:
        part: torch.Tensor = self._held[index].to("maca")
        return part


def _opening(theirs: Any) -> Any:
    """``safe_open(file, framework="pt", device="maca")``."""

    @functools.wraps(theirs, updated=())
    def safe_open(filename: Any, framework: Any, device: Any = "cpu", **options: Any) -> Any:
        held = theirs(filename, framework, "cpu" if _is_ours(device) else device, **options)
        return _Opened(held) if _is_ours(device) else held

    return safe_open
