"""A graph that asks the host for something runs in parts: what the device alone computes as tapes, between them the rest,
operator by operator.

The device's operators keep their order. What the host computes of its own runs as late as somebody needs it, so that
there are few parts; what only constants decide, once.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils import _pytree as pytree

from macatensor.runtime.boxed import Value

aten = torch.ops.aten
Boxed = Callable[[list[Value]], Sequence[Value]]

_PURE = {"aten", "prim", "prims", "maca"}  # whose kernels do the same at each call
_RECORDED = {"flex_attention", "flex_attention_backward", "invoke_subgraph", "map_impl", "scan"}
_BRANCHING = {"cond", "while_loop"}  # what they choose from may be tapes
_IN_STORAGE = {
    "as_strided", "as_strided_", "as_strided_copy", "as_strided_scatter", "resize", "resize_", "set", "set_",
}  # fmt: skip
_FEWEST = 2  # launches that are worth a tape


def apart(module: fx.GraphModule) -> dict[fx.Node, str]:
    """The operators that no tape can have, whatever the inputs are, each with the reason.

    A program's own operator may do something else at each call, though its launches were recorded. What names a place
    in the storage of an input (``as_strided``) means another one where the input lies elsewhere.
    """
    found = {}
    for node in module.graph.nodes:
        if node.op == "call_function" and (why := _why_apart(node, module)):
            found[node] = why
    return found


def _why_apart(node: fx.Node, module: fx.GraphModule) -> str:
    target = node.target
    if isinstance(target, HigherOrderOperator):
        if target.name() in _BRANCHING:
            return f"{target.name()} asks the host which way to go"
        if target.name() not in _RECORDED:
            return f"{target.name()} may have effects"
        return next((why for g in _graphs(node, module) for why in apart(g).values()), "")
    if not isinstance(target, OpOverload):
        return ""
    if target.namespace not in _PURE:
        return f"{target} is an operator of the program's own"
    if target.overloadpacket.__name__ in _IN_STORAGE and _origin(node.args[0]).op == "placeholder":
        return f"{target} names a place in an input's storage"
    if torch.Tag.data_dependent_output in target.tags or (
        torch.Tag.dynamic_output_shape in target.tags and not _has_indices_alone(node)
    ):
        return f"{target} asks the device for a number"
    others = {t.device.type for t in _tensors(node, *node.all_input_nodes)} - {"maca"}
    return f"{target} is on {others.pop()}" if others else ""


def _has_indices_alone(node: fx.Node) -> bool:
    if node.target is not aten.index.Tensor:
        return False
    indices: Any = node.args[1]
    return not any(t.dtype in (torch.bool, torch.uint8) for t in _tensors(*filter(None, indices)))


def _graphs(node: fx.Node, module: fx.GraphModule) -> list[fx.GraphModule]:
    parts = [module.get_submodule(str(n.target)) for n in node.all_input_nodes if _is_graph(n, module)]
    return [p for p in parts if isinstance(p, fx.GraphModule)]


def _is_graph(node: fx.Node, module: fx.GraphModule) -> bool:
    return node.op == "get_attr" and isinstance(getattr(module, str(node.target), None), fx.GraphModule)


def _tensors(*nodes: fx.Node) -> list[torch.Tensor]:
    return [t for n in nodes for t in pytree.tree_leaves(n.meta.get("val")) if isinstance(t, torch.Tensor)]


def _origin(node: Any) -> fx.Node:
    """What it is a view of, or itself."""
    while node.op == "call_function":
        target = node.target
        if target is operator.getitem or (
            isinstance(target, OpOverload) and any(r.alias_info for r in target._schema.returns)
        ):
            node = node.args[0]
        else:
            break
    return node  # type: ignore[no-any-return]


def _writes(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def _draws(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


@dataclass
class _Part:
    on_device: bool
    nodes: list[fx.Node] = field(default_factory=list)

    @property
    def launches(self) -> int:
        return sum(isinstance(n.target, OpOverload) and not n.target.is_view for n in self.nodes)


class _Schedule:
    """The operators of a graph in parts, in turn the device's and others."""

    def __init__(self, module: fx.GraphModule, apart: set[fx.Node]):
        nodes = list(module.graph.nodes)
        self.on_device: set[fx.Node] = set()
        computed = [n for n in nodes if n.op == "call_function"]
        for node in computed:
            if node not in apart and self._is_computed_there(node):
                self.on_device.add(node)
        self.constants = _constants(module, computed, self.on_device)
        self.done = {n for n in nodes if n.op != "call_function"} | set(self.constants)
        last = _written_last(computed)
        rest = [n for n in computed if n not in self.done and n not in last]
        self.waiting = [n for n in rest if n not in self.on_device and not _keeps_its_place(n)]
        self.parts: list[_Part] = []
        late = set(self.waiting)
        for node in rest:
            if node not in late:
                if node not in self.on_device or any(i not in self.done for i in node.all_input_nodes):
                    self._catch_up()
                self._add(node)
        self._catch_up()
        self._write(last)
        self.parts = _worthwhile(self.parts)

    def _is_computed_there(self, node: fx.Node) -> bool:
        """Numbers, as sizes, are where what they are made of is."""
        if isinstance(node.target, HigherOrderOperator) or _tensors(node):
            known = node.target is not operator.getitem
        else:
            known = isinstance(node.target, OpOverload) and "val" not in node.meta
        return known or any(i in self.on_device for i in node.all_input_nodes)

    def _add(self, node: fx.Node) -> None:
        where = node in self.on_device
        if not self.parts or self.parts[-1].on_device != where:
            self.parts.append(_Part(where))
        self.parts[-1].nodes.append(node)
        self.done.add(node)

    def _catch_up(self) -> None:
        """All that waits and can run."""
        still = []
        for node in self.waiting:
            if all(i in self.done for i in node.all_input_nodes):
                self._add(node)
            else:
                still.append(node)
        self.waiting = still

    def _write(self, last: list[fx.Node]) -> None:
        """Inputs that the graph writes at its end. A tape does not know which of its arguments share memory: it writes
        only where none do."""
        if self.parts and self.parts[-1].on_device:
            own = set(self.parts[-1].nodes)
            taken = {i for n in [*own, *last] for i in n.all_input_nodes if i not in own and _tensors(i)}
            if len({_origin(n) for n in taken}) < len(taken):
                self.on_device.difference_update(last)
        else:
            self.on_device.difference_update(last)
        for node in sorted(last, key=lambda n: n not in self.on_device):
            self._add(node)


