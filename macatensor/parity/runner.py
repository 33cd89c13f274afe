"""Runs sample calls of rows on the device and judges them by the rows' bounds."""

from __future__ import annotations

import fnmatch
import itertools
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch._ops import OpOverload

from macatensor.dispatch.host_fallback import HostRefused, fallback
from macatensor.dispatch.request import Declined
from macatensor.dispatch.signature import _shape_of
from macatensor.parity import laws
from macatensor.parity.formulas import FORMULAS
from macatensor.parity.measure import Distance, bound_text
from macatensor.parity.reference import Expected, expected, judge
from macatensor.parity.samples import LAYOUTS, Call, describe, overload, samples
from macatensor.parity.transport import fetch, place, replace, tensors
from macatensor.runtime.boxed import Arguments, Keywords
from macatensor.runtime.launches import implementations, launches
from macatensor.runtime.tensor import MacaTensor, payload
from op_table import TABLE, Kind, Row, families

# Views and composites name no dtypes: these stand for all.
_ANY = ("float32", "bfloat16", "int64", "bool", "complex64")
_ANY_FLOAT = ("float32", "float64")
_ORDER = (
    "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64",
    "complex128",
)  # fmt: skip
_FAILURES = 8  # lines kept for a row
_NO_KERNEL = (Declined, HostRefused)  # the library serves no such call, which is no wrong result


@dataclass
class Result:
    """One row's outcome. What the library declines is counted apart and is neither a sample nor a failure."""

    row: str
    family: str
    kind: str
    dtypes: tuple[str, ...]
    samples: int = 0  # that were judged
    max_ulp: float = 0.0
    max_relative: float = 0.0
    share: float = 0.0  # of the bound, worst over the samples; above 1 fails
    bound: str = ""
    zeros: int = 0  # zeros of the other sign than PyTorch's
    failed: int = 0
    failures: list[str] = field(default_factory=list)
    declined: int = 0
    declines: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        """``"FAIL"``: a sample is wrong; ``"DECLINED"``: none is, and the library has no kernel for some."""
        if self.failed:
            return "FAIL"
        return "DECLINED" if self.declined else "pass" if self.samples else "n/a"

    def fail(self, line: str) -> None:
        self.failed += 1
        if len(self.failures) < _FAILURES:
            self.failures.append(line)

    def decline(self, line: str) -> None:
        self.declined += 1
        if len(self.declines) < _FAILURES:
            self.declines.append(line)


def family_of(row: Row) -> str:
    return next((name for name, rows in families.items() if row in rows), "")


def select(patterns: Iterable[str] = ()) -> list[Row]:
    """Rows whose name, operator or family matches a shell pattern, or whose name has the text in it."""
    patterns = list(patterns)
    if not patterns:
        return list(TABLE.values())
    of_family = {row.name: name for name, rows in families.items() for row in rows}

    def wanted(row: Row) -> bool:
        names = (row.name, row.operator, of_family.get(row.name, ""))
        return any(any(fnmatch.fnmatchcase(n, p) for n in names) for p in patterns)

    found = [row for row in TABLE.values() if wanted(row)]
    return found or [row for row in TABLE.values() if any(p in row.name for p in patterns)]


def dtypes_of(row: Row) -> tuple[str, ...]:
    """The row's dtypes, in a fixed order; typical ones for rows that name none."""
    if row.dtypes:
        return tuple(name for name in _ORDER if name in row.dtypes)
    if row.kind in (Kind.VIEW,) or family_of(row) == "view":
        return _ANY
    return _ANY_FLOAT


def run(
    patterns: Iterable[str] = (),
    dtypes: Sequence[str] | None = None,
    layouts: Sequence[str] | None = None,
    seed: int = 0,
) -> Iterator[Result]:
    """Results of every row that :func:`select` finds, one by one."""
    for row in select(patterns):
        yield run_row(row, dtypes, layouts, seed)


def run_row(
    row: Row,
    dtypes: Sequence[str] | None = None,
    layouts: Sequence[str] | None = None,
    seed: int = 0,
    one_of: int = 1,
) -> Result:
    """Runs a row's samples in ``dtypes`` (default: the row's) and ``layouts`` (default: all).

    ``one_of``: contiguous operands in every sample, each other layout in one of so many, 2 as the black fields of a
    chessboard of layouts and dtypes: every sample still meets half of the layouts.
    """
    started = time.perf_counter()
    chosen = tuple(d for d in dtypes_of(row) if dtypes is None or d in dtypes)
    result = Result(row.name, family_of(row), row.kind.value, chosen)
    try:
        func = overload(row)
    except AttributeError:
        result.fail(f"{row.name}: PyTorch {torch.__version__} has no such operator")
        return result
    # rows on the host are only checked to arrive there and back
    with torch.no_grad(), fallback("silent" if row.kind is Kind.ON_CPU else "error"):
        for column, name in enumerate(chosen):
            dtype = getattr(torch, name)
            if row.random:
                _run_law(result, func, row, dtype, seed)
                continue
            for line, layout in enumerate(LAYOUTS if layouts is None else layouts):
                step = one_of if layout != "contiguous" and len(chosen) > 2 else 1
                numbers = itertools.count((line + column) % step, step)
                _run_samples(result, func, row, dtype, layout, seed, numbers)
    result.seconds = time.perf_counter() - started
    return result


