"""Level 1: memory, copies and fills."""

from __future__ import annotations

from .device import OK, ON_DEVICE, OUT_OF_MEMORY, TO_DEVICE, TO_HOST, UNSUPPORTED, Opened, at, number
from .header import ffi, status_text
from .rules import NotAsked, expect, rule

_SIZES = (1, 3, 16, 100, 4095, 4096, 4097, 1 << 20)


def pattern(nbytes: int, seed: int = 0) -> bytes:
    """Bytes that differ from their neighbours, and one from another seed's at every place."""
    period = bytes((i * 7 + seed * 31 + 1) & 0xFF for i in range(251))
    return (period * (nbytes // 251 + 1))[:nbytes]


@rule(1, "memory", "of every allocation, in bytes: a power of two, 16 (a complex128) or more",
      "Round addresses up to info->alignment, for instance with aligned_alloc.")  # fmt: skip
def allocations_are_aligned(d: Opened) -> None:
    for nbytes in _SIZES:
        address = d.allocate(nbytes)
        expect(
            number(address) % d.info.alignment == 0,
            f"memory_allocate({nbytes}) gave {address}; alignment is {d.info.alignment}",
        )


@rule(1, "memory", "`bytes` is 1 or more.", "Give every allocation memory of its own until it is freed.")
def allocations_lie_apart(d: Opened) -> None:
    made = [(number(d.allocate(n)), n) for n in _SIZES for _ in range(6)]
    made.sort()
    for (a, n), (b, _) in zip(made, made[1:]):
        expect(a + n <= b, f"allocations of {n} bytes at {a:#x} and at {b:#x} overlap")


@rule(
    1,
    "memory",
    "What is too much is MACA_OUT_OF_MEMORY, of which the device recovers.",
    "Return MACA_OUT_OF_MEMORY for what is too large, and go on as before.",
)
def too_much_memory_is_refused(d: Opened) -> None:
    for nbytes in (1 << 50, (1 << 64) - 1, 1 << 63):
        address = ffi.new("void**")
        status = d.status("memory_allocate", nbytes, address)
        expect(
            status == OUT_OF_MEMORY,
            f"memory_allocate({nbytes}) returned {status_text(status)}; expected MACA_OUT_OF_MEMORY (3)",
        )
    address = d.allocate(64)
    d.write(address, pattern(64))
    expect(d.read(address, 64) == pattern(64), "after a refused allocation a copy brings other bytes")


@rule(
    1,
    "memory",
    "Raw memory; caching is the caller's.",
    "Give memory back in memory_free: caches are the caller's.",
)
def freed_memory_comes_back(d: Opened) -> None:
    size, total = 32 << 20, ffi.new("uint64_t*")
    free = ffi.new("uint64_t*")
    before = _resident()
    for _ in range(24):
        address = d.allocate(size)
        d.fill(address, 1, size)
        d.settle()
        d.free(address)
    d.call("memory_info", free, total)
    grown = _resident() - before
    expect(grown < 8 * size, f"24 rounds of {size >> 20} MiB allocated and freed keep {grown >> 20} MiB")


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@rule(
    1,
    "memory",
    "memory_info may say 0 of 0 bytes: unknown.",
    "free_bytes is at most total_bytes; write both.",
)
def memory_info_says_what_can_be(d: Opened) -> None:
    free, total = ffi.new("uint64_t*", 1 << 63), ffi.new("uint64_t*", (1 << 63) + 1)
    d.call("memory_info", free, total)
    expect(free[0] <= total[0] < 1 << 62, f"memory_info gave {free[0]} free of {total[0]} bytes")


@rule(1, "memory", "none is committed twice", "Keep what was written in one part when others come and go.")
def reserved_memory_grows_in_place(d: Opened) -> None:
    d.needs("memory_reserve")
    address, grain = ffi.new("void**"), ffi.new("uint64_t*")
    status = d.status("memory_reserve", 1 << 30, address, grain)
    if status in (UNSUPPORTED, OUT_OF_MEMORY):
        raise NotAsked("memory_reserve says MACA_UNSUPPORTED")
    expect(
        status == OK and address[0] != ffi.NULL,
        f"memory_reserve returned {status_text(status)}, {address[0]}",
    )
    step, base, a = grain[0], address[0], d.info.alignment
    expect(
        step and step % a == 0 and number(base) % a == 0, f"memory_reserve gave {base}, granularity {step}"
    )
    for i in range(4):
        d.call("memory_commit", at(base, i * step), step)
        d.write(at(base, i * step), pattern(step, i))
    d.settle()
    d.call("memory_decommit", at(base, step), step)
    for i in (0, 2, 3):
        expect(
            d.read(at(base, i * step), step) == pattern(step, i),
            f"part {i} changed when part 1 was taken away",
        )
    d.call("memory_commit", at(base, step), step)
    d.write(at(base, step), pattern(step, 9))
    expect(
        d.read(at(base, step), step) == pattern(step, 9),
        "a part that is committed again does not keep its bytes",
    )


@rule(
    1,
    "memory",
    "Pinned host memory, which host code reads and writes (no tag)",
    "Return memory of the host, untagged.",
)
def pinned_memory_is_of_the_host(d: Opened) -> None:
    d.needs("host_allocate")
    made = ffi.new("void**")
    status = d.status("host_allocate", 4096, made)
    if status == UNSUPPORTED:
        raise NotAsked("host_allocate says MACA_UNSUPPORTED")
    expect(status == OK and made[0] != ffi.NULL, f"host_allocate returned {status_text(status)}, {made[0]}")
    expect(
        number(made[0]) % d.info.alignment == 0,
        f"host_allocate gave {made[0]}; alignment is {d.info.alignment}",
    )
    ffi.memmove(made[0], pattern(4096), 4096)
    address, back = d.allocate(4096), ffi.new("void**")
    d.call("host_allocate", 4096, back)
    d.call("copy", TO_DEVICE, address, made[0], 4096, 1, ffi.NULL)
    d.call("copy", TO_HOST, back[0], address, 4096, 1, ffi.NULL)
    d.settle()
    expect(
        bytes(ffi.buffer(back[0], 4096)) == pattern(4096),
        "queued copies through pinned memory bring other bytes",
    )
    d.call("host_free", made[0])
    d.call("host_free", back[0])


@rule(1, "memory", "sets a non-canonical tag bit in every address it gives out",
      "Where memory is the host's, give out `address | 1 << 62`, and take the bit off on entry.")  # fmt: skip
def host_code_cannot_read_an_address(d: Opened) -> None:
    address = number(d.allocate(4096))
    with open("/proc/self/maps") as file:
        for line in file:
            low, high = (int(x, 16) for x in line.split()[0].split("-"))
            if low <= address < high and line.split()[1].startswith("r"):
                expect(False, f"memory_allocate gave {address:#x}, which host code can read: it has no tag")


_ZONE = 512


@rule(1, "copies", "the caller adds byte offsets to them and hands them back",
      "Copy exactly `bytes` bytes between the two addresses, which may lie anywhere in an allocation.")  # fmt: skip
def copies_are_exact(d: Opened) -> None:
    for nbytes in (1, 2, 3, 7, 8, 63, 64, 65, 1000, 4096, 65537):
        for offset in (0, 1, 4, 13):
            whole = nbytes + offset + _ZONE
            a, b = d.allocate(whole), d.allocate(whole)
            d.write(a, pattern(whole, 1))
            d.write(b, pattern(whole, 2))
            said = f"copy of {nbytes} bytes, offset {offset}"
            d.write(at(a, offset), pattern(nbytes, 3))
            want = pattern(whole, 1)[:offset] + pattern(nbytes, 3) + pattern(whole, 1)[offset + nbytes :]
            expect(d.read(a, whole) == want, f"{said} to the device: {_where(d.read(a, whole), want)}")
            d.call("copy", ON_DEVICE, at(b, offset), at(a, offset), nbytes, 0, ffi.NULL)
            want = pattern(whole, 2)[:offset] + pattern(nbytes, 3) + pattern(whole, 2)[offset + nbytes :]
            expect(d.read(b, whole) == want, f"{said} on the device: {_where(d.read(b, whole), want)}")
            into = ffi.new("char[]", pattern(whole, 5))
            d.call("copy", TO_HOST, into + offset, at(b, offset), nbytes, 0, ffi.NULL)
            want = pattern(whole, 5)[:offset] + pattern(nbytes, 3) + pattern(whole, 5)[offset + nbytes :]
            have = bytes(ffi.buffer(into, whole))
            expect(have == want, f"{said} to the host: {_where(have, want)}")
            d.free(a)
            d.free(b)


def _where(have: bytes, want: bytes) -> str:
    wrong = [i for i, (x, y) in enumerate(zip(have, want)) if x != y]
    return f"{len(wrong)} bytes are wrong, the first at {wrong[0] if wrong else '-'}"


@rule(1, "copies", "Copies return when the host's side may be reused",
      "Copy the host's bytes before you return, or wait, unless flags has MACA_COPY_QUEUED.")  # fmt: skip
def the_host_side_may_be_reused(d: Opened) -> None:
    size = 8 << 20
    address, memory = d.allocate(size), bytearray(size)
    for stream in (ffi.NULL, d.stream()):
        memory[:] = pattern(size, 1)
        d.call("copy", TO_DEVICE, address, ffi.from_buffer(memory), size, 0, stream)
        memory[:] = bytes(size)
        d.settle()
        expect(
            d.read(address, size) == pattern(size, 1),
            "a copy took what was written to the host's side after it",
        )


@rule(1, "copies", "Device addresses are opaque",
      "Copy between any two allocations, larger ones too.")  # fmt: skip
def large_copies_arrive(d: Opened) -> None:
    size = (24 << 20) + 5
    a, b = d.allocate(size), d.allocate(size)
    d.write(a, pattern(size, 4))
    d.call("copy", ON_DEVICE, b, a, size, 0, ffi.NULL)
    expect(d.read(b, size) == pattern(size, 4), "a copy of 24 MiB on the device brings other bytes")


@rule(1, "copies", "fill writes one byte value.", "memset(to, byte & 255, bytes).")
def fills_are_exact(d: Opened) -> None:
    for nbytes in (1, 3, 8, 33, 1000, 65537):
        for offset in (0, 1, 5):
            for byte in (0, 1, 0x7F, 0x80, 0xFF):
                whole = nbytes + offset + _ZONE
                address = d.allocate(whole)
                d.write(address, pattern(whole, 1))
                d.fill(at(address, offset), byte, nbytes)
                want = (
                    pattern(whole, 1)[:offset] + bytes([byte]) * nbytes + pattern(whole, 1)[offset + nbytes :]
                )
                have = d.read(address, whole)
                expect(
                    have == want, f"fill of {nbytes} bytes with {byte}, offset {offset}: {_where(have, want)}"
                )
                d.free(address)
