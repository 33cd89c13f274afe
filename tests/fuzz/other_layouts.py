"""Random programs of a few lines on sparse tensors and on jagged ones. After each line the results of host and device agree.

    .venv/bin/python tests/fuzz/other_layouts.py --programs 3000 --first 0
    .venv/bin/python tests/fuzz/other_layouts.py --seed 17                   # one again, line by line
    .venv/bin/python tests/fuzz/other_layouts.py --programs 3000 --fallbacks # what the host computes, by operator

Programs of even seeds are on sparse tensors of the five layouts, those of odd ones on jagged tensors. What has to agree: errors,
layouts, sizes, dtypes, which elements there are and where sequences begin, numbers, and the gradients of every fourth program. A
result that the device owes to the host is a finding, too. Exit status 1 where anything was found that reasons_layouts.py has not.
"""

from __future__ import annotations

import copy
import random
import re
import sys
from collections.abc import Iterator

import jagged_programs
import programs
import sparse_programs
import torch
from programs import Line, loaded
from reasons_layouts import OF_LAYOUTS

import macatensor  # noqa: F401 - the device
from macatensor.runtime import counters

PROGRAMS = (sparse_programs, jagged_programs)
LAYOUTS = ("strided", "sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc")
# Results of these are rounded, to which the exponents of the others' quarters say nothing. (1.5 is the divisor that rounds.)
ROUNDED = re.compile(
    r"sin|cos|tan|sqrt|exp|log|erf|rad|angle|softmax|norm|mean|var|std|gelu|sig|silu|softplus|elu\(|mish|hardswish|dot_product|"
    r"/ (1\.5|a)|div|\*\*|pow|recip|rsqrt|triangular|lerp"
)
# These jump, or have steep slopes: where operands differ in their last bits, what they give may differ in any.
JUMPS = re.compile(
    r"ceil|floor|round|trunc|frac|sgn|sign\(|signbit|//|%|==|!=|>|<|lt\(|eq\(|isinf|isfinite|any|all\(|logical|&|\||bool|int|uint|"
    r"to_sparse|to\(|type\(|dtype=|max|min|equal|nonzero|sort|cos|sin|tan|exp|pow|\*\*|norm\(0|recip|rsqrt|/ a|erfinv|atan2|long\("
)
# Significant bits that a sum of a few may have, and the smallest of them, by dtype: such numbers are exact in any order.
EXACT = {torch.float16: (2.0**6, 2.0**4), torch.bfloat16: (2.0**4, 2.0**3)}
TOLERANCE = 64  # eps of the coarsest dtype and of the largest number: four lines of a few bits each, sums of up to a hundred


def _dense_rows(t: torch.Tensor, dim: int, *more: int) -> torch.Tensor:
    """-1, 2, 0, 1, -2, ... of as many rows as a dimension has."""
    count = torch.Size((t.shape[dim], *more)).numel()
    return ((torch.arange(count, device=t.device) * 3 + 1) % 5 - 2).to(t.dtype).reshape(t.shape[dim], *more)


HELP = {
    "torch": torch, "copy": copy, "loaded": loaded, "column": _dense_rows,
    "row": lambda t: _dense_rows(t, -1),
    "number": lambda t: torch.tensor(2, dtype=t.dtype, device=t.device),
    "places": lambda t, dim: torch.tensor([0, t.shape[dim] - 1, 0], device=t.device),
    "table": lambda t: torch.arange(24.0, device=t.device).reshape(12, 2),
}  # fmt: skip


def needs_gradients(seed: int) -> bool:
    return seed % 8 < 2


def first_programs(seed: int) -> list[str]:
    """What makes the first tensors."""
    return PROGRAMS[seed % 2].first_programs(random.Random(seed))


