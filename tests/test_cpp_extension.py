"""Kernels of users' own, compiled and joined to the running device, come before those of its library."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from extension_kernels import FAST, MARKED, marked, unload_all
from running import Gate, close, run_python, same

import macatensor
from macatensor import cpp_extension
from macatensor.runtime import ffi

FUSED = r"""
#include <cmath>
static float normal(float v) { return 0.5f * (1 + std::erf(v * 0.70710678f)); }
static float density(float v) { return 0.39894228f * std::exp(-0.5f * v * v); }

MACA_KERNEL("fused::bias_gelu", [](const maca::Request& request) {
  return request.elementwise([](float x, float bias) { return (x + bias) * normal(x + bias); });
});
MACA_KERNEL("fused::bias_gelu_backward", [](const maca::Request& request) {
  return request.elementwise([](float grad, float x, float bias) {
    const float v = x + bias;
    return grad * (normal(v) + v * density(v));
  });
});
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("extensions")


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    yield
    unload_all()


@pytest.fixture
def fused(folder: Path) -> Iterator[cpp_extension.Extension]:
    with torch.library._scoped_library("fused", "DEF") as library:
        library.define("bias_gelu(Tensor x, Tensor bias) -> Tensor")
        library.define("bias_gelu_backward(Tensor grad, Tensor x, Tensor bias) -> Tensor")
        torch.library.register_fake(
            "fused::bias_gelu", lambda x, bias: torch.empty_like(x + bias), lib=library
        )
        torch.library.register_fake(
            "fused::bias_gelu_backward", lambda grad, x, bias: torch.empty_like(x), lib=library
        )

        def backward(ctx, grad):  # type: ignore[no-untyped-def]
            x, bias = ctx.saved_tensors
            given = torch.ops.fused.bias_gelu_backward(grad, x, bias)
            return given, given.sum_to_size(bias.shape)

        torch.library.register_autograd(
            "fused::bias_gelu",
            backward,
            setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
            lib=library,
        )
        yield cpp_extension.load_inline("fused", FUSED, build_directory=folder)


def reference(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x.double() + bias.double()).float()


OPERANDS = {
    "rows": lambda: (torch.randn(5, 7), torch.randn(7)),
    "long": lambda: (torch.randn(300_000), torch.randn(1)),
    "transposed": lambda: (torch.randn(7, 5).t(), torch.randn(7)),
    "every other": lambda: (torch.randn(6, 14)[:, ::2], torch.randn(14)[1::2]),
    "expanded": lambda: (torch.randn(5, 1).expand(5, 7), torch.randn(5, 7)),
    "an image": lambda: (torch.randn(2, 3, 4, 5), torch.randn(3, 1, 1)),
    "empty": lambda: (torch.randn(0, 7), torch.randn(7)),
    "of no dimensions": lambda: (torch.randn(()), torch.randn(())),
    "special": lambda: (torch.tensor([math.nan, math.inf, 0.0, -0.0, 1e-40, 3e38]), torch.zeros(1)),
}


@pytest.mark.parametrize("kind", OPERANDS)
def test_a_fused_kernel_computes(fused: cpp_extension.Extension, kind: str) -> None:
    x, bias = OPERANDS[kind]()
    before = fused.launches
    with macatensor.fallback("error"):
        result = torch.ops.fused.bias_gelu(x.to("maca"), bias.to("maca"))
    close(result, reference(x, bias), rtol=2e-5, atol=2e-6)
    assert fused.launches == before + 1
    if kind == "an image":
        assert result.stride() == (60, 1, 15, 3)


def test_it_has_the_gradients_that_it_registers(fused: cpp_extension.Extension) -> None:
    x, bias = torch.randn(4, 6), torch.randn(6)
    ours = [t.to("maca").requires_grad_() for t in (x, bias)]
    host = [t.double().requires_grad_() for t in (x, bias)]
    torch.ops.fused.bias_gelu(*ours).square().sum().backward()
    torch.nn.functional.gelu(host[0] + host[1]).square().sum().backward()
    for mine, theirs in zip(ours, host):
        close(mine.grad, theirs.grad.float(), rtol=1e-4, atol=1e-5)
    assert fused.launches >= 2


