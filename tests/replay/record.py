"""Records what a device library is asked, with what it should answer: ``python tests/replay/record.py FILE``.

README.md beside this says what the file holds. Rows are asked as ``macatensor parity`` asks them, few samples of each
dtype; a launch is kept when every element that it writes has an answer: the row's float64 reference with its bound, or,
of numbers that only the kernel knows, what this machine's library wrote (integers and truth values the same, floating ones
within :data:`_DRAWN`).
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import struct
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from launches import Launch, Operand, Recorder, text

import macatensor
from macatensor.device.properties import library_info
from macatensor.parity import laws, random_numbers
from macatensor.parity.draw import LAYOUTS
from macatensor.parity.measure import allowance
from macatensor.parity.reference import Aim, aims
from macatensor.parity.runner import dtypes_of, on_device, select
from macatensor.parity.samples import overload, samples
from macatensor.parity.transport import place, wide
from macatensor.parity.watch import Seen, Watch, is_drawn
from macatensor.runtime import ffi
from macatensor.runtime.tensor import MacaTensor, payload
from op_table import Kind, Row
from op_table.row import per_term, ulp

HERE = Path(__file__).parent
INCLUDE = HERE.parents[1] / "libmaca_ffi" / "include"
TARGET = "REPLAY_TARGET"
MAGIC = b"MACARPL1"
CONTIGUOUS, OTHERS = (
    2,
    1,
)  # samples of a row and dtype in contiguous operands, and in each of two other layouts
# Of what no float64 computation of ours says: as far from this machine's answer.
_DRAWN = ulp("two machines' roundings of what is drawn", f32=8, f64=16, f16=2, bf16=2)
_SUMMED = per_term("two machines' sums; of the largest number", f32=16, f64=16, f16=4, bf16=4)
_INTEGRAL = (0, 1, 6)  # MACA_INT, MACA_UINT, MACA_BOOL
_DTYPES = {
    (2, 16): torch.float16, (2, 32): torch.float32, (2, 64): torch.float64, (4, 16): torch.bfloat16,
    (5, 64): torch.complex64, (5, 128): torch.complex128,
}  # fmt: skip


class Answers:
    """Which value every address of the device should hold when a call is over: its results' and written operands'."""

    def __init__(self) -> None:
        self._parts: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []

    def add(self, addresses: np.ndarray, low: np.ndarray, high: np.ndarray, raw: np.ndarray) -> None:
        """``raw``: a row of bytes for each element, used where the bounds are empty."""
        self._parts.append((addresses, low, high, raw))

    def find(self, addresses: np.ndarray) -> tuple[str, np.ndarray, np.ndarray] | None:
        """``("interval", low, high)`` or ``("bytes", raw, raw)`` of the elements there; None where one has no answer."""
        for known, low, high, raw in self._parts:
            if not len(known):
                continue
            order = np.argsort(known, kind="stable")
            at = np.searchsorted(known[order], addresses).clip(max=len(known) - 1)
            found = order[at]
            if np.array_equal(known[found], addresses):
                return (
                    ("bytes", raw[found], raw[found])
                    if not low.size
                    else ("interval", low[found], high[found])
                )
        return None


def _parts(t: torch.Tensor) -> torch.Tensor:
    """Float64, a row for each element in row-major order: one number, or both parts of a complex one."""
    if t.is_complex():
        return torch.view_as_real(t.resolve_conj().contiguous()).double().reshape(-1, 2)
    return t.contiguous().double().reshape(-1, 1)


def interval(aim: Aim, have: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The lowest and highest number that passes for each element, and part, of a result like ``have``."""
    want = _parts(aim.want)
    if aim.bound is None:
        return want.numpy(), want.numpy()
    allowed = allowance(have.dtype, aim.want, aim.bound, aim.terms, aim.loose).reshape(-1, 1).numpy()
    want = want.numpy()
    low, high = want - allowed, want + allowed
    at_once = ~np.isfinite(want)  # NaN asks for NaN, infinity for itself
    low[at_once], high[at_once] = want[at_once], want[at_once]
    part = have.dtype.to_real() if have.is_complex() else have.dtype
    if part is not torch.float64:
        # past the largest number lies infinity, one step on
        ceiling = 2.0 ** (math.floor(math.log2(torch.finfo(part).max)) + 1)
        overflows = torch.from_numpy(want).to(part).isinf().numpy()
        high[(high >= ceiling) | (overflows & (want > 0))] = np.inf
        low[(low <= -ceiling) | (overflows & (want < 0))] = -np.inf
    return low, high


