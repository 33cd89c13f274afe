"""An open device of a library, with calls that notice what no call may do."""

from __future__ import annotations

from pathlib import Path

from .header import MAJOR, Pointer, ffi, has, load, status_text
from .verdicts import Broken, NotAsked, expect

OK, DECLINED, INVALID, OUT_OF_MEMORY, NOT_READY, DEVICE_ERROR, UNSUPPORTED = range(7)
TO_DEVICE, TO_HOST, ON_DEVICE = range(3)


class Opened:
    """A library, and its device 0 once :meth:`open` was called."""

    def __init__(self, path: Path):
        self.path = path
        self.library = load(path)
        self.table: Pointer = ffi.NULL
        self.device: Pointer = ffi.NULL
        self.info: Pointer = ffi.NULL

    def interface(self) -> Pointer:
        if self.table == ffi.NULL:
            self.table = self.library.maca_get_interface(MAJOR)
            expect(self.table != ffi.NULL, f"maca_get_interface({MAJOR}) returned NULL")
        return self.table

    def open(self) -> None:
        """Opens device 0 and asks for its info."""
        table = self.interface()
        device, reason = ffi.new("maca_device**"), self.reason()
        status = table.device_open(0, device, reason)
        if status != OK:
            raise Broken(
                f"device_open(0) returned {status_text(status)}: {text_of(reason.text) or 'no reason'}"
            )
        expect(device[0] != ffi.NULL, "device_open returned MACA_OK and the device NULL")
        self.device = device[0]
        self.info = ffi.new("maca_device_info*", {"size": ffi.sizeof("maca_device_info")})
        self.call("device_info", self.info)

    def reason(self) -> Pointer:
        return ffi.new("maca_reason*", {"size": ffi.sizeof("maca_reason")})

    # -- calls
    def needs(self, *slots: str) -> None:
        for slot in slots:
            if not has(self.table, slot):
                raise NotAsked(f"the library has no {slot}")

    def status(self, slot: str, *arguments: object) -> int:
        """What the slot returns: a maca_status, or the library is wrong."""
        given: int = getattr(self.table, slot)(self.device, *arguments)
        expect(0 <= given <= UNSUPPORTED, f"{slot} returned {status_text(given)}")
        return given

    def call(self, slot: str, *arguments: object) -> None:
        """A call that has to succeed."""
        status = self.status(slot, *arguments)
        if status != OK:
            said = self.take() if status == DEVICE_ERROR and slot != "error_take" else None
            why = f": {text_of(said.text)}" if said is not None and said.status else ""
            raise Broken(f"{slot} returned {status_text(status)}{why}; expected MACA_OK")

    def take(self) -> Pointer:
        """The oldest error."""
        error = ffi.new("maca_error*", {"size": ffi.sizeof("maca_error")})
        self.call("error_take", error)
        return error

    # -- memory
    def allocate(self, nbytes: int) -> Pointer:
        address = ffi.new("void**")
        self.call("memory_allocate", nbytes, address)
        expect(address[0] != ffi.NULL, f"memory_allocate({nbytes}) returned MACA_OK and the address NULL")
        return address[0]

    def free(self, address: Pointer) -> None:
        self.call("memory_free", address)

    def write(self, to: Pointer, data: bytes, stream: Pointer = ffi.NULL) -> None:
        self.call("copy", TO_DEVICE, to, ffi.from_buffer(data), len(data), 0, stream)

    def read(self, address: Pointer, nbytes: int, stream: Pointer = ffi.NULL) -> bytes:
        """Waits for the stream: an asynchronous copy to ordinary memory returns when it is done."""
        into = ffi.new("char[]", nbytes)
        self.call("copy", TO_HOST, into, address, nbytes, 0, stream)
        return bytes(ffi.buffer(into, nbytes))

    def fill(self, to: Pointer, byte: int, nbytes: int, stream: Pointer = ffi.NULL) -> None:
        self.call("fill", to, byte, nbytes, stream)

    def settle(self) -> None:
        self.call("device_synchronize")

    # -- streams and events
    def stream(self, priority: int = 0) -> Pointer:
        made = ffi.new("maca_stream**")
        self.call("stream_create", priority, made)
        expect(made[0] != ffi.NULL, "stream_create returned MACA_OK and the stream NULL")
        return made[0]

    def event(self, timed: bool = False) -> Pointer:
        made = ffi.new("maca_event**")
        self.call("event_create", int(timed), made)
        expect(made[0] != ffi.NULL, "event_create returned MACA_OK and the event NULL")
        return made[0]

    def kernels(self) -> list[str]:
        """Names of the kernels, as many as kernel_count says at most."""
        names = []
        for index in range(max(0, self.info.kernel_count)):
            name = self.table.kernel_name(self.device, index)
            if name == ffi.NULL:
                break
            names.append(ffi.string(name).decode(errors="replace"))
        return names


def at(address: Pointer, nbytes: int) -> Pointer:
    """A device address moved by bytes."""
    return ffi.cast("void*", int(ffi.cast("uintptr_t", address)) + nbytes)


def number(address: Pointer) -> int:
    return int(ffi.cast("uintptr_t", address))


def text_of(array: Pointer) -> str:
    """The characters of a fixed array before its zero."""
    return bytes(ffi.buffer(array)).partition(b"\0")[0].decode(errors="replace")