def test_functions_of_autograd_call_it(fused: cpp_extension.Extension) -> None:
    class BiasGelu(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, bias):  # type: ignore[no-untyped-def]
            ctx.save_for_backward(x, bias)
            return torch.ops.fused.bias_gelu(x, bias)

        @staticmethod
        def backward(ctx, grad):  # type: ignore[no-untyped-def]
            return torch.ops.fused.bias_gelu_backward(grad, *ctx.saved_tensors), None

    x, bias = torch.randn(4, 6), torch.randn(6)
    leaf = x.to("maca").requires_grad_()
    BiasGelu.apply(leaf, bias.to("maca")).sum().backward()
    host = x.double().requires_grad_()
    torch.nn.functional.gelu(host + bias.double()).sum().backward()
    close(leaf.grad, host.grad.float(), rtol=1e-4, atol=1e-5)


def test_compiled_programs_launch_it(fused: cpp_extension.Extension) -> None:
    def step(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.ops.fused.bias_gelu(x * 2, bias) + 1

    x = torch.randn(8, 6, device="maca", requires_grad=True)
    bias = torch.randn(6, device="maca", requires_grad=True)
    eager = step(x, bias)
    wanted = torch.autograd.grad(eager.sum(), (x, bias))
    torch.compiler.reset()
    compiled = torch.compile(step, backend="maca", fullgraph=True)
    with macatensor.fallback("error"):
        for _ in range(3):
            before = fused.launches
            result = compiled(x, bias)
            found = torch.autograd.grad(result.sum(), (x, bias))
            assert fused.launches > before
    same(result.detach(), eager.detach().cpu())
    for mine, theirs in zip(found, wanted):
        same(mine, theirs.cpu())


def test_it_comes_before_the_row_and_is_counted(folder: Path) -> None:
    x = torch.randn(3, 5, device="maca")
    row = torch.nn.functional.gelu(x)
    before = macatensor.counters()["extension_launches"]
    extension = marked("mark", 42, folder)
    assert torch.nn.functional.gelu(x).tolist() == [[42.0] * 5] * 3
    assert extension.launches == 1 and macatensor.counters()["extension_launches"] == before + 1
    # the other forms of the operator are of the same kernel; gradients stay PyTorch's formula
    assert torch.ops.aten.gelu_(x.clone()).tolist() == [[42.0] * 5] * 3
    assert torch.ops.aten.gelu.out(x, out=torch.empty_like(x)).tolist() == [[42.0] * 5] * 3
    leaf = x.clone().requires_grad_()
    torch.nn.functional.gelu(leaf).sum().backward()
    host = x.cpu().requires_grad_()
    torch.nn.functional.gelu(host).sum().backward()
    close(leaf.grad, host.grad, rtol=1e-5, atol=1e-6)
    # what it declines the device's library serves, and all when it is unloaded
    close(torch.nn.functional.gelu(x.double()), torch.nn.functional.gelu(x.cpu().double()))
    tanh = torch.nn.functional.gelu(x, approximate="tanh")
    close(tanh, torch.nn.functional.gelu(x.cpu(), approximate="tanh"), rtol=1e-5, atol=1e-6)
    extension.unload()
    same(torch.nn.functional.gelu(x), row.cpu())
    assert not extension.is_joined and "unloaded" in repr(extension)


def test_compiled_programs_use_it_instead_of_the_row(folder: Path) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x + 1) * 2

    x = torch.randn(3, device="maca")
    torch.compiler.reset()
    with marked("mark", 42, folder):
        compiled = torch.compile(program, backend="maca")
        for _ in range(3):
            assert compiled(x).tolist() == [84.0] * 3


def test_the_latest_is_asked_first(folder: Path) -> None:
    x = torch.zeros(2, device="maca")
    first, second = marked("first", 1, folder), marked("second", 2, folder)
    third = cpp_extension.load_inline(
        "third",
        'MACA_KERNEL("gelu", [](const maca::Request&) -> maca::Run { throw maca::Declined("not today"); });',
        extra_cflags=FAST,
        build_directory=folder,
    )
    assert [e.name for e in cpp_extension.joined()] == ["third", "second", "first"]
    assert torch.nn.functional.gelu(x).tolist() == [2.0, 2.0]
    second.unload()
    assert torch.nn.functional.gelu(x).tolist() == [1.0, 1.0]
    assert (first.launches, third.launches) == (1, 0)
    again = marked("first", 5, folder)  # of the same name: it takes the other's place
    assert torch.nn.functional.gelu(x).tolist() == [5.0, 5.0] and not first.is_joined and again.is_joined


