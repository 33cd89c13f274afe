"""The device library as the carrier: its own collectives, of device memory, by the slots ``comm_*`` of maca.h."""

from __future__ import annotations

import datetime
import functools
import hashlib
import os
import platform
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch._C._distributed_c10d import Store

from macatensor.dispatch.request import DTYPE_CODES
from macatensor.distributed.reduction import Reduction
from macatensor.distributed.snapshots import Operand, Source, Target
from macatensor.runtime import switches
from macatensor.runtime.ffi import DECLINED, OK, device_info, ffi, last_failure, lib

if TYPE_CHECKING:
    from macatensor.runtime.ffi import CData

_MEETING = datetime.timedelta(seconds=20)  # at most: all have said that they come
_REDUCTIONS = {
    "SUM": lib.MACA_COMM_SUM,
    "PRODUCT": lib.MACA_COMM_PRODUCT,
    "MAX": lib.MACA_COMM_MAX,
    "MIN": lib.MACA_COMM_MIN,
    "BAND": lib.MACA_COMM_BAND,
    "BOR": lib.MACA_COMM_BOR,
    "BXOR": lib.MACA_COMM_BXOR,
}
_BYTES = torch.uint8


def milliseconds(timeout: datetime.timedelta) -> int:
    return max(1, int(timeout.total_seconds() * 1000))


@functools.lru_cache(maxsize=4096)
def _digest(call: str) -> int:
    return int.from_bytes(hashlib.blake2b(call.encode(), digest_size=8).digest(), "little")


class LibraryCarrier:
    """A communicator of the device library. Its methods return False, on every rank alike and before anything has
    moved, where the library does not serve the dtype or reduction. They raise RuntimeError with what went wrong."""

    name = "device library"

    def __init__(self, communicator: CData, ranks: int, timeout: datetime.timedelta):
        self._communicator: CData | None = communicator
        self.ranks = ranks
        self._call = ffi.new("maca_collective*")
        self._call.size = ffi.sizeof("maca_collective")
        self._to, self._from = ffi.new("maca_span*"), ffi.new("maca_span*")
        self._many = ffi.new("maca_span[]", ranks), ffi.new("maca_span[]", ranks)
        self.set_timeout(timeout)

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self._call.timeout_ms = milliseconds(timeout)

    def abort(self) -> None:
        if self._communicator is not None:
            lib.maca_comms_abort(self._communicator)

    def __del__(self, destroy: Callable[[CData], None] = lib.maca_comms_destroy) -> None:
        communicator, self._communicator = self._communicator, None
        if communicator is not None:
            destroy(communicator)

    def begin(self, call: str) -> None:
        """``call`` is what the program called, the same on every rank: with others the library moves nothing."""
        self._call.digest = _digest(call)

    def agree(self) -> bool:
        """Every rank makes the call that was begun, of which nothing moves."""
        nothing = [None] * self.ranks
        return self.all_to_all(nothing, nothing)

    def reduce(
        self, source: Source, target: Target | None, reduction: Reduction, root: int | None = None
    ) -> bool:
        """For all ranks, or the root alone, which has a ``target``."""
        kind = lib.MACA_SHIM_ALL_REDUCE if root is None else lib.MACA_SHIM_REDUCE
        count = source.nbytes // source.dtype.itemsize
        return self._reduce(kind, source, target, reduction, count, root or 0)

    def reduce_scatter(self, source: Source, target: Target, reduction: Reduction) -> bool:
        count = target.nbytes // source.dtype.itemsize
        return self._reduce(lib.MACA_SHIM_REDUCE_SCATTER, source, target, reduction, count)

    def _reduce(
        self,
        kind: int,
        source: Source,
        target: Target | None,
        reduction: Reduction,
        count: int,
        root: int = 0,
    ) -> bool:
        if reduction.factor is not None or source.dtype not in DTYPE_CODES:
            return False
        self._call.reduction = lib.MACA_COMM_AVERAGE if reduction.divides else _REDUCTIONS[reduction.name]
        self._call.dtype.code = DTYPE_CODES[source.dtype]
        return self._run(kind, source, target, source.dtype, count, root)

    def broadcast(self, end: Operand, root: int) -> bool:
        """``end``: what the root gives, or where another rank gets it."""
        source = end if isinstance(end, Source) else None
        return self._move(lib.MACA_SHIM_BROADCAST, source, end, end.nbytes, root)

    def all_gather(self, source: Source, target: Target) -> bool:
        return self._move(lib.MACA_SHIM_ALL_GATHER, source, target, source.nbytes)

    def _move(self, kind: int, source: Operand | None, target: Operand, count: int, root: int = 0) -> bool:
        self._call.reduction = 0
        self._call.dtype.code = lib.MACA_UINT
        return self._run(kind, source, target, _BYTES, count, root)

    def _run(
        self,
        kind: int,
        source: Operand | None,
        target: Operand | None,
        dtype: torch.dtype,
        count: int,
        root: int,
    ) -> bool:
        call = self._call
        call.dtype.bits, call.dtype.lanes = 8 * dtype.itemsize, 1
        call.count, call.root = count, root
        self._place(self._from, source)
        self._place(self._to, target)
        return self._has_run(lib.maca_comms_run(self._communicator, kind, call, self._to, self._from))

    def all_to_all(
        self,
        sources: Sequence[Operand | None],
        targets: Sequence[Operand | None],
        wholes: Sequence[Operand] = (),
    ) -> bool:
        """Part i goes to rank i; part i of ``targets`` comes from it. ``wholes``: of which the parts are."""
        call = self._call
        call.reduction = call.root = call.count = 0
        call.dtype.code, call.dtype.bits, call.dtype.lanes = lib.MACA_UINT, 8, 1
        for whole in wholes:
            self._follow(whole)
        to, out = self._many
        for i in range(self.ranks):
            self._place(out[i], sources[i])
            self._place(to[i], targets[i])
        return self._has_run(lib.maca_comms_all_to_all(self._communicator, call, self.ranks, to, out))

    def _place(self, span: CData, operand: Operand | None) -> None:
        if operand is None:
            span.buffer, span.offset, span.bytes = ffi.NULL, 0, 0
            return
        self._follow(operand)
        span.buffer = ffi.cast("maca_buffer*", operand.buffer.handle)
        span.offset, span.bytes = operand.offset, operand.nbytes

    def _follow(self, operand: Operand) -> None:
        event = operand.take_event()
        if event is not None and lib.maca_comms_follow(self._communicator, event) != OK:
            raise RuntimeError(last_failure().text)

    @staticmethod
    def _has_run(status: int) -> bool:
        if status not in (OK, DECLINED):
            raise RuntimeError(last_failure().text)
        return bool(status == OK)


