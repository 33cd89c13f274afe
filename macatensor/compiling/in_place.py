"""What a graph computes for an input that it writes at its end is computed there.

AOTAutograd's graphs write nothing but, last of all, the inputs that the program writes: ``copy_(input, value)``. Where
the value is an operator's result for the input as it was, and nothing reads that any more, the operator writes in place:
a cache of keys and values is not copied for one position, nor an optimizer's state for a step.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import fx
from torch._ops import OpOverload

aten = torch.ops.aten
# what has an in-place form that reads each element of `self` where it writes it, beside elementwise operators
_PARTS = {aten.index_copy, aten.index_put, aten.index_add, aten.index_fill, aten.scatter, aten.scatter_add}
_SCATTERED = {  # operators that replace a view, by that view's
    aten.slice_scatter.default: aten.slice.Tensor,
    aten.select_scatter.default: aten.select.int,
}
# what gives the same result, strides included, however the operand lies; and views of any operand
_OF_ANY_STRIDES = {aten.mm, aten.bmm, aten.addmm, aten.baddbmm, aten.copy_}
_VIEWS_OF_ANY_STRIDES = {
    aten.transpose, aten.permute, aten.expand, aten.slice, aten.select, aten.unsqueeze, aten.squeeze, aten.detach,
}  # fmt: skip
_ATTENTION = "aten::_scaled_dot_product"
_ALIASES = {aten._unsafe_view.default, operator.getitem}  # whose schemas do not say so


class _Link(NamedTuple):
    """An operator that makes a value of the one before, ``item`` of a list or -1."""

    node: fx.Node
    item: int
    before: fx.Node
    value: fx.Node


def in_place(module: fx.GraphModule) -> fx.GraphModule:
    """The graph that writes where it can, another one; the module itself where it cannot."""
    if not any(True for _ in _last_copies(module.graph)):
        return module
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    _restore_lerps(graph)
    order = _order(graph)
    chains: dict[fx.Node, list[_Link]] = {}  # by the copy at the end
    for copy in _last_copies(graph):
        chain = _chain(copy)
        if chain and all(_is_last_reader(link, copy, order) for link in chain):
            chains[copy] = chain
    while partly := _partly_written(chains):
        for copy in partly:
            del chains[copy]
    for copy, chain in chains.items():
        target = copy.args[0]
        assert isinstance(target, fx.Node)
        graph.erase_node(copy)
        for link in chain:
            link.value.replace_all_uses_with(target)
    for node in dict.fromkeys(link.node for chain in chains.values() for link in chain):
        _rewrite(graph, node)
    if not _reuse_lists(graph) and not chains:
        return module
    graph.set_codegen(fx.graph._BoxedCodeGen())
    return fx.GraphModule(module, graph)


def _order(graph: fx.Graph) -> dict[fx.Node, int]:
    return {node: i for i, node in enumerate(graph.nodes)}


def _reuse_lists(graph: fx.Graph) -> int:
    """Operators on lists write into lists that end with them, which no plan of memory would find. How many."""
    order = _order(graph)
    count = 0
    for node in list(graph.nodes):
        if not _is_of_lists(node) or _in_place(node) is None:
            continue
        links = []
        for item, before in enumerate(node.args[0]):
            for value in _uses(node, item) or [before]:
                links.append(_Link(node, item, before, value))
        if all(_is_last_of_list(link, order) for link in links):
            for link in links:
                if link.value is not link.before:
                    link.value.replace_all_uses_with(link.before)
            _rewrite(graph, node)
            order = _order(graph)
            count += 1
    return count


def _is_last_of_list(link: _Link, order: dict[fx.Node, int]) -> bool:
    before = link.before
    return (
        before.target is operator.getitem
        and _is_of_lists(before.args[0])  # type: ignore[arg-type]
        and _may_lie(link.value, before, link.node)
        and not _is_read_otherwise(link)
        and all(order[reader] <= order[link.node] for reader in _readers(before))
    )


def _restore_lerps(graph: fx.Graph) -> None:
    """Dynamo takes ``_foreach_lerp_`` apart, into two temporary lists: ``addcmul(x, [full_like(d, w)], d)`` of ``d = sub(end,
    x)``."""
    for node in graph.find_nodes(op="call_function", target=aten._foreach_addcmul.Scalar):
        x, factors, differences, *value = node.args
        weights = {f.args[1] for f in factors if f.target is aten.full_like.default}
        taken = {d.args[0] if d.target is operator.getitem else None for d in differences}
        (sub,) = taken if len(taken) == 1 else (None,)
        if (
            len(weights) == 1
            and value in ([], [1])
            and not node.kwargs
            and isinstance(sub, fx.Node)
            and sub.target is aten._foreach_sub.List
            and not sub.kwargs
            and len(sub.args) == 2
            and list(sub.args[1]) == list(x)  # type: ignore[arg-type]
            and [d.args[1] for d in differences] == list(range(len(x)))
            and [f.args[:1] for f in factors] == [(d,) for d in differences]
        ):
            node.target = aten._foreach_lerp.Scalar
            node.args = (x, sub.args[0], weights.pop())
            for unused in (*factors, *differences, sub):
                if not unused.users:
                    graph.erase_node(unused)


def _partly_written(chains: dict[fx.Node, list[_Link]]) -> list[fx.Node]:
    """Those with an operator on lists of which not each element is to be written."""
    written = {(link.node, link.item) for chain in chains.values() for link in chain}
    return [
        copy
        for copy, chain in chains.items()
        if any(link.item >= 0 and not _is_whole(link.node, written) for link in chain)
    ]


def _last_copies(graph: fx.Graph) -> Iterator[fx.Node]:
    """Copies of values into inputs, after which the graph does nothing else; of each input the only one."""
    for node in reversed(list(graph.nodes)):
        if node.op == "output":
            continue
        if node.target is not aten.copy_.default or node.users:
            return
        target, value = node.args[:2]
        if (
            isinstance(target, fx.Node)
            and isinstance(value, fx.Node)
            and target.op == "placeholder"
            and sum(u.target is aten.copy_.default and u.args[0] is target for u in target.users) == 1
        ):
            yield node


def _may_lie(value: fx.Node, target: fx.Node, copy: fx.Node) -> bool:
    """Of the same dtype and sizes, and where strides are others nobody minds these?"""
    x, y = value.meta.get("val"), target.meta.get("val")
    if not (isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)) or x.dtype is not y.dtype:
        return False
    # as they are written: to compare symbols would be a guard
    if repr(x.shape) != repr(y.shape):
        return False
    return repr(x.stride()) == repr(y.stride()) or all(u is copy or _ignores_strides(u) for u in value.users)


def _ignores_strides(user: fx.Node) -> bool:
    if not isinstance(user.target, OpOverload):
        return False
    if user.target.overloadpacket in _VIEWS_OF_ANY_STRIDES:
        return all(map(_ignores_strides, user.users))
    return user.target.overloadpacket in _OF_ANY_STRIDES or user.target._schema.name.startswith(_ATTENTION)


def _chain(copy: fx.Node) -> list[_Link]:
    """The operators, first to last, that make of the input what is copied into it; none where others do."""
    target, value = copy.args[:2]
    assert isinstance(target, fx.Node)
    chain: list[_Link] = []
    while value is not target:
        link = _link(value)
        if link is None or not _may_lie(link.value, target, copy):
            return []
        chain.append(link)
        value = link.before
    return chain[::-1]


def _link(value: object) -> _Link | None:
    if not isinstance(value, fx.Node) or value.op != "call_function":
        return None
    node, index = value, -1
    if value.target is operator.getitem:
        node, index = value.args  # type: ignore[assignment]
        if not isinstance(node, fx.Node) or not _is_of_lists(node) or len(_uses(node, index)) != 1:
            return None
    if node.target not in _SCATTERED and _in_place(node) is None:
        return None
    before = node.args[0] if index < 0 else node.args[0][index]  # type: ignore[index]
    return _Link(node, index, before, value) if isinstance(before, fx.Node) else None


def _is_of_lists(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.name.startswith("aten::_foreach_")


def _uses(node: fx.Node, index: int) -> list[fx.Node]:
    return [u for u in node.users if u.target is operator.getitem and u.args[1] == index]


def _in_place(node: fx.Node) -> OpOverload | None:
    """The overload that writes its first argument."""
    target = node.target
    if not isinstance(target, OpOverload) or target.namespace != "aten" or target._schema.is_mutable:
        return None
    if not (torch.Tag.pointwise in target.tags or target.overloadpacket in _PARTS or _is_of_lists(node)):
        return None
    packet = getattr(aten, f"{target.overloadpacket.__name__}_", None)
    found = getattr(packet, target._overloadname, None)
    if not isinstance(found, OpOverload):
        return None
    ours, theirs = ([a.name for a in f._schema.arguments] for f in (target, found))
    return found if ours == theirs else None


def _readers(value: fx.Node) -> Iterator[fx.Node]:
    """Of it and of views of it."""
    for user in value.users:
        yield user
        if user.op == "call_function" and _is_view(user):
            yield from _readers(user)


def _is_view(node: fx.Node) -> bool:
    if node.target in _ALIASES:
        return not (node.target is operator.getitem and _is_of_lists(node.args[0]))  # type: ignore[arg-type]
    return isinstance(node.target, OpOverload) and any(r.alias_info for r in node.target._schema.returns)


def _is_last_reader(link: _Link, copy: fx.Node, order: dict[fx.Node, int]) -> bool:
    """Does nothing read the value before when the operator has run, nor the operator itself as another argument? And is
    what it makes no result of the graph, which the caller may keep?"""
    if _is_read_otherwise(link):
        return False
    at = order[link.node]
    for reader in _readers(link.before):
        if reader not in (link.node, copy) and order[reader] > at:
            return False
    return all(reader.op != "output" for reader in _readers(link.value))


def _is_read_otherwise(link: _Link) -> bool:
    """Is the value before another argument of the operator, too, or another item?"""
    others = list(_leaves((link.node.args[1:], *link.node.kwargs.values())))
    own = link.node.args[0] if link.item >= 0 else ()
    siblings = [n for i, n in enumerate(own) if i != link.item]  # type: ignore[arg-type]
    return link.before in siblings or any(_origin(a) is link.before for a in others)


def _leaves(value: object) -> Iterator[fx.Node]:
    if isinstance(value, fx.Node):
        yield value
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from _leaves(v)


def _origin(node: fx.Node) -> fx.Node:
    """What it is a view of, or itself."""
    while node.op == "call_function" and _is_view(node) and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def _is_whole(node: fx.Node, written: Iterable[tuple[fx.Node, int]]) -> bool:
    return all((node, i) in written for i in range(len(node.args[0])))  # type: ignore[arg-type]


def _rewrite(graph: fx.Graph, node: fx.Node) -> None:
    """``node`` writes its first argument; its results have no users any more."""
    assert isinstance(node.target, OpOverload)
    view = _SCATTERED.get(node.target)
    with graph.inserting_before(node):
        if view is not None:
            base, source, *where = node.args
            part = graph.call_function(view, (base, *where), dict(node.kwargs))
            graph.call_function(aten.copy_.default, (part, source))
        else:
            target = _in_place(node)
            assert target is not None
            graph.call_function(target, node.args, node.kwargs)
    for user in list(node.users):
        graph.erase_node(user)
    graph.erase_node(node)
