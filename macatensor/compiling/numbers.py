"""Floats that change from call to call: a learning rate, a temperature. They do not make another program.

Dynamo gives a float that it has seen change as a 0-dim float64 tensor on the CPU and calculates with symbols in the graph.
PyTorch's own backends turn those into operators on tensors where they can and compile anew for each value where they cannot
(all of ``torch._foreach_*``, ``alpha=``). Here the numbers are calculated apart, in Python, before the graph runs: it gets
floats, and its tape (tapes.py) takes them as the scalars of its launches.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import fx

from macatensor.runtime.boxed import Value

_ITEM = torch.ops.aten._local_scalar_dense.default
_LARGEST = 65504.0  # the largest float16: larger ones are looked at when they are cast

Range = tuple[float, float]  # open


def range_of(value: Value) -> Range | None:
    """In which range a float may change without another program; None where it may not.

    Operators look at signs and at which side of 1 a number is (probabilities, slopes), and at multiples of 1/2 (exponents,
    a factor of 1): those are each their own.
    """
    if type(value) is not float or not abs(value) < _LARGEST or (value * 2).is_integer():
        return None
    low, high = (0.0, 1.0) if abs(value) < 1 else (1.0, _LARGEST)
    return (low, high) if value > 0 else (-high, -low)


def key_of(value: Value) -> Value:
    """What is equal for values that one program serves: -0.0 is another than 0.0, and a NaN is itself."""
    return range_of(value) or (value.hex() if type(value) is float else value)


def stand_in(value: float, number: int, turn: int) -> float:
    """Another float of the same range, which no program has by chance: one for each ``number`` and ``turn``."""
    found = range_of(value)
    assert found is not None
    middle = sum(found) / 2
    return value + (middle - value) * (1e-3 + 1e-5 * math.pi * (2 * number + turn))


class Prelude(NamedTuple):
    """What a graph is called with instead: arguments of before, at ``kept``, and what ``module`` makes of those at
    ``read``."""

    kept: tuple[int, ...]
    read: tuple[int, ...]
    module: fx.GraphModule

    def __call__(self, arguments: list[Value]) -> list[Value]:
        """Empties ``arguments``."""
        made = self.module.forward(*[arguments[i] for i in self.read])
        found = [arguments[i] for i in self.kept]
        arguments.clear()
        found += made
        return found


def apart(module: fx.GraphModule) -> Prelude | None:
    """Takes the calculation of floats from numbers, and from tensors on the CPU that are inputs, out of a graph; None if
    there is none in it."""
    places = module.graph.find_nodes(op="placeholder")
    known = {n: i for i, n in enumerate(places) if _is_number_of_host(n)}
    moved: dict[fx.Node, None] = {}
    for node in module.graph.nodes:
        if node.op == "call_function" and isinstance(node.meta.get("val"), (torch.SymFloat, float)):
            read = node.all_input_nodes
            if all(n in moved or (n in known and (node.target is _ITEM or not _is_tensor(n))) for n in read):
                moved[node] = None
    unused = [
        n for n in known if _is_tensor(n) and not n.users
    ]  # what Dynamo found out to be always the same
    if not moved and not unused:
        return None
    prelude, copies = fx.Graph(), {}
    read = [n for n in known if any(user in moved for user in n.users)]
    for node in read:
        copies[node] = prelude.placeholder(node.name)
    for node in moved:
        copies[node] = prelude.node_copy(node, copies.__getitem__)
        if node.target is _ITEM:
            copies[node].target, copies[node].op = "item", "call_method"
    given = [n for n in moved if any(user not in moved for user in n.users)]
    prelude.output([copies[n] for n in given])
    with module.graph.inserting_before(next(n for n in module.graph.nodes if n.op != "placeholder")):
        for node in given:
            place = module.graph.placeholder(f"{node.name}_given")
            place.meta = dict(node.meta)
            node.replace_all_uses_with(place)
    for node in reversed(moved):
        module.graph.erase_node(node)
    kept = []
    for i, node in enumerate(places):
        if not node.users and (node in read or node in unused):
            module.graph.erase_node(node)
        else:
            kept.append(i)
    module.recompile()
    return Prelude(tuple(kept), tuple(known[n] for n in read), fx.GraphModule(torch.nn.Module(), prelude))


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _is_number_of_host(node: fx.Node) -> bool:
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return value.device.type == "cpu" and value.numel() == 1
    return isinstance(value, (torch.SymFloat, torch.SymInt, float, int))


@contextlib.contextmanager
def staying() -> Iterator[None]:
    """PyTorch leaves the numbers of graphs that are compiled inside as they are."""
    global _depth
    _teach()
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1


_depth = 0


@cache
def _teach() -> None:
    from torch._functorch._aot_autograd import graph_compile

    theirs = vars(graph_compile).get("tensorify_python_scalars")
    if theirs is None:
        return  # another PyTorch: graphs with such numbers are compiled for each

    def tensorify(*arguments: Any, **named: Any) -> Any:
        return None if _depth else theirs(*arguments, **named)

    vars(graph_compile)["tensorify_python_scalars"] = tensorify