def next_line(draw: random.Random, seed: int, tensors: list[torch.Tensor]) -> Line:
    i, j = draw.randrange(len(tensors)), draw.randrange(len(tensors))
    if draw.random() < 0.4:
        i = len(tensors) - 1
    if tensors[i].layout is torch.strided:  # once more: dense ones are other programs' business
        i = draw.randrange(len(tensors))
    if _has_no_product(tensors[i], tensors[j]) or _has_no_product(tensors[j], tensors[i]):
        j = i
    rank = tensors[i].dim()
    dimension = lambda: draw.randint(-rank, max(rank - (draw.random() < 0.97), 0))  # noqa: E731
    kind = draw.choices(("result", "write"), (6, 1))[0]
    table = PROGRAMS[seed % 2]
    text = draw.choice(table.RESULTS if kind == "result" else table.WRITES).format(
        i=f"a[{i}]", j=f"a[{j}]", d=dimension(), e=dimension(), m=draw.randint(0, 4), n=draw.randint(0, 2),
        k=draw.randint(1, 3), x=draw.choice((0.5, 2, -1, 1.5, True, 0.25, 0, 3)),
        t=f"torch.{draw.choice(sparse_programs.DTYPES)}", b=(draw.randint(1, 2), draw.randint(1, 2)),
        layout=f"torch.{draw.choice(LAYOUTS)}",
    )  # fmt: skip
    return Line(kind, text)


def _has_no_product(t: torch.Tensor, other: torch.Tensor) -> bool:
    """Does PyTorch multiply them by memory that nobody wrote, or leave out elements? By a COO tensor of no dimensions and no
    element; by a dense one that repeats a sparse dimension of the other."""
    if t.layout is not torch.sparse_coo:
        return False
    if other.layout is torch.strided:
        sparse = range(-t.dim(), t.sparse_dim() - t.dim())
        return any(t.shape[d] == 1 and _side(other, d) > 1 for d in sparse)
    return t.dim() == 0 and not t._nnz()


def _side(t: torch.Tensor, dim: int) -> int:
    return t.shape[dim] if t.dim() + dim >= 0 else 1


class Side:
    """The tensors of one device."""

    def __init__(self, seed: int, device: str) -> None:
        self.tensors: list[torch.Tensor] = []
        self.space = {**HELP, "a": self.tensors, "device": torch.device(device)}
        for program in first_programs(seed):
            made = eval(program, self.space)
            if needs_gradients(seed) and (made.is_floating_point() or made.is_complex()):
                made = made.detach().requires_grad_()
            self.tensors.append(made)
        self.leaves = list(self.tensors)
        self.result: object = None

    def run(self, line: Line) -> Exception | None:
        self.result = None
        try:
            if line.kind == "write":
                exec(line.text, self.space)
            else:
                self.result = eval(line.text, self.space)
                if isinstance(self.result, torch.Tensor):
                    self.tensors.append(self.result)
        except Exception as error:
            return error
        return None

    def gradients(self) -> list[torch.Tensor | None]:
        """Of the last tensor's numbers, each of its own weight."""
        total = torch.zeros((), device=self.space["device"], dtype=torch.float64)
        t = self.tensors[-1]
        for part in t.unbind() if t.is_nested else [t if t.layout is torch.strided else t.to_dense()]:
            number = torch.view_as_real(part) if part.is_complex() else part
            weights = torch.arange(number.numel(), device=number.device, dtype=torch.float64) % 5 + 1
            total = total + (number.double().reshape(-1) * weights).sum()
        total.backward()
        return [t.grad for t in self.leaves]


def parts(t: torch.Tensor) -> list[torch.Tensor]:
    """What a tensor holds, elements in order."""
    t = t.detach()
    if t.is_nested:
        return [t._offsets, t._values] if t.lengths() is None else [t._offsets, t.lengths(), *t.unbind()]
    if t.layout is torch.strided:
        return [t]
    if t.layout is torch.sparse_coo:
        t = t.coalesce()
        return [t.indices(), t.values()]
    if t.layout in (torch.sparse_csr, torch.sparse_bsr):
        return in_order(t.crow_indices(), t.col_indices(), t.values())
    return in_order(t.ccol_indices(), t.row_indices(), t.values())