def _keeps_its_place(node: fx.Node) -> bool:
    """May it have effects, or draw?"""
    target = node.target
    if isinstance(target, OpOverload):
        return target.namespace not in _PURE or _writes(node) or _draws(node)
    return isinstance(target, HigherOrderOperator)


def _written_last(computed: list[fx.Node]) -> list[fx.Node]:
    """What AOTAutograd writes to inputs once all is computed."""
    count = 0
    while count < len(computed) and computed[-1 - count].target is aten.copy_.default:
        count += 1
    found = computed[len(computed) - count :]
    return [] if any(n.users and set(n.users) & set(found) for n in found) else found


def _constants(module: fx.GraphModule, computed: list[fx.Node], on_device: set[fx.Node]) -> list[fx.Node]:
    """What constants on the host decide, and no caller gets."""
    given = {_origin(n) for n in module.graph.output_node().all_input_nodes}
    known = {
        n for n in module.graph.find_nodes(op="get_attr") if isinstance(_attribute(module, n), torch.Tensor)
    }
    found: list[fx.Node] = []
    for node in computed:
        inputs = node.all_input_nodes
        if (
            inputs
            and node not in on_device
            and all(i in known for i in inputs)
            and isinstance(node.target, OpOverload)
            and not _keeps_its_place(node)
            and all(isinstance(v, torch.Tensor) for v in pytree.tree_leaves(node.meta.get("val")))
            and _origin(node) not in given
        ):
            known.add(node)
            found.append(node)
    return found


def _attribute(module: fx.GraphModule, node: fx.Node) -> object:
    found: object = module
    for name in str(node.target).split("."):
        found = getattr(found, name, None)
    return found


def _worthwhile(parts: Iterable[_Part]) -> list[_Part]:
    """Few launches are no tape's worth: they join their neighbours."""
    found: list[_Part] = []
    for part in parts:
        on_device = part.on_device and part.launches >= _FEWEST
        if found and found[-1].on_device == on_device:
            found[-1].nodes += part.nodes
        else:
            found.append(_Part(on_device, part.nodes))
    return found


@dataclass
class _Step:
    run: Boxed
    takes: list[int]
    gives: list[int]
    frees: list[int]  # places nobody reads after


