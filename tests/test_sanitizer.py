"""MACA_SANITIZE: what CUDA would race on is reported with both operators and lines; what is ordered is not."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from running import run_python

from macatensor import maca
from macatensor.device import sanitizer
from macatensor.dispatch import sites
from macatensor.runtime.ffi import native
from macatensor.runtime.tensor import MacaTensor


@pytest.fixture
def watched() -> Iterator[None]:
    sanitizer.hazards.clear()
    sanitizer.enable()
    yield
    sanitizer.disable()
    sanitizer.hazards.clear()


def found(program: Callable[[], object]) -> list[tuple[str, str]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sanitizer.StreamHazardWarning)
        start = len(sanitizer.hazards)
        program()
    return [(h.earlier.site.operator, h.later.site.operator) for h in sanitizer.hazards[start:]]


def test_read_after_write(watched: None) -> None:
    x, s = torch.ones(4, device="maca"), torch.maca.Stream()

    def program() -> None:
        x.mul_(2)
        with torch.maca.stream(s):
            x + 1

    assert ("aten.mul_.Tensor", "aten.add.Tensor") in found(program)
    text = str(sanitizer.hazards[-1])
    assert (
        text.count(", in program") == 2
        and text.count(__file__) >= 2
        and "write by aten.mul_.Tensor on stream 0" in text
    )
    assert f"read by aten.add.Tensor on stream {s.stream_id}" in text


def test_write_after_read_and_after_write(watched: None) -> None:
    x, s = torch.ones(4, device="maca"), torch.maca.Stream()
    s.wait_stream(torch.maca.current_stream())

    def read_then_write() -> None:
        with torch.maca.stream(s):
            x + 1
        x.zero_()

    assert found(read_then_write) == [("aten.add.Tensor", "aten.zero_.default")]
    torch.maca.synchronize()

    def write_then_write() -> None:
        with torch.maca.stream(s):
            x.fill_(3)
        x.mul_(2)

    assert found(write_then_write) == [("aten.fill_.Scalar", "aten.mul_.Tensor")]


def test_two_reads_and_views_are_no_hazard(watched: None) -> None:
    x, s, t = torch.ones(4, device="maca"), torch.maca.Stream(), torch.maca.Stream()
    torch.maca.synchronize()

    def program() -> None:
        with torch.maca.stream(s):
            x + 1
            x.view(2, 2)
        with torch.maca.stream(t):
            x * 2

    assert found(program) == []


@pytest.mark.parametrize(
    "how", ["wait_stream", "event", "synchronize", "event.synchronize", "device", "item"]
)
def test_what_orders_streams(watched: None, how: str) -> None:
    s = torch.maca.Stream()

    def program() -> None:
        x = torch.ones(4, device="maca")
        s.wait_stream(torch.maca.current_stream())
        with torch.maca.stream(s):
            y = x + 1
            event = s.record_event()
            if how == "item":
                y.sum().item()
        if how == "wait_stream":
            torch.maca.current_stream().wait_stream(s)
        elif how == "event":
            event.wait()
        elif how == "synchronize":
            s.synchronize()
        elif how == "event.synchronize":
            event.synchronize()
        elif how == "device":
            torch.maca.synchronize()
        y.mul_(2)
        x.mul_(2)

    assert found(program) == []


def test_an_event_orders_only_what_came_before_it(watched: None) -> None:
    x, s = torch.ones(4, device="maca"), torch.maca.Stream()
    torch.maca.synchronize()

    def program() -> None:
        with torch.maca.stream(s):
            event = s.record_event()
            x.add_(1)
        event.wait()
        x.cpu()

    assert found(program) == [("aten.add_.Tensor", "aten._to_copy.default")]


def test_each_pair_is_reported_once_and_results_stay(watched: None) -> None:
    x, s = maca(torch.zeros(4)), torch.maca.Stream()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(5):
            with torch.maca.stream(s):
                x.add_(1)
            x.mul_(1)
    assert len([w for w in said if w.category is sanitizer.StreamHazardWarning]) <= 3
    assert x.tolist() == [5, 5, 5, 5]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x.neg_()
        with pytest.raises(sanitizer.StreamHazardWarning), torch.maca.stream(s):
            x.sub_(1)


def test_memory_that_is_freed_is_forgotten(watched: None) -> None:
    for _ in range(50):
        torch.ones(4, device="maca") + 1
    watching = sites._watcher
    assert len(watching.buffers) < 20


def test_backward_on_its_own_thread(watched: None) -> None:
    w = torch.ones(4, device="maca", requires_grad=True)

    def program() -> None:
        (w * 2).sum().backward()
        assert w.grad.tolist() == [2, 2, 2, 2]

    assert found(program) == []


def test_backward_is_ordered_by_the_engine(watched: None) -> None:
    layer, s = maca(torch.nn.Linear(4, 4)), torch.maca.Stream()
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    x = torch.rand(2, 4, device="maca")

    def forward_and_backward_on_a_stream() -> None:
        s.wait_stream(torch.maca.current_stream())
        with torch.maca.stream(s):
            layer(x).relu().sum().backward()
        torch.maca.current_stream().wait_stream(s)
        optimizer.step()

    def backward_elsewhere() -> None:
        s.wait_stream(torch.maca.current_stream())
        with torch.maca.stream(s):
            loss = layer(x).relu().sum()
        loss.backward()
        optimizer.step()

    assert found(forward_and_backward_on_a_stream) == []
    assert found(backward_elsewhere) == []

    def step_too_early() -> None:
        s.wait_stream(torch.maca.current_stream())
        with torch.maca.stream(s):
            layer(x).relu().sum().backward()
        optimizer.step()

    assert found(step_too_early)


def test_off_costs_nothing() -> None:
    assert not sites.is_recorded() and MacaTensor.__torch_dispatch__ is native.dispatch


@pytest.mark.supports("MACA_SANITIZE")
def test_the_switch() -> None:
    code = """
    import torch, macatensor
    x, s = torch.ones(4, device="maca"), torch.maca.Stream()
    with torch.maca.stream(s):
        x + 1
    """
    assert "aten.add.Tensor on stream 1" in run_python(code, MACA_SANITIZE="1").stderr
    assert run_python(code, MACA_SANITIZE=None).stderr == ""
