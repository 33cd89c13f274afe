"""``torch.maca.set_sync_debug_mode``: warnings or errors where the host waits for the device."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from macatensor.runtime import capture
from macatensor.runtime.own_names import own_names

mode = 0  # 0: nothing, 1: warn, 2: raise. Read by those who wait, as a module attribute: 30 ns
listener: Callable[[str], None] | None = None  # is told what waits, where somebody listens
_NAMES = {"default": 0, "warn": 1, "error": 2}


def set_sync_debug_mode(debug_mode: int | str) -> None:
    """``"default"`` or 0; ``"warn"`` or 1: warn where the host waits for the device; ``"error"`` or 2: raise there.

    It acts on ``item()`` and what calls it (``bool(t)``, ``nonzero``, boolean indexing, ``unique``), copies to and
    from the host without ``non_blocking=True``, and ``synchronize()`` of device, streams and events. Raises
    RuntimeError for another mode.
    """
    global mode
    if isinstance(debug_mode, str):
        if debug_mode not in _NAMES:
            raise RuntimeError("invalid value of debug_mode, expected one of `default`, `warn`, `error`")
        debug_mode = _NAMES[debug_mode]
    if debug_mode not in (0, 1, 2):
        raise RuntimeError("invalid value of debug_mode, expected one of 0,1,2")
    mode = int(debug_mode)


def get_sync_debug_mode() -> int:
    """The mode in force: 0, 1 or 2."""
    return mode


def host_wait(what: str, waits: bool = True) -> None:
    """Called where the host is about to need the device. Refused while a graph is captured; where it ``waits`` for the
    device, what :data:`mode` asks for: a warning or RuntimeError."""
    capture.refuse(what)
    if waits and listener is not None:
        listener(what)
    if not (mode and waits):
        return
    if mode == 2:
        raise RuntimeError("called a synchronizing MACA operation")
    warnings.warn("called a synchronizing MACA operation", UserWarning, stacklevel=3)


__all__ = own_names(globals(), internal=("host_wait",))