Check = tuple[
    int, str, np.ndarray, np.ndarray
]  # pointer, "interval" or "bytes", lowest and highest or the bytes


def _around(have: torch.Tensor, drawn: bool) -> Aim:
    """What another machine's result should be where only this one's is known."""
    want = have.to(wide(have.dtype))
    if drawn:
        return Aim(want, _DRAWN)
    size = torch.view_as_real(want).abs() if want.is_complex() else want.abs()
    largest = size[size.isfinite()].max() if bool(size.isfinite().any()) else torch.tensor(0.0)
    return Aim(want, _SUMMED, torch.full(want.shape, float(largest), dtype=torch.float64))


def _addresses(t: MacaTensor) -> np.ndarray:
    """Of every element on the device, in row-major order."""
    buffer, offset, meta = payload(t)
    at = Operand(0, 8 * meta.itemsize, len(meta.size), -1, tuple(meta.size), tuple(meta.stride), True)
    at.address = buffer.address + offset * meta.itemsize
    return at.addresses()


def _region(regions: Mapping[int, bytes], address: int) -> int | None:
    return next((at for at, held in regions.items() if at <= address < at + len(held)), None)


class Recording(Watch):
    """Writes the launches of every operator that runs, each kept once for a kernel, its dtypes and strides."""

    def __init__(self, recorder: Recorder, file: BinaryIO):
        super().__init__()
        self.recorder, self.file = recorder, file
        self.label, self.drawn = "", False
        self.kept: Counter[str] = Counter()  # launches by kernel
        self.left: Counter[str] = Counter()  # those left out, by reason
        self.unanswered: Counter[str] = Counter()  # those whose numbers nothing says, by kernel
        file.write(MAGIC)

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """What is raised is counted: that a row's dtype is refused is the parity tests' matter."""
        try:
            yield
        except Exception as error:
            self.left[type(error).__name__] += 1

    def before(self, seen: Seen) -> None:
        self.recorder.made = []

    def after(self, seen: Seen) -> None:
        made, self.recorder.made = self.recorder.made or [], None
        if not made:
            return
        answers = self._answers(seen)
        if answers is None:
            return
        later: list[np.ndarray] = []
        for launch in reversed(made):
            self._keep(launch, answers, later, seen.name)

    def _answers(self, seen: Seen) -> Answers | None:
        if seen.copies is None or seen.row is None:
            self.left[seen.why_not or "no row"] += 1
            return None
        verdict = self.verdict(seen)
        if verdict.failed:
            self.left["wrong here"] += 1
            print(f"{self.label} {seen.name}: {verdict.text}")
            return None
        haves = seen.host + seen.changed
        aimed: list[Aim | None] = [None] * len(haves)
        if verdict.expected is not None:
            found = aims(seen.row, verdict.expected, haves, seen.copies[0])
            aimed = found + aimed[len(found) :]
        elif seen.state is not None and seen.row.numbers and haves[0] is not None:
            named = random_numbers.by_name(seen.func, *seen.copies)
            aimed[0] = random_numbers.aim(seen.row.numbers, seen.state, haves[0], named)
        answers = Answers()
        for t, have, aim in zip(seen.results + seen.operands, haves, aimed):
            if not isinstance(t, MacaTensor) or have is None or have.is_conj() or have.is_neg():
                continue
            floating = (have.is_floating_point() or have.is_complex()) and have.element_size() > 1
            if aim is None or aim.positions:
                recorded = seen.row.form or is_drawn(seen.row) or (aim is not None and aim.positions)
                if floating and not recorded:
                    continue
                aim = _around(have, is_drawn(seen.row)) if floating else Aim(have)
                if floating and seen.row.form == "sorted":  # eigenvalues come as they converge: any numbers
                    low, high, raw = self._bounds(aim, have, floating)
                    answers.add(_addresses(t), np.full_like(low, -np.inf), np.full_like(high, np.inf), raw)
                    continue
            answers.add(_addresses(t), *self._bounds(aim, have, floating))
        return answers

    @staticmethod
    def _bounds(aim: Aim, have: torch.Tensor, floating: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        nothing = np.empty((0, 1))
        if not floating:
            want = aim.want.to(have.dtype).contiguous().reshape(-1)
            return nothing, nothing, want.view(torch.uint8).reshape(have.numel(), have.element_size()).numpy()
        low, high = interval(aim, have)
        return low, high, nothing

    def as_here(self, label: str, call: Callable[[], object], kernels: set[str], drawn: bool = False) -> None:
        """Keeps what ``call`` launches of ``kernels`` with this machine's answers: no reference is known."""
        self.label, self.drawn, self.recorder.made = label, drawn, []
        try:
            with self.closed():
                call()
        finally:
            made, self.recorder.made = self.recorder.made, None
        for launch in made:
            if launch.request.kernel.decode() in kernels:
                self._keep(launch, None, [], "")

    def _keep(self, launch: Launch, answers: Answers | None, later: list[np.ndarray], name: str) -> None:
        kernel = launch.request.kernel.decode()
        checks: list[Check] = []
        covered: list[np.ndarray] = []
        overwritten = tuple(later)  # not by this launch: one address may be an argument and a result
        for i, operand in enumerate(launch.operands):
            if operand.rank < 0 or not operand.address or not operand.span:
                continue
            region = _region(launch.before, operand.address)
            if region is None:
                self.left["large"] += 1
                return
            start = operand.address - region
            stop = start + operand.span
            if (
                not operand.is_output
                and launch.before[region][start:stop] == launch.after[region][start:stop]
            ):
                continue
            addresses = operand.addresses()
            found = None
            if answers is not None and not any(np.isin(addresses, known).any() for known in overwritten):
                found = answers.find(addresses)
            later.append(addresses)
            held = np.frombuffer(launch.after[region], np.uint8)
            raw = held[(addresses - region)[:, None] + np.arange(operand.itemsize)]
            if found is None and operand.code in _INTEGRAL:
                found = ("bytes", raw, raw)
            elif found is None and answers is None and (operand.code, operand.bits) in _DTYPES:
                have = torch.from_numpy(raw.copy()).view(_DTYPES[operand.code, operand.bits]).reshape(-1)
                found = ("interval", *interval(_around(have, self.drawn), have))
            if found is None:
                self.left["no answer"] += 1
                self.unanswered[kernel] += 1
                return
            checks.append((i, *found))
            covered.append((addresses[:, None] + np.arange(operand.itemsize)).reshape(-1))
        written = np.concatenate(covered) if covered else np.empty(0, np.int64)
        for region, held in launch.before.items():
            old, new = (np.frombuffer(b, np.uint8) for b in (held, launch.after[region]))
            changed = np.flatnonzero(old != new) + region
            if not np.isin(changed, written).all():
                self.left["writes beside its results"] += 1
                return
        if not checks:
            self.left["nothing written"] += 1
        self.kept[kernel] += 1
        self.file.write(self._record(launch, checks, name))

    def _record(self, launch: Launch, checks: list[Check], name: str) -> bytes:
        request = launch.request
        body = [text(f"{name} {self.label}".strip().encode()), text(request.kernel)]
        body += [struct.pack("<I", request.flags), request.attributes, launch.scalars]
        body.append(struct.pack("<QQ", launch.seed, launch.offset))
        body.append(struct.pack("<I", len(request.arguments)))
        for kind, is_output, operands in request.arguments:
            body.append(struct.pack("<iiI", kind, is_output, len(operands)))
            body += [operand.packed() for operand in operands]
        regions = list(launch.before)
        body.append(struct.pack("<I", len(regions)))
        for region in regions:
            held = launch.before[region]
            body.append(struct.pack("<QI", len(held), region % 64) + held)
        body.append(struct.pack("<I", len(launch.operands)))
        for operand in launch.operands:
            region = _region(launch.before, operand.address) if operand.span else None
            number = -1 if region is None else regions.index(region)
            body.append(struct.pack("<iQ", number, 0 if region is None else operand.address - region))
        body.append(struct.pack("<I", len(checks)))
        for pointer, kind, first, second in checks:
            body.append(struct.pack("<II", pointer, int(kind == "interval")))
            if kind == "bytes":
                body.append(first.tobytes())
            else:
                body.append(np.stack([first, second], -1).astype("<f8").tobytes())
        held = b"".join(body)
        return struct.pack("<Q", len(held)) + held


def _calls(row: Row, dtype: torch.dtype, layout: str) -> Iterator[Callable[[], object]]:
    """The first samples of a row, placed on the device when they are called."""
    func = overload(row)
    if row.random:
        law = row.law_of_bool if dtype is torch.bool and row.law_of_bool is not None else row.law
        if layout == LAYOUTS[0] and law is not None:
            args = [laws._argument(value, dtype) for value in law.args]
            yield lambda: func(*[place(a) if isinstance(a, torch.Tensor) else a for a in args])
        return
    for call in islice(samples(row, dtype, layout), CONTIGUOUS if layout == LAYOUTS[0] else OTHERS):
        args, kwargs = on_device(call)
        yield lambda args=args, kwargs=kwargs: func(*args, **kwargs)  # type: ignore[misc]


def _rows(recording: Recording, patterns: Sequence[str]) -> None:
    for number, row in enumerate(select(patterns)):
        if row.kind not in (Kind.KERNEL, Kind.DYNAMIC, Kind.COMPOSITE) or row.operator == "empty":
            continue
        for column, name in enumerate(dtypes_of(row)):
            others = LAYOUTS[1:]
            turn = (number + column) % len(others)
            for layout in (LAYOUTS[0], others[turn], others[(turn + 1) % len(others)]):
                recording.label = f"{name} {layout}"
                with recording.counting():
                    for call in _calls(row, getattr(torch, name), layout):
                        call()
        if row.kind is Kind.KERNEL and not recording.kept[row.kernel_name]:
            for name in dtypes_of(row):
                with recording.counting():
                    for call in _calls(row, getattr(torch, name), LAYOUTS[0]):
                        recording.as_here(f"{row.name} {name}", call, {row.kernel_name}, row.random)


def _programs() -> Iterator[tuple[str, Callable[[], object]]]:
    """What reaches kernels that no row names."""
    import torch.nn.functional as F
    import torchvision.ops as vision

    from macatensor.dispatch.named_kernels import launch
    from macatensor.runtime.meta import meta_of

    def drawn(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(*size, generator=torch.Generator().manual_seed(7)).to(dtype).to("maca")

    def attention(dtype: torch.dtype, causal: bool) -> None:
        q, k, v = (drawn(2, 2, n, 16, dtype=dtype).requires_grad_() for n in (12, 20, 20))
        F.scaled_dot_product_attention(q, k, v, is_causal=causal).float().sum().backward()

    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        for causal in (False, True):
            yield f"attention {dtype}", lambda dtype=dtype, causal=causal: attention(dtype, causal)  # type: ignore[misc]

    def regions() -> None:
        corners = torch.rand(6, 2, generator=torch.Generator().manual_seed(1)) * 8
        boxes = torch.cat([corners, corners + 5], 1)
        rois = torch.cat([torch.tensor([[0.0], [1], [1], [0], [1], [0]]), boxes], 1).to("maca")
        vision.nms(boxes.to("maca"), drawn(6), 0.3)
        for function in (vision.roi_align, vision.roi_pool, vision.ps_roi_align, vision.ps_roi_pool):
            x = drawn(2, 8, 16, 16).requires_grad_()
            function(x, rois, (2, 2)).sum().backward()

    yield "torchvision", regions
    yield (
        "compiled",
        lambda: torch.compile(lambda x, y: (x * y).tanh() + x.exp(), backend="maca")(
            drawn(9, 7), drawn(9, 7)
        ),
    )
    yield "randperm", lambda: torch.randperm(40, device="maca")
    triangle = drawn(5, 5).triu()  # its eigenvalues come in the order of its diagonal
    values = torch.empty(5, dtype=torch.complex64, device="maca")
    yield "eigvals", lambda: torch.linalg.eigvals(triangle, out=values)
    yield "lstsq", lambda: torch.linalg.lstsq(drawn(7, 4), drawn(7, 2))

    def serve() -> None:
        tables = torch.tensor([[2, 0, 1], [3, 3, 3]], dtype=torch.int32).maca()
        lengths = torch.tensor([9, 2], dtype=torch.int32).maca()
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            keys, values = (drawn(4, 4, 2, 16, dtype=dtype) for _ in range(2))
            new = drawn(3, 2, 16, dtype=dtype)
            torch.ops.maca.reshape_and_cache(new, new, keys, values, torch.tensor([5, -1, 2]).maca())
            query = drawn(2, 4, 16, dtype=dtype)
            for how in ({}, {"window": 3, "softcap": 5.0, "alibi_slopes": drawn(4)}):
                torch.ops.maca.paged_attention(query, keys, values, tables, lengths, 0.25, **how)

    yield "serving", serve

    # no descriptor has this number: nothing to wait for
    yield "gate", lambda: launch("gate", [], [], {"descriptor": 1000, "milliseconds": 1000})
    yield "delay", lambda: launch("delay", [], [], {"cycles": 100})
    yield "arithmetic_peak", lambda: launch("arithmetic_peak", [], [], {"operations": 1000})
    yield "summary", lambda: launch("summary", [drawn(100)], [meta_of((8,), (1,), torch.float64)], {})


def _record(path: Path, patterns: Sequence[str]) -> int:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    macatensor.fallback("error")
    with path.open("wb") as file:
        recording = Recording(Recorder(), file)
        torch.maca.manual_seed(5)
        with torch.no_grad(), recording.watching():
            _rows(recording, patterns)
        if not patterns:
            with recording.watching(), torch.enable_grad():
                for label, call in _programs():
                    recording.label = label
                    with recording.counting():
                        call()
            for label, call in _programs():
                with recording.counting():
                    recording.as_here(label, call, set(ffi.kernels()) - set(recording.kept))
    kernels = ffi.kernels()
    print(f"{sum(recording.kept.values())} launches of {len(recording.kept)} of {len(kernels)} kernels, "
          f"{path.stat().st_size / 1e6:.0f} MB")  # fmt: skip
    print("left out:", dict(recording.left))
    missing = sorted(set(kernels) - set(recording.kept))
    if not patterns:
        print("kernels without a launch:", ", ".join(missing) or "none")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("rows", nargs="*", help="names or patterns; all")
    arguments = parser.parse_args()
    if TARGET in os.environ:
        return _record(arguments.file, arguments.rows)
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "librecorder.so"
        subprocess.run(
            ["cc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC", "-fvisibility=hidden", "-I", str(INCLUDE),
             str(HERE / "recorder.c"), "-o", str(library), "-ldl"],
            check=True,
        )  # fmt: skip
        target = os.environ.get("MACA_LIBRARY") or str(library_info()["path"])
        environment = {**os.environ, "MACA_LIBRARY": str(library), TARGET: target}
        return subprocess.run([sys.executable, *sys.argv], env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
