"""``_lazy_clone``: two tensors over the same memory until one of them is written, however that is done."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from macatensor import maca

Write = Callable[[torch.Tensor], object]


def _captured(t: torch.Tensor) -> None:
    graph = torch.maca.MacaGraph()
    with torch.maca.graph(graph):
        t.add_(1)
    graph.replay()


def _compiled(t: torch.Tensor) -> None:
    torch.compile(lambda x: x.add_(1), fullgraph=True)(t)


WRITES: dict[str, Write] = {
    "a launch": lambda t: t.add_(1),
    "a view": lambda t: t.view(-1)[1:3].mul_(3),
    "a copy": lambda t: t.copy_(torch.ones(4, 4, device="maca")),
    "an upload": lambda t: t.copy_(torch.ones(4, 4)),
    "a fill": lambda t: t.zero_(),
    "out": lambda t: torch.neg(torch.ones(4, 4, device=t.device), out=t),
    "its storage": lambda t: t.untyped_storage().fill_(0),
    "resizing": lambda t: t.untyped_storage().resize_(128),
    "a stream": lambda t: _on_a_stream(t),
    "a graph": _captured,
    "a compiled program": _compiled,
}


def _on_a_stream(t: torch.Tensor) -> None:
    with torch.maca.stream(torch.maca.Stream()):
        t.add_(1)
    torch.maca.synchronize()


def _address(t: torch.Tensor) -> int:
    return int(torch._C._data_address(t))


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("name", WRITES)
def test_only_who_writes_is_changed(name: str, which: int) -> None:
    values = torch.arange(16.0).view(4, 4)
    x = maca(values)
    pair = (x, torch._lazy_clone(x))
    assert _address(pair[0]) == _address(pair[1])
    WRITES[name](pair[which])
    wanted = values.clone()
    WRITES[name](wanted) if name not in ("a stream", "a graph", "a compiled program") else wanted.add_(1)
    assert pair[which].tolist() == wanted.tolist()
    assert pair[1 - which].tolist() == values.tolist()


def test_reading_copies_nothing() -> None:
    x = maca(torch.rand(1 << 20))
    before = torch.maca.memory_allocated()
    clones = [x._lazy_clone() for _ in range(4)]
    assert all(clone[0].item() == x[0].item() for clone in clones)
    assert torch.maca.memory_allocated() - before < x.nbytes


def test_the_last_one_keeps_the_memory() -> None:
    x = maca(torch.ones(8))
    clone, address = x._lazy_clone(), _address(x)
    x.add_(1)
    assert _address(x) != address
    clone.add_(1)  # nobody shares it any more
    assert _address(clone) == address
    del x
    assert clone.tolist() == [2.0] * 8


def test_the_address_is_of_own_memory() -> None:
    x = maca(torch.ones(8))
    clone = x._lazy_clone()
    assert clone.data_ptr() != x.data_ptr()  # through it other code may write


def test_memory_of_a_graph_is_copied_at_once() -> None:
    x = maca(torch.ones(4))
    graph = torch.maca.MacaGraph()
    with torch.maca.graph(graph):
        x.add_(1)
    clone = x._lazy_clone()
    kept = clone.tolist()
    graph.replay()
    assert clone.tolist() == kept
    assert x.tolist() != kept


def test_a_graph_reads_what_its_operand_holds() -> None:
    x = maca(torch.ones(4))
    clone = x._lazy_clone()
    graph = torch.maca.MacaGraph()
    with torch.maca.graph(graph):
        y = x * 2
    x.fill_(5)
    graph.replay()
    assert y.tolist() == [10.0] * 4
    assert clone.tolist() == [1.0] * 4


def test_gradients_pass() -> None:
    x = maca(torch.ones(3)).requires_grad_()
    (x._lazy_clone() * 2).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0] * 3