class Segments:
    """A graph in parts, called with a list of inputs, which it empties."""

    def __init__(
        self, module: fx.GraphModule, schedule: _Schedule, compiled: Callable[[fx.GraphModule], Boxed]
    ):
        graph = module.graph
        placeholders = graph.find_nodes(op="placeholder")
        self.places = {n: i for i, n in enumerate(placeholders)}
        self.module, self.compiled = module, compiled
        result: Any = graph.output_node().args[0]
        self.constants = (
            self._step(schedule.constants, set(schedule.constants), False) if schedule.constants else None
        )
        self.constant_values: Sequence[Value] | None = None
        needed: list[set[fx.Node]] = [
            set(graph.output_node().all_input_nodes)
        ]  # after each part, from the last
        for part in reversed(schedule.parts):
            needed.append(needed[-1] | {i for n in part.nodes for i in n.all_input_nodes})
        needed.reverse()
        self.steps = [
            self._step(part.nodes, later, part.on_device) for part, later in zip(schedule.parts, needed[1:])
        ]
        self.results = [self.places[r] if isinstance(r, fx.Node) else -1 for r in result]
        self.others = [None if isinstance(r, fx.Node) else r for r in result]
        self.count = len(self.places)

    def _step(self, nodes: list[fx.Node], later: set[fx.Node], on_device: bool) -> _Step:
        """``later``: what is read after it."""
        inside = set(nodes)
        inputs = [i for n in nodes for i in n.all_input_nodes if i not in inside]
        takes = list(dict.fromkeys(i for i in inputs if i.op != "get_attr"))
        gives = [n for n in nodes if n in later]
        graph = fx.Graph()
        copies = {n: graph.placeholder(n.name) for n in takes}
        for old, new in copies.items():
            new.meta = dict(old.meta)
        for node in [*dict.fromkeys(i for i in inputs if i.op == "get_attr"), *nodes]:
            copies[node] = graph.node_copy(node, lambda n: copies[n])
        graph.output([copies[n] for n in gives])
        part = fx.GraphModule(self.module, graph)
        for node in gives:
            self.places.setdefault(node, len(self.places))
        return _Step(
            self.compiled(part) if on_device else _plain(part, self.compiled),
            [self.places[n] for n in takes],
            [self.places[n] for n in gives],
            [self.places[n] for n in takes if n not in later],
        )

    def __call__(self, arguments: list[Value]) -> list[Value]:
        values: list[Value] = [*arguments, *[None] * (self.count - len(arguments))]
        arguments.clear()
        if self.constants is not None:
            if self.constant_values is None:
                self.constant_values = self.constants.run([])
            for place, value in zip(self.constants.gives, self.constant_values):
                values[place] = value
        for step in self.steps:
            given = [values[i] for i in step.takes]
            for i in step.frees:
                values[i] = None
            for place, value in zip(step.gives, step.run(given)):
                values[place] = value
        return [other if i < 0 else values[i] for i, other in zip(self.results, self.others)]


def _plain(part: fx.GraphModule, compiled: Callable[[fx.GraphModule], Boxed]) -> Boxed:
    """Operator by operator; what ``cond`` and ``while_loop`` choose from is compiled."""
    for node in part.graph.nodes:
        if isinstance(node.target, HigherOrderOperator) and node.target.name() in _BRANCHING:
            for i in node.all_input_nodes:
                if _is_graph(i, part):
                    setattr(part, str(i.target), _Branch(getattr(part, str(i.target)), compiled))
    part.graph.set_codegen(fx.graph._BoxedCodeGen())
    part.recompile()
    return part.forward


class _Branch(torch.nn.Module):
    """One of the functions that an operator chooses from."""

    def __init__(self, module: fx.GraphModule, compiled: Callable[[fx.GraphModule], Boxed]):
        super().__init__()
        graph = copy.deepcopy(module.graph)  # the whole graph keeps the other
        end = graph.output_node()
        self.is_single = isinstance(end.args[0], fx.Node)
        if self.is_single:
            end.args = (end.args,)
        self.run = compiled(fx.GraphModule(module, graph))

    def forward(self, *arguments: Value) -> Value:
        results = tuple(self.run(list(arguments)))
        return results[0] if self.is_single else results


def split(
    module: fx.GraphModule, apart: Iterable[fx.Node], compiled: Callable[[fx.GraphModule], Boxed]
) -> Segments | None:
    """The graph in parts, of which the device's are what ``compiled`` gives; None where no part is worth a tape."""
    if any(n.op == "get_attr" for n in module.graph.output_node().all_input_nodes):
        return None
    schedule = _Schedule(module, set(apart))
    branches = any(
        isinstance(n.target, HigherOrderOperator) and n.target.name() in _BRANCHING
        for n in module.graph.nodes
    )
    if not branches and not any(part.on_device for part in schedule.parts):
        return None
    return Segments(module, schedule, compiled)
