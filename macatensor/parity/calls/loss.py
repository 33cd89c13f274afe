"""Calls of losses that compare classes or alignments, and of products with weights: margins, CTC, prelu, trilinear."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from macatensor.parity.draw import Call, Draw, calls
from macatensor.runtime.boxed import Arguments


def _margins(draw: Draw) -> Iterator[Arguments]:
    """Scores, classes, p, margin, weight, reduction."""
    for p, margin, reduction in itertools.product((1, 2), (1, 0.5), (0, 1, 2)):
        weight = draw.tensor(6, low=0.5, high=2) if margin == 1 else None
        yield draw.tensor(5, 6), draw.index(5, below=6), p, margin, weight, reduction
    yield draw.tensor(6), torch.tensor([2]), 1, 1, None, 1


@calls("multi_margin_loss")
def _multi_margin(draw: Draw) -> Iterator[Call]:
    for args in _margins(draw):
        yield Call(args)


@calls("multi_margin_loss_backward")
def _multi_margin_backward(draw: Draw) -> Iterator[Call]:
    for x, target, *rest in _margins(draw):
        grad = draw.tensor(*([x.shape[0]] if rest[-1] == 0 else []))
        yield Call((grad, x, target, *rest))


def _labels(draw: Draw) -> Iterator[tuple[torch.Tensor, torch.Tensor, int]]:
    """Scores, classes up to a negative one, reduction."""
    for reduction in (0, 1, 2):
        target = torch.stack([torch.randperm(6, generator=draw.generator) for _ in range(5)])
        target[torch.arange(5), torch.arange(5)] = -1
        yield draw.tensor(5, 6), draw.lay(target, written=True), reduction
    yield draw.tensor(4), torch.tensor([1, 3, -1, 0]), 1


@calls("multilabel_margin_loss_forward")
def _multilabel(draw: Draw) -> Iterator[Call]:
    for args in _labels(draw):
        yield Call(args)


@calls("multilabel_margin_loss_backward")
def _multilabel_backward(draw: Draw) -> Iterator[Call]:
    for x, target, reduction in _labels(draw):
        _, marks = torch.ops.aten.multilabel_margin_loss_forward(
            x.float(), target, reduction
        )  # the CPU has no halves
        marks = marks.to(x.dtype)
        grad = draw.tensor(*([x.shape[0]] if reduction == 0 else []))
        yield Call((grad, x, target, reduction, marks))


def _alignments(draw: Draw) -> Iterator[Arguments]:
    """Logarithms, targets, lengths of both, the blank. PyTorch leaves what lies behind a length uninitialized."""
    scores = draw.lay(draw.values((9, 3, 5), draw.dtype, -2, 2).log_softmax(-1))
    targets = draw.lay(draw.integers((3, 3), 1, 5))
    yield scores, targets, [9, 9, 9], [3, 3, 3], 0
    yield scores, targets.reshape(-1), [9, 9, 9], [3, 3, 3], 0
    yield scores, draw.integers((3, 3), 0, 4).int(), [9, 9, 9], [3, 3, 3], 4
    yield scores, torch.tensor([[1, 1, 2], [1, 1, 1], [2, 2, 3]]), [9, 9, 9], [3, 3, 3], 0


@calls("_ctc_loss")
def _ctc(draw: Draw) -> Iterator[Call]:
    for args in _alignments(draw):
        if "Tensor" in draw.row.name:
            args = (*args[:2], torch.tensor(args[2]), torch.tensor(args[3]), args[4])
        yield Call(args)


@calls("_ctc_loss_backward")
def _ctc_backward(draw: Draw) -> Iterator[Call]:
    for scores, targets, inputs, lengths, blank in _alignments(draw):
        loss, alpha = torch.ops.aten._ctc_loss(scores, targets, inputs, lengths, blank)
        given: Arguments = (inputs, lengths)
        if "Tensor" in draw.row.name:
            given = (torch.tensor(inputs), torch.tensor(lengths))
        for clear in (False, True):
            grad = draw.tensor(3, low=0.5, high=2)
            yield Call((grad, scores, targets, *given, loss, alpha, blank, clear))


@calls("_prelu_kernel")
def _prelu(draw: Draw) -> Iterator[Call]:
    for shape, weight in (((2, 3, 4, 5), (1, 3, 1, 1)), ((5, 6), (1, 1)), ((4, 3), (4, 3)), ((0, 3), (1, 3))):
        yield Call((draw.tensor(*shape), draw.tensor(*weight, low=-2, high=2)))


@calls("_prelu_kernel_backward")
def _prelu_backward(draw: Draw) -> Iterator[Call]:
    for shape, weight in (((2, 3, 4, 5), (1, 3, 1, 1)), ((5, 6), (1, 1)), ((4, 3), (4, 3)), ((0, 3), (1, 3))):
        yield Call((draw.tensor(*shape), draw.tensor(*shape), draw.tensor(*weight, low=-2, high=2)))


@calls("_trilinear")
def _trilinear(draw: Draw) -> Iterator[Call]:
    a, b, c = draw.tensor(4, 3), draw.tensor(5, 3, 2), draw.tensor(4, 2)
    yield Call((a, b, c, [1, 3], [0], [1, 2], [2, 3]))
    yield Call((draw.tensor(4, 3), draw.tensor(4, 3), draw.tensor(4, 3), [], [], [], [1]))
    yield Call((draw.tensor(4, 3), draw.tensor(3), draw.tensor(4, 3), [], [0], [], [0]))


@calls("_masked_softmax")
def _masked_softmax(draw: Draw) -> Iterator[Call]:
    # row-major: PyTorch's CPU writes a row-major result into the operand's strides
    x = draw.values((2, 3, 4, 4), draw.dtype, -4, 4)
    yield Call((x, draw.mask(2, 3, 4, 4)))
    yield Call((x, draw.mask(4, 4), 3, 0))
    yield Call((x, draw.mask(2, 4), 3, 1))
    yield Call((x, draw.mask(2, 3, 4, 4), 1, 2))


@calls("_masked_softmax_backward")
def _masked_softmax_backward(draw: Draw) -> Iterator[Call]:
    for dim in (None, 3, 1):
        x, grad = (draw.values((2, 3, 4, 4), draw.dtype, -4, 4) for _ in range(2))
        mask = draw.integers((2, 3, 4, 4), 0, 2).bool()
        mask[..., 0], mask[:, 0] = False, False
        y = x.masked_fill(mask, -torch.inf).softmax(-1 if dim is None else dim)
        yield Call((grad, y, draw.lay(mask, written=True), dim))
