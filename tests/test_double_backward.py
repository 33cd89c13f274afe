"""Gradients of gradients through everything of ours that has a backward pass of its own."""

from __future__ import annotations

import ast
import contextlib
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as attend

import macatensor
from macatensor.operators import guards
from macatensor.operators.whole import ON_AUTOGRAD_KEY

_PACKAGE = pathlib.Path(macatensor.__file__).parent

# Every torch.autograd.Function of the package, and every operator taken over on the autograd key, with the test of its
# second derivative, or of the error instead.
_FUNCTIONS = {
    "attention._Attention": "test_attention",
    "recurrent._Layer": "test_recurrent",
    "recurrent._StepByStep": "test_recurrent",
    "graphed_callables.Graphed": "test_graphed_callable_refuses",
    "double_backward._Once": "test_graphed_callable_refuses",
    "steps._UsedUp": "test_a_compiled_steps_loss_refuses",
    "vision._BoxesOnce": "test_gradients_of_pooled_boxes_refuse",
}
_OPERATORS = {
    **{f"{name}.input": "test_recurrent" for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")},
    "scaled_dot_product_attention.default": "test_attention",
    "deform_conv2d": "test_deformed_convolutions_have_second_derivatives",
    "one_hot.default": None,  # integers, which have no gradient
    "choose_qparams_optimized.default": None,  # a search, which has none
    # into an out=, which has none
    **{name: None for name in ON_AUTOGRAD_KEY if name.startswith(("linalg_matrix_rank.", "matmul."))},
    # PyTorch's own composites behind a check, or where autograd asks for them
    **{f"{name}.default": None for name in (*guards._CHECKS, "silu_backward", "mish_backward")},
    **{f"linalg_{name}.default": None for name in ("eigvalsh", "svdvals")},  # of operators of PyTorch's
    "ctc_loss.Tensor": None,  # PyTorch's has none
    "name": None,  # of vision.py: its functions are listed above
    # of sparse/members.py: factories, whose result requires no gradient; of whole.py: the table, asked itself
    "name.removesuffix('.default')": None,
    "func": None,  # of sparse/structure.py: factories, which PyTorch takes apart
}


def _found() -> tuple[set[str], set[str], set[str]]:
    """Functions, operators on an autograd key, and files that name once_differentiable as code."""
    functions, operators, once = set(), set(), set()
    for path in _PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and any(
                ast.unparse(base).endswith("autograd.Function") for base in node.bases
            ):
                functions.add(f"{path.stem}.{node.name}")
            if isinstance(node, ast.Call) and any(
                isinstance(a, ast.Constant) and str(a.value).startswith("Autograd") and node.args[0] is not a
                for a in node.args
            ):
                if ast.unparse(node.func).endswith(".impl"):
                    operators.add(ast.unparse(node.args[0]).strip("'"))
            if isinstance(node, (ast.Attribute, ast.Name)):
                if ast.unparse(node).endswith("once_differentiable"):
                    once.add(path.stem)
    return functions, operators | set(ON_AUTOGRAD_KEY), once


def test_every_function_is_listed() -> None:
    """Whoever adds one says here what its second derivative is."""
    functions, operators, once = _found()
    assert functions == set(_FUNCTIONS)
    assert operators == set(_OPERATORS)
    assert not once, "once_differentiable drops the graph where the incoming gradients have none"
    tests = {name for name in (*_FUNCTIONS.values(), *_OPERATORS.values()) if name is not None}
    assert tests <= set(globals())


def _penalized(call: Callable[..., Any], inputs: list[torch.Tensor], device: str) -> list[torch.Tensor]:
    """Gradients of sum(results) of first order, and of their squares' sum with respect to the inputs again.

    The cotangents are ones without a history, where a dropped graph shows least.
    """
    moved = [t.detach().to(device).requires_grad_() for t in inputs]
    with contextlib.nullcontext() if device == "maca" else sdpa_kernel(SDPBackend.MATH):
        results = call(*moved)  # the CPU's fused attention has no second derivative
    total = torch.stack([r.sum() for r in results]).sum()
    first = torch.autograd.grad(total, moved, create_graph=True)
    assert all(g.requires_grad for g in first)
    penalty = torch.stack([g.square().sum() for g in first]).sum()
    second = torch.autograd.grad(penalty, moved, allow_unused=True)
    none = [torch.zeros(()) for g in second if g is None]
    return [*(g.detach().cpu() for g in (*first, *second) if g is not None), *none]


def _compare(call: Callable[..., Any], inputs: list[torch.Tensor]) -> None:
    tolerance = 1e-9 if inputs[0].dtype == torch.float64 else 2e-4
    for ours, host in zip(_penalized(call, inputs, "maca"), _penalized(call, inputs, "cpu"), strict=True):
        torch.testing.assert_close(ours, host, rtol=tolerance, atol=tolerance)


_RECURRENT: dict[str, Callable[[], nn.RNNBase]] = {
    "lstm": lambda: nn.LSTM(3, 4),
    "lstm without biases": lambda: nn.LSTM(3, 4, bias=False),
    "lstm, two layers, both directions": lambda: nn.LSTM(3, 4, 2, bidirectional=True, batch_first=True),
    "lstm projected": lambda: nn.LSTM(3, 4, proj_size=2, bidirectional=True),
    "gru": lambda: nn.GRU(3, 4, 2, bidirectional=True),
    "tanh": lambda: nn.RNN(3, 4, bidirectional=True),
    "relu": lambda: nn.RNN(3, 4, 2, nonlinearity="relu"),
    "tanh without biases": lambda: nn.RNN(3, 4, bias=False, batch_first=True),
    "gru without biases": lambda: nn.GRU(3, 4, bias=False, batch_first=True),
}


def _run_recurrent(module: nn.RNNBase, lengths: list[int] | None) -> Callable[..., Any]:
    """A function of the input and the parameters; of a packed sequence with ``lengths``."""
    names = [name for name, _ in module.named_parameters()]

    def call(x: torch.Tensor, *parameters: torch.Tensor) -> list[torch.Tensor]:
        given: Any = x
        if lengths is not None:
            given = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=module.batch_first)
        output, state = torch.func.functional_call(module, dict(zip(names, parameters)), (given,))
        output = output.data if lengths is not None else output
        return [output, *(state if isinstance(state, tuple) else (state,))]

    return call


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", _RECURRENT)
def test_recurrent(name: str, packed: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    module = _RECURRENT[name]().to(dtype)
    x = torch.randn(2, 5, 3, dtype=dtype) if module.batch_first else torch.randn(5, 2, 3, dtype=dtype)
    inputs = [x, *(p.detach() for p in module.parameters())]
    _compare(_run_recurrent(module, [5, 3] if packed else None), inputs)


def test_recurrent_state_and_modules() -> None:
    """A penalty as it is written: gradients of the input by way of ``autograd.grad``, then ``backward``."""
    torch.manual_seed(0)
    module = nn.LSTM(3, 4, 2).double()
    x, h, c = (torch.randn(*s, dtype=torch.float64) for s in ((5, 2, 3), (2, 2, 4), (2, 2, 4)))
    penalties = {}
    for device in ("cpu", "maca"):
        module = module.to(device)
        module.zero_grad()
        leaves = [t.detach().to(device).requires_grad_() for t in (x, h, c)]
        y, _ = module(leaves[0], (leaves[1], leaves[2]))
        grads = torch.autograd.grad(y.square().sum(), leaves, create_graph=True)
        sum(g.square().sum() for g in grads).backward()
        parameters = [p.grad for p in module.parameters() if p.grad is not None]
        penalties[device] = [t.cpu().clone() for t in (*(leaf.grad for leaf in leaves), *parameters)]
    assert len(penalties["maca"]) == 3 + 8
    for ours, host in zip(penalties["maca"], penalties["cpu"], strict=True):
        torch.testing.assert_close(ours, host, rtol=1e-9, atol=1e-12)


def test_recurrent_gradgradcheck() -> None:
    torch.manual_seed(0)
    module = nn.LSTM(2, 2).double().to("maca")
    inputs = [torch.randn(3, 1, 2, dtype=torch.float64), *(p.detach().cpu() for p in module.parameters())]
    moved = [t.to("maca").requires_grad_() for t in inputs]
    run = _run_recurrent(module, None)
    assert torch.autograd.gradgradcheck(lambda *t: tuple(run(*t)), moved, fast_mode=True)


def _shapes(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(*s, dtype=dtype) for s in shapes]


_MASK = torch.tensor([[True, False, True, True], [True, True, False, True], [False, True, True, True]])
_ATTENTION: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "plain": (lambda q, k, v: [attend(q, k, v)], [(1, 2, 3, 4), (1, 2, 4, 4), (1, 2, 4, 4)]),
    "causal": (lambda q, k, v: [attend(q, k, v, is_causal=True)], [(1, 2, 3, 4)] * 3),
    "mask": (
        lambda q, k, v: [attend(q, k, v, _MASK.to(q.device))],
        [(1, 2, 3, 4), (1, 2, 4, 4), (1, 2, 4, 4)],
    ),
    "groups": (
        lambda q, k, v: [attend(q, k, v, enable_gqa=True)],
        [(1, 4, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4)],
    ),
    "one tensor three times": (lambda x: [attend(x, x, x)], [(1, 2, 3, 4)]),
    "one of the others": (lambda x: [attend(x, 2 * x, x.square())], [(1, 2, 3, 4)]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", _ATTENTION)
def test_attention(name: str, dtype: torch.dtype) -> None:
    call, shapes = _ATTENTION[name]
    _compare(call, _shapes(*shapes, dtype=dtype))


def test_attention_gradgradcheck() -> None:
    inputs = [t.to("maca").requires_grad_() for t in _shapes((1, 1, 3, 2), (1, 1, 3, 2), (1, 1, 3, 2))]
    assert torch.autograd.gradgradcheck(
        lambda q, k, v: attend(q, k, v, is_causal=True), inputs, fast_mode=True
    )


def test_graphed_callable_refuses() -> None:
    """First derivatives come as they did with create_graph; their own raise, whatever way is asked for."""
    weight = torch.ones(3, device="maca", requires_grad=True)
    sample = torch.ones(3, device="maca", requires_grad=True)
    graphed = torch.maca.make_graphed_callables(lambda x, w: (x * w).square(), (sample, weight))
    x = torch.full((3,), 2.0, device="maca", requires_grad=True)
    (grad,) = torch.autograd.grad(graphed(x, weight).sum(), x, create_graph=True)
    assert grad.tolist() == [4.0, 4.0, 4.0] and grad.requires_grad
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(grad.sum(), weight, allow_unused=True)
    (grad,) = torch.autograd.grad(graphed(x, weight).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        grad.square().sum().backward()


def test_gradients_of_pooled_boxes_refuse() -> None:
    ops = pytest.importorskip("torchvision").ops
    image = torch.rand(1, 2, 6, 6, dtype=torch.float64).to("maca").requires_grad_()
    boxes = torch.tensor([[0.0, 0.5, 0.5, 4.0, 4.0]], dtype=torch.float64, device="maca")
    (grad,) = torch.autograd.grad(ops.roi_align(image, boxes, 2).square().sum(), image, create_graph=True)
    assert grad.requires_grad
    with pytest.raises(RuntimeError, match="double backwards on roi_align not supported"):
        grad.square().sum().backward()


def test_deformed_convolutions_have_second_derivatives() -> None:
    ops = pytest.importorskip("torchvision").ops
    generator = torch.Generator().manual_seed(3)
    image, weight, offset = (
        torch.rand(*size, dtype=torch.float64, generator=generator).maca().requires_grad_()
        for size in ((1, 2, 4, 4), (1, 2, 2, 2), (1, 8, 3, 3))
    )
    assert torch.autograd.gradgradcheck(ops.deform_conv2d, (image, offset, weight), eps=1e-5, atol=1e-3)


def test_a_compiled_steps_loss_refuses() -> None:
    model = torch.nn.Linear(2, 2).to("maca")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.compile
    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    loss = step(torch.ones(1, 2, device="maca"))
    for again in (
        loss.backward,
        lambda: torch.autograd.grad(loss, list(model.parameters()), create_graph=True),
    ):
        with pytest.raises(RuntimeError):
            again()
