"""Which machine a bank's times are of: two that agree in this may share one."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import re
from pathlib import Path

from macatensor.runtime.ffi import ffi, lib


def _processor() -> str:
    """The processor's name, as Linux has it."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


@functools.cache
def machine() -> dict[str, str | int]:
    """What times depend on and a program does not change: the library and what it stands on, device, processor, cores."""
    info = ffi.new("maca_device_info*")
    info.size = ffi.sizeof("maca_device_info")
    lib.maca_runtime_info(info)

    def text(value: object) -> str:
        return ffi.string(value).decode(errors="replace")  # type: ignore[arg-type]

    return {
        "library": text(lib.maca_runtime_library()),
        "device": text(info.name),
        "simd": text(info.simd),
        "stands_on": text(info.libraries),
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
    }


@functools.cache
def fingerprint() -> str:
    """Twelve hexadecimal digits of :func:`machine`, for the name of its bank."""
    return hashlib.sha256(json.dumps(machine(), sort_keys=True).encode()).hexdigest()[:12]
