"""Level 1: communicators, asked by two ranks that are processes of one machine."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable

from .device import DECLINED, DEVICE_ERROR, OK, OUT_OF_MEMORY, UNSUPPORTED, Opened, text_of
from .header import Pointer, ffi, status_text
from .plans import floats
from .requests import FLOAT32
from .rules import Broken, NotAsked, expect, rule

_RANKS, _COUNT, _SUM = 2, 1000, 0
_WAIT = 20_000  # ms
_FIRST = "comm_id comm_create comm_destroy comm_abort comm_error comm_all_reduce comm_broadcast comm_all_gather".split()

Body = Callable[[Opened, Pointer, int], list[float]]


def _joined(d: Opened, rank: int, name: bytes) -> Pointer:
    made, reason = ffi.new("maca_comm**"), d.reason()
    request = ffi.new("maca_comm_request*")
    request.size, request.rank, request.ranks = ffi.sizeof("maca_comm_request"), rank, _RANKS
    request.timeout_ms = _WAIT
    ffi.memmove(request.id.bytes, name, len(name))
    status = d.status("comm_create", request, made, reason)
    if status in (DECLINED, OUT_OF_MEMORY, UNSUPPORTED):
        raise NotAsked(f"comm_create returned {status_text(status)}: {text_of(reason.text)}")
    expect(status == OK, f"comm_create returned {status_text(status)}: {text_of(reason.text)}")
    expect(made[0] != ffi.NULL, "comm_create returned MACA_OK and the communicator NULL")
    return made[0]


def _on_two_ranks(d: Opened, body: Body) -> list[list[float]]:
    """What ``body`` gives on each rank; the second one is a forked process. Nothing of the library is open before."""
    table = d.interface()
    for slot in _FIRST:
        if table.minor < 1:
            raise NotAsked("the library is older than communicators")
        d.needs(slot)
    names_read, names_write = os.pipe()
    answers_read, answers_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(names_write)
        answer: list[object]
        try:
            name = os.read(names_read, 128)
            d.open()
            answer = ["pass", body(d, _joined(d, 1, name), 1) if name else []]
        except (Broken, NotAsked) as error:
            answer = [type(error).__name__, str(error)]
        except BaseException as error:
            answer = ["Broken", f"{type(error).__name__}: {error}"]
        os.write(answers_write, json.dumps(answer).encode())
        os._exit(0)
    os.close(answers_write)
    os.close(names_read)
    d.open()
    made, reason = ffi.new("maca_comm_id*"), d.reason()
    d.call("comm_id", made, reason)
    os.write(names_write, bytes(ffi.buffer(made.bytes)))
    mine = body(d, _joined(d, 0, bytes(ffi.buffer(made.bytes))), 0)
    said = b""
    while piece := os.read(answers_read, 1 << 16):
        said += piece
    if not said:  # the rank ended, as the rule wants it
        return [mine, []]
    verdict, other = json.loads(said)
    if verdict != "pass":
        raise (NotAsked if verdict == "NotAsked" else Broken)(f"rank 1: {other}")
    return [mine, other]


def _call(count: int, reduction: int = _SUM, root: int = 0) -> Pointer:
    call = ffi.new("maca_collective*")
    call.size = ffi.sizeof("maca_collective")
    call.dtype.code, call.dtype.bits, call.dtype.lanes = FLOAT32
    call.reduction, call.root, call.count, call.timeout_ms = reduction, root, count, _WAIT
    return call


def _collective(
    d: Opened, slot: str, comm: Pointer, call: Pointer, values: list[float], results: int
) -> list[float]:
    """Runs one on the default stream and waits; gives what it wrote."""
    source, to = d.allocate(4 * len(values)), d.allocate(4 * results)
    d.write(source, floats(*values))
    d.fill(to, 0xA5, 4 * results)
    reason = d.reason()
    status = d.status(slot, comm, call, to, source, ffi.NULL, reason)
    if status == DECLINED:
        raise NotAsked(f"{slot} of float32 is declined: {text_of(reason.text)}")
    expect(status == OK, f"{slot} returned {status_text(status)}: {text_of(reason.text)}")
    d.settle()
    d.call("comm_error", comm, reason)
    return list(struct.unpack(f"{results}f", d.read(to, 4 * results)))


def _values(rank: int, count: int = _COUNT) -> list[float]:
    return [float((i * 7 + 3) % 11 - 5 + 100 * rank) for i in range(count)]


@rule(1, "communicators", "comm_create returns when every rank has come with it",
      "Give each rank a communicator, and move what the collective says: see `count` of each function.", opens=False)  # fmt: skip
def two_ranks_exchange(d: Opened) -> None:
    def body(d: Opened, comm: Pointer, rank: int) -> list[float]:
        mine = _values(rank)
        total = [a + b for a, b in zip(_values(0), _values(1))]
        for slot, call, want in (
            ("comm_all_reduce", _call(_COUNT), total),
            ("comm_broadcast", _call(_COUNT, root=1), _values(1)),
            ("comm_all_gather", _call(_COUNT), _values(0) + _values(1)),
            ("comm_reduce_scatter", _call(_COUNT // 2), total[rank * (_COUNT // 2) :][: _COUNT // 2]),
        ):
            if slot == "comm_reduce_scatter":
                d.needs(slot)
            got = _collective(d, slot, comm, call, mine, len(want))
            wrong = sum(a != b for a, b in zip(got, want))
            expect(not wrong, f"{slot} gave {wrong} of {len(want)} elements wrong on rank {rank}")
        d.call("comm_destroy", comm)
        return []

    _on_two_ranks(d, body)


@rule(1, "communicators", "Reductions have the same bits on every rank",
      "Add up in one order on all ranks, or on one that gives the others the result.", opens=False)  # fmt: skip
def ranks_have_the_same_bits(d: Opened) -> None:
    def body(d: Opened, comm: Pointer, rank: int) -> list[float]:
        odd = [((i * 2654435761 + rank * 40503) % 9973 - 5000) / 997 for i in range(_COUNT)]
        return _collective(d, "comm_all_reduce", comm, _call(_COUNT), odd, _COUNT)

    first, second = _on_two_ranks(d, body)
    expect(
        first == second, f"all_reduce gave other bits at {sum(a != b for a, b in zip(first, second))} places"
    )


@rule(1, "communicators", "a rank died, did not come, or aborted; the communicator is broken, the device is not",
      "Notice that a rank's process has ended, or wait no longer than timeout_ms, and return MACA_DEVICE_ERROR with a "
      "reason.", opens=False)  # fmt: skip
def a_rank_that_dies_ends_the_collective(d: Opened) -> None:
    def body(d: Opened, comm: Pointer, rank: int) -> list[float]:
        if rank == 1:
            os._exit(0)
        to, reason, call = d.allocate(4 * _COUNT), d.reason(), _call(_COUNT)
        call.timeout_ms = 5000
        status = d.status("comm_all_reduce", comm, call, to, to, ffi.NULL, reason)
        d.settle()
        if status == OK:
            status = d.status("comm_error", comm, reason)
        expect(status == DEVICE_ERROR, f"all_reduce without the other rank returned {status_text(status)}")
        expect(text_of(reason.text), "all_reduce without the other rank gives no reason")
        d.write(to, b"abcd")
        expect(d.read(to, 4) == b"abcd", "after it a copy brings other bytes: the device is lost, too")
        return []

    _on_two_ranks(d, body)
