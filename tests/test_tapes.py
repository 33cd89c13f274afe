"""Tapes: launches that are recorded once and run in other memory, and elementwise ones that become one."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import macatensor
from macatensor.compiling import tapes
from macatensor.compiling.backend import maca

Function = Callable[[list[Any]], list[Any]]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Of equal dtype, sizes and strides, and every element the same: signed zeros, too, and NaN, which has no sign."""
    a, b = a.cpu(), b.cpu()
    if (a.dtype, a.shape, a.stride()) != (b.dtype, b.shape, b.stride()):
        return False
    a, b = (t.contiguous().view(-1) for t in (a, b))
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    if a.is_floating_point():
        a, b = (t.masked_fill(t.isnan(), torch.nan) for t in (a, b))
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


UNARY: list[Callable[[Any], Any]] = [
    torch.relu, torch.neg, torch.exp, torch.sigmoid, torch.abs, torch.tanh, F.gelu, F.silu, torch.sqrt,
    torch.logical_not, torch.clone,
    lambda t: t * 2.5, lambda t: t + 1, lambda t: t / 3, lambda t: t.clamp(-1, 1), lambda t: t > 0,
    lambda t: t.to(torch.float32), lambda t: t.to(torch.bfloat16), lambda t: t.float().half(),
    lambda t: t.mean(-1, keepdim=True), lambda t: t - t.amax(-1, keepdim=True), lambda t: t.softmax(-1),
    lambda t: t * t.sum(-1, keepdim=True), lambda t: t.cumsum(0), lambda t: t.transpose(0, -1) + 1,
]  # fmt: skip
BINARY: list[Callable[[Any, Any], Any]] = [
    torch.add, torch.mul, torch.sub, torch.maximum, torch.div, torch.logical_and, torch.eq,
    lambda a, b: torch.where(a > b, a, b), lambda a, b: a < b, lambda a, b: torch.add(a, b, alpha=2),
    lambda a, b: torch.lerp(a, b, 0.3), lambda a, b: torch.addcmul(a, b, b, value=0.5),
]  # fmt: skip
DTYPES = [
    torch.float32, torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.bool, torch.int32,
    torch.complex64,
]  # fmt: skip
SHAPES = [(4, 5), (33,), (7, 129), (2, 3, 5, 4), (3, 1025), (5000,), (2, 8, 16, 16), (1,), (64, 64), (0, 3)]


