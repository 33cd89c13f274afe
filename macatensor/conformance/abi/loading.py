"""Level 0: the library loads, and its table and its device say what can be."""

from __future__ import annotations

from .device import Opened, text_of
from .header import MAJOR, MANDATORY, ffi, has
from .rules import expect, rule


@rule(0, "loading", "A library exports one symbol, maca_get_interface().",
      "Export `const maca_interface* maca_get_interface(int32_t major)` with C linkage and default visibility, and link "
      "what it needs.", opens=False)  # fmt: skip
def the_entry_is_exported(d: Opened) -> None:
    try:
        entry = d.library.maca_get_interface
    except AttributeError as error:
        expect(False, f"the library has no symbol maca_get_interface: {error}")
    expect(entry(MAJOR) != ffi.NULL, f"maca_get_interface({MAJOR}) returned NULL")


@rule(0, "loading", "NULL when the library does not speak this major.",
      "Compare `major` with MACA_ABI_MAJOR first, and return NULL for any other.", opens=False)  # fmt: skip
def other_majors_get_null(d: Opened) -> None:
    for major in (MAJOR + 1, 0, -1):
        table = d.library.maca_get_interface(major)
        expect(
            table == ffi.NULL or table.major == major,
            f"maca_get_interface({major}) returned a table of major {table.major if table else ''}",
        )


@rule(
    0, "loading", "Majors must match.", "Set `.major = MACA_ABI_MAJOR, .minor = MACA_ABI_MINOR`.", opens=False
)
def the_table_names_its_version(d: Opened) -> None:
    table = d.interface()
    expect(table.major == MAJOR, f"the table says major {table.major}; this header is {MAJOR}")


@rule(0, "loading", "[M] marks mandatory slots: loading fails without them.",
      "Write the function that is named, even one that does nothing: streams may run at once, plan_create may decline "
      "everything.", opens=False)  # fmt: skip
def mandatory_slots_are_there(d: Opened) -> None:
    table = d.interface()
    absent = [slot for slot in MANDATORY if not has(table, slot)]
    expect(not absent, f"the table of {table.size} bytes lacks {', '.join(absent)}")


@rule(0, "loading", "The table, and every struct that is passed alone, begins with `size` (bytes, as its writer knew it)",
      "Set `.size = sizeof(maca_interface)`.", opens=False)  # fmt: skip
def the_table_has_a_size(d: Opened) -> None:
    size = d.interface().size
    least = ffi.offsetof("maca_interface", MANDATORY[-1]) + ffi.sizeof("void*")
    expect(
        least <= size <= 1 << 16 and size % 8 == 0, f"the table says size {size}; expected {least} or more"
    )


@rule(0, "loading", "the three go together", "Fill in all of memory_reserve, memory_commit and memory_decommit, or none.",
      opens=False)  # fmt: skip
def slots_that_go_together_do(d: Opened) -> None:
    groups = (
        ("memory_reserve", "memory_commit", "memory_decommit"),
        ("host_allocate", "host_free"),
        ("comm_id", "comm_create", "comm_destroy", "comm_abort", "comm_error", "comm_all_reduce", "comm_all_to_all"),
        ("comm_allocate", "comm_free"),
        ("profile_set", "profile_take"),
    )  # fmt: skip
    for group in groups:
        there = [slot for slot in group if has(d.interface(), slot)]
        expect(len(there) in (0, len(group)), f"of {', '.join(group)} there is only {', '.join(there)}")


@rule(0, "loading", "device_open makes the context of device `index`", "Return MACA_OK and a handle for index 0.",
      opens=False)  # fmt: skip
def a_device_opens(d: Opened) -> None:
    d.open()


@rule(
    0,
    "loading",
    "no device of the index is an ImportError",
    "Write the number of devices, 1 or more, to *count.",
)
def devices_are_counted(d: Opened) -> None:
    d.needs("device_count")
    count = ffi.new("int32_t*", -7)
    status = d.table.device_count(count)
    expect(status == 0, f"device_count returned {status}")
    expect(1 <= count[0] <= 4096, f"device_count gave {count[0]}")


@rule(0, "loading", "It returns a maca_status; when it fails and takes a maca_reason, the reason says why in one English sentence.",
      "Write why into reason->text, at most `size` bytes with a zero at the end.")  # fmt: skip
def a_device_that_is_not_there_is_refused(d: Opened) -> None:
    device, reason = ffi.new("maca_device**"), d.reason()
    status = d.table.device_open(1 << 20, device, reason)
    expect(status != 0, f"device_open({1 << 20}) returned MACA_OK")
    expect(text_of(reason.text), f"device_open({1 << 20}) returned {status} and no reason")


@rule(
    0,
    "loading",
    "compute threads or multiprocessors, 1 or more",
    "Write a positive number into info->threads.",
)
def the_device_has_threads(d: Opened) -> None:
    expect(1 <= d.info.threads <= 1 << 20, f"device_info gave threads = {d.info.threads}")


@rule(0, "loading", "of every allocation, in bytes: a power of two, 16 (a complex128) or more",
      "Write the alignment that memory_allocate keeps into info->alignment.")  # fmt: skip
def the_alignment_is_a_power_of_two(d: Opened) -> None:
    a = d.info.alignment
    expect(a >= 16 and a & (a - 1) == 0, f"device_info gave alignment = {a}")


@rule(0, "loading", "The library writes no more than `size` bytes.",
      "Copy min(size, sizeof) bytes of your own struct: an older caller knows a shorter one.")  # fmt: skip
def device_info_keeps_to_its_size(d: Opened) -> None:
    whole = ffi.sizeof("maca_device_info")
    for size in (whole, ffi.offsetof("maca_device_info", "features"), 144):
        memory = ffi.new("unsigned char[]", whole + 64)
        info = ffi.cast("maca_device_info*", memory)
        ffi.memmove(memory + size, b"\xa5" * (whole + 64 - size), whole + 64 - size)
        info.size = size
        d.call("device_info", info)
        expect(
            all(b == 0xA5 for b in memory[size : whole + 64]),
            f"device_info wrote behind the {size} bytes that the caller said it has",
        )


@rule(0, "loading", "Strings end with a zero.", "Use snprintf with the size of the array.")
def texts_of_the_device_end(d: Opened) -> None:
    for field in ("name", "simd", "libraries"):
        raw = bytes(ffi.buffer(getattr(d.info, field)))
        expect(b"\0" in raw, f"device_info.{field} has no zero in its {len(raw)} bytes")
    expect(text_of(d.info.name), "device_info.name is empty")


@rule(
    0,
    "loading",
    "NULL at kernel_count",
    "kernel_count in device_info is the number of names; past them return NULL.",
)
def kernels_are_named(d: Opened) -> None:
    count, names = d.info.kernel_count, d.kernels()
    expect(0 <= count <= 1 << 20, f"device_info gave kernel_count = {count}")
    expect(len(names) == count, f"device_info says {count} kernels, kernel_name has {len(names)}")
    expect(d.table.kernel_name(d.device, count) == ffi.NULL, f"kernel_name({count}) is not NULL")
    twice = sorted({n for n in names if names.count(n) > 1})
    expect(not twice and all(names), f"kernel names that are empty or there twice: {twice}")