def meet(
    store: Store, rank: int, ranks: int, timeout: datetime.timedelta, is_wanted: bool = True
) -> LibraryCarrier | None:
    """A communicator that joins these ranks, or None, on every rank alike: gloo carries then."""
    offers = bool(lib.maca_comms_served()) and is_wanted and switches.COLLECTIVES.value() != "gloo"
    store.set(f"offers/{rank}", _reach() if offers else "")
    if len(said := {store.get(f"offers/{other}") for other in range(ranks)}) > 1 or b"" in said:
        return None
    identity = ffi.new("maca_comm_id*")
    if rank == 0:
        store.set("id", bytes(ffi.buffer(identity)).hex() if lib.maca_comms_id(identity) == OK else "-")
    given = store.get("id").decode()
    why, made = "rank 0 made no id", ffi.new("maca_communicator**")
    if given != "-":
        request = ffi.new("maca_comm_request*")
        request.size = ffi.sizeof("maca_comm_request")
        request.rank, request.ranks = rank, ranks
        request.timeout_ms = milliseconds(min(timeout, _MEETING))
        ffi.buffer(ffi.addressof(request, "id"))[:] = bytes.fromhex(given)
        status = lib.maca_comms_create(request, made)
        why = "" if status == OK else f"{'' if status == DECLINED else '!'}{last_failure().text}"
    store.set(f"made/{rank}", why or "1")
    answers = [store.get(f"made/{other}").decode() for other in range(ranks)]
    if all(answer == "1" for answer in answers):
        return LibraryCarrier(made[0], ranks, timeout)
    if made[0] != ffi.NULL:
        lib.maca_comms_destroy(made[0])
    _say(next(a for a in answers if a != "1"))
    return None


@functools.cache
def _reach() -> str:
    """The same on all ranks that the library may join: where it joins those of one machine, that machine's name."""
    info = device_info()
    name = ffi.string(lib.maca_runtime_library()).decode()
    if not info.features & lib.MACA_DEVICE_COMM_LOCAL:
        return name
    try:
        return f"{name} {Path('/proc/sys/kernel/random/boot_id').read_text()}{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:  # not Linux
        return f"{name} {platform.node()}"


@functools.cache
def _say(why: str) -> None:
    if why.startswith("!"):  # else the ranks are where the library does not join them: nothing is wrong
        warnings.warn(
            f"mccl: gloo carries collectives, by way of the host: {why[1:]}. Ranks of one machine exchange by shared "
            "memory where there is room for it.",
            stacklevel=2,
        )
