"""What an inference graph computes from weights alone is computed once, until a weight changes.

Batch normalization after a convolution becomes part of its weight and bias; so do casts, transposed copies and masks
that no input goes into. The values are kept with the weights that they were made of: their memory and how often it was
written, which every call compares.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from macatensor.compiling.quantized import widens
from macatensor.runtime.boxed import Value

aten = torch.ops.aten
_NORMALIZATION = aten._native_batch_norm_legit_no_training.default
_Boxed = Callable[[list[Value]], Sequence[Value]]


def fold_normalizations(module: fx.GraphModule, static: set[int]) -> None:
    """Batch normalizations of convolutions whose weights are all static become part of these."""
    graph = module.graph
    weights = {n for i, n in enumerate(graph.find_nodes(op="placeholder")) if i in static}
    for node in graph.find_nodes(op="call_function", target=_NORMALIZATION):
        convolution, gamma, beta, mean, variance, _, epsilon = node.args
        if not _is_alone(convolution) or {u.args[1] for u in node.users} != {0}:
            continue
        x, weight, bias, *how = convolution.args
        if how[3] or not {weight, mean, variance, *filter(None, (bias, gamma, beta))} <= weights:
            continue
        with graph.inserting_before(convolution):

            def call(target: OpOverload, *args: Any) -> fx.Node:
                return graph.call_function(target, args)

            scale = call(aten.rsqrt.default, call(aten.add.Tensor, variance, epsilon))
            if gamma is not None:
                scale = call(aten.mul.Tensor, scale, gamma)
            shape = [-1, *[1] * (weight.meta["val"].dim() - 1)]
            scaled = call(aten.mul.Tensor, weight, call(aten.reshape.default, scale, shape))
            shift = mean if bias is None else call(aten.sub.Tensor, mean, bias)
            shift = call(aten.neg.default, call(aten.mul.Tensor, shift, scale))
            if beta is not None:
                shift = call(aten.add.Tensor, shift, beta)
            convolution.args = (x, scaled, shift, *how)
        for user in list(node.users):
            user.replace_all_uses_with(convolution)
            graph.erase_node(user)
        graph.erase_node(node)


def _is_alone(node: object) -> bool:
    return (
        isinstance(node, fx.Node)
        and node.target is aten.convolution.default
        and len(node.users) == 1
        and node.meta["val"].dtype in (torch.float32, torch.float64)
    )


class Frozen:
    """Values of weights, computed again when one has changed."""

    def __init__(self, run: _Boxed, used: list[int]):
        self.run, self.used = run, used
        self._made_of: list[tuple[object, int]] | None = None
        self._values: list[Value] = []

    def values(self, arguments: Sequence[Value]) -> list[Value]:
        """For the arguments of the whole graph."""
        made_of = [(arguments[i]._payload, arguments[i]._payload[0].writes) for i in self.used]
        if self._made_of is None or not all(
            a[0] is b[0] and a[1] == b[1] for a, b in zip(made_of, self._made_of)
        ):
            with torch.no_grad():
                self._values = list(self.run([arguments[i] for i in self.used]))
            self._made_of = made_of
        return self._values


def freeze(module: fx.GraphModule, static: set[int]) -> Frozen | None:
    """Takes out of the graph what static inputs alone decide: it has more inputs then, :attr:`Frozen.values`."""
    graph = module.graph
    placeholders = graph.find_nodes(op="placeholder")
    # what the graph itself writes, as an optimizer's state, is another at each call
    written = {n.args[0] for n in graph.find_nodes(op="call_function", target=aten.copy_.default)}
    known = {n for i, n in enumerate(placeholders) if i in static and n not in written}
    weights = set(known)
    for node in graph.nodes:
        if (
            node.op == "call_function"
            and _is_lasting(node)
            and not widens(node)
            and all(i in known for i in node.all_input_nodes)
        ):
            known.add(node)
    for result in graph.output_node().all_input_nodes:
        _forget(result, known - weights, known)
    computed = known - weights
    wanted = [
        n
        for n in graph.nodes
        if n in computed and any(u not in known for u in n.users) and _is_work(n, computed)
    ]
    if not wanted:
        return None
    needed: set[fx.Node] = set(wanted)
    for node in reversed(list(graph.nodes)):
        if node in needed:
            needed |= set(node.all_input_nodes)
    used = [i for i, n in enumerate(placeholders) if n in needed]
    part = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node in needed:
            copies[node] = part.node_copy(node, lambda n: copies[n])
    part.output([copies[n] for n in wanted])
    part.set_codegen(fx.graph._BoxedCodeGen())
    frozen = Frozen(fx.GraphModule(module, part).forward, used)
    with graph.inserting_before(next(n for n in graph.nodes if n.op != "placeholder")):
        for i, node in enumerate(wanted):
            held = graph.placeholder(f"frozen_{i}")
            held.meta = dict(node.meta)
            node.replace_all_uses_with(held)
    graph.eliminate_dead_code()
    return frozen


def _is_lasting(node: fx.Node) -> bool:
    """Is it the same each time, and no writing?"""
    target = node.target
    if target is operator.getitem:
        return True
    return (
        isinstance(target, OpOverload)
        and not target._schema.is_mutable
        and torch.Tag.nondeterministic_seeded not in target.tags
        and "empty" not in target._schema.name
        and isinstance(node.meta.get("val"), (torch.Tensor, tuple, list, type(None)))
        and not torch.fx.experimental.symbolic_shapes.free_symbols(_sizes(node.meta.get("val")))
    )


def _sizes(value: object) -> list[object]:
    if isinstance(value, torch.Tensor):
        return [*value.shape]
    return [s for v in value for s in _sizes(v)] if isinstance(value, (tuple, list)) else []


def _is_view(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target.is_view


def _is_work(node: fx.Node, computed: set[fx.Node]) -> bool:
    """More than a view of a weight?"""
    while _is_view(node):
        node = node.all_input_nodes[0]
        if node not in computed:
            return False
    return True


def _forget(node: fx.Node, among: set[fx.Node], known: set[fx.Node]) -> None:
    """What a caller gets is its own, and so is the memory that it is a view of."""
    while node in among:
        known.discard(node)
        if not (_is_view(node) or node.target is operator.getitem):
            return
        node = node.all_input_nodes[0]


def static_inputs() -> set[int]:
    """Which inputs of the graph that is compiled now are parameters and buffers."""
    context = torch._guards.TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    return set(metadata.static_input_indices or ()) if metadata is not None else set()
