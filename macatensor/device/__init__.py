"""``torch.maca``: the device module, with the names of torch.cuda."""

from __future__ import annotations

import os as _os

import torch

# Names that begin with "_" are not torch.maca's; `__all__` below has all the others.
from torch.compiler import is_compiling as _is_compiling

from macatensor.device import amp, comm, jiterator, memory, nccl, nvtx, profiler, tunable
from macatensor.device.dumps import *  # noqa: F403
from macatensor.device.formats import *  # noqa: F403
from macatensor.device.generators import *  # noqa: F403
from macatensor.device.graphed_callables import *  # noqa: F403
from macatensor.device.graphs import *  # noqa: F403
from macatensor.device.graphs import MacaGraph
from macatensor.device.memory import *  # noqa: F403
from macatensor.device.memory_history import *  # noqa: F403
from macatensor.device.memory_pools import *  # noqa: F403
from macatensor.device.op_info import op_info as op_info
from macatensor.device.options import *  # noqa: F403
from macatensor.device.profiler import *  # noqa: F403
from macatensor.device.properties import *  # noqa: F403
from macatensor.device.sensors import *  # noqa: F403
from macatensor.device.tensor_types import *  # noqa: F403
from macatensor.device.tunable import set_aoe as set_aoe
from macatensor.dispatch.named_kernels import launch as _launch
from macatensor.dispatch.request import Declined as _Declined
from macatensor.runtime import random
from macatensor.runtime import streams as streams
from macatensor.runtime.ffi import finish_wait as _finish_wait
from macatensor.runtime.ffi import lib as _lib
from macatensor.runtime.ffi import lost as _lost
from macatensor.runtime.ordinal import ordinal as _ordinal
from macatensor.runtime.random import *  # noqa: F403
from macatensor.runtime.streams import *  # noqa: F403
from macatensor.runtime.sync_debug import *  # noqa: F403
from macatensor.runtime.sync_debug import host_wait as _host_wait

OutOfMemoryError = torch.OutOfMemoryError
AcceleratorError = torch.AcceleratorError
has_half = True
has_magma = False
CUDAGraph = MacaGraph  # under the name that scripts for torch.cuda look for
_initialized = True  # torch.utils.checkpoint keeps random states only of devices that say so


def is_available() -> bool:
    """True: a library is loaded, or importing macatensor would have failed. A device that was lost later is still
    counted, as torch.cuda counts it."""
    return True


def is_initialized() -> bool:
    """True: the library is loaded by the import."""
    return True


def init() -> None:
    """Nothing is left to do after import."""


def _lazy_init() -> None:
    pass


_process = _os.getpid()


def _is_in_bad_fork() -> bool:
    """Is this a child of the process that opened the device, in which its library cannot go on?"""
    return _os.getpid() != _process and bool(_lost())


def device_count() -> int:
    """One: PyTorch's Python device guard knows one device. ``MACA_VISIBLE_DEVICES`` picks which."""
    return 1


def current_device() -> int:
    """0, the index of the one device."""
    return 0


def synchronize(device: torch.types.Device = None) -> None:
    """Waits for the work of all streams. Raises what failed in it. Left out of compiled programs."""
    if _is_compiling():
        return
    _ordinal(device)
    _host_wait("synchronize()")
    status = _lib.maca_runtime_synchronize()
    if streams.observer is not None:
        streams.observer.device_synchronized()
    _finish_wait(status, "synchronize()")


def ipc_collect() -> None:
    """Nothing to collect: maca's memory is not shared between processes."""


def _sleep(cycles: int) -> None:
    """Keeps the current stream busy for ``cycles`` cycles of a 1 GHz clock, that is nanoseconds.

    Raises ValueError for a negative number, NotImplementedError where the library has no such kernel.
    """
    if cycles < 0:
        raise ValueError(f"_sleep got {cycles} cycles; expected 0 or more")
    try:
        _launch("delay", [], [], {"cycles": int(cycles)})
    except _Declined as error:
        raise NotImplementedError(f"the device library cannot delay a stream: {error}") from None


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """True: every library computes in bfloat16, if need be through float32."""
    return True


def is_tf32_supported() -> bool:
    """Whether products may be computed in fewer bits: ``torch.backends.maca.matmul.allow_tf32`` asks for it."""
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Dtypes of ``torch.autocast("maca")``."""
    return [torch.bfloat16, torch.float16]


def __dir__() -> list[str]:
    """The public names, and not what this module imports to make them."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


_MODULES = (amp, comm, jiterator, memory, nccl, nvtx, profiler, random, streams, tunable)
__all__ = sorted(
    name
    for name, held in globals().items()
    if not name.startswith("_") and (callable(held) or held in _MODULES)
)
