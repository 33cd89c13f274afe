"""What a row of the op table says: facts about one aten operator, and nothing that PyTorch already knows."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from math import inf, isfinite

from op_table.consultation import cpu_checks


class Kind(Enum):
    """How an operator reaches the device."""

    KERNEL = "kernel"  # a kernel of the device library
    VIEW = "view"  # metadata only
    COMPOSITE = "composite"  # a decomposition into other rows
    DYNAMIC = "dynamic"  # the result's size depends on data: count, synchronize, fill
    ON_CPU = "on_cpu"  # copied to the host, computed by PyTorch, copied back; counted and refusable


@dataclass(frozen=True)
class Bound:
    """How far a result may lie from the float64 reference.

    ``ulp``: units in the last place of the result's dtype, for pointwise operators.
    ``per_term``: c in ``c * eps * sum(|terms|)``, for sums and products.
    ``exact``: the same bits (NaN equals NaN).
    The numbers are given by dtype; a dtype that is not named takes the float32 number.

    A sum of n terms has no such number that is right for all n and all data: its error grows with the root of n where
    roundings are independent, with n where all terms are equal. ``chain`` says in how long chains of additions the
    kernel adds, and then a result may also lie as far off as such chains of its own terms round, by the law that
    :mod:`macatensor.parity.chains` states.
    """

    measure: str  # "exact" | "ulp" | "per_term"
    limits: tuple[tuple[str, float], ...] = ()
    why: str = ""
    chain: float = 0.0  # terms; infinite where nothing is known; 0: the number is all

    def limit(self, dtype: str) -> float:
        """The bound for results of ``dtype`` (PyTorch's name, ``"float32"``)."""
        table = dict(self.limits)
        return table.get(dtype, table.get("float32", 0.0))

    @property
    def chain_text(self) -> str:
        """``", chains of 512"``; empty where the number is all."""
        if not self.chain:
            return ""
        return f", chains of {self.chain:g}" if isfinite(self.chain) else ", one chain"


_SHORT = {
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
    "c64": "complex64",
    "c128": "complex128",
}


def _limits(numbers: dict[str, float]) -> tuple[tuple[str, float], ...]:
    return tuple((_SHORT[short], number) for short, number in numbers.items())


def exact() -> Bound:
    """The same bits as the reference rounded to the dtype."""
    return Bound("exact")


def ulp(why: str = "", **numbers: float) -> Bound:
    """``ulp(f32=1, f64=1)``: units in the last place; say ``why`` when looser than 4."""
    return Bound("ulp", _limits(numbers), why)


ONE_CHAIN = inf
"""``chain`` of a sum whose terms may all be added to one number."""


def per_term(why: str = "", chain: float = 0.0, **numbers: float) -> Bound:
    """``per_term(f32=2)``: 2 * eps * sum of the terms' magnitudes. ``per_term(chain=512, f32=8)``: or what chains of 512
    additions round."""
    return Bound("per_term", _limits(numbers), why, chain)


COMPOSED = per_term("several operators, each with its own bound", f32=16, f64=16, f16=4, bf16=4)
"""Of composite rows and rows on the host, which are made of operators that state bounds of their own."""

INTEGERS = frozenset({"uint8", "int8", "int16", "int32", "int64"})
BOOL = frozenset({"bool"})
HALVES = frozenset({"float16", "bfloat16"})
FLOATING = frozenset({"float32", "float64"}) | HALVES
COMPLEX = frozenset({"complex64", "complex128"})
REAL = FLOATING | INTEGERS
NUMBERS = REAL | COMPLEX
ALL = NUMBERS | BOOL


@dataclass(frozen=True)
class Filled:
    """An operand of a law's call: :data:`DRAWN` elements of one ``value`` each, or so many rows of ``columns``, in the
    dtype of the row's sample, or in ``dtype``."""

    value: float = 0.0
    columns: int = 0
    dtype: str = ""


DRAWN = 20000
"""Numbers that a law is judged by."""


@dataclass(frozen=True)
class Law:
    """What the numbers of a random row are like. ``args``: a call's arguments, that draws :data:`DRAWN` of them, where
    a tuple of floats is a tensor with these elements."""

    args: tuple[object, ...]
    mean: float
    deviation: float  # 0: only seeds are compared
    low: float = -inf
    high: float = inf
    median: bool = False  # a law without moments: the median is compared, deviation is the quartile's


@dataclass(frozen=True)
class Row:
    """One operator. ``name`` is the functional overload (``"add.Tensor"``, ``"relu"`` for ``relu.default``); its
    in-place and ``out=`` forms are found through the schema and need no rows of their own."""

    name: str
    kind: Kind
    dtypes: frozenset[str] = frozenset()
    kernel: str = ""  # name in the device library; "" = the operator's name without overload
    bound: Bound = field(default_factory=exact)
    why: str = ""
    # elementwise kernels may write over an operand: in-place forms then need no temporary
    elementwise: bool = False
    # inputs outside make the function meaningless or infinitely steep; tests draw from inside (low, high)
    domain: tuple[float, float] | None = None
    # schema arguments that change from call to call and must not make a new plan (Scalar arguments always are)
    launch_scalars: tuple[str, ...] = ()
    # name of a rule in macatensor/dispatch/stride_rules.py where PyTorch's meta kernel gives other strides than its CPU kernel
    strides: str = ""
    # arguments the kernel wants row-major; the runtime makes and counts a contiguous copy of others
    contiguous: tuple[str, ...] = ()
    # draws random numbers: from the device's generator, or from the host's that it is given
    random: bool = False
    # composite rows: "decomposition" (PyTorch's own) or the name of a function in macatensor/operators/composites.py
    via: str = ""
    # kernels: such a function, that serves what the library declines and says what is wrong with operands
    otherwise: str = ""

    # -- what the reference of a result is; names are those of functions in macatensor/parity/formulas.py
    # in float64 closer to the function than PyTorch's kernel
    formula: str = ""
    # how sum(|terms|) is found: "sum": the operator is a sum of products, which on magnitudes adds those up;
    # "disturbance": by what small changes of the operands change; "moments": the same, where the dtype is not float64's,
    # whose variances have no better reference; "matrix": the same, the largest of a matrix as a whole, beside which
    # LAPACK's errors are small. "": by disturbance where the bound is per_term, else not at all
    terms: str = ""
    # a product: one of its factors, and what is added to it. Other sums are linear in all of their operands
    factor: str = ""
    added: str = ""
    # our kernel sums in double, PyTorch's for other devices in float32, in chains that nothing is known of
    float32_elsewhere: bool = False
    # terms that cancel inside where no operand shows it
    floor: str = ""
    # what a bound in ULP counts from where that is larger than the result, of any kernel and of PyTorch's own
    magnitude: str = ""
    magnitude_elsewhere: str = ""
    # results are one of several right ones: the function in macatensor/parity/canonical.py that makes them comparable
    form: str = ""
    # integers among the results are positions of equal elements, of which any is right
    ties: bool = False
    # what later results keep for the backward is each backend's own affair: empty on PyTorch's CPU where it is not
    # needed, and in a half where ours and CUDA's is float32
    keeps: bool = False
    # arguments that the operator writes in training, though its schema does not say so
    also_writes: tuple[str, ...] = ()
    # PyTorch's CPU kernel takes operands for dense memory
    dense_on_cpu: bool = False
    # a host tensor of one element is a number, however many dimensions it has; else one of no dimension alone
    one_element_is_number: bool = False
    # results of so many dimensions and more have the strides of whichever kernel PyTorch's CPU happens to take
    free_strides: float = inf
    # random rows, and their numbers in bool where those have another
    law: Law | None = None
    law_of_bool: Law | None = None

    # the row whose generator of sample calls suits this one, too; "" = a generator of its own, or that of pointwise rows
    sampled_as: str = ""

    # -- what the accuracy tools have to know of it
    # it jumps, or its derivative does: a change of rounding size flips single elements altogether
    jumps: bool = False
    # results are left of sums whose terms cancel: their error is held against the terms' norm
    cancels: bool = False
    # a zero result of operands without zeros is an underflow: nothing cancels and nothing is masked
    underflows: bool = False

    # -- how it is called
    # the same elements in another dtype or layout: where dimensions change their order it counts as a conversion
    copies: bool = False
    # results are elements of these arguments, and numbers, as they are: of a dtype that the library does not compute
    # with, float8, it is given the bytes
    moves: tuple[str, ...] = ()
    # nor is it elementwise, and PyTorch's CPU computes it of float8, in float32
    widens: bool = False
    # a library writes code for each signature, which the plan keeps: of these fewer stay
    keeps_code: bool = False
    # kernels that compute each row of dense memory by itself, and may do so a few rows at a time: the argument that names
    # the dimensions of a row, or its sizes
    by_rows: str = ""
    # numbers below it PyTorch may refuse, for what else is in the call: its CPU kernel is asked about each
    least: float = -inf
    # what it writes and what it reads lie apart: in place, PyTorch refuses an operand in the memory that is written
    apart: bool = False
    # what it has written it leaves as it is: elements of an operand in place may share memory
    idempotent: bool = False
    # in place it writes an expanded tensor, too, with a warning
    expanded: bool = False
    # a 0-dim argument whose value is read, as PyTorch does on every device, where the kernel does not convert it
    number: str = ""
    # elementwise kernels: the arguments whose dtypes promote to the one that is computed in, where those are not all
    # tensors and the numbers in their place
    promotes: tuple[str, ...] = ()
    # an argument that is a mask, which PyTorch takes in bytes, too, with a warning
    mask: str = ""
    # name of a rule in macatensor/dispatch/warning_rules.py
    warns: str = ""
    # name of a law in macatensor/parity/random_numbers.py, by which its numbers follow from the generator's state
    numbers: str = ""
    # a number that its dtype does not hold exactly is warned of
    exact_numbers: bool = False
    # name of a rule in macatensor/dispatch/meta_rules.py where PyTorch has no meta kernel, a wrong or a slow one
    meta: str = ""
    # name of a rule in macatensor/dispatch/attribute_rules.py where a kernel is told more than the schema's arguments
    attributes: str = ""

    @property
    def operator(self) -> str:
        """``"add"`` of ``"add.Tensor"``."""
        return self.name.partition(".")[0]

    @property
    def cpu_checks(self) -> bool:
        """May PyTorch's CPU kernel see operands that nobody has proven: for its error, or to compute in our place?"""
        return cpu_checks(self.operator)

    def states(self, dtype: object) -> bool:
        """Is ``dtype`` (PyTorch's, ``torch.float32``) among the row's?"""
        return str(dtype).removeprefix("torch.") in self.dtypes

    @property
    def kernel_name(self) -> str:
        return self.kernel or self.operator


TABLE: dict[str, Row] = {}
_BY_OPERATOR: dict[str, list[Row]] = {}


def _register(row: Row) -> Row:
    if row.name in TABLE:
        raise ValueError(f"the op table has two rows named {row.name!r}")
    TABLE[row.name] = row
    _BY_OPERATOR.setdefault(row.operator, []).append(row)
    return row


def also(operators: str, **facts: object) -> None:
    """More fields of rows that stand above in the family's file: ``also("relu threshold", jumps=True)``. An operator
    stands for the rows of all its overloads, ``"sort.stable"`` and ``"sort.default"`` for one of them."""
    if not facts.keys() <= Row.__dataclass_fields__.keys():
        raise TypeError(f"{sorted(facts)}: a row has the fields {list(Row.__dataclass_fields__)}")
    for word in operators.split():
        rows = [TABLE[word.removesuffix(".default")]] if "." in word else _BY_OPERATOR.get(word)
        if not rows:
            raise LookupError(f"the op table has no row of {word!r} yet")
        for row in rows:
            vars(row).update(facts)  # nobody has read it yet; dataclasses.replace costs every start 2 ms


def kernel(
    name: str,
    dtypes: frozenset[str],
    *,
    bound: Bound = Bound("exact"),
    kernel: str = "",
    why: str = "",
    elementwise: bool = False,
    domain: tuple[float, float] | None = None,
    launch_scalars: tuple[str, ...] = (),
    strides: str = "",
    contiguous: tuple[str, ...] = (),
    random: bool = False,
    otherwise: str = "",
) -> Row:
    """A kernel of the device library."""
    return _register(
        Row(
            name,
            Kind.KERNEL,
            dtypes,
            kernel,
            bound,
            why,
            elementwise,
            domain,
            launch_scalars,
            strides,
            contiguous,
            random,
            otherwise=otherwise,
        )
    )


def pointwise(
    name: str,
    dtypes: frozenset[str],
    *,
    bound: Bound = Bound("exact"),
    kernel: str = "",
    why: str = "",
    domain: tuple[float, float] | None = None,
    strides: str = "",
) -> Row:
    """A kernel that computes each element of the broadcast result from the same element of its operands."""
    return _register(
        Row(name, Kind.KERNEL, dtypes, kernel, bound, why, elementwise=True, domain=domain, strides=strides)
    )


def view(name: str) -> Row:
    """Metadata only: shares the operand's memory."""
    return _register(Row(name, Kind.VIEW))


def composite(
    name: str, *, via: str = "decomposition", why: str, bound: Bound = COMPOSED, random: bool = False
) -> Row:
    """Other rows put together; ``why`` says why no kernel of its own (launches, share of a profile)."""
    return _register(Row(name, Kind.COMPOSITE, bound=bound, via=via, why=why, random=random))


def dynamic(
    name: str,
    dtypes: frozenset[str],
    *,
    via: str,
    bound: Bound = Bound("exact"),
    why: str = "",
) -> Row:
    """The result's size depends on data; ``via`` names the function that counts, synchronizes and fills."""
    return _register(Row(name, Kind.DYNAMIC, dtypes, bound=bound, via=via, why=why))


def on_cpu(name: str, *, why: str) -> Row:
    """Computed by PyTorch on the host: the last resort."""
    return _register(Row(name, Kind.ON_CPU, bound=COMPOSED, why=why))
