"""PyTorch's CPU kernel in float64 (complex128) on the same inputs, or a sharper formula; integers in their own dtype."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from macatensor.parity.canonical import canonical
from macatensor.parity.chains import Chains, by_chains
from macatensor.parity.formulas import FLOORS, FORMULAS, MAGNITUDES, SHARPER
from macatensor.parity.measure import Distance, distance, equal
from macatensor.parity.transport import replace, tensors, twin, wide
from macatensor.runtime import plan_caches
from macatensor.runtime.boxed import Arguments, Keywords, Value
from op_table import Bound, Kind, Row
from op_table.row import ONE_CHAIN

_STEP = 2.0**-20  # relative size of the disturbance that measures a function's terms
_DISTURBED = 4  # times for each operand
_HALVES = {torch.float16, torch.bfloat16}  # a chain of float32 is exact beside them


@contextlib.contextmanager
def _float64() -> Iterator[None]:
    """Integers become float64 where PyTorch would make them float32."""
    before = torch.get_default_dtype()
    with plan_caches.kept_aside():
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


class Schema(Protocol):
    """What is asked of an operator's schema."""

    @property
    def name(self) -> str: ...
    @property
    def arguments(self) -> Sequence[torch._C.Argument]: ...


class Operator(Protocol):
    """An OpOverload, or a kernel that no operator names, in the shape of one."""

    @property
    def _schema(self) -> Schema: ...
    def __call__(self, *args: Value, **kwargs: Value) -> Value: ...


def _host(value: Value) -> Value:
    return torch.device("cpu") if isinstance(value, torch.device) else value


# float32 whatever the other operands are: PyTorch's fused optimizers read it by pointer
_FLOAT32 = ("grad_scale", "found_inf")


def _compact(row: Row, args: Arguments, kwargs: Keywords) -> tuple[Arguments, Keywords]:
    if not row.dense_on_cpu:
        return args, kwargs
    dense: tuple[Arguments, Keywords] = replace(
        (args, kwargs), lambda t: t.clone(memory_format=torch.contiguous_format)
    )
    return dense


def _widen(value: Value) -> Value:
    """Arguments with floats made float64, ``dtype=`` included."""
    if isinstance(value, torch.Tensor):
        return twin(value, wide(value.dtype))
    if isinstance(value, torch.dtype):
        return wide(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_widen(v) for v in value)
    if isinstance(value, dict):
        return {k: v if k in _FLOAT32 else _widen(v) for k, v in value.items()}
    return _host(value)


@dataclass
class Expected:
    """What a call should give. Each list: the results, then every tensor argument as the call leaves it."""

    native: list[torch.Tensor | None] | None  # in the operands' own dtypes; None: PyTorch has no such kernel
    exact: list[torch.Tensor | None]  # in float64
    terms: list[torch.Tensor | None]  # float64 sums of magnitudes; None where the result's own counts
    results: int  # how many of them are results
    error: Exception | None = None  # what PyTorch raises
    writes: bool = True  # the schema lets the operator write an argument
    chains: Chains | None = None  # of a sum's terms, where they are looked at


def _run(
    func: Operator, row: Row, args: Arguments, kwargs: Keywords, sharp: bool = False
) -> tuple[list[torch.Tensor | None], int]:
    """Results and arguments after the call, by a formula where the CPU has no kernel or (``sharp``) a worse one."""
    name = func._schema.name.partition("::")[2] or func._schema.name
    formula = FORMULAS.get(name) or (SHARPER[row.formula] if sharp and row.formula else None)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = canonical(row.form, tensors((formula or func)(*args, **kwargs)))
    return results + tensors((args, kwargs)), len(results)


_NUMBERS = ("number", "Optional[number]", "List[number]")


def _each_number(
    func: Operator,
    args: Arguments,
    kwargs: Keywords,
    change: Callable[[float], float],
    kinds: tuple[str, ...] = _NUMBERS,
) -> tuple[Arguments, Keywords]:
    """The arguments with every float changed that the schema types as a Scalar, or as one of ``kinds``."""

    def visit(value: Value) -> Value:
        if isinstance(value, float):
            return change(value)
        return [visit(v) for v in value] if isinstance(value, (list, tuple)) else value

    names = {a.name for a in func._schema.arguments if str(a.type) in kinds}
    spots = [i for i, a in enumerate(func._schema.arguments) if a.name in names]
    changed = tuple([visit(v) if i in spots else v for i, v in enumerate(args)])
    return changed, {k: visit(v) if k in names else v for k, v in kwargs.items()}


