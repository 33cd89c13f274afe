"""The tensors and values of a call by their places: ``"0"``, ``"weight"``, ``"0.1"`` inside of nesting.

C takes calls apart (``shim/recorder/containers.cpp``): in Python it takes 10 us for a list of 76 tensors alone.
"""

from __future__ import annotations

import dataclasses

import torch

from macatensor.runtime.tensor import MacaTensor
from macatensor.runtime.uncompiled import uncompiled

Found = list[tuple[str, object]]  # places and what is there

# Types that need no look inside, since asking isinstance of each of 76 tensors in a list takes 10 us.
PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
TENSORS = PLAIN | {MacaTensor}
PLAIN_VALUES = frozenset((int, float, bool, str, type(None), torch.dtype, torch.device, torch.memory_format))


@uncompiled
def held_by(value: object) -> Found | None:
    """What is in a container that is not exactly a list, tuple or dict: names and what they stand for. None: it is no
    container, or does not say what it holds."""
    try:
        if isinstance(value, (list, tuple)):
            return [(str(i), held) for i, held in enumerate(value)]
        if isinstance(value, dict):
            return [(str(name), held) for name, held in value.items()]
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return [(f.name, getattr(value, f.name, None)) for f in dataclasses.fields(value)]
    except Exception:  # an object of the program's own must not stop the program
        pass
    return None
