"""Where PyTorch's profiler asks for the device.

``torch.autograd.profiler.profile`` is what ``torch.profiler.profile`` stands on. Of a device that is not its own it
expects an observer in C++; instead the runtime notes what the device does between ``_start_trace`` and the end, and
Kineto's results are handed on inside of :class:`~macatensor.profiling.results.Results`. Names that PyTorch may change
are looked for once, in :func:`register`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch._C._profiler import ProfilerActivity, ProfilerState

from macatensor.profiling import activities, memory
from macatensor.profiling.results import Results

devices = frozenset({"maca"})  # names of the device; `as_cuda` adds "cuda"
_running = threading.local()  # .profile: the one of this thread that asked for the device
_of_autograd: Any = torch.autograd.profiler
_of_torch: Any = torch.profiler.profiler
_profile = _of_autograd.profile


def register() -> None:
    """Called once. Warns, and leaves the profiler as it is, where PyTorch's profiler has other parts than it had."""
    taken_over = (
        (_profile, "_start_trace"),
        (_of_autograd, "_disable_profiler"),
        (_of_torch._KinetoProfile, "_memory_profile"),
    )
    missing = [name for owner, name in taken_over if not hasattr(owner, name)]
    if missing:
        warnings.warn(
            f"macatensor: torch.profiler shows nothing of the device: this PyTorch ({torch.__version__}) has no "
            f"{', '.join(missing)} in torch.autograd.profiler"
        )
        return
    _profile.__init__ = _begin_as_ours(_profile.__init__)
    _profile._start_trace = _start_both(_profile._start_trace)
    _of_autograd._disable_profiler = _end_both(_of_autograd._disable_profiler)
    module: Any
    timeline = _of_torch.MemoryProfileTimeline
    _of_torch._KinetoProfile._memory_profile = memory.with_device(_of_torch._KinetoProfile._memory_profile)
    timeline.export_memory_timeline_html = memory.page_of_device(timeline.export_memory_timeline_html)
    for module in (_of_torch, torch.profiler):
        if hasattr(module, "supported_activities"):
            module.supported_activities = _with_device(module.supported_activities)


@contextlib.contextmanager
def quiet_kineto() -> Iterator[None]:
    """Kineto writes a line to standard error wherever it starts and stops."""
    sys.stderr.flush()
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def _is_ours(profile: Any) -> bool:
    return getattr(profile, "enabled", False) and getattr(profile, "use_device", None) == "maca"


def _has_timeline(profile: Any) -> bool:
    """May ``_memory_profile`` be asked for?"""
    return bool(profile.profile_memory and profile.record_shapes and profile.with_stack)


def _begin_as_ours(init: Any) -> Any:
    @functools.wraps(init)
    def wrapped(self: Any, enabled: bool = True, *, use_cpu: bool = True, **given: Any) -> None:
        is_ours = given.get("use_device") in devices or (given.get("use_cuda") and "cuda" in devices)
        if not is_ours:
            init(self, enabled, use_cpu=use_cpu, **given)
            return
        # of the device PyTorch is told afterwards: for another one than its own it wants an observer in C++
        init(self, enabled, use_cpu=True, **{**given, "use_device": None, "use_cuda": False})
        if enabled:
            self.use_device = "maca"
            self.use_cpu = use_cpu
            self.profiler_kind = ProfilerState.KINETO

    return wrapped


def _start_both(start: Any) -> Any:
    @functools.wraps(start)
    def wrapped(self: Any) -> None:
        if _is_ours(self):
            _running.profile = self
            _running.before = memory.live_blocks() if _has_timeline(self) else []
            activities.start(with_memory=bool(self.profile_memory))
        start(self)

    return wrapped


def _end_both(disable: Any) -> Any:
    @functools.wraps(disable)
    def wrapped() -> Any:
        profile = getattr(_running, "profile", None)
        _running.profile = None
        found = activities.stop() if profile is not None else []
        results = disable()
        if profile is None:
            return results
        held = memory.held() if _has_timeline(profile) else {}
        return Results(results, found, bool(profile.use_cpu), _running.before, held)

    return wrapped


def _with_device(supported: Any) -> Any:
    @functools.wraps(supported)
    def wrapped() -> set[ProfilerActivity]:
        return {*supported(), ProfilerActivity.PrivateUse1}

    return wrapped