def in_order(begins: torch.Tensor, plain: torch.Tensor, values: torch.Tensor) -> list[torch.Tensor]:
    """Members of a compressed tensor; those of the host sorted, which the products of its library are not."""
    if begins.device.type == "cpu" and begins.dim() == 1 and len(plain) == begins[-1]:
        row = torch.repeat_interleave(begins.diff())
        order = (row * (1 << 20) + plain).argsort(stable=True)
        plain, values = plain[order], values[order]
    return [begins, plain, values]


def facts(t: object, members: list[torch.Tensor]) -> object:
    """What of a result has to agree beside its numbers."""
    if not isinstance(t, torch.Tensor):
        return "a nested int" if isinstance(t, torch.SymInt) else t
    more: tuple[object, ...] = ()
    if t.is_nested:
        more = (t._ragged_idx, [s for s in t.shape if isinstance(s, int)])
    elif t.layout is torch.sparse_coo:
        more = (t.sparse_dim(), t.dense_dim(), tuple(t.shape))
    elif t.layout is not torch.strided:
        more = (tuple(t.shape),)
    return t.layout, t.dtype, [(tuple(p.shape), p.dtype) for p in members], more, t.requires_grad


class Comparison:
    """Of a program's results, which are exact until a line rounds."""

    def __init__(self) -> None:
        self.is_exact = True
        self.eps = 0.0
        self.largest = 1.0

    def look(self, t: object) -> None:
        """Remembers how large and how coarse a result of the host is."""
        held = parts(t) if isinstance(t, torch.Tensor) else []
        if not isinstance(t, torch.Tensor) or not (t.is_floating_point() or t.is_complex()):
            return
        self.eps = max(self.eps, torch.finfo(t.dtype).eps)
        numbers = held[-1].clone().resolve_conj().resolve_neg()  # PyTorch refuses views of values() itself
        numbers = (torch.view_as_real(numbers) if numbers.is_complex() else numbers).double()
        numbers = numbers[numbers.isfinite()]
        if not numbers.numel():
            return
        self.largest = max(self.largest, numbers.abs().max().item())
        most, least = EXACT.get(t.dtype, (2.0**12, 2.0**8))
        self.is_exact &= bool((numbers.abs() <= most).all() and (numbers * least % 1 == 0).all())

    def differs(self, want: object, got: object, is_exact: bool = False) -> str:
        """In what; empty where in nothing."""
        ours = parts(got) if isinstance(got, torch.Tensor) else []
        theirs = parts(want) if isinstance(want, torch.Tensor) else []
        expected, found = facts(want, theirs), facts(got, ours)
        if isinstance(expected, float) and isinstance(found, float):
            theirs, ours = [torch.tensor(expected)], [torch.tensor(found)]
        elif found != expected:
            return f"is {found} and not {expected}"
        slack = 0.0 if is_exact else TOLERANCE * self.eps
        for one, other in zip(theirs, ours):
            try:
                torch.testing.assert_close(
                    other.cpu().resolve_conj(), one.resolve_conj(), equal_nan=True, rtol=slack,
                    atol=slack * self.largest,
                )  # fmt: skip
            except AssertionError as error:
                return f"{'other' if is_exact else 'far'} numbers of {one.dtype}: {' '.join(str(error).split())[:160]}"
        return ""


def _raised(host: Exception | None, device: Exception | None) -> str:
    """What is wrong where at least one of host and device raises; empty: nothing."""
    if device is None:
        return f"raises nothing and not {_said(host)}"
    if host is None:
        return f"raises {_said(device)}"
    # both refuse an index, or what is none of theirs, in one of two classes
    if isinstance(device, type(host)) or isinstance(host, type(device)):
        return ""
    return f"raises {_said(device)} and not {_said(host)}"


def _said(error: Exception | None) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"


def run(seed: int, lines: list[Line] | None = None, mark: object = None) -> tuple[list[Line], str]:
    """The program of a seed, or its first tensors with other ``lines``: those that ran, and in what the last one differs."""
    done, found = _run(seed, lines, mark)
    return done, "" if found and reason(done[-1].text, found) else found


