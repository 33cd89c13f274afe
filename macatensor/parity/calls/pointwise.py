"""Calls of pointwise operators, made from their schemas."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import torch

from macatensor.parity.draw import Call, Draw, calls
from macatensor.runtime.boxed import Keywords, Value

# Divisors of integers are never zero: PyTorch raises or stops the process.
_DIVIDE = {"div", "floor_divide", "remainder", "fmod", "addcdiv"}
_SHIFT = {"bitwise_left_shift", "bitwise_right_shift", "__lshift__", "__rshift__"}
# int64's smallest and largest value may meet here: everything wraps
_WRAP = {
    "add",
    "sub",
    "mul",
    "neg",
    "abs",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "maximum",
    "minimum",
    "where",
    "clone",
}
_WRAP |= {"bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "sign", "logical_not"}
# complex infinities have many encodings, and PyTorch's own kernels disagree about them
_NO_SPECIAL = {"_to_copy", "copy"}

# Numbers that every floating dtype holds exactly, so that no rounding of the number itself enters.
_NUMBERS: dict[str, list[Value]] = {
    "alpha": [1, 2],
    "beta": [1, 0.5],
    "value": [0.5],
    "min": [-1.5, None],
    "max": [2, 1.5],
    "min_val": [-1, -0.5],
    "max_val": [1, 0.5],
    "exponent": [2, 3, 0.5, -1, 0, -2, 1.5, -0.5],
    "weight": [0.25, 0.75],
    "other": [1.5, -2, 3],
    "self": [1.5, 2, -3],
    "threshold": [0.5],
    "scale": [1, 1.5],
    "input_scale": [1, 0.5],
    "negative_slope": [0.125],
    "lambd": [0.5],
    "decimals": [1, 3, -1],
    "eps": [None, 0.0625],
    "nan": [None, 0.5],
    "posinf": [None, 2.0],
    "neginf": [None, -2.0],
    "approximate": ["none", "tanh"],
    "rounding_mode": ["trunc", "floor", None],
    "is_result": [False],
    "self_is_result": [False],
    "non_blocking": [False],
    "memory_format": [None],
}

_SHAPES: dict[int, list[tuple[tuple[int, ...], ...]]] = {
    1: [((5, 37),), ((),), ((0, 3),), ((2, 3, 4, 5),), ((2, 3, 2, 3, 2),), ((1, 7, 1),)],
    2: [
        ((5, 37), (5, 37)),
        ((4, 1, 5), (3, 1)),
        ((6,), ()),
        ((), (3,)),
        ((), ()),
        ((0, 3), (3,)),
        ((2, 3, 4, 5), (2, 3, 4, 5)),
        ((2, 3, 4, 5), (1, 3, 1, 1)),
    ],
    3: [
        ((5, 37), (5, 37), (5, 37)),
        ((4, 1, 5), (3, 1), (5,)),
        ((3,), (), (1,)),
        ((0, 3), (3,), (1, 3)),
        ((2, 3, 4, 5), (2, 3, 4, 5), (2, 3, 4, 5)),
    ],
}


def _special(dtype: torch.dtype, domain: tuple[float, float] | None) -> list[float]:
    info = torch.finfo(dtype)
    values = [
        math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5,
        info.tiny, -info.tiny, info.smallest_normal / 4, -info.smallest_normal / 4, info.max, info.min,
        1 + info.eps, 1 - info.eps / 2, -1 - info.eps,
    ]  # fmt: skip
    if domain is None:
        return values
    # at the edge of a domain PyTorch's vector and scalar loops disagree about the sign of a zero
    inside = [v for v in values if math.isnan(v) or domain[0] <= v <= domain[1]]
    return [v for v in inside if v or domain[0] < 0 or math.copysign(1, v) > 0]


def _schema(draw: Draw) -> list[torch._C.Argument]:
    operator, _, name = draw.row.name.partition(".")
    return list(getattr(getattr(torch.ops.aten, operator), name or "default")._schema.arguments)


def _number(draw: Draw, argument: torch._C.Argument, turn: int) -> Value:
    """The ``turn``-th value of a number or string argument; absent only where the schema lets it be."""
    row, kind = draw.row, str(argument.type)
    choices = _NUMBERS.get(argument.name)
    if choices is None:
        return argument.default_value if argument.has_default_value() else 0.5 if draw.floating else 1
    value = choices[turn % len(choices)]
    if value is None and not kind.startswith("Optional"):
        value = choices[0]
    if row.operator in _SHIFT:
        value = [1, 3][turn % 2]
    if kind.endswith("number]") or kind == "number":
        if value is not None and not draw.floating:
            value = bool(value) if draw.dtype is torch.bool else int(value)
            if draw.dtype is torch.uint8 or row.operator == "pow":
                value = abs(value)
            if row.operator in _DIVIDE and not value:
                value = 3
        elif value is not None and draw.dtype.is_complex and argument.name in ("other", "value"):
            value = complex(value, 0.5) if turn % 2 else value
        if row.domain is not None and isinstance(value, float) and argument.name in ("self", "other"):
            value = min(max(value, row.domain[0]), row.domain[1])
    return value


def _operand(
    draw: Draw, name: str, position: int, shape: tuple[int, ...], dtype: torch.dtype | None = None
) -> Value:
    row = draw.row
    if name in ("mask", "condition"):
        return draw.mask(*shape)
    if row.operator in _SHIFT and position == 1:
        return draw.tensor(*shape, low=0, high=6)
    kind = dtype or draw.dtype
    whole = not (kind.is_floating_point or kind.is_complex)
    if row.operator == "pow" and whole and kind is not torch.bool:
        # results stay in int8
        return draw.tensor(*shape, low=0 if position else -3, high=3, dtype=dtype)
    if row.operator == "pow":
        return draw.tensor(*shape, low=-4 if kind.is_complex else -3, high=4, dtype=dtype)
    if row.operator in ("lgamma", "digamma") and kind is torch.float64:
        return draw.tensor(
            *shape, low=0.0625, high=30, dtype=dtype
        )  # PyTorch's own lose digits near negative roots
    if name == "grad_output" and row.domain is not None:
        return draw.tensor(
            *shape, low=-4, high=4, dtype=dtype
        )  # the domain is that of the function's argument
    if kind.is_complex and row.operator in _COMPLEX_RANGE:
        return draw.tensor(
            *shape, low=-_COMPLEX_RANGE[row.operator], high=_COMPLEX_RANGE[row.operator], dtype=dtype
        )
    divisor = row.operator in _DIVIDE and (position == 2 if row.operator == "addcdiv" else position == 1)
    divisor = divisor or (row.operator in _DIVIDE and row.name.endswith("Scalar_Tensor"))
    return draw.tensor(*shape, dtype=dtype, nonzero=divisor and (whole or row.operator == "addcdiv"))


def _call(draw: Draw, arguments: list[torch._C.Argument], tensors: list[torch.Tensor], turn: int) -> Call:
    args: list[Value] = []
    kwargs: Keywords = {}
    flat = iter(tensors)
    for argument in arguments:
        kind = str(argument.type)
        if kind == "Tensor" or kind == "Optional[Tensor]":
            value: Value = next(flat)
            if kind == "Optional[Tensor]" and turn % 3 == 2 and argument.name == "min":
                value = None
        elif kind in ("Optional[ScalarType]", "Optional[Layout]", "Optional[Device]", "Optional[bool]"):
            continue
        else:
            value = _number(draw, argument, turn)
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    return Call(tuple(args), kwargs)


def pointwise(draw: Draw) -> Iterator[Call]:
    """Equal, broadcast, 0-dim and empty operands, special values, mixed dtypes."""
    arguments = _schema(draw)
    names = [a.name for a in arguments if str(a.type) in ("Tensor", "Optional[Tensor]")]
    count = len(names)
    row = draw.row
    shapes = list(_SHAPES[count])
    if row.name in ("masked_fill.Tensor", "fill.Tensor", "copy"):  # the value is 0-dim, the source not wider
        shapes = (
            [tuple(s[:-1]) + ((),) for s in shapes]
            if row.name != "copy"
            else shapes[:1] + [((4, 3, 5), (3, 1))]
        )
    if not draw.plain:
        shapes = [s for s in shapes if len(s[0]) > 1][:3] if draw.layout != "channels_last" else shapes
    for turn, shape in enumerate(shapes):
        yield _call(
            draw, arguments, [_operand(draw, n, i, s) for i, (n, s) in enumerate(zip(names, shape))], turn
        )
    # every value of the numbers, on one shape
    options = max([len(_NUMBERS.get(a.name, ())) for a in arguments if str(a.type) != "Tensor"], default=0)
    for turn in range(options):
        value_shapes: list[tuple[int, ...]] = [(3, 19)] * count
        if row.name in ("masked_fill.Tensor", "fill.Tensor"):
            value_shapes[-1] = ()
        tensors = [_operand(draw, n, i, s) for i, (n, s) in enumerate(zip(names, value_shapes))]
        yield _call(draw, arguments, tensors, turn)
    if not draw.plain:
        return
    if count == 1 or row.operator in ("add", "mul"):  # past the vector loops and into the threads
        yield _call(draw, arguments, [_operand(draw, n, i, (30011,)) for i, n in enumerate(names)], 0)
    yield from _specials(draw, arguments, names)
    if count >= 2 and row.operator not in _SAME_DTYPE and draw.dtype is torch.float32:
        yield from _mixed(draw, arguments, names)


# away from poles and roots in the complex plane, where no number of ULP holds
_COMPLEX_RANGE = {"sigmoid": 2.0, "silu": 2.0, "sinc": 0.75, "exp2": 4.0, "tan": 1.25, "tanh": 1.25}
_SAME_DTYPE = {
    "heaviside",
    "lerp",
    "polar",
    "complex",
    "nextafter",
    "masked_fill",
    "copy",
    "fill",
    "gcd",
    "lcm",
}


def _mixed(draw: Draw, arguments: list[torch._C.Argument], names: list[str]) -> Iterator[Call]:
    """Type promotion: float32 with an integer, and with a 0-dim float64 of lower priority."""
    if names[0] in ("grad_output", "mask") or draw.row.operator.endswith("_backward"):
        return
    for other, shape in ((torch.int64, (3, 5)), (torch.float64, ())):
        if str(other).removeprefix("torch.") not in draw.row.dtypes:
            continue
        tensors = [
            _operand(
                draw, n, i, (3, 5) if i < len(names) - 1 else shape, other if i == len(names) - 1 else None
            )
            for i, n in enumerate(names)
        ]
        # PyTorch converts the 0-dim operand to float32 before it computes
        yield _call(draw, arguments, [t.float().to(t.dtype) for t in tensors], 0)


def _specials(draw: Draw, arguments: list[torch._C.Argument], names: list[str]) -> Iterator[Call]:
    """NaN, infinities, signed zeros, denormals and the ends of the dtype, each with each."""
    row, dtype = draw.row, draw.dtype
    if row.operator in _NO_SPECIAL:
        return
    values: torch.Tensor
    if dtype.is_floating_point:
        values = torch.tensor(_special(dtype, row.domain), dtype=torch.float64).to(dtype)
        if row.operator in ("fmod", "remainder"):  # PyTorch's own give NaN for quotients of 2**128
            values = values[
                ~(values.abs() >= 256) & ~(values.abs() < 2.0**-9) | values.isinf() | (values == 0)
            ]
    elif dtype.is_complex or dtype is torch.bool or row.operator not in _WRAP:
        return
    else:
        info = torch.iinfo(dtype)
        values = torch.tensor([info.min, info.max, 0, 1, info.max - 1], dtype=dtype)
    data = [n for n in names if n not in ("mask", "condition")]
    pairs = list(itertools.product(range(len(values)), repeat=min(len(data), 2)))
    columns = torch.tensor(pairs).unbind(1) if pairs else ()
    tensors: list[torch.Tensor] = []
    used = 0
    for name in names:
        if name in ("mask", "condition"):
            tensors.append(draw.integers((len(pairs),), 0, 2).bool())
        elif row.name in ("masked_fill.Tensor", "fill.Tensor") and name == "value":
            tensors.append(values[0].clone())
        else:
            tensors.append(values[columns[min(used, len(columns) - 1)]])
            used += 1
    yield _call(draw, arguments, tensors, 0)


@calls("log_sigmoid_backward")
def _log_sigmoid_backward(draw: Draw) -> Iterator[Call]:
    for shape in ((3, 19), (), (2, 3, 4, 5)):
        x = draw.tensor(*shape)
        # the buffer that the forward leaves: exp(-|x|)
        buffer = torch.ops.aten.log_sigmoid_forward(x)[1]
        yield Call((draw.tensor(*shape), x, buffer))


@calls("elu_backward")
def _elu_backward(draw: Draw) -> Iterator[Call]:
    for shape in ((3, 19), (), (2, 3, 4, 5)):
        for is_result in (False, True):
            # an output of elu(alpha=1, scale=1) lies above -1
            x = draw.tensor(*shape, low=-0.9 if is_result else None, high=4 if is_result else None)
            yield Call((draw.tensor(*shape), 1, 1, 1, is_result, x))
