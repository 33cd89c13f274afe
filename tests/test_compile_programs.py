"""``torch.compile`` sees programs on the device as it sees them on the CPU: whole, and with eager's numbers."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch
from compiled_programs import BREAKING, PROGRAMS
from torch import nn
from torch.export.passes import move_to_device_pass
from torch.utils import _pytree as pytree

import macatensor


def tensors(value: Any) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]


def run(name: str, device: str, backend: str | None, dynamic: bool = False) -> tuple[list[torch.Tensor], Any]:
    """Results of three calls and the gradients of the last, on the host, and the results' strides."""
    torch._dynamo.reset()
    function, arguments = PROGRAMS[name](device)
    called = function
    if backend is not None:
        called = torch.compile(
            function, backend=backend, fullgraph=name not in BREAKING, dynamic=dynamic or None
        )
    torch.manual_seed(3)
    results = tensors([called(*arguments) for _ in range(3)])
    found = [t.detach().cpu() for t in results]
    parameters = list(function.parameters()) if isinstance(function, nn.Module) else []
    parameters += [a for a in arguments if isinstance(a, torch.Tensor) and a.requires_grad]
    if results[-1].requires_grad and parameters:
        gradients = torch.autograd.grad(results[-1].square().sum(), parameters, allow_unused=True)
        found += [g.cpu() for g in gradients if g is not None]
    return found, [t.stride() for t in results]


@pytest.fixture(autouse=True)
def recurrent_layers_are_traced() -> Any:
    with torch._dynamo.config.patch(allow_rnn=True):
        yield
    torch._dynamo.reset()


@pytest.mark.supports("torch.compile")
@pytest.mark.parametrize("backend,dynamic", [("eager", False), ("maca", False), ("maca", True)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_compile_whole(name: str, backend: str, dynamic: bool) -> None:
    """With eager's results, gradients and strides, nothing on the host, and no warning that the CPU does not give."""
    expected, strides = run(name, "maca", None)
    fallbacks = macatensor.counters()["fallbacks"]
    with warnings.catch_warnings():
        if not name.endswith("flexible_attention"):  # it warns that it is not compiled by Inductor
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", "`torch.jit.script_method` is deprecated")
            warnings.filterwarnings("ignore", ".*autograd.function.Function.* should not be instantiated")
            warnings.filterwarnings("ignore", "Guards may run slower on Python 3.13.0")
        found, other_strides = run(name, "maca", backend, dynamic)
    assert len(found) == len(expected) and strides == other_strides
    for a, b in zip(found, expected):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert macatensor.counters()["fallbacks"] == fallbacks


@pytest.mark.parametrize("name", sorted(BREAKING | {"pointwise", "perceptron", "cond"}))
def test_graphs_break_where_the_cpu_breaks(name: str) -> None:
    found = []
    for device in ("cpu", "maca"):
        torch._dynamo.reset()
        function, arguments = PROGRAMS[name](device)
        said = torch._dynamo.explain(function)(*arguments)
        found.append((said.graph_count, said.graph_break_count))
    assert found[0] == found[1]


def test_changing_sizes_make_as_many_frames() -> None:
    frames = []
    for device in ("cpu", "maca"):
        torch._dynamo.reset()
        counter = torch._dynamo.testing.CompileCounter()
        function = torch.compile(lambda x: (x @ x.t()).relu(), backend=counter)
        for batch in (4, 4, 7, 9, 2):
            function(torch.ones(batch, 3, device=device))
        frames.append(counter.frame_count)
    assert frames[0] == frames[1]


def frames(device: str, calls: Any, **choices: Any) -> int:
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounter()
    calls(torch.compile(lambda x, y: x * y, backend=counter, **choices), device)
    return int(counter.frame_count)


def with_parameters(function: Any, device: str) -> None:
    for n in (3, 4, 5):  # a parameter's sizes are fixed, whatever `dynamic` says
        function(torch.ones(2, n, device=device), nn.Parameter(torch.ones(n, device=device)))


def with_numbers(function: Any, device: str) -> None:
    for n in range(12):  # more than PyTorch compiles
        function(torch.ones(n + 2, device=device), n)


@pytest.mark.parametrize("calls,dynamic", [(with_parameters, True), (with_numbers, False)])
def test_recompiles_are_the_cpus(calls: Any, dynamic: bool) -> None:
    assert frames("maca", calls, dynamic=dynamic) == frames("cpu", calls, dynamic=dynamic) > 1


def test_compiled_autograd_captures_what_it_does_on_cpu() -> None:
    """Once more where the model's graphs come from disk."""
    found = []
    for device in ("cpu", "maca", "maca"):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).to(device)
        backend = "maca" if device == "maca" else "aot_eager"
        compiled, x = torch.compile(model, backend=backend), torch.ones(3, 4, device=device)
        for _ in range(2):
            model.zero_grad()
            with torch._dynamo.compiled_autograd._enable(torch.compile(backend=backend)):
                compiled(x).square().sum().backward()
        gradients = [p.grad.cpu() for p in model.parameters() if p.grad is not None]
        found.append((gradients, torch._dynamo.utils.counters["compiled_autograd"]["captures"]))
    for gradients, captures in found[1:]:
        assert captures == found[0][1] > 0
        torch.testing.assert_close(gradients, found[0][0], rtol=1e-5, atol=1e-6)


def test_a_mixed_graph_takes_the_devices_backend() -> None:
    before = torch._dynamo.utils.counters["inductor"].copy()
    compiled = torch.compile(lambda x, y: (x.cpu() * 2 + y, x + 1), fullgraph=True)
    x, y = torch.ones(3, device="maca"), torch.ones(3)
    for result, expected in zip(compiled(x, y), (y * 3, x + 1)):
        assert torch.equal(result, expected) and result.device == expected.device
    assert torch._dynamo.utils.counters["inductor"] == before


def test_default_backend_follows_the_graph() -> None:
    """A plain ``torch.compile`` is ours for tensors on the device and Inductor for others."""
    before = torch._dynamo.utils.counters["inductor"].copy()
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).to("maca")
    compiled = torch.compile(model)
    x = torch.ones(2, 4, device="maca")
    torch.testing.assert_close(compiled(x), model(x))
    assert torch._dynamo.utils.counters["inductor"] == before
    assert "maca" in torch._dynamo.list_backends()


