"""Models that live on maca: traced, scripted, transformed by ``torch.fx``, exported, compiled, written as ONNX, packaged."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from running import close, run_python
from torch import fx, nn
from torch.export.passes import move_to_device_pass
from torch.fx.experimental.optimization import fuse
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.shape_prop import ShapeProp
from torch.package import PackageExporter, PackageImporter

IMAGE = torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4),
    ).eval()  # fmt: skip


class Pair:
    """The network on the device, and what it gives on the host."""

    def __init__(self) -> None:
        with torch.no_grad():
            self.expected = network()(IMAGE)
        self.model, self.x = network().to("maca"), IMAGE.maca()

    def check(self, result: Any) -> None:
        close(result, self.expected, rtol=1e-4, atol=1e-5)


@pytest.mark.supports("torch.jit.trace")
def test_trace() -> None:
    """The graph is the host's, the first time and when plans are known, and takes other sizes."""
    pair = Pair()
    host = torch.jit.trace(network(), IMAGE)
    kinds = [node.kind() for node in host.inlined_graph.nodes()]
    for _ in range(2):
        traced = torch.jit.trace(pair.model, pair.x)
        assert [node.kind() for node in traced.inlined_graph.nodes()] == kinds
        pair.check(traced(pair.x))
    other = torch.rand(3, 3, 10, 12)
    close(traced(other.maca()), host(other).detach(), rtol=1e-4, atol=1e-5)
    for layer, shape in ((nn.LSTM(8, 4), (5, 2, 8)), (nn.TransformerEncoderLayer(8, 2, 16, 0.0), (5, 2, 8))):
        x = torch.rand(shape, device="maca")
        function = torch.jit.trace(layer.to("maca"), x)
        torch.testing.assert_close(function(x), layer(x))
    added = torch.jit.trace(
        lambda a, b: (a @ b).relu() + a.shape[0], (torch.rand(3, 3).maca(), torch.rand(3, 3).maca())
    )
    eye = torch.eye(2, device="maca")
    assert added(eye, eye).tolist() == [[3, 2], [2, 3]]
    assert torch._C._get_tracing_state() is None
    with pytest.raises(RuntimeError):  # what fails inside leaves no tracer behind
        torch.jit.trace(lambda a: a.view(7), eye)
    assert torch._C._get_tracing_state() is None and (eye + 1).shape == (2, 2)


@pytest.mark.supports("torch.jit.script")
def test_script() -> None:
    pair = Pair()
    scripted = torch.jit.script(pair.model)
    for _ in range(3):  # the profiling executor optimizes after the second
        pair.check(scripted(pair.x))
    pair.check(torch.jit.freeze(scripted)(pair.x))
    pair.check(torch.jit.optimize_for_inference(torch.jit.script(network().to("maca")))(pair.x))

    @torch.jit.script
    def loop(x: torch.Tensor, n: int) -> torch.Tensor:
        for _ in range(n):
            if bool(x.sum() > 1):
                x = x * 0.5
        return x

    assert loop(torch.ones(4, device="maca"), 5).tolist() == [0.25] * 4
    training = torch.jit.script(network().train().to("maca"))
    optimizer = torch.optim.SGD(training.parameters(), lr=0.01)
    losses = []
    for _ in range(5):
        loss = training(pair.x).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


@pytest.mark.supports("torch.fx")
def test_fx() -> None:
    """The tutorials: replace an operator, interpret node by node, know sizes, fuse convolution and normalization."""
    pair = Pair()
    graph = fx.symbolic_trace(pair.model)
    pair.check(graph(pair.x))
    pair.check(fx.Interpreter(graph).run(pair.x))
    ShapeProp(graph).propagate(pair.x)
    meta = next(n for n in graph.graph.nodes if n.op == "call_module").meta["tensor_meta"]
    assert meta.shape == (2, 8, 8, 8) and meta.memory_format == torch.channels_last
    pair.check(fuse(pair.model)(pair.x))
    for node in list(graph.graph.nodes):
        if node.op == "call_module" and isinstance(graph.get_submodule(node.target), nn.ReLU):
            with graph.graph.inserting_after(node):
                node.replace_all_uses_with(graph.graph.call_function(torch.sigmoid, node.args))
            graph.graph.erase_node(node)
    graph.recompile()
    changed = network()
    changed[2] = nn.Sigmoid()
    close(graph(pair.x), changed(IMAGE).detach(), rtol=1e-4, atol=1e-5)

    class Doubled(fx.Transformer):
        def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
            return super().call_module(target, args, kwargs) * 2

    assert Doubled(fx.symbolic_trace(nn.Sequential(nn.Identity()))).transform()(pair.x).equal(pair.x * 2)


