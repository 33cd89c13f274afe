"""Level 3: what holds beyond single kernels: streams, graphs, indices out of range, memory that runs out.

Each function asks one task of the loaded library, counts samples in the answer, and raises what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from macatensor.dispatch.host_fallback import HostRefused, fallback
from macatensor.dispatch.request import Declined
from macatensor.examination.task import Answer
from macatensor.parity.runner import on_device
from macatensor.parity.samples import overload, samples
from macatensor.parity.transport import fetch, replace, tensors
from macatensor.runtime.tensor import MacaTensor
from op_table import TABLE

_maca = torch.get_device_module("maca")
_AHEAD = 16 << 20  # bytes that a stream fills before the launch


def _bits(value: torch.Tensor) -> bytes:
    flat = value.resolve_conj().resolve_neg().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).tolist()) if flat.numel() else b""


def streams(answer: Answer) -> None:
    """A kernel gives the same bits on a stream of its own, behind work that brings its operands."""
    row = TABLE[answer.task.entry]
    func = overload(row)
    dtype = getattr(torch, answer.task.dtype)
    stream = _maca.Stream()
    busy = torch.empty(_AHEAD, dtype=torch.uint8, device="maca")
    with torch.no_grad(), fallback("error"):
        for call in samples(row, dtype, "contiguous"):
            if answer.samples == 3:
                break
            try:
                args, kwargs = on_device(call)
                want = [fetch(t) for t in tensors(func(*args, **kwargs)) if isinstance(t, MacaTensor)]
                args, kwargs = on_device(call)
                blank = replace((args, kwargs), torch.zeros_like)
                _maca.synchronize()
                with _maca.stream(stream):
                    for _ in range(4):
                        busy.zero_()
                    for to, source in zip(tensors(blank), tensors((args, kwargs))):
                        if isinstance(to, MacaTensor) and isinstance(source, MacaTensor):
                            to.copy_(source)
                    got = tensors(func(*blank[0], **blank[1]))
                stream.synchronize()
                have = [fetch(t) for t in got if isinstance(t, MacaTensor)]
            except (Declined, HostRefused):
                continue
            answer.samples += 1
            for i, (a, b) in enumerate(zip(have, want)):
                if a.shape != b.shape or _bits(a) != _bits(b):
                    raise AssertionError(
                        f"{row.name}: result {i} on a stream of its own differs from the default stream's"
                    )
    if not answer.samples:
        answer.outcome = "declined"


_F = torch.arange(12.0).reshape(4, 3)


def _refused(call: Callable[[], object], what: str) -> None:
    try:
        call()
        _maca.synchronize()
    except (IndexError, RuntimeError):
        return
    raise AssertionError(f"{what}: nothing was raised")


def indices(answer: Answer) -> None:
    """An index out of range is an error of the call or the next wait, and the device goes on."""
    x = _F.to("maca")

    def bad(value: int, shape: tuple[int, ...] = (2,)) -> torch.Tensor:
        index = torch.zeros(shape, dtype=torch.int64)
        index.view(-1)[-1] = value
        return index.to("maca")

    reading: dict[str, Callable[[int], object]] = {
        "index_select": lambda i: x.index_select(0, bad(i)),
        "gather": lambda i: x.gather(0, bad(i, (1, 3))),
        "index": lambda i: x[bad(i)],
        "embedding": lambda i: torch.nn.functional.embedding(bad(i), x),
        "take": lambda i: x.take(bad(i * 10)),
    }
    writing: dict[str, Callable[[int], object]] = {
        "scatter": lambda i: x.scatter(0, bad(i, (1, 3)), x[:1]),
        "scatter_add": lambda i: x.scatter_add(0, bad(i, (1, 3)), x[:1]),
        "index_add": lambda i: x.index_add(0, bad(i), x[:2]),
        "index_put": lambda i: x.clone().index_put_((bad(i),), x[:2]),
        "nll_loss": lambda i: torch.nn.functional.nll_loss(x, bad(i, (4,))),
    }  # fmt: skip
    for name, call in (reading | writing).items():
        try:
            with fallback("error"):
                call(1)
        except (Declined, HostRefused):
            continue
        answer.samples += 1
        for value in (4, 1 << 20, -5, -(1 << 20)):
            _refused(partial(call, value), f"{name} with index {value} of 4")
        _maca.synchronize()
    if not torch.equal(x.cpu(), _F):
        raise AssertionError("after errors of indices a copy brings other bytes")
    if not answer.samples:
        answer.outcome = "declined"


def _model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))


def graphs(answer: Answer) -> None:
    """A graph that was captured gives what eager calls give, for other operands too."""
    model = _model().to("maca")
    x = torch.rand(5, 8).to("maca")
    with torch.no_grad():
        try:
            with fallback("error"):
                model(x)
        except (Declined, HostRefused):
            answer.outcome, answer.detail = "declined", "the library has no kernels for Linear and ReLU"
            return
        _maca.synchronize()
        graph = _maca.MacaGraph()
        with _maca.graph(graph):
            y = model(x)
        for seed in range(3):
            torch.manual_seed(seed)
            fresh = torch.rand(5, 8)
            x.copy_(fresh)
            graph.replay()
            _maca.synchronize()
            answer.samples += 1
            if not torch.equal(y.cpu(), model(fresh.to("maca")).cpu()):
                raise AssertionError("a graph's replay gives other bits than eager calls")


def memory(answer: Answer) -> None:
    """What does not fit raises torch.OutOfMemoryError, and the device goes on."""
    x = _F.to("maca")
    for nbytes in (1 << 46, 1 << 50):
        try:
            torch.empty(nbytes, dtype=torch.uint8, device="maca")
        except (torch.OutOfMemoryError, RuntimeError):
            answer.samples += 1
            continue
        raise AssertionError(f"{nbytes} bytes were given out")
    for _ in range(200):
        torch.empty(1 << 20, dtype=torch.uint8, device="maca")
    _maca.empty_cache()
    if not torch.equal(x.cpu(), _F):
        raise AssertionError("after a refused allocation a copy brings other bytes")


BEHAVIOURS: dict[str, Callable[[Answer], None]] = {
    "streams": streams,
    "indices": indices,
    "graphs": graphs,
    "memory": memory,
}