def _as_computed(func: Operator, row: Row, args: Arguments, kwargs: Keywords) -> tuple[Arguments, Keywords]:
    """Numbers rounded as PyTorch rounds them, once, to float32 where it computes in float32; a number may also stand,
    bare or as a 0-dim tensor, where the schema has a Tensor."""
    operands = [t for t in tensors((args, kwargs)) if t is not None and t.dtype != torch.bool]
    sized = [t for t in operands if t.dim()] if row.elementwise else []
    kinds = {t.dtype for t in sized or operands}
    if not kinds & {torch.float32, torch.float16, torch.bfloat16, torch.complex64} or torch.float64 in kinds:
        return args, kwargs
    if sized:
        number = lambda t: t.float() if t.dim() == 0 and t.dtype == torch.float64 else t  # noqa: E731
        args, kwargs = replace((args, kwargs), number)
    typed = (*_NUMBERS, "Tensor", "Optional[Tensor]") if sized else _NUMBERS
    return _each_number(func, args, kwargs, lambda v: float(torch.tensor(v, dtype=torch.float32)), typed)


def _magnitudes(value: Value) -> Value:
    if isinstance(value, torch.Tensor):
        wider = twin(value, wide(value.dtype))
        if wider.is_complex():
            return torch.complex(wider.abs(), torch.zeros_like(wider.real))
        return wider.abs() if wider.is_floating_point() else wider
    if isinstance(value, torch.dtype):
        return wide(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_magnitudes(v) for v in value)
    if isinstance(value, dict):
        return {k: _magnitudes(v) for k, v in value.items()}
    return _host(value)


def _terms_of_sum(func: Operator, row: Row, args: Arguments, kwargs: Keywords) -> list[torch.Tensor | None]:
    args, kwargs = _each_number(func, args, kwargs, abs)
    results, _ = _run(func, row, _magnitudes(args), _magnitudes(kwargs))
    return [
        None if r is None else r.abs() if r.is_floating_point() or r.is_complex() else None for r in results
    ]


