"""``make_graphed_callables``: modules and functions whose forward and backward passes are replays of graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch.autograd.function import FunctionCtx
from torch.utils import _pytree as pytree

from macatensor.device.graphs import GraphPool, MacaGraph, graph, graph_pool_handle
from macatensor.runtime.boxed import Value
from macatensor.runtime.double_backward import differentiated_once

_Tensors = tuple[torch.Tensor, ...]


# A module or a function of tensors.
Graphable: TypeAlias = Callable[..., Value]


class _Context(FunctionCtx):
    saved_tensors: _Tensors


class _Capture:
    """The graphs of one callable, and the tensors that they read and write."""

    def __init__(self, call: Graphable, args: tuple[Value, ...], warmups: int, allow_unused: bool):
        self.call = call
        self.args = args
        self.inputs: _Tensors = tuple(pytree.arg_tree_leaves(*args))
        self.parameters: _Tensors = tuple(call.parameters()) if isinstance(call, torch.nn.Module) else ()
        self.surface = self.inputs + self.parameters
        self.allow_unused = allow_unused
        self.forward_graph, self.backward_graph = MacaGraph(), MacaGraph()
        self.outputs: _Tensors = ()
        self.spec: pytree.TreeSpec | None = None
        self.output_gradients: list[torch.Tensor | None] = []
        self.gradients: list[torch.Tensor | None] = []
        for _ in range(warmups):
            self._gradients_of(tuple(pytree.tree_leaves(call(*args))))

    def _gradients_of(
        self, outputs: _Tensors, given: Sequence[torch.Tensor | None] = ()
    ) -> list[torch.Tensor | None]:
        wanted = [t for t in self.surface if t.requires_grad]
        roots = [o for o in outputs if o.requires_grad]
        if not wanted or not roots:
            return [None] * len(self.surface)
        seeds = [g for g in given if g is not None] or [torch.empty_like(o) for o in roots]
        found = iter(torch.autograd.grad(roots, wanted, seeds, allow_unused=self.allow_unused))
        return [next(found) if t.requires_grad else None for t in self.surface]

    def capture_forward(self, pool: GraphPool) -> None:
        with graph(self.forward_graph, pool=pool):
            outputs = self.call(*self.args)
        leaves, self.spec = pytree.tree_flatten(outputs)
        self.outputs = tuple(leaves)

    def capture_backward(self, pool: GraphPool) -> None:
        self.output_gradients = [torch.empty_like(o) if o.requires_grad else None for o in self.outputs]
        with graph(self.backward_graph, pool=pool):
            self.gradients = self._gradients_of(self.outputs, self.output_gradients)

    def graphed(self) -> Callable[..., Value]:
        """A function of the callable's arguments that replays."""
        node = _node(self)
        spec = self.spec
        assert spec is not None  # after capture_forward

        def call(*args: Value) -> Value:
            given = pytree.arg_tree_leaves(*args)
            if len(given) != len(self.inputs):
                raise TypeError(
                    f"a graphed callable got {len(given)} tensors; expected {len(self.inputs)}, as in sample_args"
                )
            return pytree.tree_unflatten(node.apply(*given, *self.parameters), spec)

        return call


def _node(c: _Capture) -> type[torch.autograd.Function]:
    count = len(c.inputs)

    class Graphed(torch.autograd.Function):
        """One node for the whole callable."""

        @staticmethod
        def forward(ctx: _Context, *given: torch.Tensor) -> _Tensors:
            for static, value in zip(c.inputs, given[:count]):
                if static.shape != value.shape:
                    raise RuntimeError(
                        f"a graphed callable got a tensor of shape {list(value.shape)}; expected "
                        f"{list(static.shape)}, as in sample_args"
                    )
                if static is not value and static.data_ptr() != value.data_ptr():
                    static.copy_(value)
            c.forward_graph.replay()
            ctx.save_for_backward(*given)
            return tuple(o.detach() for o in c.outputs)

        @staticmethod
        def backward(ctx: _Context, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
            for static, value in zip(c.output_gradients, gradients):
                if static is not None and static.data_ptr() != value.data_ptr():
                    static.copy_(value)
            c.backward_graph.replay()
            made = [g.detach() if g is not None else None for g in c.gradients]
            origins = (*ctx.saved_tensors, *gradients) if torch.is_grad_enabled() else ()
            return differentiated_once(
                made,
                origins,
                "a graphed callable has no second derivatives: its backward pass is a recorded graph",
            )

    return Graphed


def _check(call: Graphable, args: tuple[Value, ...]) -> None:
    if isinstance(call, torch.nn.Module):
        if call._backward_hooks or call._forward_hooks or call._forward_pre_hooks:
            raise AssertionError(
                "Modules must not have hooks registered at the time they are passed. However, registering hooks on "
                "modules after passing them through make_graphed_callables is allowed."
            )
        if any(b.requires_grad for b in call.buffers()):
            raise AssertionError(
                "In any torch.nn.Module passed to make_graphed_callables, only parameters may be trainable. All "
                "buffers must have requires_grad=False."
            )
    if not all(isinstance(a, torch.Tensor) for a in pytree.arg_tree_leaves(*args)):
        raise AssertionError(
            "sample_args for each callable must contain only Tensors. Other types are not allowed."
        )


def _replace_forward(module: torch.nn.Module, graphed: Callable[..., Value]) -> torch.nn.Module:
    """The module itself: replays while it is in the mode of its capture, and runs as before in the other."""
    was_training, eager = module.training, module.forward

    def forward(*args: Value) -> _Tensors:
        result: _Tensors = graphed(*args) if module.training == was_training else eager(*args)
        return result

    module.forward = forward
    return module


def make_graphed_callables(
    callables: Graphable | tuple[Graphable, ...],
    sample_args: tuple[Value, ...],
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: GraphPool | None = None,
) -> Graphable | tuple[Graphable, ...]:
    """Modules or functions (one, or a tuple of those that run in this order) as replays of graphs.

    Each is one node of autograd, its backward pass a second graph. ``sample_args``: for each a tuple of tensors, with
    the shapes and ``requires_grad`` of the calls to come. A module is changed in place; in the other training mode it
    runs as before. Raises AssertionError for modules with hooks or trainable buffers, RuntimeError under autocast with
    its cache; no second derivatives. Source of the rules: torch.cuda.make_graphed_callables.
    """
    if torch.is_autocast_enabled("maca") and torch.is_autocast_cache_enabled():
        raise RuntimeError(
            "make_graphed_callables does not support the autocast caching. Please set `cache_enabled=False`."
        )
    several = isinstance(callables, tuple)
    calls = callables if isinstance(callables, tuple) else (callables,)
    samples = sample_args if several else (sample_args,)
    for call, args in zip(calls, samples):
        _check(call, args)
    shared = graph_pool_handle() if pool is None else pool
    captures = [
        _Capture(call, args, num_warmup_iters, allow_unused_input) for call, args in zip(calls, samples)
    ]
    for c in captures:
        c.capture_forward(shared)
    for c in reversed(captures):  # the order in which backward passes run, and free what they read
        c.capture_backward(shared)
    made = [
        _replace_forward(c.call, c.graphed()) if isinstance(c.call, torch.nn.Module) else c.graphed()
        for c in captures
    ]
    return tuple(made) if several else made[0]