def _run_law(result: Result, func: OpOverload, row: Row, dtype: torch.dtype, seed: int) -> None:
    result.bound = "the law, by its moments"
    command = _repeat(row, str(dtype).removeprefix("torch."), "contiguous", seed)
    try:
        wrong = list(laws.check(func, row, dtype, seed))
    except _NO_KERNEL as error:
        result.decline(f"{command}  # {_first_line(error)}")
        return
    except Exception as error:
        wrong = [f"raised {type(error).__name__}: {error}"]
    result.samples += 1
    for line in wrong:
        result.fail(f"{command}  # {line}")


def _repeat(row: Row, dtype: str, layout: str, seed: int) -> str:
    return f"macatensor parity {row.name} --dtype {dtype} --layout {layout} --seed {seed}"


def _run_samples(
    result: Result,
    func: OpOverload,
    row: Row,
    dtype: torch.dtype,
    layout: str,
    seed: int,
    numbers: Iterator[int],
) -> None:
    """Runs the samples of these ascending ``numbers``."""
    name = str(dtype).removeprefix("torch.")
    line = _repeat(row, name, layout, seed)
    try:
        wanted = next(numbers)
        for number, call in enumerate(samples(row, dtype, layout, seed)):
            if number != wanted:
                continue
            wanted = next(numbers)
            want = expected(func, row, call.args, call.kwargs)
            if want.error is not None and not want.exact:
                if _unsupported(want.error):
                    continue  # no PyTorch kernel to compare with, in any dtype
                result.fail(f"{line}  # sample {number}: the reference raised {want.error}")
                continue
            try:
                with launches() as made:
                    worst, wrong, got = _one(func, row, call, want)
            except _NO_KERNEL as error:
                result.decline(
                    f"{line}  # sample {number}: {row.name}({arguments_text(call)}): {_first_line(error)}"
                )
                continue
            result.samples += 1
            if number == 0 and not wrong and layout in ("contiguous", "sliced"):
                forms, declines = _other_forms(func, row, call, got)
                wrong += forms
                for text in declines:
                    result.decline(f"{line}  # sample {number}: {text}")
            result.zeros += worst.zeros
            result.max_ulp = max(result.max_ulp, worst.ulp)
            result.max_relative = max(result.max_relative, worst.relative)
            dtype_of_result = next((t.dtype for t in want.native or want.exact if t is not None), dtype)
            if worst.share >= result.share or not result.bound:
                result.share = max(result.share, worst.share)
                result.bound = bound_text(row.bound, dtype_of_result)
            by = implementations(made) and f"; by {implementations(made)}"
            for text in wrong:
                result.fail(f"{line}  # sample {number}: {row.name}({arguments_text(call)}): {text}; "
                            f"bound {bound_text(row.bound, dtype_of_result)}{by}")  # fmt: skip
    except LookupError as error:
        result.fail(f"{line}  # {error}")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _unsupported(error: Exception) -> bool:
    words = (
        "not implemented for",
        "not supported",
        "Expected a floating point",
        "std::numeric_limits",
        "must be contiguous",
    )
    return any(w in str(error) for w in words)


def arguments_text(call: Call) -> str:
    """The arguments of a call in one line."""
    given = [describe(a) for a in call.args] + [f"{k}={describe(v)}" for k, v in call.kwargs.items()]
    return ", ".join(given)


def on_device(call: Call) -> tuple[Arguments, Keywords]:
    """The arguments of a call on maca."""
    stay = {id(t) for t in call.on_host}
    args, kwargs = replace((call.args, call.kwargs), lambda t: t if id(t) in stay else place(t))
    kwargs = {k: torch.device("maca") if isinstance(v, torch.device) else v for k, v in kwargs.items()}
    return args, kwargs