def _terms_by_disturbance(
    func: Operator, row: Row, args: Arguments, kwargs: Keywords, exact: list[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """An estimate of ``|f| + sum |df/dx * x|`` from random relative changes of one operand at a time.

    One at a time, since changes of two operands may cancel as their terms do.
    """
    generator = torch.Generator().manual_seed(1)

    def disturb(t: torch.Tensor) -> torch.Tensor:
        wider = twin(t, wide(t.dtype))
        if not (wider.is_floating_point() or wider.is_complex()) or not wider.numel():
            return wider
        # every element of memory once, so that an expanded operand stays one
        memory = torch.as_strided(wider, (wider.untyped_storage().nbytes() // wider.element_size(),), (1,), 0)
        signs = torch.randint(0, 2, memory.shape, generator=generator) * 2 - 1
        memory.mul_(1 + _STEP * signs * (0.5 + 0.5 * torch.rand(memory.shape, generator=generator)))
        return wider

    total: list[torch.Tensor | None] = [
        None if e is None else torch.zeros(e.shape, dtype=torch.float64) for e in exact
    ]
    spots: list[int | str] = [*range(len(args)), *kwargs]
    # a call that writes its arguments needs fresh ones for each run; not every schema says so (running statistics)
    calm = _widen(args), _widen(kwargs)
    after = exact[len(exact) - len(tensors((args, kwargs))) :]
    writes = getattr(func._schema, "is_mutable", True) or any(
        now is not None and then is not None and not torch.equal(now, then)
        for now, then in zip(after, tensors(calm))
    )
    still = None if writes else calm
    for spot in spots:
        operand = args[spot] if isinstance(spot, int) else kwargs[spot]
        floats = [t for t in tensors(operand) if t is not None and (t.is_floating_point() or t.is_complex())]
        if not floats or spot in _FLOAT32:
            continue
        largest = [None if t is None else torch.zeros_like(t) for t in total]
        for _ in range(_DISTURBED):
            calm_args, calm_kwargs = still or (_widen(args), _widen(kwargs))
            moved_args = tuple(
                [replace(v, disturb) if i == spot else c for i, (v, c) in enumerate(zip(args, calm_args))]
            )
            moved_kwargs = {
                k: replace(v, disturb) if k == spot else calm_kwargs[k] for k, v in kwargs.items()
            }
            moved, _ = _run(func, row, moved_args, moved_kwargs)
            for i, (m, e) in enumerate(zip(moved, exact)):
                known = largest[i]
                if m is None or e is None or known is None or m.shape != e.shape or m.dtype != e.dtype:
                    continue
                if e.is_floating_point() or e.is_complex():
                    change = (m - e).abs().nan_to_num(nan=0.0, posinf=0.0)
                    largest[i] = torch.maximum(known, change)
        total = [t if t is None or c is None else t + c for t, c in zip(total, largest)]
    # a few random sign patterns: twice the largest change stands for the sum of all
    return [
        None
        if e is None or c is None or not (e.is_floating_point() or e.is_complex())
        else e.abs() + 2 / _STEP * c
        for e, c in zip(exact, total)
    ]


def _largest(terms: torch.Tensor | None, dims: int) -> torch.Tensor | None:
    """The largest over the last ``dims`` dimensions, for each element."""
    if terms is None or not terms.numel() or terms.dim() == 0:
        return terms
    last = tuple(range(-min(dims, terms.dim()), 0))
    return terms.amax(last, keepdim=True).expand(terms.shape)


def _in_full(func: Operator, args: Arguments, kwargs: Keywords) -> list[Value]:
    """A call's arguments in the order of the schema, those that were left out by their defaults; a kernel that no
    operator names has them all."""
    named = dict(kwargs)
    full = list(args)
    for argument in func._schema.arguments[len(args) :]:
        full.append(named.pop(argument.name, argument.default_value))
    return [*full, *named.values()]


def _magnitudes_of(
    row: Row, args: Arguments, kwargs: Keywords, terms: list[torch.Tensor | None], elsewhere: bool
) -> list[torch.Tensor | None]:
    """``terms``, or what a bound in ULP counts from where that is larger than a result and its terms."""
    found = list(terms)
    for name in (row.magnitude, row.magnitude_elsewhere if elsewhere else ""):
        if name:
            least = MAGNITUDES[name](*_widen(args), **_widen(kwargs))
            for i, (known, magnitude) in enumerate(zip(found, least)):
                if magnitude is None:
                    continue
                size = magnitude.abs().double()
                found[i] = size if known is None else torch.maximum(known, size)
    return found


def expected(
    func: Operator, row: Row, args: Arguments, kwargs: Keywords, elsewhere: bool = False
) -> Expected:
    """Computes the reference of ``func(*args, **kwargs)``, for another device's kernels if it runs ``elsewhere``; the
    arguments are host tensors and stay as they are."""
    args, kwargs = _compact(row, args, kwargs)
    native: list[torch.Tensor | None] | None = None
    count = 0
    error: Exception | None = None
    try:
        native, count = _run(func, row, replace(_host_all(args), twin), replace(_host_all(kwargs), twin))
    except Exception as refusal:
        error = refusal
    floats = any(t is not None and t.dtype != wide(t.dtype) for t in tensors((args, kwargs)))
    produced = native is not None and any(t is not None and t.dtype != wide(t.dtype) for t in native)
    bound = row.bound
    anyway = True
    own = not floats and not produced  # integers: their own dtype is exact
    if native is not None and (
        own and not row.formula or bound.measure == "exact" or row.kind is Kind.ON_CPU
    ):
        exact = native
    else:
        args, kwargs = _as_computed(func, row, args, kwargs)
        with _float64():
            try:
                exact, count = _run(func, row, _widen(args), _widen(kwargs), sharp=True)
            except Exception as refusal:
                if native is None:
                    return Expected(None, [], [], 0, error or refusal)
                exact, anyway = native, False  # of one dtype, as loss scaling is
    terms: list[torch.Tensor | None] = [None] * len(exact)
    how = row.terms or ("disturbance" if bound.measure == "per_term" else "")
    anything = any(t is not None and (t.is_floating_point() or t.is_complex()) for t in exact[:])
    if anyway and anything and how and row.kind is not Kind.ON_CPU:
        with _float64():
            if how == "sum":
                terms = _terms_of_sum(func, row, args, kwargs)
            else:
                terms = _terms_by_disturbance(func, row, args, kwargs, exact)
        if how == "moments" and exact[0] is not None and wide(args[0].dtype) != args[0].dtype:
            terms[0] = None  # a float64 variance has a reference that is no better
        if how == "matrix":
            matrix = args[0].dim()
            terms = [_largest(t, 1 if t is not None and t.dim() < matrix else 2) for t in terms]
        if row.floor:
            least = FLOORS[row.floor](
                *[a.to(torch.promote_types(a.dtype, torch.float64)) if isinstance(a, torch.Tensor)
                  else a for a in _in_full(func, args, kwargs)]
            )  # fmt: skip
            terms = [
                t if t is None or f is None else t + f for t, f in zip(terms, [*least, *[None] * len(terms)])
            ]
    if anyway and anything and bound.measure == "ulp":
        terms = _magnitudes_of(row, args, kwargs, terms, elsewhere)
    writes = getattr(func._schema, "is_mutable", True)  # of an element of a list it is not known
    looks = bound.chain > 0 and how == "sum" or elsewhere and row.float32_elsewhere
    chains = Chains(row, args, kwargs, bound.chain or ONE_CHAIN) if looks and anyway else None
    return Expected(native, exact, terms, count, error if native is None else None, writes, chains)


def _host_all(value: Value) -> Value:
    if isinstance(value, (list, tuple)):
        return type(value)(_host_all(v) for v in value)
    if isinstance(value, dict):
        return {k: _host_all(v) for k, v in value.items()}
    return _host(value)


def judge(
    row: Row, expected: Expected, got: list[torch.Tensor | None], args: Arguments
) -> tuple[Distance, list[str]]:
    """The worst distance of a call's tensors and what is wrong with them.

    ``got``: the results, then every tensor argument as the device left it, on the host.
    """
    worst = Distance()
    wrong: list[str] = []
    got = canonical(row.form, got[: expected.results]) + got[expected.results :]
    for i, (have, exact) in enumerate(zip(got, expected.exact)):
        what = f"result {i}" if i < expected.results else f"argument {i - expected.results}"
        if have is None or exact is None:
            if (
                (have is None) != (exact is None)
                and i < expected.results
                and (have is not None and have.numel())
                and (exact is not None and exact.numel())
            ):
                wrong.append(f"{what} is {'absent' if have is None else 'present'}, PyTorch's is not")
            continue
        native = expected.native[i] if expected.native is not None else None
        kept = 0 < i < expected.results and row.keeps
        if kept and native is not None and have.shape != native.shape and 0 in (have.numel(), native.numel()):
            continue
        if have.shape != exact.shape:
            if kept and 0 in (have.numel(), exact.numel()):
                continue
            wrong.append(f"{what} has sizes {list(have.shape)}, PyTorch's {list(exact.shape)}")
            continue
        if native is not None and have.dtype != native.dtype and not kept:
            wrong.append(f"{what} has dtype {have.dtype}, PyTorch's {native.dtype}")
            continue
        if i >= expected.results and not expected.writes and _same(have, native):
            continue  # left alone, as most operands are: judging them took a sixth of the time of a row
        measured = _one(row, have, native, exact, i, args, expected)
        worst.join(measured)
        if not measured.share <= 1:
            wrong.append(f"{what} {measured.at}: {measured.ulp:.3g} ulp, relative {measured.relative:.2g}")
    return worst, wrong


def _same(have: torch.Tensor, native: torch.Tensor | None) -> bool:
    """The same elements, none of them NaN; float8 has no comparisons."""
    return (
        native is not None
        and (have.element_size() > 1 or not have.is_floating_point())
        and torch.equal(have, native)
    )


@dataclass
class Aim:
    """What one tensor of a call should be: the same as ``want``, or within ``bound`` of it."""

    want: torch.Tensor
    bound: Bound | None = None
    terms: torch.Tensor | None = None
    loose: float = 0.0
    chains: Chains | None = None
    result: int = 0  # whose terms those are
    positions: bool = False  # it says where ``want`` is in the first operand: several may be right


def _aim(
    row: Row,
    have: torch.Tensor,
    native: torch.Tensor | None,
    exact: torch.Tensor,
    position: int,
    args: Arguments,
    expected: Expected,
) -> Aim:
    bound, terms = row.bound, expected.terms[position]
    if not (have.is_floating_point() or have.is_complex()) or bound.measure == "exact":
        return Aim(native if native is not None else exact.to(have.dtype))
    if not (exact.is_floating_point() or exact.is_complex()):
        return Aim(exact.to(have.dtype))
    exact = exact.to(wide(have.dtype))
    if native is not None and native.shape == have.shape:
        # Where a step in between overflows, PyTorch's own dtype gives infinity or NaN, and so may we.
        strange = ~(have.isfinite() & exact.isfinite()) & ((have == native) | (have.isnan() & native.isnan()))
        exact = torch.where(strange, native.to(exact.dtype), exact)
    loose = 0.0
    if (
        not have.is_complex() and bound.measure == "ulp"
    ):  # |z| of complex z: the row's number for complex counts
        named = [
            str(t.dtype).removeprefix("torch.") for t in tensors(args) if t is not None and t.is_complex()
        ]
        loose = max(
            [bound.limit(n) - bound.limit(str(have.dtype).removeprefix("torch.")) for n in named] + [0.0]
        )
    chains = None if have.dtype in _HALVES else expected.chains
    return Aim(exact, bound, terms, loose, chains, position if position < expected.results else 0)


def _is_position(row: Row, have: torch.Tensor, position: int, expected: Expected) -> bool:
    floating = have.is_floating_point() or have.is_complex()
    return 0 < position < expected.results and row.ties and not floating and expected.native is not None


def aims(row: Row, expected: Expected, got: list[torch.Tensor | None], args: Arguments) -> list[Aim | None]:
    """What each tensor of ``got`` (as for :func:`judge`) is measured by; None for those that have several right
    values, or no reference of their size."""
    found: list[Aim | None] = []
    for i, (have, exact) in enumerate(zip(got, expected.exact)):
        if have is None or exact is None or have.shape != exact.shape:
            found.append(None)
            continue
        if row.form:
            found.append(None)
            continue
        if _is_position(row, have, i, expected):
            values = expected.native[0] if expected.native is not None and args[0].dim() else None
            found.append(None if values is None else Aim(values, positions=True))
            continue
        native = expected.native[i] if expected.native is not None else None
        parts = [t.resolve_conj().resolve_neg() if t is not None else None for t in (have, native, exact)]
        found.append(_aim(row, parts[0], parts[1], parts[2], i, args, expected))  # type: ignore[arg-type]
    return found


def _one(
    row: Row,
    have: torch.Tensor,
    native: torch.Tensor | None,
    exact: torch.Tensor,
    position: int,
    args: Arguments,
    expected: Expected,
) -> Distance:
    have = have.resolve_conj().resolve_neg()
    if native is not None:
        native = native.resolve_conj().resolve_neg()
    exact = exact.resolve_conj().resolve_neg()
    floating = have.is_floating_point() or have.is_complex()
    if floating and have.element_size() == 1 and native is not None:  # float8 has no comparisons
        return equal(have.view(torch.uint8), native.view(torch.uint8))
    if _is_position(row, have, position, expected):
        assert expected.native is not None
        return _positions(row, have, native, args, expected.native[0])
    aim = _aim(row, have, native, exact, position, args, expected)
    if aim.bound is None:
        return equal(have, aim.want)
    measured = distance(have, aim.want, aim.bound, aim.terms, aim.loose)
    if measured.share > 1 and aim.chains is not None:
        measured.share = by_chains(have, aim.want, aim.bound, aim.terms, aim.chains, aim.result).share
    return measured


def dim_of_positions(row: Row, args: Arguments) -> int:
    """The dimension along which an operator with positions among its results looks."""
    if row.operator == "topk":
        return args[2] if len(args) > 2 else -1
    numbers = [a for a in args[1:] if isinstance(a, int) and not isinstance(a, bool)]
    return numbers[-1] if numbers else -1


def _positions(
    row: Row, have: torch.Tensor, native: torch.Tensor | None, args: Arguments, values: torch.Tensor | None
) -> Distance:
    """Positions are right when the operand has the right values there."""
    source, dim = args[0], dim_of_positions(row, args)
    if source.dim() == 0 or values is None or have.numel() == 0:
        return Distance()
    extent = source.shape[dim]
    if bool(((have < 0) | (have >= extent)).any()):
        return Distance(torch.inf, torch.inf, torch.inf, "a position is out of range")
    at = have if have.dim() == source.dim() else have.unsqueeze(dim)
    found = source.gather(dim, at)
    return equal(found if have.dim() == source.dim() else found.squeeze(dim), values)
