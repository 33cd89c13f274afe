"""The rules by which a pair of tensors passes, is warned of or is an error. All of them are here.

An output's error (diff2, the relative L2 error) is held against what its inputs' error explains:

    bound = local + growth * inherited

``inherited`` is the largest error among the call's inputs (of a backward call, among its forward call's tensors too),
``local`` what the coarsest dtype that takes part may add by itself (:data:`TOLERANCES`), ``growth`` is 10 for a warning
and 100 for an error, whose ``local`` is 10-fold as well: 3-fold where a single function had the very same inputs, which
explain nothing. So an error that only travels through the network raises nothing; the call that made it does. What was
made by calls that only one run has is judged where it is used: weights after the steps of an optimizer that takes
other operators on the two devices.

Where a small result is left of large terms, the error is held against the terms (:func:`_scale`): the bias in front of
a batch norm has a gradient of 0, and what is computed for it is the rounding of the sum. Where a result jumps
(:data:`JUMPING`), a share of elements near the jump may flip: the growth is 10 (100) of the root of the inherited error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from macatensor.accuracy.comparison.align import kind_of
from macatensor.accuracy.comparison.distance import Distance, elements
from macatensor.accuracy.elements import TensorEntry
from macatensor.accuracy.records import Call
from op_table import TABLE, Row

Verdict = Literal["pass", "warning", "error"]
SEVERITY: dict[Verdict, int] = {"pass": 0, "warning": 1, "error": 2}


@dataclass(frozen=True)
class Tolerance:
    """What the operators may add to the error of a tensor of one dtype."""

    local: float  # relative L2 error from equal inputs
    why: str


TOLERANCES: dict[str, Tolerance] = {
    "float64": Tolerance(1e-11, "eps 2.2e-16; sums of 1e6 terms in another order differ by 1e-13"),
    "float32": Tolerance(
        2e-5, "eps 1.2e-7; weight gradients sum 1e5 terms in another order: 300 eps in the worst case"
    ),
    "float16": Tolerance(
        5e-3, "eps 9.8e-4; a result rounded once more on one side, five times in a composite"
    ),
    "bfloat16": Tolerance(
        4e-2, "eps 7.8e-3; a result rounded once more on one side, five times in a composite"
    ),
    "float8_e4m3fn": Tolerance(0.3, "eps 0.125"),
    "float8_e4m3fnuz": Tolerance(0.3, "eps 0.125"),
    "float8_e5m2": Tolerance(0.6, "eps 0.25"),
    "float8_e5m2fnuz": Tolerance(0.6, "eps 0.25"),
    "complex128": Tolerance(1e-11, "as float64"),
    "complex64": Tolerance(2e-5, "as float32"),
    "complex32": Tolerance(5e-3, "as float16"),
}
TF32 = Tolerance(2e-3, "factors rounded to 10 mantissa bits, as float16 has, with sums in float32")
EXACT = Tolerance(0.0, "integers, booleans and bits have no rounding")

GROWTH_WARNING, GROWTH_ERROR = 10.0, 100.0
LOCAL_ERROR, LOCAL_ERROR_OF_EQUAL_INPUTS = 10.0, 3.0
# summaries tell errors from below only: an input's true error may be larger than what they show
SUMMARY_FACTOR = 10.0
# of integers and booleans computed from inexact inputs: the share of elements that may differ for a pass
FLIPS = 1e-2

# the smallest step near zero: below it values are flushed or rounded to nothing (2^-24 is float16's subnormal step)
_STEP = {"float16": 2.0**-24, "complex32": 2.0**-24}
_SMALLEST = 2.0**-126


def _of_rows(wanted: Callable[[Row], bool], functions: str = "") -> frozenset[str]:
    """Operators with such a row, and functions that PyTorch puts together from several."""
    rows = {row.operator.removesuffix("_") for row in TABLE.values() if wanted(row)}
    return frozenset(rows) | frozenset(functions.split())


# results that are left of sums whose terms cancel: their error is held against the terms' norm
SUMMING = _of_rows(
    lambda row: row.cancels, "subtract sum_to_size iadd __add__ __sub__ __radd__ __rsub__ __iadd__ __isub__"
)
# functions that jump, or whose derivative does: a change of rounding size flips single elements altogether
JUMPING = _of_rows(
    lambda row: row.jumps,
    "relu6 prelu rrelu clip max_pool1d max_pool2d max_pool3d adaptive_max_pool1d argsort dropout grid_sample l1_loss "
    "hinge_embedding_loss one_hot quantize_per_tensor fake_quantize_per_tensor_affine "
    "value_selecting_reduction_backward evenly_distribute_backward",
)
# modules under the names of the functions above: torch.nn.MaxPool2d is max_pool2d
_SNAKE = {name.replace("_", ""): name for name in JUMPING | SUMMING}
# what later results keep for the backward is each device's own affair, its shape too
KEEPING = _of_rows(lambda row: row.keeps, "mkldnn_rnn_layer lstm gru")
KEPT = "kept for the backward: each device's own affair"
# conversions, between whichever dtypes autocast asks of them
CASTING = frozenset({"to_copy", "_to_copy", "to", "type"})
# they hand on what was made and judged elsewhere
PASSING = frozenset({"AccumulateGrad"})
# the contents of their results are whatever the memory held
UNINITIALIZED = frozenset(
    "empty empty_like empty_strided empty_permuted new_empty new_empty_strided resize resize_as".split()
)
# other numbers on other devices for the same seed
RANDOM = _of_rows(
    lambda row: row.random,
    "rand randn randint randperm rand_like randn_like randint_like dropout dropout1d dropout2d dropout3d alpha_dropout "
    "feature_dropout feature_alpha_dropout rrelu trunc_normal xavier_normal xavier_uniform kaiming_normal "
    "kaiming_uniform gumbel_softmax native_alpha_dropout _fused_dropout manual_seed",
)


@dataclass
class Judged:
    """A verdict with the rule that fired, and what it was held against."""

    verdict: Verdict = "pass"
    rule: str = ""
    error: float | None = None  # relative to the scale that the rule took
    bound: float | None = None  # beyond which the error would have been an error


@dataclass
class Sight:
    """What is known of a call when one of its outputs is judged."""

    kind: str  # "relu" of torch.nn.ReLU, aten.relu_.default
    direction: str
    tolerance: Tolerance
    inherited: float  # the largest relative error of the inputs
    inputs_equal: bool  # the same bytes on both sides, as far as recorded
    input_norm: float  # the largest norm among floating inputs of the reference
    largest_input: int  # elements of the largest input
    random: bool = False
    summaries: bool = False  # level 1
    below: Judged | None = None  # the worst of the calls below, where they are judged instead of this one


def short_name(op: str) -> str:
    """``relu`` of ``torch.nn.ReLU``, ``torch.Tensor.relu_`` and ``aten.relu_.default``."""
    name = kind_of(op).rpartition(".")[2].removesuffix("_") or op
    return name if name.startswith("__") else _SNAKE.get(name.lower().replace("_", ""), name)


def tolerance_of(dtypes: set[str], tf32: bool = False) -> Tolerance:
    """The tolerance of the coarsest floating dtype among several."""
    known = [TOLERANCES[d] for d in dtypes if d in TOLERANCES]
    if not known:
        return EXACT
    coarsest = max(known, key=lambda t: t.local)
    return TF32 if tf32 and coarsest.local == TOLERANCES["float32"].local else coarsest


def floating(dtype: str) -> bool:
    """A dtype with rounding."""
    return dtype in TOLERANCES


def mixes(dtypes: set[str]) -> bool:
    """Mixed precision is in use: float32 beside a half type."""
    return "float32" in dtypes and bool(dtypes & {"float16", "bfloat16"})


def is_kept(kind: str, place: str) -> bool:
    """Is a result what the forward keeps for the backward? ``place``: ``"0"``, ``"1.0"``."""
    return kind in KEEPING and place not in ("", "0")


def structure(base: TensorEntry, other: TensorEntry, casts_differ: bool) -> Judged | None:
    """Dtype and shape: an error where they differ.

    ``casts_differ``: the runs are of two kinds of device and both mix float32 with a half type, as under autocast, whose
    lists of operators are each device's own (PyTorch has one for the CPU and another for accelerators); then two
    floating dtypes are a warning.
    """
    if base.shape != other.shape:
        return Judged("error", f"shape: {base.shape} against {other.shape}")
    if base.dtype != other.dtype:
        text = f"dtype: {base.dtype} against {other.dtype}"
        if casts_differ and floating(base.dtype) and floating(other.dtype):
            return Judged("warning", f"{text}: autocast casts otherwise on the two devices")
        return Judged("error", text)
    return None


def nonfinite(distance: Distance) -> Judged | None:
    """NaN or infinity on one side only: always an error."""
    if distance.nan_against_number:
        return Judged("error", f"NaN against a number ({distance.nonfinite} elements)")
    if distance.inf_against_number:
        return Judged("error", f"infinity against something else ({distance.nonfinite} elements)")
    return None


def input_error(base: TensorEntry, distance: Distance) -> float:
    """An input's error as outputs inherit it; of integers and booleans the root of the share that differs."""
    if distance.identical:
        return 0.0
    if floating(base.dtype):
        return min(distance.error, 1e3)
    return math.sqrt(2 * distance.unequal) if distance.unequal is not None else min(distance.error, 1e3)


