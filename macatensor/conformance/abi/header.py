"""maca.h as cffi sees it, and a library's table of functions loaded with it."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any, TypeAlias

import cffi

Pointer: TypeAlias = Any  # a value of C; cffi has no types for them

ROOT = Path(__file__).resolve().parents[3]
HEADER = ROOT / "libmaca_ffi" / "include" / "maca.h"
LAST_MANDATORY = "error_take"  # what later minors append is optional
OPTIONAL = frozenset(
    "device_count device_set_threads memory_reserve memory_commit memory_decommit host_allocate host_free plan_pack".split()
)


def _ffi() -> cffi.FFI:
    spec = importlib.util.spec_from_file_location("build_binding", ROOT / "libmaca_ffi" / "build_binding.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = cffi.FFI()
    made.cdef(module.declarations(HEADER.read_text()))
    made.cdef("const maca_interface* maca_get_interface(int32_t major);")
    return made


ffi = _ffi()
_names = ffi.dlopen(None)
STATUS: dict[int, str] = dict(ffi.typeof("maca_status").elements)
SLOTS: tuple[str, ...] = tuple(
    name for name, f in ffi.typeof("maca_interface").fields if f.type.kind == "function"
)
MANDATORY: tuple[str, ...] = tuple(s for s in SLOTS[: SLOTS.index(LAST_MANDATORY) + 1] if s not in OPTIONAL)
MAJOR: int = _names.MACA_ABI_MAJOR
MINOR: int = _names.MACA_ABI_MINOR


def status_text(status: int) -> str:
    """``"MACA_INVALID (2)"``."""
    return f"{STATUS[status]} ({status})" if status in STATUS else f"{status}, which is no maca_status"


def load(path: Path) -> Pointer:
    """The library's entry. Raises OSError with the loader's own words."""
    return ffi.dlopen(os.fspath(path), ffi.RTLD_NOW | ffi.RTLD_LOCAL)


def has(table: Pointer, slot: str) -> bool:
    """Does the table reach as far as the slot, and is there a function in it?"""
    offset = ffi.offsetof("maca_interface", slot)
    return bool(table.size >= offset + ffi.sizeof("void*") and getattr(table, slot) != ffi.NULL)
