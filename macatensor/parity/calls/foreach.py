"""Calls of operators on lists of tensors, made from their schemas, and of fused optimizer steps."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from macatensor.parity.draw import Call, Draw, calls
from macatensor.runtime.boxed import Keywords, Value

_SHAPES: list[tuple[int, ...]] = [(5, 37), (3,), (2, 3, 4, 5), (1,), ()]


def _values(draw: Draw, shape: tuple[int, ...], name: str) -> torch.Tensor:
    operator = draw.row.operator
    if operator == "_foreach_pow":
        if not draw.floating:
            return draw.tensor(*shape, low=0 if name == "exponent" else -3, high=3)
        return draw.tensor(*shape, low=0.25, high=3)
    if operator in ("_foreach_log", "_foreach_log2", "_foreach_log10", "_foreach_sqrt", "_foreach_rsqrt"):
        return draw.tensor(*shape, low=0.125 if draw.floating else 1, high=30)
    if operator in ("_foreach_lgamma", "_foreach_log1p"):
        return draw.tensor(*shape, low=0.25 if draw.floating else 1, high=30)
    if operator in ("_foreach_asin", "_foreach_acos"):
        return draw.tensor(*shape, low=-1, high=1)
    if operator in ("_foreach_div", "_foreach_addcdiv") and name in ("other", "tensor2"):
        return draw.tensor(*shape, nonzero=True)
    if not draw.floating:
        return draw.tensor(*shape, low=-3, high=4)
    return draw.tensor(*shape)


def foreach(draw: Draw) -> Iterator[Call]:
    """Lists of several shapes, of one tensor, of an empty one."""
    operator, _, name = draw.row.name.partition(".")
    schema = getattr(getattr(torch.ops.aten, operator), name or "default")._schema
    lists: list[Value] = [_SHAPES, [(7,)], [(0,), (3,)]] if draw.plain else [_SHAPES]
    if operator == "_foreach_mm":
        lists = [[(5, 5), (3, 3)]]
    if operator == "_foreach_max":
        lists = lists[:2]
    for shapes in lists:
        args: list[Value] = []
        kwargs: Keywords = {}
        for argument in schema.arguments:
            kind = str(argument.type)
            if kind == "List[Tensor]":
                value: Value = [_values(draw, s, argument.name) for s in shapes]
            elif kind == "Tensor":  # one number for all, or one for each
                value = _values(draw, (len(shapes),) if argument.name == "scalars" else (), "other")
                value = value.contiguous() if argument.name == "scalars" else value
            elif kind == "number":
                value = 2 if argument.name in ("ord", "exponent") else draw.number(1.5, 2)
                if draw.dtype is torch.bool:
                    value = True
            elif kind == "List[number]":
                value = [draw.number(0.5 + i, 1 + i) for i in range(len(shapes))]
                if operator == "_foreach_pow":
                    value = [draw.number([2.0, 0.5, 3.0, 1.5, -1.0][i], i) for i in range(len(shapes))]
                if draw.dtype is torch.bool:
                    value = [True] * len(shapes)
            else:
                continue
            if argument.kwarg_only:
                kwargs[argument.name] = value
            else:
                args.append(value)
        scalars = [a for a in args if isinstance(a, torch.Tensor) and a.dim() == 1]
        yield Call(tuple(args), kwargs, tuple(scalars))


def _state(draw: Draw, low: float = -1, high: float = 1) -> list[torch.Tensor]:
    return [draw.tensor(*s, low=low, high=high, written=True) for s in [(5, 37), (3,), (2, 3, 4, 5), ()]]


def _steps(value: float) -> list[torch.Tensor]:
    return [torch.tensor(value) for _ in range(4)]


def _rate(draw: Draw) -> Value:
    return torch.tensor(0.0625) if draw.row.name.endswith("tensor_lr") else 0.0625


@calls("_fused_adam_", "_fused_adamw_")
def _adam(draw: Draw) -> Iterator[Call]:
    # exact in bfloat16, so that the numbers themselves carry no error
    options = {
        "lr": _rate(draw),
        "beta1": 0.875,
        "beta2": 0.96875,
        "weight_decay": 0.125,
        "eps": 0.0009765625,
    }
    for amsgrad, maximize, step in ((False, False, 1.0), (False, True, 7.0), (True, False, 3.0)):
        largest = _state(draw, 0.5, 1) if amsgrad else []
        lists = (_state(draw), _state(draw), _state(draw), _state(draw, 0.25, 1), largest, _steps(step))
        yield Call(lists, {**options, "amsgrad": amsgrad, "maximize": maximize})
    scale = {"grad_scale": torch.tensor(4.0), "found_inf": torch.tensor(0.0)}
    lists = (_state(draw), _state(draw), _state(draw), _state(draw, 0.25, 1), [], _steps(2.0))
    yield Call(lists, {**options, "amsgrad": False, "maximize": False, **scale})


@calls("_fused_sgd_")
def _sgd(draw: Draw) -> Iterator[Call]:
    for momentum, nesterov, maximize, first in (
        (0.0, False, False, False),
        (0.875, False, False, True),
        (0.875, True, False, False),
        (0.875, False, True, False),
    ):
        momenta = _state(draw) if momentum else []
        yield Call(
            (_state(draw), _state(draw), momenta),
            {
                "weight_decay": 0.125, "momentum": momentum, "lr": _rate(draw), "dampening": 0.0, "nesterov": nesterov,
                "maximize": maximize, "is_first_step": first,
            },
        )  # fmt: skip


@calls("_fused_adagrad_")
def _adagrad(draw: Draw) -> Iterator[Call]:
    options = {
        "lr": _rate(draw),
        "lr_decay": 0.0625,
        "weight_decay": 0.125,
        "eps": 0.0009765625,
        "maximize": False,
    }
    yield Call((_state(draw), _state(draw), _state(draw, 0.25, 1), _steps(3.0)), options)


@calls("_amp_foreach_non_finite_check_and_unscale_")
def _unscale(draw: Draw) -> Iterator[Call]:
    yield Call((_state(draw), torch.zeros(1), torch.tensor(0.25)))
    broken = _state(draw)
    broken[1][1] = float("inf")
    yield Call((broken, torch.zeros(1), torch.tensor(0.25)))


@calls("_amp_update_scale_")
def _update_scale(draw: Draw) -> Iterator[Call]:
    for tracker, found in ((0, 0.0), (1, 0.0), (1, 1.0)):
        args = (torch.tensor([1024.0]), torch.tensor([tracker], dtype=torch.int32), torch.tensor([found]))
        if draw.plain:
            yield Call((*args, 2.0, 0.5, 2))