Origin = Literal["judged", "alone", "unknown"]


def judge_input(
    base: TensorEntry, distance: Distance, tolerance: Tolerance, made: Origin, others_differ: bool = False
) -> Judged:
    """An input. ``made``: by a recorded call that was judged, by one that only one run has, or by none: the runs' own
    weights and data. ``others_differ``: so do most that were made by calls that only one run has."""
    found = nonfinite(distance)
    if found is not None:
        return found
    limit = LOCAL_ERROR * tolerance.local
    if made == "alone" and distance.error > limit:
        bound = LOCAL_ERROR * limit
        return Judged(
            "error" if distance.error > bound and others_differ else "warning",
            f"differs by {distance.error:.2g} after calls that the other run has not, as steps of an optimizer",
            distance.error,
            bound,
        )
    if made == "unknown" and distance.error > limit:
        return Judged(
            "warning",
            "differs before any recorded call made it: other weights, data or seed, or a range that begins here",
            distance.error,
            limit,
        )
    return Judged(error=distance.error)


def _scale(base: TensorEntry, distance: Distance, sight: Sight) -> float:
    """The norm against which an output's error is taken: its own, or that of the terms it is left of.

    A sum of uncorrelated terms has the norm of its terms together, whatever the reduction: sqrt(K) * rms each. That is
    the measure for sums and for what a backward call sums over a batch, which has fewer elements than its input.
    """
    own = distance.base_norm
    count = elements(base.shape)
    column_sum = (sight.direction == "bwd" or sight.kind.endswith("backward")) and count < sight.largest_input
    if own == 0 or sight.kind in SUMMING or (column_sum and len(base.shape) <= 1):
        return max(own, sight.input_norm)
    return own


