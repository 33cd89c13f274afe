"""States of random generators: before a random operator, and at a run's start."""

from __future__ import annotations

import base64
import random
import sys
from collections.abc import Mapping, Sequence

import torch

from macatensor.runtime.ffi import native_recorder


def generator_state(args: Sequence[object], kwargs: Mapping[str, object] | None) -> torch.Tensor | None:
    """The state (uint8, on the host) of the generator that an operator is about to draw from."""
    from macatensor.accuracy.recording.quiet import quiet

    with quiet():
        device: torch.device | None = None
        for _, value in native_recorder.flatten_call(args, kwargs):
            if isinstance(value, torch.Generator):
                return value.get_state()
            if isinstance(value, torch.device):
                device = value
            elif device is None and isinstance(value, torch.Tensor):
                device = value.device
        kind = "cpu" if device is None else device.type
        if kind == "cpu":
            return torch.get_rng_state()
        if kind == "meta":
            return None
        state: torch.Tensor = torch.get_device_module(kind).get_rng_state()
        return state.cpu()


def initial_states() -> dict[str, object]:
    """Seeds and states of every generator that the program can draw from, as JSON has them."""
    found: dict[str, object] = {
        "torch": {"seed": torch.initial_seed(), "state": _text(torch.get_rng_state())},
        "python": {"state": random.getstate()},
    }
    for kind in ("cuda", "maca"):
        module = getattr(torch, kind, None)
        if module is not None and module.is_available():
            found[kind] = {"seed": module.initial_seed(), "state": _text(module.get_rng_state().cpu())}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, position, has_gauss, gauss = numpy.random.get_state()
        found["numpy"] = {"state": [name, keys.tolist(), position, has_gauss, gauss]}
    return found


def _text(state: torch.Tensor) -> str:
    return base64.b64encode(bytes(state.tolist())).decode()