def _one(
    func: OpOverload, row: Row, call: Call, want: Expected
) -> tuple[Distance, list[str], list[torch.Tensor]]:
    """Runs one call. What is wrong comes as text; an exception too, but that there is no kernel."""
    args, kwargs = on_device(call)
    try:
        outcome = func(*args, **kwargs)
        results = tensors(outcome)
        fetched = [fetch(t) if isinstance(t, MacaTensor) else t for t in results + tensors((args, kwargs))]
    except _NO_KERNEL:
        raise
    except Exception as error:
        text = f"raised {type(error).__name__}: {_first_line(error)}"
        return Distance(math.inf, math.inf, math.inf), [text], []
    if len(results) != want.results:
        return Distance(), [f"gave {len(results)} results, PyTorch {want.results}"], []
    worst, wrong = judge(row, want, fetched, call.args)
    if row.operator in FORMULAS:
        pass  # no kernel of PyTorch's to compare strides with
    elif not any(t is not None and t.dim() >= row.free_strides for t in results):
        wrong += _strides(results, want)
    if row.kind is Kind.VIEW:
        wrong += _aliases(args, results, func)
    return worst, wrong, [t for t in results if t is not None]


def _strides(results: Sequence[torch.Tensor | None], want: Expected) -> list[str]:
    """Strides where they matter: not of empty tensors nor of dimensions of one element."""
    source = want.native if want.native is not None else want.exact
    wrong = []
    for i, (have, theirs) in enumerate(zip(results, source)):
        if have is None or theirs is None or not have.numel() or have.shape != theirs.shape:
            continue
        ours = [s for n, s in zip(have.shape, have.stride()) if n > 1]
        if ours != [s for n, s in zip(theirs.shape, theirs.stride()) if n > 1]:
            wrong.append(f"result {i} of sizes {list(have.shape)} has strides {tuple(have.stride())}, PyTorch's "
                         f"{tuple(theirs.stride())}")  # fmt: skip
    return wrong


def _aliases(args: Arguments, results: Sequence[torch.Tensor | None], func: OpOverload) -> list[str]:
    copies = not any(r.alias_info for r in func._schema.returns) and func._schema.name != "aten::_unsafe_view"
    shared = all(payload(r)[0] is payload(args[0])[0] for r in results if r is not None)
    return [] if shared or copies else ["the view does not share its operand's memory"]


def _other_forms(
    func: OpOverload, row: Row, call: Call, got: list[torch.Tensor]
) -> tuple[list[str], list[str]]:
    """What is wrong where the in-place and out= forms do not give the same bits, and those that are declined."""
    wrong: list[str] = []
    declines: list[str] = []
    operator = row.operator
    if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
        return wrong, declines  # PyTorch takes the functional form apart before it comes here
    shape = _shape_of(func._schema)
    if operator.endswith("_") or len(got) != 1 or row.kind in (Kind.VIEW, Kind.ON_CPU):
        return wrong, declines
    direct = fetch(got[0])
    first = call.args[0] if call.args else None
    for packet_name in (operator, f"{operator}_"):
        packet = getattr(torch.ops.aten, packet_name, None)
        if packet is None:
            continue
        for name in packet.overloads():
            form = getattr(packet, name)
            if form is func or _shape_of(form._schema) != shape:
                continue
            args, kwargs = on_device(call)
            outs = [a.name for a in form._schema.arguments if a.is_out]
            if outs:
                kwargs[outs[0]] = torch.empty_strided(
                    direct.shape, direct.stride(), dtype=direct.dtype, device="maca"
                )
                known = {a.name for a in form._schema.arguments}
                kwargs = {k: v for k, v in kwargs.items() if k in known}
            elif packet_name.endswith("_"):
                if (
                    not isinstance(first, torch.Tensor)
                    or first.dtype != direct.dtype
                    or first.shape != direct.shape
                ):
                    continue
                if any(n > 1 and s == 0 for n, s in zip(first.shape, first.stride())):
                    continue
            else:
                continue
            try:
                wrong += _same_bits(form, args, kwargs, direct, kwargs[outs[0]] if outs else args[0])
            except _NO_KERNEL as error:
                declines.append(f"{form}: {_first_line(error)}")
    return wrong, declines


def _same_bits(
    form: OpOverload, args: Arguments, kwargs: Keywords, direct: torch.Tensor, target: torch.Tensor
) -> list[str]:
    try:
        result = form(*args, **kwargs)
        written = fetch(target)
    except _NO_KERNEL:
        raise
    except Exception as error:
        return [f"{form} raised {type(error).__name__}: {_first_line(error)}"]
    if result is not target:
        return [f"{form} did not return the tensor it wrote"]
    same = torch.equal(written.nan_to_num(nan=7.0), direct.nan_to_num(nan=7.0)) if not direct.is_complex() else (
        torch.allclose(written, direct, rtol=0, atol=0, equal_nan=True))  # fmt: skip
    return [] if same else [f"{form} gave other bits than the functional form"]
