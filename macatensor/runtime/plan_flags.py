"""Globals that change what a plan computes. Changing one drops the plans that were made under the old value, so that
none of them need be part of a call's signature.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import ParamSpec

import torch

from macatensor.runtime import plan_caches
from macatensor.runtime.ffi import check, lib
from macatensor.runtime.plan_caches import drop_plans

_P = ParamSpec("_P")
_DETERMINISTIC = lib.MACA_PLAN_DETERMINISTIC
_TF32 = lib.MACA_PLAN_TF32

tf32_matmul = False
tf32_convolution = False
_deterministic = False  # torch.backends.maca.deterministic


def plan_flags(kernel: str) -> int:
    """The ``maca_plan_flags`` in force for a kernel."""
    deterministic = _deterministic or torch.are_deterministic_algorithms_enabled()
    tf32 = tf32_convolution if kernel.startswith("convolution") else tf32_matmul
    return (_DETERMINISTIC if deterministic else 0) | (_TF32 if tf32 else 0)


def allow_tf32(matmul: bool | None = None, convolution: bool | None = None) -> None:
    """Allows or forbids float32 products with 10 mantissa bits."""
    global tf32_matmul, tf32_convolution
    tf32_matmul = tf32_matmul if matmul is None else matmul
    tf32_convolution = tf32_convolution if convolution is None else convolution
    drop_plans()


def be_deterministic(mode: bool) -> None:
    """Asks the library for algorithms that give the same bits every time, whatever PyTorch's own switch says."""
    global _deterministic
    _deterministic = mode
    drop_plans()


def _followed(function: Callable[_P, None], then: Callable[..., None]) -> Callable[_P, None]:
    """``function``, with ``then`` called after it on the same arguments."""

    @functools.wraps(function)
    def follow(*args: _P.args, **kwargs: _P.kwargs) -> None:
        function(*args, **kwargs)
        then(*args, **kwargs)

    return follow


def follow_threads() -> None:
    """Gives the library as many threads as PyTorch has, now and whenever ``torch.set_num_threads`` changes it."""

    def changed(nthreads: int) -> None:
        check(lib.maca_runtime_set_threads(torch.get_num_threads()), "torch.set_num_threads")
        drop_plans()  # oneDNN chooses its primitives for a number of threads

    check(lib.maca_runtime_set_threads(torch.get_num_threads()), "torch.get_num_threads")
    torch.set_num_threads = _followed(torch.set_num_threads, changed)


def _state() -> tuple[torch.dtype, bool, bool]:
    """What of PyTorch's own globals plans depend on, beside the number of threads and the precision of products."""
    return (
        torch.get_default_dtype(),  # of integers divided, of numbers beside integers, of factories
        torch._C._get_deterministic_algorithms(),
        torch._C._get_deterministic_algorithms_warn_only(),  # what a consultation of the CPU raises
    )


def _dropping(function: Callable[_P, None]) -> Callable[_P, None]:
    """``function``; plans are dropped where it changes the state."""

    @functools.wraps(function)
    def follow(*args: _P.args, **kwargs: _P.kwargs) -> None:
        before = _state()
        function(*args, **kwargs)
        if _state() != before:
            drop_plans()

    return follow


@contextlib.contextmanager
def host_default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Another default dtype for what is computed on the host: plans stay, as nothing is launched on the device."""
    # as PyTorch has it: the one that follows would drop the plans, which took a tenth of the time of bisecting
    change = getattr(torch._C._set_default_dtype, "__wrapped__", torch._C._set_default_dtype)
    before = torch.get_default_dtype()
    with plan_caches.closed():
        change(dtype)
        try:
            yield
        finally:
            change(before)


def follow_switches(precision_changed: Callable[[str], None]) -> None:
    """Drops plans when PyTorch's own globals change. ``precision_changed`` learns of the precision of products.

    They are followed where PyTorch's functions set them, in its C module: a program may have taken
    ``torch.set_default_dtype`` by name before macatensor came.
    """
    for name in ("_set_default_dtype", "_set_default_tensor_type", "_set_deterministic_algorithms"):
        setattr(torch._C, name, _dropping(getattr(torch._C, name)))
    torch._C._set_float32_matmul_precision = _followed(
        torch._C._set_float32_matmul_precision, precision_changed
    )