DECLINES = r"""
MACA_KERNEL("declines::floats", [](const maca::Request& request) {
  return request.elementwise([](float x) { return x + 1; });
});
"""


def test_what_all_decline_goes_to_the_host(folder: Path) -> None:
    with torch.library._scoped_library("declines", "DEF") as library:
        library.define("floats(Tensor x) -> Tensor")
        torch.library.register_fake("declines::floats", torch.empty_like, lib=library)
        cpp_extension.load_inline("declines", DECLINES, extra_cflags=FAST, build_directory=folder)
        floats, x = torch.ops.declines.floats, torch.arange(3, device="maca")
        assert floats(x.float()).tolist() == [1.0, 2.0, 3.0]
        with pytest.raises(
            NotImplementedError, match="the extension declines declines: operand 0 is not of float32"
        ):
            floats(x)
        library.impl("floats", lambda t: t + 1, "CPU")
        before = macatensor.counters()["fallbacks"]
        with macatensor.fallback("silent"):
            assert floats(x).tolist() == [1, 2, 3]
        assert macatensor.counters()["fallbacks"] == before + 1
        with macatensor.fallback("error"), pytest.raises(NotImplementedError, match="not of float32"):
            floats(x)


OPTIONAL = r"""
MACA_KERNEL("optional::floats", [](const maca::Request& request) {
  if (request.operands[1].is_absent) return request.elementwise([](float x, float z) { return x - z; });
  return request.elementwise([](float x, float y, float z) { return x * y - z; });
});
"""


def test_an_optional_tensor_is_left_out(folder: Path) -> None:
    with torch.library._scoped_library("optional", "DEF") as library:
        library.define("floats(Tensor x, Tensor? y, Tensor z) -> Tensor")
        torch.library.register_fake("optional::floats", lambda x, y, z: torch.empty_like(x), lib=library)
        cpp_extension.load_inline("optional", OPTIONAL, extra_cflags=FAST, build_directory=folder)
        x, y, z = (torch.full((3,), number, device="maca") for number in (5.0, 2.0, 1.0))
        assert torch.ops.optional.floats(x, None, z).tolist() == [4.0] * 3
        assert torch.ops.optional.floats(x, y, z).tolist() == [9.0] * 3


FAILS = r"""
MACA_KERNEL("fails::ways", [](const maca::Request& request) -> maca::Run {
  const auto how = request.integer("how");
  if (how == 0) throw maca::Invalid("contradicts itself");
  if (how == 1) throw 1;
  return [how](const maca::Launch&) {
    if (how == 2) throw std::out_of_range("index 7 is out of range");
    if (how == 3) throw std::runtime_error("it went wrong");
    if (how == 4) throw std::bad_alloc();
    if (how == 5) throw 1;
  };
});
"""


@pytest.mark.parametrize(
    "how, error, text",
    [
        (0, RuntimeError, "contradicts itself"),
        (1, RuntimeError, "no std::exception"),
        (2, IndexError, r"index 7 is out of range \(the extension fails\)"),
        (3, RuntimeError, r"it went wrong \(the extension fails\)"),
        (4, torch.OutOfMemoryError, "the extension fails's plan_launch"),
        (5, RuntimeError, "no std::exception"),
    ],
)
def test_failures_are_errors_of_pytorchs(folder: Path, how: int, error: type[Exception], text: str) -> None:
    with torch.library._scoped_library("fails", "DEF") as library:
        library.define("ways(Tensor x, int how) -> Tensor")
        torch.library.register_fake("fails::ways", lambda x, how: torch.empty_like(x), lib=library)
        cpp_extension.load_inline("fails", FAILS, extra_cflags=FAST, build_directory=folder)
        x = torch.ones(2, device="maca")
        with pytest.raises(error, match=text):
            torch.ops.fails.ways(x, how)
        assert torch.ops.fails.ways(x, 9).shape == (2,)  # the device goes on
        ffi.raise_pending()