@pytest.mark.parametrize("given", [{"mode": "fastest"}, {"options": {"tapse": True}}])
def test_unknown_choices_are_refused(given: dict[str, Any]) -> None:
    function = torch.compile(lambda x: x + 1, backend="maca", **given)
    with pytest.raises(Exception, match="accepted"):
        function(torch.ones(2, device="maca"))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune"])
def test_results_of_every_mode_stay(mode: str) -> None:
    """What one call returned, the next does not overwrite; two forwards may come before one backward."""
    model = nn.Linear(3, 3).to("maca")
    compiled = torch.compile(model, backend="maca", mode=mode)
    inputs = [torch.full((2, 3), float(i), device="maca", requires_grad=True) for i in (1, 2)]
    results = [compiled(x) for x in inputs]
    for x, result in zip(inputs, results):
        torch.testing.assert_close(result, model(x))
    (results[0].sum() * 2 + results[1].sum()).backward()
    weight = model.weight.sum(0)
    for x, scale in zip(inputs, (2, 1)):
        torch.testing.assert_close(x.grad, (scale * weight).expand(2, 3))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_every_mode_reads_what_is_there(mode: str) -> None:
    """Memory elsewhere, written meanwhile, a result given back; what a call writes is the caller's."""
    model = nn.Linear(3, 3).to("maca")

    def step(x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        seen.add_(1)
        return model(x).relu() * 2 + seen

    compiled = torch.compile(step, backend="maca", mode=mode)
    memory = torch.randn(7, 3, device="maca")
    seen = [torch.zeros(2, 3, device="maca") for _ in range(2)]
    x, kept = memory[:2], []
    with torch.no_grad():
        for offset in (0, 0, 3, 5):
            memory.mul_(1.5)
            if offset == 3:
                model.weight.data = model.weight.data.clone() * 2
                seen = [t.clone() for t in seen]
            model.bias.sub_(0.5)
            x = memory[offset : offset + 2] if offset < 5 else kept[-1][0]
            kept.append((compiled(x, seen[0]), step(x, seen[1])))
    for result, expected in [*kept, seen]:
        assert torch.equal(result, expected)


def test_a_sparse_result_ends_a_graph() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).to_sparse().to_dense() + 1

    x = torch.eye(3, device="maca")
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(f)(x), f(x))


@pytest.mark.supports("torch.export")
def test_exports_run_on_either_device() -> None:
    for device, other in itertools.permutations(("cpu", "maca")):
        function, arguments = PROGRAMS["convolutions"](device)
        assert isinstance(function, nn.Module)
        expected = function.eval()(*arguments).detach().cpu()
        program = torch.export.export(function, arguments)
        for exported in (program, program.run_decompositions()):  # the latter is made for these strides
            torch.testing.assert_close(exported.module()(*arguments).detach().cpu(), expected)
        moved = move_to_device_pass(program, other)
        result = moved.module()(*(a.to(other) for a in arguments))
        torch.testing.assert_close(result.detach().cpu(), expected, rtol=1e-4, atol=1e-5)