@pytest.mark.supports("torch.fx")
def test_make_fx_sees_constants_of_the_device() -> None:
    weight = torch.rand(3, 3, device="maca")
    x = torch.rand(2, 3, device="maca")
    graph = make_fx(lambda t: (t @ weight.sin()).sum())(x)
    assert torch.ops.aten.mm.default in {n.target for n in graph.graph.nodes}
    torch.testing.assert_close(graph(x * 2), (x * 2 @ weight.sin()).sum())


@pytest.mark.supports("torch.export")
def test_export(tmp_path: Path) -> None:
    pair = Pair()
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(pair.model, (pair.x,), dynamic_shapes=({0: batch},))
    pair.check(program.module()(pair.x))
    assert program.module()(torch.rand(5, 3, 8, 8, device="maca")).shape == (5, 4)
    torch.export.save(program, tmp_path / "program.pt2")
    loaded = torch.export.load(tmp_path / "program.pt2")
    assert all(t.device.type == "maca" for t in loaded.state_dict.values())
    pair.check(loaded.module()(pair.x))


def test_decomposed_export_of_channels_last_convolutions() -> None:
    pair = Pair()
    pair.check(torch.export.export(pair.model, (pair.x,)).run_decompositions().module()(pair.x))


def test_exported_programs_move_to_the_host() -> None:
    pair = Pair()
    program = torch.export.export(pair.model, (pair.x,))
    moved = move_to_device_pass(program, "cpu")
    assert all(t.device.type == "cpu" for t in moved.state_dict.values())
    torch.testing.assert_close(moved.module()(IMAGE), pair.expected, rtol=1e-4, atol=1e-5)


def test_aot_inductor_says_what_serves() -> None:
    pair = Pair()
    with pytest.raises(
        NotImplementedError, match="AOTInductor compiles no program that lies on maca; accepted: .*save"
    ):
        torch._inductor.aoti_compile_and_package(torch.export.export(pair.model, (pair.x,)))


@pytest.mark.supports("torch.onnx.export")
@pytest.mark.parametrize("dynamo", [False, True], ids=["TorchScript", "dynamo"])
def test_onnx(dynamo: bool, tmp_path: Path) -> None:
    """The file computes what the model does; run by ONNX's own reference."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    pair = Pair()
    path = tmp_path / "model.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the older exporter's end, and of torchvision
        torch.onnx.export(pair.model, (pair.x,), path, dynamo=dynamo, input_names=["image"], verbose=False)
    written = onnx.load(path)
    onnx.checker.check_model(written)
    (result,) = ReferenceEvaluator(written).run(None, {"image": IMAGE.numpy()})
    torch.testing.assert_close(torch.from_numpy(result), pair.expected, rtol=1e-4, atol=1e-5)
    assert next(pair.model.parameters()).device.type == "maca"


@pytest.mark.supports("torch.package")
def test_package(tmp_path: Path) -> None:
    pair = Pair()
    for name, model in (("device", pair.model), ("host", network())):
        with PackageExporter(tmp_path / name) as exporter:
            exporter.extern(["torch.**", "macatensor.**"])
            exporter.save_pickle("models", "model.pkl", model)
            exporter.save_text("models", "about.txt", "a network")
    importer = PackageImporter(tmp_path / "device")
    pair.check(importer.load_pickle("models", "model.pkl")(pair.x))
    assert importer.load_text("models", "about.txt") == "a network"
    pair.check(
        PackageImporter(tmp_path / "host").load_pickle("models", "model.pkl", map_location="maca")(pair.x)
    )


@pytest.mark.parametrize("sanitize", ["0", "1"])
def test_compiled_programs_run_under_every_observer(sanitize: str) -> None:
    """Python that sees each operator runs in the middle of a compiled program, and must not be compiled with it."""
    code = """
        import torch, macatensor
        from macatensor import accuracy

        x = torch.ones(3, device="maca")

        def compiled():
            torch._dynamo.reset()
            return torch.compile(lambda t: t * 2 + torch.arange(3, device="maca"), backend="aot_eager")

        def check(y):
            assert y.tolist() == [2, 3, 4], y

        f = compiled()
        check(f(x))
        for f in (f, compiled()):
            with accuracy.overflow():
                check(f(x))
            assert not accuracy.parity(lambda: f(x)).failures
            assert accuracy.bisect(lambda: f(x)).finding is None
        torch.maca.memory._record_memory_history()
        check(compiled()(x))
        torch.maca.memory._record_memory_history(None)
        f, graph = compiled(), torch.maca.MacaGraph()
        f(x)
        with torch.maca.graph(graph):
            y = f(x)
        graph.replay()
        check(y)
        print("done")
    """
    done = run_python(code, MACA_SANITIZE=sanitize)
    assert done.stdout == "done\n" and "Dynamo does not know" not in done.stderr, done.stderr