def test_fake_kernels_word_the_errors(folder: Path, fused: cpp_extension.Extension) -> None:
    x = torch.ones(2, 3, device="maca")
    with pytest.raises(RuntimeError, match="broadcast|must match the size"):
        torch.ops.fused.bias_gelu(x, torch.ones(2, device="maca"))
    with pytest.raises(RuntimeError, match="same device"):
        torch.ops.fused.bias_gelu(x, torch.ones(3))


def test_who_served_a_kernel_shows(folder: Path) -> None:
    x = torch.randn(4, device="maca")
    with marked("mark", 42, folder):
        with macatensor.launches() as made:
            torch.nn.functional.gelu(x)
            torch.nn.functional.gelu(x, approximate="tanh")
        assert [m.implementation == "mark" for m in made] == [True, False]
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.PrivateUse1]) as profile:
            torch.nn.functional.gelu(x)
        profile.export_chrome_trace(str(folder / "trace.json"))
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    shown = [e["args"].get("implementation") for e in events if e.get("name") == "gelu" and "args" in e]
    assert "mark" in shown


def test_the_command_shows_them(tmp_path: Path) -> None:
    (tmp_path / "my_extension.py").write_text(
        "from macatensor import cpp_extension\n\n"
        f"cpp_extension.load_inline('shown', {MARKED!r}, extra_cflags=['-O1', '-DMARK=1.0f'], build_directory='.')\n"
    )
    program = """
import os, sys
os.chdir(sys.argv[1])
from macatensor.cli import main
sys.argv = ["macatensor", *sys.argv[2:]]
main()
"""
    arguments = (str(tmp_path), "ops", "gelu", "--import", "my_extension")
    assert "shown, before the device library" in run_python(program, *arguments).stdout
    listed = json.loads(run_python(program, *arguments, "--json").stdout)
    assert {"operator": "gelu", "kind": "extension", "kernel": "gelu", "extension": "shown"} in listed


def test_graphs_replay_it(fused: cpp_extension.Extension) -> None:
    x, bias = torch.randn(4, 6, device="maca"), torch.randn(6, device="maca")
    torch.ops.fused.bias_gelu(x, bias)
    graph = torch.maca.MacaGraph()
    with torch.maca.graph(graph):
        result = torch.ops.fused.bias_gelu(x, bias)
        with pytest.raises(RuntimeError, match="cannot be unloaded while a graph is captured"):
            fused.unload()
    fused.unload()  # the graph keeps what it launches
    x.fill_(1.0)
    graph.replay()
    close(result, reference(torch.ones(4, 6), bias.cpu()), rtol=2e-5, atol=2e-6)
    with pytest.raises(NotImplementedError):
        torch.ops.fused.bias_gelu(x, bias)


@pytest.mark.parametrize("size", [16, 1_000_000])
def test_it_waits_for_what_is_queued(fused: cpp_extension.Extension, size: int) -> None:
    x, bias = torch.zeros(size, device="maca"), torch.zeros(1, device="maca")
    torch.ops.fused.bias_gelu(x, bias)
    for stream in (None, torch.maca.Stream()):
        before = ffi.set_task_queue("1")
        try:
            with torch.maca.stream(stream), Gate() as gate:
                x.fill_(1.0)
                gate.open_soon()
                result = torch.ops.fused.bias_gelu(x, bias)
                following = result * 2
                x.fill_(0.0)
            torch.maca.synchronize()
        finally:
            ffi.set_task_queue(before)
        assert following[0].item() == pytest.approx(2 * 0.8413447, abs=1e-5)
        assert result[-1].item() == pytest.approx(0.8413447, abs=1e-5)


def test_a_call_without_extensions_is_planned_once(folder: Path) -> None:
    x = torch.randn(4, device="maca")
    with marked("mark", 42, folder):
        torch.nn.functional.gelu(x)
    torch.nn.functional.gelu(x)
    before = macatensor.counters()["plan_misses"]
    for _ in range(3):
        torch.nn.functional.gelu(x)
    assert macatensor.counters()["plan_misses"] == before
