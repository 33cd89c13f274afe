"""Inputs that a compiled program writes: in place where nothing reads what was there, with eager's bits everywhere."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx

import macatensor
from macatensor.compiling.backend import maca
from macatensor.compiling.in_place import in_place

Tensors = list[torch.Tensor]
WRITES: list[Callable[[Tensors, int, int], Any]] = [
    lambda v, i, j: v[i].mul_(2),
    lambda v, i, j: v[i].add_(v[j]),
    lambda v, i, j: v[i].add_(v[i].t() * 2),
    lambda v, i, j: v[i].copy_(v[j] * v[i]),
    lambda v, i, j: v[i].index_copy_(0, torch.tensor([3, 1], device=v[i].device), v[j][:2] + 1),
    lambda v, i, j: v[i][1:4].copy_(v[j][2:5] + 1),
    lambda v, i, j: v[i][2].add_(v[j][1] * 2),
    lambda v, i, j: v[i].t()[0].mul_(3),
    lambda v, i, j: torch._foreach_add_(v[:3], 1),
    lambda v, i, j: torch._foreach_mul_(v[:2], v[min(j, 2) : min(j, 2) + 2]),  # those that it writes, too
    lambda v, i, j: torch._foreach_lerp_(v[:2], v[2:4], 0.25),
    lambda v, i, j: v.append(v[i] + v[j]),
    lambda v, i, j: v.append(v[i].t() * 2),
    lambda v, i, j: v.append(v[i].cumsum(0)),
]  # fmt: skip


def random_program(seed: int) -> Callable[..., Any]:
    rng = random.Random(seed)
    steps = [(rng.choice(WRITES), rng.randrange(4), rng.randrange(4)) for _ in range(rng.randint(2, 7))]

    def program(*inputs: torch.Tensor) -> Tensors:
        values = list(inputs)
        for write, i, j in steps:
            write(values, i, j)
        return [v * 1 for v in values[4:]]

    return program


@pytest.mark.parametrize("seed", range(0, 40, 5))
def test_written_inputs_have_eagers_bits(seed: int) -> None:
    for number in range(seed, seed + 5):
        torch._dynamo.reset()
        torch.manual_seed(number)
        theirs = [torch.randn(6, 6).maca() for _ in range(4)]
        ours = [t.clone() for t in theirs]
        program = random_program(number)
        compiled = torch.compile(program, backend=maca, fullgraph=True)
        for _ in range(2):
            for a, b in zip([*compiled(*ours), *ours], [*program(*theirs), *theirs]):
                assert torch.equal(a.cpu(), b.cpu()), f"program {number}"


def launches(function: Callable[..., Any], *arguments: Any) -> int:
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=maca)
    for _ in range(3):
        compiled(*arguments)
    before = macatensor.counters()["launches"]
    compiled(*arguments)
    return int(macatensor.counters()["launches"] - before)


def test_caches_are_written_where_they_lie() -> None:
    """One launch for each cache, and one for the attention: nothing copies a cache, whatever layout it has."""

    def step(keys: Any, values: Any, position: Any, q: Any, k: Any, v: Any) -> Any:
        keys.index_copy_(2, position, k)
        values.index_copy_(2, position, v)
        return F.scaled_dot_product_attention(q, keys, values)

    caches = [torch.zeros(1, 4, 32, 16).to("maca") for _ in range(2)]
    tokens = [torch.randn(1, 4, 1, 16).maca() for _ in range(3)]
    with torch.no_grad():
        assert launches(step, *caches, torch.tensor([5], device="maca"), *tokens) == 3


def test_slices_are_written_where_they_lie() -> None:
    def step(x: Any, y: Any) -> None:
        x[:, 2:4] = y
        x[0] = 1

    assert launches(step, torch.zeros(6, 6).maca(), torch.ones(6, 2).maca()) <= 3


def test_optimizers_write_parameters_in_place() -> None:
    """A compiled step of AdamW launches what eager's does, not a copy for each tensor beside."""
    counts, states = {}, {}
    for name in ("eager", "compiled"):
        torch._dynamo.reset()
        torch.manual_seed(0)
        parameters = [torch.nn.Parameter(torch.randn(5, 3).maca()) for _ in range(20)]
        optimizer = torch.optim.AdamW(parameters, lr=0.1)
        step = torch.compile(optimizer.step) if name == "compiled" else optimizer.step
        for _ in range(4):
            for p in parameters:
                p.grad = torch.ones_like(p) / 3
            before = macatensor.counters()["launches"]
            step()
            counts[name] = macatensor.counters()["launches"] - before
        states[name] = [p.detach().cpu() for p in parameters]
    assert (
        counts["compiled"] <= 40 + 20
    )  # the counts of steps are tensors on the device, one for each parameter
    for a, b in zip(states["eager"], states["compiled"]):
        torch.testing.assert_close(a, b)


