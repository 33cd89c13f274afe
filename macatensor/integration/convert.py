"""``maca()``: whatever a user has, on the device."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import torch

from macatensor.dispatch.transfer import to_device
from macatensor.runtime.boxed import Value


def maca(data: Value) -> Value:
    """Moves ``data`` to the device.

    A tensor, NumPy array or Python number gives a MacaTensor; a list or tuple of numbers (nested) gives one too, as
    ``torch.tensor`` would. A module moves in place, as ``Module.to`` does. A list, tuple, dict or dataclass of
    those gives the same container of moved values. 4-D tensors become channels_last (``PYTORCH_DEFAULT_NCHW=1``
    turns that off). Tensors keep their place in the autograd graph.

    Raises TypeError, naming the type, for anything else.
    """
    if isinstance(data, torch.Tensor):
        return data.to("maca")
    if isinstance(data, torch.nn.Module):
        return data.to("maca")
    if isinstance(data, np.ndarray):
        # PyTorch takes neither read-only arrays nor negative strides
        plain = data.flags.writeable and all(step >= 0 for step in data.strides)
        return to_device(torch.from_numpy(data if plain else data.copy()))
    if isinstance(data, (bool, int, float, complex, np.generic)):
        return to_device(torch.as_tensor(data, device="cpu"))
    if isinstance(data, (list, tuple)):
        if data and _is_numbers(data):
            return to_device(torch.tensor(data, device="cpu"))
        moved = [maca(value) for value in data]
        if isinstance(data, tuple):
            return type(data)(*moved) if hasattr(data, "_fields") else tuple(moved)
        return moved
    if isinstance(data, dict):
        moved_items = {key: maca(value) for key, value in data.items()}
        if type(data) is dict:
            return moved_items
        same_kind = copy.copy(data)  # keeps what a subclass carries, as a defaultdict its factory
        same_kind.update(moved_items)
        return same_kind
    if dataclasses.is_dataclass(data) and not isinstance(data, type):
        fields = {f.name: maca(getattr(data, f.name)) for f in dataclasses.fields(data) if f.init}
        return dataclasses.replace(data, **fields)
    raise TypeError(
        f"maca() got {type(data).__module__}.{type(data).__qualname__}; accepted: a tensor, a NumPy array, a number, an "
        "nn.Module, or a list, tuple, dict or dataclass of those"
    )


def _is_numbers(data: object) -> bool:
    if isinstance(data, (list, tuple)):
        return all(_is_numbers(value) for value in data)
    return isinstance(data, (bool, int, float, complex, np.generic))
