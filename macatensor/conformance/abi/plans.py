"""Level 1: plans, errors, and many threads."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable

from .device import DECLINED, DEVICE_ERROR, INVALID, OK, OUT_OF_MEMORY, UNSUPPORTED, Opened, number, text_of
from .header import Pointer, ffi, status_text
from .memory import pattern
from .requests import Request, add, index_select, mm, unary
from .rules import NotAsked, expect, rule
from .streams import SIZE

_REFUSALS = (DECLINED, INVALID, OUT_OF_MEMORY, UNSUPPORTED)


def create(d: Opened, request: Request) -> tuple[int, Pointer, str]:
    """Status, plan and reason of a plan_create that is right in itself."""
    plan, reason = ffi.new("maca_plan**"), d.reason()
    status = d.status("plan_create", request.pointer, plan, reason)
    said = text_of(reason.text)
    if status == OK:
        expect(plan[0] != ffi.NULL, f"plan_create of {request.kernel} returned MACA_OK and the plan NULL")
    else:
        expect(status in _REFUSALS, f"plan_create of {request.kernel} returned {status_text(status)}")
        expect(said, f"plan_create of {request.kernel} returned {status_text(status)} and no reason")
        expect(
            b"\0" in bytes(ffi.buffer(reason.text)),
            f"the reason of plan_create for {request.kernel} has no end",
        )
    return status, plan[0], said


def a_plan(d: Opened, *requests: Request) -> tuple[Request, Pointer]:
    """The first request that the library has a kernel for."""
    for request in requests:
        status, plan, _ = create(d, request)
        if status == OK:
            return request, plan
    names = ", ".join(r.kernel for r in requests)
    raise NotAsked(f"the library declines {names}; write one of them")


def launch(
    d: Opened,
    plan: Pointer,
    request: Request,
    operands: list[Pointer],
    stream: Pointer = ffi.NULL,
    correlation: int = 0,
) -> Pointer:
    """A launch of the plan, with the scratch memory that it asks for."""
    info = ffi.new("maca_plan_info*", {"size": ffi.sizeof("maca_plan_info"), "packed_operand": -1})
    d.call("plan_info", plan, info)
    expect(info.workspace_bytes <= 1 << 32, f"plan_info gave workspace_bytes = {info.workspace_bytes}")
    made = request.launch(operands, stream, correlation)
    if info.workspace_bytes:
        made.workspace = d.allocate(info.workspace_bytes)
    return made


def floats(*values: float) -> bytes:
    return struct.pack(f"{len(values)}f", *values)


def simple(d: Opened, n: int) -> tuple[Request, Pointer]:
    """A pointwise kernel of float32 that the library has."""
    return a_plan(d, add(n), unary("relu", n), unary("neg", n), unary("exp", n), unary("abs", n))


def place(d: Opened, request: Request, value: float = 1.0) -> list[Pointer]:
    """Operands filled with a number, results with 0xA5."""
    made = []
    for dtype, sizes in request.operands:
        nbytes = dtype[1] // 8
        for size in sizes:
            nbytes *= size
        made.append(d.allocate(max(1, nbytes)))
        if dtype[0] == 2:
            d.write(made[-1], floats(value) * (nbytes // 4))
    return made


@rule(1, "plans", "plan_create may decline; the caller then goes another way",
      "End plan_create with MACA_DECLINED and a reason for every kernel that you do not know.")  # fmt: skip
def an_unknown_kernel_is_declined(d: Opened) -> None:
    for name in ("no_such_kernel", "", "add?", "x" * 500):
        status, _, _ = create(d, unary(name, 4))
        expect(
            status in (DECLINED, UNSUPPORTED), f"plan_create of {name[:20]!r} returned {status_text(status)}"
        )


@rule(1, "plans", "A library may decline any of them, wholly or for some dtypes and shapes.",
      "Look at dtype, rank and attributes of what you are asked for, and decline what you have not written.")  # fmt: skip
def what_cannot_be_computed_is_refused(d: Opened) -> None:
    odd = Request("mm", [((2, 32, 1), [2, 3]), ((2, 32, 1), [4, 5])], [((2, 32, 1), [2, 5])])
    status, _, _ = create(d, odd)
    expect(status != OK, "plan_create accepts mm of sizes [2, 3] and [4, 5]")
    for dtype in ((2, 4, 1), (9, 32, 1), (2, 32, 4)):
        status, _, _ = create(
            d, Request("add", [(dtype, [4])] * 2, [(dtype, [4])], [("alpha.scalar", 0)], [1])
        )
        expect(
            status != OK,
            f"plan_create accepts add of a dtype with code {dtype[0]}, {dtype[1]} bits, {dtype[2]} lanes",
        )


@rule(
    1,
    "plans",
    "The library writes no more than `size` bytes.",
    "Write min(size, sizeof) bytes of maca_plan_info.",
)
def plan_info_keeps_to_its_size(d: Opened) -> None:
    _, plan = simple(d, 100)
    whole = ffi.sizeof("maca_plan_info")
    for size in (whole, ffi.offsetof("maca_plan_info", "packed_bytes")):
        memory = ffi.new("unsigned char[]", bytes(size) + b"\xa5" * (whole + 64 - size))
        info = ffi.cast("maca_plan_info*", memory)
        info.size, info.packed_operand = size, -1
        d.call("plan_info", plan, info)
        expect(
            all(b == 0xA5 for b in memory[size : whole + 64]),
            f"plan_info wrote behind the {size} bytes it was given",
        )


@rule(1, "plans", "scratch memory that every launch needs; as all numbers here at most 2^50",
      "Write only the members that you know: the caller has set the others.")  # fmt: skip
def plan_info_says_what_can_be(d: Opened) -> None:
    request, plan = simple(d, 100)
    info = ffi.new("maca_plan_info*", {"size": ffi.sizeof("maca_plan_info"), "packed_operand": -1})
    d.call("plan_info", plan, info)
    expect(info.cost in (0, 1), f"plan_info gave cost = {info.cost}; expected a maca_cost, 0 or 1")
    for name in ("workspace_bytes", "rng_blocks", "packed_bytes"):
        value = getattr(info, name)
        expect(value <= 1 << 50, f"plan_info gave {name} = {value}; expected at most 2^50")
    expect(
        -1 <= info.packed_operand < len(request.operands),
        f"plan_info gave packed_operand = {info.packed_operand}",
    )
    expect(
        info.rng_blocks == 0, f"plan_info says that {request.kernel} takes {info.rng_blocks} random blocks"
    )
    if info.implementation != ffi.NULL:
        ffi.string(info.implementation).decode()


@rule(
    1,
    "plans",
    "every element of them is written",
    "Write every element of the result.",
)
def a_kernel_computes(d: Opened) -> None:
    n = 1003
    request, plan = simple(d, n)
    operands = place(d, request, 0.5)
    d.fill(operands[-1], 0xA5, 4 * n)
    d.call("plan_launch", plan, launch(d, plan, request, operands))
    got = struct.unpack(f"{n}f", d.read(operands[-1], 4 * n))
    want = {"add": 1.0, "relu": 0.5, "neg": -0.5, "abs": 0.5, "exp": 1.6487212}[request.kernel]
    wrong = [i for i, x in enumerate(got) if not abs(x - want) < 1e-6]
    expect(not wrong, f"{request.kernel} of {n} float32 is wrong at {len(wrong)} places, the first at {wrong[:1]}: "
           f"{[got[i] for i in wrong[:1]]}, expected {want}")  # fmt: skip


@rule(1, "plans", "Inputs come as the program has them",
      "Sum over k of a[i, k] * b[k, j].")  # fmt: skip
def a_product_is_right(d: Opened) -> None:
    request, plan = a_plan(d, mm(5, 7, 3))
    a, b, c = place(d, request)
    left, right = [float(i % 11 - 5) for i in range(35)], [float(i % 7 - 3) for i in range(21)]
    d.write(a, floats(*left))
    d.write(b, floats(*right))
    d.call("plan_launch", plan, launch(d, plan, request, [a, b, c]))
    got = struct.unpack("15f", d.read(c, 60))
    want = [sum(left[i * 7 + k] * right[k * 3 + j] for k in range(7)) for i in range(5) for j in range(3)]
    expect(
        list(got) == want, f"mm of [5, 7] and [7, 3] whole numbers gave {got[:3]}..., expected {want[:3]}..."
    )


@rule(1, "plans", "a scalar, a number that may change from call to call, is one of launch.scalars",
      "Read the scalar from the launch, by its tag, not from the plan.")  # fmt: skip
def scalars_come_with_the_launch(d: Opened) -> None:
    request, plan = a_plan(d, add(8))
    operands = place(d, request, 1.0)
    for tag, value in ((0, 3), (1, 0.5), (0, -2)):
        request.scalars[0].tag = tag
        if tag:
            request.scalars[0].value.real = value
        else:
            request.scalars[0].value.integer = value
        d.call("plan_launch", plan, launch(d, plan, request, operands))
        got = struct.unpack("8f", d.read(operands[-1], 32))
        expect(
            set(got) == {1.0 + value},
            f"add with alpha = {value} of ones gave {got[0]}, expected {1.0 + value}",
        )


@rule(
    1,
    "plans",
    "destroying one with launches in flight is legal",
    "Count what uses a plan, and free it with the last.",
)
def a_plan_is_destroyed_in_flight(d: Opened) -> None:
    n = 1 << 16
    big, stream = d.allocate(SIZE), d.stream()
    request, plan = simple(d, n)
    operands = place(d, request, 1.0)
    d.settle()
    for _ in range(20):
        status, plan, _ = create(d, request)
        d.fill(big, 1, SIZE, stream)
        d.call("plan_launch", plan, launch(d, plan, request, operands, stream))
        d.call("plan_destroy", plan)
    d.settle()
    before = _resident()
    for _ in range(2000):
        d.call("plan_destroy", create(d, request)[1])
    grown = _resident() - before
    expect(grown < 64 << 20, f"2000 plans created and destroyed keep {grown >> 20} MiB")


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@rule(1, "plans", "A plan is immutable and re-entrant", "Keep nothing of a launch in the plan.")
def launches_run_on_every_stream(d: Opened) -> None:
    n = 1 << 18
    request, plan = simple(d, n)
    want = None
    for stream in (ffi.NULL, d.stream(), d.stream()):
        operands = place(d, request, 0.5)
        d.settle()
        big = d.allocate(SIZE)
        for byte in (0x3F, 0):  # 0x3f3f3f3f: a float; the launch comes behind both fills
            d.fill(big, byte, SIZE, stream)
        d.call("copy", 2, operands[0], big, 4 * n, 0, stream)
        d.fill(operands[-1], 0xA5, 4 * n, stream)
        d.call("plan_launch", plan, launch(d, plan, request, operands, stream))
        got = d.read(operands[-1], 4 * n, stream)
        want = want or got
        expect(len(set(struct.unpack(f"{n}f", got))) == 1 and got == want,
               f"{request.kernel} on a stream of its own reads what was there before the work ahead of it")  # fmt: skip


@rule(1, "errors", "status MACA_OK in it when there is none", "Write status MACA_OK when no error is left.")
def there_is_no_error_at_first(d: Opened) -> None:
    for _ in range(3):
        expect(d.take().status == OK, "error_take gives an error though nothing has failed")


def _failing(d: Opened) -> tuple[Request, Pointer, list[Pointer]]:
    request, plan = a_plan(d, index_select(4, 3, 2))
    operands = place(d, request, 1.0)
    d.write(operands[1], struct.pack("2q", 1, 7777))
    return request, plan, operands


@rule(
    1,
    "errors",
    "Indices are checked by the kernel, before they are used.",
    "Check every index in the kernel, before it is used.",
)
def an_index_out_of_range_is_an_error(d: Opened) -> None:
    request, plan, operands = _failing(d)
    status = d.status("plan_launch", plan, launch(d, plan, request, operands, correlation=4711))
    expect(status in (OK, DEVICE_ERROR), f"plan_launch returned {status_text(status)}")
    d.status("device_synchronize")
    error = d.take()
    expect(error.status == DEVICE_ERROR,
           f"index_select of row 7777 of 4: plan_launch returned {status_text(status)}, and error_take has nothing")  # fmt: skip
    expect(
        error.code == 1,
        f"the error of an index out of range has code {error.code}; expected MACA_ERROR_INDEX (1)",
    )
    expect(error.correlation == 4711, f"the error's correlation is {error.correlation}; the launch had 4711")
    expect(not error.sticky, "an index out of range is sticky: the device would be lost")


@rule(1, "errors", "what failed, with the numbers that PyTorch would name", "Write a sentence into text.")
def an_error_has_a_text(d: Opened) -> None:
    request, plan, operands = _failing(d)
    d.status("plan_launch", plan, launch(d, plan, request, operands))
    d.status("device_synchronize")
    error = d.take()
    expect(error.status == DEVICE_ERROR, "error_take has nothing of an index out of range")
    expect(b"\0" in bytes(ffi.buffer(error.text)), "the error's text has no zero at its end")
    expect(text_of(error.text), "the error of an index out of range has no text")


@rule(
    1,
    "errors",
    "Takes the oldest error that no one has taken",
    "Keep errors in a queue, and take each out once.",
)
def errors_are_taken_once_in_order(d: Opened) -> None:
    request, plan, operands = _failing(d)
    for correlation in (1, 2, 3):
        d.status("plan_launch", plan, launch(d, plan, request, operands, correlation=correlation))
    d.status("device_synchronize")
    taken = [d.take() for _ in range(5)]
    got = [int(e.correlation) for e in taken if e.status == DEVICE_ERROR]
    expect(
        got and got[0] == 1 and got == sorted(set(got)),
        f"three launches failed, error_take gave those of {got}",
    )
    expect(taken[-1].status == OK, "error_take gives errors without end")
    d.write(operands[1], struct.pack("2q", 1, 3))
    d.call("plan_launch", plan, launch(d, plan, request, operands))
    expect(d.take().status == OK, "a launch that is right leaves an error")


def together(d: Opened, work: Callable[[int], None], threads: int = 4) -> None:
    """Runs the work in threads at once; what one raises is raised."""
    raised: list[BaseException] = []

    def run(i: int) -> None:
        try:
            work(i)
        except BaseException as error:
            raised.append(error)

    staff = [threading.Thread(target=run, args=(i,)) for i in range(threads)]
    for thread in staff:
        thread.start()
    for thread in staff:
        thread.join()
    raised.sort(key=lambda error: isinstance(error, threading.BrokenBarrierError))  # which only follow
    if raised:
        raise raised[0]


@rule(
    1,
    "threads",
    "Functions may be called from any thread at any time.",
    "Guard what allocations share with a lock.",
)
def threads_allocate_at_once(d: Opened) -> None:
    barrier, threads = threading.Barrier(4), 4
    held = [(0, 0)] * threads

    def work(i: int) -> None:
        try:
            for n in range(80):
                size = 64 + (n * 37) % 5000
                barrier.wait(60)
                address = d.allocate(size)
                held[i] = number(address), size
                barrier.wait(60)
                for (low, length), (high, _) in zip(sorted(held), sorted(held)[1:]):
                    expect(
                        low + length <= high,
                        f"two threads were given memory at {low:#x}, {high:#x}, {length} bytes",
                    )
                d.fill(address, i + 1, size)
                got = set(d.read(address, size))
                expect(got == {i + 1}, f"memory of thread {i} holds {got}: two threads were given the same")
                d.free(address)
        except BaseException:
            barrier.abort()
            raise

    together(d, work, threads)


@rule(
    1,
    "threads",
    "A plan is immutable and re-entrant",
    "Keep operands and scratch memory of a launch out of the plan.",
)
def threads_launch_one_plan(d: Opened) -> None:
    n = 20_011
    request, plan = simple(d, n)
    operands = place(d, request, 0.0)
    d.call("plan_launch", plan, launch(d, plan, request, operands))
    value_of = {"add": lambda x: 2 * x, "relu": lambda x: x, "abs": lambda x: x, "neg": lambda x: -x}.get(
        request.kernel
    )

    def work(i: int) -> None:
        stream = d.stream() if i % 2 else ffi.NULL
        mine = place(d, request, float(i + 1))
        d.settle()
        mine_to_launch = launch(d, plan, request, mine, stream)
        for _ in range(30):
            d.fill(mine[-1], 0xA5, 4 * n, stream)
            d.call("plan_launch", plan, mine_to_launch)
            got = set(struct.unpack(f"{n}f", d.read(mine[-1], 4 * n, stream)))
            expect(len(got) == 1 and (value_of is None or got == {value_of(float(i + 1))}),
                   f"{request.kernel} in thread {i} gave {sorted(got)[:4]}")  # fmt: skip

    together(d, work)


@rule(
    1,
    "threads",
    "Functions may be called from any thread at any time.",
    "Let threads work on streams of their own.",
)
def threads_copy_on_their_streams(d: Opened) -> None:
    def work(i: int) -> None:
        stream, size = d.stream(), 100_000 + i
        a, b = d.allocate(size), d.allocate(size)
        for n in range(25):
            d.write(a, pattern(size, n + i), stream)
            d.call("copy", 2, b, a, size, 0, stream)
            expect(d.read(b, size, stream) == pattern(size, n + i), f"copies of thread {i} bring other bytes")
            create(d, unary("no_such_kernel", n + 1))
        d.call("stream_destroy", stream)
        d.free(a)
        d.free(b)

    together(d, work)
