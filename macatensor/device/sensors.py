"""What a driver says of a device besides its memory. ``maca.h`` has no call for it, so all but memory is unknown: None."""

from __future__ import annotations

from torch.types import Device

from macatensor.device.memory import mem_get_info
from macatensor.runtime.ordinal import ordinal

__all__ = ["clock_rate", "device_memory_used", "memory_usage", "power_draw", "temperature", "utilization"]


def memory_usage(device: Device = None) -> int:
    """How much of the device's memory is in use, in percent, of all processes."""
    free, total = mem_get_info(device)
    return round(100 * (total - free) / total)


def device_memory_used(device: Device = None) -> int:
    """How much of the device's memory is in use, in bytes, of all processes."""
    free, total = mem_get_info(device)
    return total - free


def utilization(device: Device = None) -> int | None:
    """None: no device library says how busy its device is."""
    ordinal(device)
    return None


def temperature(device: Device = None) -> int | None:
    """None: no device library says how warm its device is."""
    ordinal(device)
    return None


def power_draw(device: Device = None) -> int | None:
    """None: no device library says what its device draws."""
    ordinal(device)
    return None


def clock_rate(device: Device = None) -> int | None:
    """None: no device library says at which rate its device runs."""
    ordinal(device)
    return None
