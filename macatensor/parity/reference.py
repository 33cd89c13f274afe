"""PyTorch's CPU kernel in float64 (complex128) on the same inputs, or a sharper formula; integers in their own dtype."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from macatensor.parity import terms as terms_of
from macatensor.parity.canonical import canonical
from macatensor.parity.chains import Chains, by_chains
from macatensor.parity.formulas import FLOORS, MAGNITUDES
from macatensor.parity.measure import Distance, distance, equal, is_within
from macatensor.parity.transport import replace, tensors, twin, wide
from macatensor.parity.wide_calls import Operator, as_computed, compact, float64, on_host, run, widen
from macatensor.runtime.boxed import Arguments, Keywords, Value
from op_table import Bound, Kind, Row
from op_table.row import ONE_CHAIN

_HALVES = {torch.float16, torch.bfloat16}  # a chain of float32 is exact beside them


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
            least = MAGNITUDES[name](*widen(args), **widen(kwargs))
            for i, (known, magnitude) in enumerate(zip(found, least)):
                if magnitude is None:
                    continue
                size = magnitude.abs().double()
                found[i] = size if known is None else torch.maximum(known, size)
    return found


def expected(
    func: Operator,
    row: Row,
    args: Arguments,
    kwargs: Keywords,
    elsewhere: bool = False,
    quick: bool = False,
) -> Expected:
    """Computes the reference of ``func(*args, **kwargs)``, for another device's kernels if it runs ``elsewhere``; the
    arguments are host tensors and stay as they are. ``quick``: by smaller terms that cost less; a result
    within its bound there is within it."""
    args, kwargs = compact(row, args, kwargs)
    native: list[torch.Tensor | None] | None = None
    count = 0
    error: Exception | None = None
    try:
        native, count = run(func, row, replace(_host_all(args), twin), replace(_host_all(kwargs), twin))
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
        args, kwargs = as_computed(func, row, args, kwargs)
        with float64():
            try:
                exact, count = run(func, row, widen(args), widen(kwargs), sharp=True)
            except Exception as refusal:
                if native is None:
                    return Expected(None, [], [], 0, error or refusal)
                exact, anyway = native, False  # of one dtype, as loss scaling is
    terms: list[torch.Tensor | None] = [None] * len(exact)
    how = row.terms or ("disturbance" if bound.measure == "per_term" else "")
    anything = any(t is not None and (t.is_floating_point() or t.is_complex()) for t in exact[:])
    if anyway and anything and how and row.kind is not Kind.ON_CPU:
        with float64():
            if how == "sum":
                terms = terms_of.of_sum(func, row, args, kwargs)
            else:
                terms = terms_of.by_disturbance(func, row, args, kwargs, exact, quick)
        if how == "moments" and exact[0] is not None and wide(args[0].dtype) != args[0].dtype:
            terms[0] = None  # a float64 variance has a reference that is no better
        if how == "matrix":
            matrix = args[0].dim()
            terms = [
                terms_of.largest_of_matrix(t, 1 if t is not None and t.dim() < matrix else 2) for t in terms
            ]
        if row.floor and not (quick and how == "sum"):
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
    whole = looks and anyway and not quick
    chains = Chains(row, args, kwargs, bound.chain or ONE_CHAIN) if whole else None
    return Expected(native, exact, terms, count, error if native is None else None, writes, chains)


def _host_all(value: Value) -> Value:
    if isinstance(value, (list, tuple)):
        return type(value)(_host_all(v) for v in value)
    if isinstance(value, dict):
        return {k: _host_all(v) for k, v in value.items()}
    return on_host(value)


def judge(
    row: Row, expected: Expected, got: list[torch.Tensor | None], args: Arguments, quick: bool = False
) -> tuple[Distance, list[str]]:
    """The worst distance of a call's tensors and what is wrong with them.

    ``got``: the results, then every tensor argument as the device left it, on the host. ``quick``: the distance of
    what is certainly within its bound is not measured.
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
        if quick and _is_within(row, have, exact, expected.terms[i]):
            continue
        measured = _one(row, have, native, exact, i, args, expected)
        worst.join(measured)
        if not measured.share <= 1:
            wrong.append(f"{what} {measured.at}: {measured.ulp:.3g} ulp, relative {measured.relative:.2g}")
    return worst, wrong


def _is_within(row: Row, have: torch.Tensor, exact: torch.Tensor, terms: torch.Tensor | None) -> bool:
    if row.bound.measure == "exact" or exact.dtype != wide(have.dtype) or have.element_size() == 1:
        return False
    if not (have.is_floating_point() or have.is_complex()):
        return False
    return is_within(have.resolve_conj().resolve_neg(), exact.resolve_conj().resolve_neg(), row.bound, terms)


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