def random_program(seed: int) -> Function:
    """Of elementwise operators, views and writes; what PyTorch refuses is left out."""

    def run(inputs: list[Any]) -> list[Any]:
        rng = random.Random(seed)
        values = list(inputs)
        for _ in range(rng.randint(3, 14)):
            kind = rng.random()
            a, b = (values[rng.randrange(len(values))] for _ in range(2))
            one, two = rng.choice(UNARY), rng.choice(BINARY)
            try:
                if kind < 0.45:
                    values.append(one(a))
                elif kind < 0.85:
                    values.append(two(a, b))
                elif kind < 0.93:
                    values.append(a.view(-1) if rng.random() < 0.5 else a.reshape(-1).reshape(a.shape))
                else:
                    values.append(a.add_(1))
            except (RuntimeError, TypeError, NotImplementedError, ValueError, IndexError):
                continue
        return [values[-1], values[rng.randrange(len(values))], values[len(values) // 2]]

    return run


def random_inputs(seed: int) -> list[torch.Tensor]:
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    shape = rng.choice(SHAPES)
    found = []
    for _ in range(rng.randint(1, 4)):
        size = list(shape)
        if rng.random() < 0.4:
            size[rng.randrange(len(size))] = 1
        if rng.random() < 0.2:
            size = size[1:]
        dtype = rng.choice(DTYPES)
        t = torch.randn(size, generator=generator) * 3
        t[t > 4] = float("nan")
        t[t < -5] = float("-inf")
        t = (t > 0 if dtype is torch.bool else t.nan_to_num() if not dtype.is_floating_point else t).to(dtype)
        t = t.maca()
        if rng.random() < 0.3 and t.dim() >= 2:
            t = t.transpose(0, 1).contiguous().transpose(0, 1)
        found.append(t)
    return found


@pytest.mark.parametrize("seed", range(0, 400, 20))
def test_fused_programs_are_bit_equal(seed: int) -> None:
    for number in range(seed, seed + 20):
        inputs = random_inputs(number)
        ours, theirs = ([t.clone() for t in inputs] for _ in range(2))
        program = random_program(number)
        expected = program(ours)
        tape = tapes.record(program, theirs)
        results = tape(list(theirs))
        for a, b in zip([*expected, *ours], [*results, *theirs]):
            assert same_bits(a, b), f"program {number}: {tape.launches} launches"


def launches(function: Callable[..., Any], *arguments: torch.Tensor) -> int:
    return tapes.record(lambda given: [function(*given)], arguments).launches


def test_chains_become_one_launch() -> None:
    """Through views, casts, broadcasts and NHWC; not through transposition, nor where another launch comes between."""
    x, bias = torch.randn(6, 8).maca(), torch.randn(8).maca()
    assert launches(lambda x, b: F.gelu(x * 2 + b).relu(), x, bias) == 1
    assert launches(lambda x: (x.view(2, 3, 8) + 1).reshape(48).relu(), x) == 1
    assert launches(lambda x: (x.bfloat16() * 2).float() - 1, x) == 1
    image, scale = torch.randn(2, 3, 4, 5).maca(), torch.randn(3, 1, 1).maca()
    assert launches(lambda x, s: (x * s + s).relu(), image, scale) == 1
    assert launches(lambda x: (x + 1).t().contiguous() * 2, x) == 3
    assert launches(lambda x: (x + 1).sum() * 2, x) == 3
    assert launches(lambda x: torch.rand_like(x) + x * 2, x) == 2


def test_intermediate_results_need_no_memory() -> None:
    x = torch.randn(1 << 16).maca()
    fused = tapes.record(lambda given: [(given[0] * 2 + 1).relu()], [x])
    assert fused.scratch_bytes < x.nbytes
    apart = tapes.record(lambda given: [given[0].cumsum(0).cumsum(0).cumsum(0).cumsum(0)], [x])
    assert apart.scratch_bytes <= 2 * x.nbytes + 4096  # two that take turns


def test_arguments_lie_anywhere() -> None:
    """Memory, offset and what else is in the storage are the call's; other sizes and numbers are refused."""
    tape = tapes.record(
        lambda given: [given[0] * given[1], given[0][1:], given[0]], [torch.ones(3, device="maca"), 2]
    )
    base = torch.arange(8.0, device="maca")
    doubled, view, same = tape([base[4:7], 2])
    assert doubled.tolist() == [8, 10, 12] and view.tolist() == [5, 6]
    assert view.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
    assert same.data_ptr() == base[4:].data_ptr()
    for others in (
        [base, 2],
        [base[4:7], 3],
        [base[4:7], 2.0],
        [base[4:7].double(), 2],
        [base[4:7].cpu(), 2],
        [],
    ):
        assert tape(others) is NotImplemented
    with pytest.raises(TypeError):
        tape((base[4:7], 2))


def test_results_may_share_memory() -> None:
    tape = tapes.record(
        lambda given: [y := given[0] + 1, y[1:], y.view(2, 2), None, 7], [torch.ones(4).maca()]
    )
    y, tail, square, nothing, seven = tape([torch.zeros(4, device="maca")])
    y.add_(1)
    assert tail.tolist() == [2, 2, 2] and square.tolist() == [[2, 2], [2, 2]]
    assert nothing is None and seven == 7
    other = tape([torch.zeros(4, device="maca")])[0]
    assert other.tolist() == [1, 1, 1, 1] and y.tolist() == [2, 2, 2, 2]


def test_random_numbers_go_on() -> None:
    x = torch.zeros(1000, device="maca")
    tape = tapes.record(lambda given: [torch.rand_like(given[0]), F.dropout(given[0] + 1, 0.5)], [x])
    found = []
    for run in (lambda: tape([x]), lambda: [torch.rand_like(x), F.dropout(x + 1, 0.5)]):
        torch.manual_seed(5)
        found.append([t.cpu() for _ in range(3) for t in run()])
    assert all(torch.equal(a, b) for a, b in zip(*found))
    assert not torch.equal(found[0][0], found[0][2])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: [x.sum().item()],
        lambda x: [x[x > 0]],
        lambda x: [x.cpu()],
        lambda x: [x + torch.ones(3).to("maca")],
        lambda x: [torch.rand(3, generator=torch.Generator(), device="maca")],
    ],
    ids=["item", "boolean", "to host", "from host", "generator"],
)
def test_the_host_is_not_recorded(function: Callable[[torch.Tensor], list[Any]]) -> None:
    x = torch.ones(3, device="maca")
    with pytest.raises(tapes.Unrecordable, match="not permitted"):
        tapes.record(lambda given: function(given[0]), [x])
    assert (x + 1).tolist() == [2, 2, 2]  # nothing is recorded any more