def reason(line: str, found: str) -> str:
    """Why a line may differ in that way; empty where nobody said."""
    return next(
        (why for of, text, why in OF_LAYOUTS if re.search(of, line) and re.fullmatch(text, found)), ""
    )


def _run(seed: int, lines: list[Line] | None, mark: object) -> tuple[list[Line], str]:
    draw, done = random.Random(seed + 1), []
    host, device = Side(seed, "cpu"), Side(seed, "maca")
    comparison = Comparison()
    for t in host.tensors:
        comparison.look(t)
    for k in range(draw.randint(1, 4) if lines is None else len(lines)):
        line = next_line(draw, seed, host.tensors) if lines is None else lines[k]
        if not comparison.is_exact and JUMPS.search(line.text):
            continue
        done.append(line)
        errors = []
        for side in (host, device):
            if mark is not None:
                mark(side is device, done)  # type: ignore[operator]
            before = counters.fallbacks.copy()
            errors.append(side.run(line))
        if any(errors):
            text = _raised(*errors)
            if line.kind == "write" or text and not reason(line.text, text):
                return done, text
            for side in (host, device):  # the one that computed something
                if isinstance(side.result, torch.Tensor):
                    side.tensors.pop()
            continue
        on_host = counters.fallbacks - before
        if on_host and _has_elements(host.result):  # of none the host asks not even for their dtype
            return done, f"is computed on the host: {', '.join(sorted(on_host))}"
        comparison.is_exact &= not ROUNDED.search(line.text)
        for want, got in _to_compare(line, host, device):
            try:
                comparison.look(want)
            except Exception:  # PyTorch takes its own result not apart: a jagged one whose ragged dimension moved, a sparse one that is none
                return done, ""
            if text := comparison.differs(want, got, comparison.is_exact):
                return done, text
        if not isinstance(host.result, torch.Tensor):
            break
    if (
        done
        and done[-1].kind == "result"
        and isinstance(host.result, torch.Tensor)
        and host.result.requires_grad
    ):
        return done, _gradients_differ(host, device, comparison)
    return done, ""


def _has_elements(t: object) -> bool:
    return not isinstance(t, torch.Tensor) or any(part.numel() for part in parts(t))


def _to_compare(line: Line, host: Side, device: Side) -> Iterator[tuple[object, object]]:
    """A result; or each tensor, as some may be views of what was written."""
    if line.kind == "result":
        yield host.result, device.result
    else:
        yield from zip(host.tensors, device.tensors)


def _gradients_differ(host: Side, device: Side, comparison: Comparison) -> str:
    try:
        expected = host.gradients()
    except Exception:
        return ""
    before = counters.fallbacks.copy()
    try:
        found = device.gradients()
    except Exception as error:
        return f"its gradient raises {_said(error)}"
    if on_host := counters.fallbacks - before:
        return f"its gradient is computed on the host: {', '.join(sorted(on_host))}"
    for k, (want, got) in enumerate(zip(expected, found)):
        if (want is None) != (got is None):
            return f"there is {'a' if want is None else 'no'} gradient of a[{k}]"
        comparison.look(want)
        if text := comparison.differs(want, got):
            return f"the gradient of a[{k}] {text}"
    return ""


def source(seed: int, lines: list[Line]) -> str:
    """A program that shows it."""
    gradients = needs_gradients(seed)
    return "\n".join(
        ["import sys, torch, macatensor", 'sys.path.insert(0, "tests/fuzz")', "from other_layouts import HELP", "globals().update(HELP)",
         'for device in ("cpu", "maca"):', "    a = []", *(f"    a.append({p})" for p in first_programs(seed)),
         *(["    a = [t.detach().requires_grad_(t.dtype.is_floating_point or t.dtype.is_complex) for t in a]"] if gradients else []),
         *(f"    {line.program()}" for line in lines), "    print(a[-1])"]
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(programs.main(__doc__, __file__, run, source))
