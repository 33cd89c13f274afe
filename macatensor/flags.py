"""Switches that change what a plan computes. Changing one drops the plans that were made under the old one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from macatensor.ffi import lib

_DETERMINISTIC = lib.MACA_PLAN_DETERMINISTIC
_TF32 = lib.MACA_PLAN_TF32

tf32_matmul = False
tf32_convolution = False
_deterministic = False  # torch.backends.maca.deterministic
caches: list[dict[Any, Any]] = []  # every plan cache registers here
caches_of: dict[str, list[dict[Any, Any]]] = {}  # by kernel, to be counted


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


def drop_plans() -> None:
    """Forgets every plan."""
    for cache in caches:
        cache.clear()


def _followed(function: Callable[..., None], then: Callable[..., None]) -> Callable[..., None]:
    """``function``, with ``then`` called after it on the same arguments."""

    @functools.wraps(function)
    def follow(*args: Any, **kwargs: Any) -> None:
        function(*args, **kwargs)
        then(*args, **kwargs)

    return follow


def follow_threads() -> None:
    """Gives the library as many threads as PyTorch has, now and whenever ``torch.set_num_threads`` changes it."""

    def changed(*args: Any, **kwargs: Any) -> None:
        lib.maca_runtime_set_threads(torch.get_num_threads())
        drop_plans()  # oneDNN chooses its primitives for a number of threads

    lib.maca_runtime_set_threads(torch.get_num_threads())
    torch.set_num_threads = _followed(torch.set_num_threads, changed)


def follow_switches(precision_changed: Callable[[str], None]) -> None:
    """Drops plans when PyTorch's own switches change. ``precision_changed`` learns of the precision of products."""

    def dropped(*args: Any, **kwargs: Any) -> None:
        drop_plans()

    for name in ("use_deterministic_algorithms", "set_deterministic_debug_mode"):
        setattr(torch, name, _followed(getattr(torch, name), dropped))
    torch.set_float32_matmul_precision = _followed(torch.set_float32_matmul_precision, precision_changed)