def test_lists_that_end_are_written() -> None:
    """A compiled step of AdamW needs no more memory than eager's: temporary lists take turns as there."""
    device = torch.get_device_module("maca")
    peaks = []
    for compiled in (False, True):
        torch._dynamo.reset()
        parameters = [torch.nn.Parameter(torch.randn(300, 100).maca()) for _ in range(10)]
        for p in parameters:
            p.grad = torch.ones_like(p)
        optimizer = torch.optim.AdamW(parameters, lr=0.1)
        step = torch.compile(optimizer.step) if compiled else optimizer.step
        for _ in range(3):
            step()
        before = device.memory_allocated()
        device.reset_peak_memory_stats()
        step()
        peaks.append(device.max_memory_allocated() - before)
        del parameters, optimizer, step
    assert peaks[1] <= peaks[0] * 1.02


def graph_of(write: Callable[[fx.Graph, fx.Node], Any], result: bool = False) -> fx.GraphModule:
    """Of one input (4, 4), which gets what ``write`` makes of it."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(4, 4)
    value = write(graph, x)
    for node in graph.nodes:
        node.meta.setdefault("val", torch.empty(4, 4))
    graph.call_function(torch.ops.aten.copy_.default, (x, value))
    graph.output([value] if result else [])
    return fx.GraphModule({}, graph)


def is_rewritten(write: Callable[[fx.Graph, fx.Node], Any], result: bool = False) -> bool:
    module = graph_of(write, result)
    return in_place(module) is not module


def test_what_is_read_later_is_not_overwritten() -> None:
    aten = torch.ops.aten

    def doubled(g: fx.Graph, x: fx.Node) -> fx.Node:
        return g.call_function(aten.mul.Tensor, (x, 2))

    def read_later(g: fx.Graph, x: fx.Node) -> fx.Node:
        y = doubled(g, x)
        return g.call_function(aten.add.Tensor, (y, x))

    def view_read_later(g: fx.Graph, x: fx.Node) -> fx.Node:
        turned = g.call_function(aten.t.default, (x,))
        y = doubled(g, x)
        return g.call_function(aten.add.Tensor, (y, turned))

    def crossed(g: fx.Graph, x: fx.Node) -> fx.Node:
        return g.call_function(aten.add.Tensor, (x, g.call_function(aten.t.default, (x,))))

    def from_another(g: fx.Graph, x: fx.Node) -> fx.Node:
        return doubled(g, g.call_function(aten.cumsum.default, (x, 0)))

    assert is_rewritten(doubled)
    assert is_rewritten(lambda g, x: doubled(g, doubled(g, x)))
    assert not is_rewritten(doubled, result=True)  # the caller's result is not the input
    for refused in (read_later, view_read_later, crossed, from_another):
        assert not is_rewritten(refused)


def test_graphs_that_write_nothing_stay_the_same() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output([graph.call_function(torch.ops.aten.relu.default, (x,))])
    module = fx.GraphModule({}, graph)
    assert in_place(module) is module
    assert copy.deepcopy(module.code) == module.code