def test_threads_run_one_tape_at_once() -> None:
    x = torch.randn(64, 64).maca()

    def work(given: list[Any]) -> list[Any]:
        y = given[0]
        for _ in range(20):
            y = (y @ given[0]).softmax(1) + 1
        return [y]

    tape = tapes.record(work, [x])
    inputs = [torch.randn(64, 64).maca() for _ in range(4)]
    expected = [work([t])[0].cpu() for t in inputs]
    wrong: list[int] = []

    def loop(i: int) -> None:
        for _ in range(30):
            if not torch.equal(tape([inputs[i]])[0].cpu(), expected[i]):
                wrong.append(i)

    threads = [threading.Thread(target=loop, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_others_launch_while_a_tape_is_recorded() -> None:
    """Only the recording thread's launches are taken down."""
    x, seen = torch.ones(3, device="maca"), []

    def record(given: list[Any]) -> list[Any]:
        y = given[0] + 1
        thread = threading.Thread(target=lambda: seen.append((x * 5).tolist()))
        thread.start()
        thread.join()
        return [y * 2]

    tape = tapes.record(record, [x])
    assert seen == [[5, 5, 5]] and tape.launches == 1 and tape([x])[0].tolist() == [4, 4, 4]


def test_written_inputs_keep_their_count() -> None:
    """A weight that a tape writes is not taken from its packed form afterwards."""
    weight, x = torch.randn(96, 96).maca(), torch.randn(4, 96).maca()
    tape = tapes.record(lambda given: [given[0] @ given[1], given[1].mul_(2)], [x, weight])
    for _ in range(4):
        expected = x @ weight
        torch.testing.assert_close(tape([x, weight])[0], expected)


def test_no_memory_is_an_error() -> None:
    tape = tapes.record(lambda given: [given[0].cumsum(0).cumsum(0)], [torch.ones(1 << 20).maca()])
    x = torch.ones(1 << 20, device="maca")
    torch.maca.empty_cache()
    share = (torch.maca.memory_reserved() + (1 << 20)) / torch.maca.mem_get_info()[1]
    torch.maca.set_per_process_memory_fraction(share)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            for held in [[] for _ in range(1)]:
                for _ in range(8):
                    held.append(tape([x]))
    finally:
        torch.maca.set_per_process_memory_fraction(1.0)
    assert tape([x])[0][-1].item() > 1e11


def compiled_with(function: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    compiled: Callable[..., Any] = torch.compile(function, backend=maca, fullgraph=True)
    return compiled


def test_switches_make_new_tapes() -> None:
    function = compiled_with(lambda i: i / 2)
    i = torch.arange(3, device="maca")
    assert function(i).dtype is torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert function(i).dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert function(i).dtype is torch.float32


def test_compiled_graphs_are_freed() -> None:
    module = torch.nn.Linear(4, 4).to("maca")
    function = compiled_with(module)
    function(torch.ones(2, 4, device="maca"))
    gone = weakref.ref(module.weight)
    del function, module
    torch._dynamo.reset()
    gc.collect()
    assert gone() is None


def test_compiled_functions_are_captured_in_graphs() -> None:
    function = compiled_with(lambda x: (x * 2 + 1).relu())
    x = torch.ones(3, device="maca")
    function(x)
    graph = torch.maca.MacaGraph()
    with torch.maca.graph(graph):
        y = function(x)
    x.fill_(4)
    graph.replay()
    assert y.tolist() == [9, 9, 9]


def test_sizes_that_come_once_have_no_tape() -> None:
    torch._dynamo.reset()
    function = torch.compile(lambda x: (x + 1).sum(0), backend=maca, dynamic=True)
    before = macatensor.counters()["launches"]
    for n in (3, 4, 5, 4, 4):
        assert function(torch.ones(n, 2, device="maca")).tolist() == [2.0 * n] * 2
    assert macatensor.counters()["launches"] > before


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_tapes_run_in_every_mode(mode: Any) -> None:
    function = compiled_with(lambda x: (x * 2).relu())
    x = torch.ones(3, device="maca")
    with mode():
        y = function(x)
        assert function(x).tolist() == [2, 2, 2] and not y.requires_grad
    assert y.is_inference() == (mode is torch.inference_mode)


def test_places_in_a_storage_are_the_tensors_own() -> None:
    """``as_strided`` counts from where the storage begins, not from where an input does."""
    function = compiled_with(lambda x: x.as_strided((3,), (1,), 2) + 1)
    base = torch.arange(10.0, device="maca")
    for _ in range(3):
        assert function(base[4:]).tolist() == [3, 4, 5]


scale = [1.0]


@torch.library.custom_op("maca_tests::scaled", mutates_args=())
def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * scale[0]


@scaled.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_operators_of_the_program_run_at_each_call() -> None:
    function = compiled_with(lambda x: scaled(x) + 1)
    for number in (1.0, 2.0, 3.0, 4.0):
        scale[0] = number
        assert function(torch.ones(2, device="maca")).tolist() == [number + 1] * 2


def test_writes_to_what_is_saved_are_noticed() -> None:
    """A result, a view of it, or a view of an argument: a backward pass that saved it raises, as in eager."""
    x = torch.ones(3, 4, device="maca")
    weight = torch.ones(3, 4, device="maca", requires_grad=True)
    transposed = compiled_with(lambda x, w: x.t() @ w)
    power = compiled_with(lambda x, w: (x * w).exp())
    pair = compiled_with(lambda x: ((y := x + 1), y, y.view(-1)))
    for _ in range(3):
        for function, write in ((transposed, lambda y: x.zero_()), (power, lambda y: y.detach().zero_())):
            y = function(x, weight)
            write(y)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                y.sum().backward()
        y, same, view = pair(x)
        assert y is same
        before = y._version
        view.add_(1)
        assert y._version == before + 1


def test_checkpoints_draw_again_what_they_drew() -> None:
    def layer(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x.sin(), 0.5) * torch.rand(8, 8, device=x.device)

    def model(x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = checkpoint(layer, x, use_reentrant=False)
        return y.sum()

    found = []
    for function in (model, compiled_with(model)):
        torch.manual_seed(5)
        x = torch.ones(8, 8, device="maca", requires_grad=True)
        for _ in range(3):
            function(x).backward()
        assert x.grad is not None
        found.append(x.grad.cpu())
    torch.testing.assert_close(*found)