def judge_output(base: TensorEntry, distance: Distance, sight: Sight) -> Judged:
    """An output whose shape agrees."""
    if sight.kind in UNINITIALIZED:
        return Judged(rule="uninitialized memory: not compared")
    if sight.random and not distance.identical:
        found = nonfinite(distance)
        return found or Judged("warning", "random: other numbers on the two devices", distance.error)
    found = nonfinite(distance)
    if found is not None:
        return found
    if distance.identical:
        return Judged(error=0.0)
    if sight.kind in PASSING:
        return Judged(rule="handed on: judged by the call that made it", error=distance.error)
    if not floating(base.dtype):
        return _judge_exact(distance, sight)
    scale = _scale(base, distance, sight)
    flushed = math.sqrt(elements(base.shape)) * _STEP.get(base.dtype, _SMALLEST)
    error = distance.difference_norm / scale if scale else (math.inf if distance.difference_norm else 0.0)
    local = sight.tolerance.local * (SUMMARY_FACTOR if sight.summaries else 1.0)
    inherited = sight.inherited * (SUMMARY_FACTOR if sight.summaries else 1.0)
    reached = math.sqrt(inherited) if sight.kind in JUMPING and inherited < 1 else inherited
    warning = local + GROWTH_WARNING * reached
    from_equal = sight.inputs_equal and sight.below is None and not sight.summaries
    bound = (LOCAL_ERROR_OF_EQUAL_INPUTS if from_equal else LOCAL_ERROR) * local + GROWTH_ERROR * reached
    judged = Judged(error=error, bound=bound)
    if distance.difference_norm <= flushed or error <= warning:
        return judged
    if sight.inherited:
        text = f"error {error:.2g}, where inputs that differ by {sight.inherited:.2g} make it"
    else:
        text = f"error {error:.2g} from equal inputs, where rounding makes it"
    if sight.below is not None:
        judged.verdict, judged.rule = sight.below.verdict, sight.below.rule
    elif error <= bound:
        judged.verdict, judged.rule = "warning", f"{text} {warning:.2g} at most"
    else:
        judged.verdict, judged.rule = "error", f"{text} {bound:.2g} at most"
    return judged


def _judge_exact(distance: Distance, sight: Sight) -> Judged:
    """Integers and booleans: equal from equal inputs; positions of ties, and what depends on inexact inputs, may flip."""
    share = distance.unequal
    if share is None:  # summaries without a hash
        if distance.error == 0:
            return Judged(error=0.0)
        share = math.nan
    text = "values differ" if math.isnan(share) else f"{share:.2%} of the values differ"
    if sight.below is not None and sight.below.verdict != "error":
        return Judged(sight.below.verdict, sight.below.rule, distance.error)
    if sight.inherited > 0 or not sight.inputs_equal:
        if not math.isnan(share) and share > 0.5 and sight.inherited < FLIPS and not sight.summaries:
            return Judged("error", f"{text}, inputs by {sight.inherited:.2g} only", distance.error)
        if sight.summaries and sight.kind in JUMPING:  # how many is not known
            return Judged(rule="values differ: inputs differ too", error=distance.error)
        if share <= max(FLIPS, 10 * sight.inherited):
            return Judged(rule=f"{text}: inputs differ too", error=distance.error)
        return Judged("warning", f"{text}: inputs differ too", distance.error)
    if sight.kind in JUMPING:
        return Judged(
            "warning", f"{text} from equal inputs: positions of ties are not specified", distance.error
        )
    return Judged("error", f"{text} from equal inputs", distance.error)


_DEVICE = re.compile(r"(torch\.)?(device\(.*|cpu|cuda|maca|meta)\b")


def names_device(*values: object) -> bool:
    """Does each argument name a device, where it is not None?"""
    return all(v is None or isinstance(v, str) and _DEVICE.match(v) for v in values)


def is_random(*calls: Call) -> bool:
    """A call that draws random numbers."""
    return any(call.random is not None or short_name(call.op) in RANDOM for call in calls)
