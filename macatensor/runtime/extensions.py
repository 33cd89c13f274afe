"""Libraries of kernels that users join to the device's: each is asked before it, the latest first.

Which library serves a request is decided in C when a plan is made (shim/extensions.cpp). Joining one, and ending that, lets
everything be planned anew; a call costs what it did.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
from pathlib import Path
from typing import NamedTuple

from macatensor.runtime import capture, plan_caches
from macatensor.runtime.ffi import NULL, allocate, check, ffi, lib, native, pointer

_LOG = logging.getLogger(__name__)
_TAGGED = 0xFF << 56  # bits of an address that no address of the host has, as maca_extension.h strips them
_PROBE = 64  # bytes


class Joined(NamedTuple):
    """A library that is joined."""

    name: str
    path: Path
    number: int  # in C
    kernels: tuple[str, ...]  # that it names

    @property
    def launches(self) -> int:
        """What it has served so far."""
        return int(lib.maca_extensions_launches(self.number))


_joined: list[Joined] = []  # the latest last


def joined() -> list[Joined]:
    """Those that are joined, in the order in which they are asked."""
    return _joined[::-1]


def naming(kernel: str) -> list[Joined]:
    """Those that name the kernel, in the order in which they are asked for it."""
    return [one for one in joined() if kernel in one.kernels]


def join(name: str, path: Path) -> Joined:
    """Joins a library under ``name``; one of that name gives way. Raises ImportError where the library does not fit."""
    _refuse_while_captured("joined")
    known = next((one for one in _joined if one.name == name), None)
    if known is not None and known.path == path:
        return known
    number, message = ffi.new("int32_t*"), ffi.new("char[]", 2048)
    if lib.maca_extensions_join(os.fsencode(path), name.encode(), number, message, 2048):
        why = ffi.string(message).decode(errors="replace")
        raise ImportError(f"macatensor could not join the extension {name}: {why}", name=name, path=str(path))
    if not lib.maca_extensions_queue(number[0]) and not _memory_is_the_hosts():
        lib.maca_extensions_leave(number[0])
        raise ImportError(
            f"macatensor could not join the extension {name}: its kernels run on the host, where this device's memory is "
            "not; let its device_info say MACA_DEVICE_ASYNCHRONOUS and give its work to maca_launch.stream",
            name=name,
            path=str(path),
        )
    made = Joined(name, path, number[0], _kernels(number[0]))
    if known is not None:
        _leave(known)
    _joined.append(made)
    _forget()
    _LOG.info("joined the extension %s: %s", name, ", ".join(made.kernels))
    return made


def leave(one: Joined) -> None:
    """It is asked for no more plans. Those that compiled programs and captured graphs hold live on."""
    _refuse_while_captured("unloaded")
    if one in _joined:
        _leave(one)
        _forget()
        _LOG.info("the extension %s is no longer asked", one.name)


def _leave(one: Joined) -> None:
    lib.maca_extensions_leave(one.number)
    _joined.remove(one)


def _forget() -> None:
    """What was decided on the grounds of the libraries that there were."""
    plan_caches.drop_plans()
    native.forget_launchers()


def _refuse_while_captured(what: str) -> None:
    if capture.current is not None:
        raise RuntimeError(f"an extension cannot be {what} while a graph is captured; do it before or after")


def _kernels(number: int) -> tuple[str, ...]:
    names: list[str] = []
    while (name := lib.maca_extensions_kernel(number, len(names))) != NULL:
        names.append(ffi.string(name).decode(errors="replace"))
    return tuple(names)


@functools.cache
def _memory_is_the_hosts() -> bool:
    """Is device memory memory of this process, behind a tag in the addresses' top byte? It is asked by an experiment."""
    sent = os.urandom(_PROBE)
    buffer = allocate(_PROBE)
    ends = pointer(buffer), 0, ffi.from_buffer(sent)
    check(lib.maca_buffer_from_host(*ends, False, _PROBE), "joining an extension")
    there = (ctypes.c_char * _PROBE).from_address(buffer.address & ~_TAGGED)
    reader, writer = os.pipe()
    try:
        return os.write(writer, there) == _PROBE and os.read(reader, _PROBE) == sent
    except OSError:  # EFAULT: nothing lies there
        return False
    finally:
        os.close(reader)
        os.close(writer)
