"""What a device library is asked: every launch as ``recorder.c`` shows it, with the memory of its operands."""

from __future__ import annotations

import ctypes
import os
import struct
from dataclasses import dataclass, field

import numpy as np

from macatensor.runtime import ffi

MOST_BYTES = 1 << 18  # of a launch's memory


def text(value: bytes) -> bytes:
    return struct.pack("<I", len(value)) + value


@dataclass
class Operand:
    """A tensor operand of a request, and its place among a launch's pointers."""

    code: int
    bits: int
    rank: int
    slot: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    is_output: bool
    address: int = 0

    @property
    def itemsize(self) -> int:
        return self.bits // 8

    @property
    def span(self) -> int:
        """Bytes from the first element to the end of the last."""
        if self.rank < 0 or 0 in self.sizes:
            return 0
        return (sum((n - 1) * s for n, s in zip(self.sizes, self.strides)) + 1) * self.itemsize

    def addresses(self) -> np.ndarray:
        """Of every element, in row-major order."""
        at = np.zeros((), np.int64)
        for n, s in zip(self.sizes, self.strides):
            at = at[..., None] + np.arange(n, dtype=np.int64) * (s * self.itemsize)
        return at.reshape(-1) + self.address

    def packed(self) -> bytes:
        head = struct.pack("<BBii", self.code, self.bits, self.rank, self.slot)
        return head + struct.pack(f"<{2 * max(self.rank, 0)}q", *self.sizes, *self.strides)


@dataclass
class Request:
    kernel: bytes
    flags: int
    attributes: bytes
    arguments: list[tuple[int, int, list[Operand]]]


@dataclass
class Launch:
    request: Request
    operands: list[Operand]  # one for each pointer
    scalars: bytes
    seed: int
    offset: int
    before: dict[int, bytes]  # memory by its first address, no two of which overlap
    after: dict[int, bytes] = field(default_factory=dict)


class Recorder:
    """Sees the launches of the library that ``recorder.c`` forwards to."""

    def __init__(self) -> None:
        self._ffi = ffi.ffi
        self._library = ctypes.CDLL(os.environ["MACA_LIBRARY"])
        self._library.recorder_read.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64]
        of_plans = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(self._planned)
        of_launches = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)(self._launched)
        self._kept = of_plans, of_launches
        self._plans: dict[int, Request] = {}
        self.made: list[Launch] | None = None
        self._library.recorder_tell(*self._kept)

    def _planned(self, request_address: int, plan: int) -> None:
        r = self._ffi.cast("maca_plan_request*", request_address)
        string = self._ffi.string
        attributes = [struct.pack("<I", r.attribute_count)]
        for i in range(r.attribute_count):
            a = r.attributes[i]
            attributes.append(text(string(a.name)) + struct.pack("<I", a.kind))
            if a.kind in (0, 2):
                attributes.append(struct.pack("<q", a.integer))
            elif a.kind == 1:
                attributes.append(struct.pack("<d", a.real))
            elif a.kind == 3:
                attributes.append(text(string(a.text)))
            else:
                values = [a.doubles[k] if a.kind == 5 else a.ints[k] for k in range(a.count)]
                form = "d" if a.kind == 5 else "q"
                attributes.append(struct.pack(f"<I{len(values)}{form}", len(values), *values))
        arguments = []
        for i in range(r.argument_count):
            a = r.arguments[i]
            operands = []
            for k in range(max(a.count, 1) if a.kind != 2 else a.count):
                if a.kind == 0:
                    operands.append(Operand(0, 0, -1, -1, (), (), bool(a.is_output)))
                    continue
                o = a.operands[k]
                ranks = range(max(o.rank, 0))
                operands.append(
                    Operand(
                        o.dtype.code, o.dtype.bits, o.rank, o.scalar_slot,
                        tuple(o.sizes[d] for d in ranks), tuple(o.strides[d] for d in ranks), bool(a.is_output),
                    )
                )  # fmt: skip
            arguments.append((a.kind, a.is_output, operands))
        self._plans[plan] = Request(string(r.kernel), r.flags, b"".join(attributes), arguments)

    def _launched(self, plan: int, launch_address: int, is_over: int) -> None:
        if self.made is None or plan not in self._plans:
            return
        if is_over:
            last = self.made[-1]
            last.after = {at: self._read(at, len(held)) for at, held in last.before.items()}
            return
        request = self._plans[plan]
        given = self._ffi.cast("maca_launch*", launch_address)
        flat = [o for _, _, operands in request.arguments for o in operands]
        assert len(flat) == given.pointer_count, (request.kernel, len(flat), given.pointer_count)
        operands = [
            Operand(**{**vars(o), "address": int(self._ffi.cast("uintptr_t", given.pointers[i]))})
            for i, o in enumerate(flat)
        ]
        scalars = [struct.pack("<I", given.scalar_count)]
        for i in range(given.scalar_count):
            s = given.scalars[i]
            scalars.append(struct.pack("<Iqd", s.tag, s.value.integer, s.imaginary))
        spans = sorted((o.address, o.address + o.span) for o in operands if o.address and o.span)
        merged: list[list[int]] = []
        for first, end in spans:
            if merged and first <= merged[-1][1]:
                merged[-1][1] = max(end, merged[-1][1])
            else:
                merged.append([first, end])
        small = sum(end - first for first, end in merged) <= MOST_BYTES
        before = {first: self._read(first, end - first) for first, end in merged} if small else {}
        self.made.append(
            Launch(request, operands, b"".join(scalars), given.rng_seed, given.rng_offset, before)
        )  # fmt: skip

    def _read(self, address: int, count: int) -> bytes:
        held = ctypes.create_string_buffer(count)
        self._library.recorder_read(held, address, count)
        return held.raw
