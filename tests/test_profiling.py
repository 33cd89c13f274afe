"""torch.profiler shows the device as it shows CUDA: kernels with their operators, memory, traces."""

from __future__ import annotations

import gzip
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from profiler_parts import PARTS, SCHEMA, Part, Seen, page, written
from running import run_python
from torch.autograd import DeviceType
from torch.cuda import _memory_viz
from torch.profiler import (
    ExecutionTraceObserver,
    ProfilerActivity,
    itt,
    profile,
    record_function,
    schedule,
    tensorboard_trace_handler,
)

from macatensor.profiling.results import innermost

BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]


def model() -> tuple[torch.nn.Module, torch.Tensor]:
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(288, 4),
    )
    return net.to("maca"), torch.randn(2, 3, 8, 8, device="maca")


def training_step() -> Callable[[], None]:
    """The module is moved before it is profiled: PyTorch's profiler keeps tensors that it saw, if only weakly."""
    net, x = model()

    def step() -> None:
        net(x.cpu().to("maca")).sum().backward()

    return step


def profiled(program: Callable[[], object] | None = None, **given: Any) -> profile:
    run = program or training_step()
    with profile(activities=BOTH, **given) as found:
        run()
    return found


def kernels(found: profile) -> list[Any]:
    return [e for e in found.events() if e.device_type == DeviceType.PrivateUse1]


def test_every_kernel_carries_its_operator() -> None:
    found = profiled()
    owners = [e for e in found.events() if e.device_type == DeviceType.CPU and e.kernels]
    linked = sorted(k.name for e in owners for k in e.kernels)
    assert linked == sorted(k.name for k in kernels(found))
    of_convolution = {k.name for e in owners if e.name == "aten::convolution_backward" for k in e.kernels}
    assert of_convolution == {"convolution_backward"}


def test_tables_have_the_columns_of_cuda() -> None:
    table = profiled(profile_memory=True, record_shapes=True).key_averages(group_by_input_shape=True).table()
    for column in (
        "Self MACA",
        "Self MACA %",
        "MACA total",
        "MACA time avg",
        "MACA Mem",
        "Self MACA Mem",
        "Input Shapes",
    ):
        assert column in table
    assert "PythonSubclass" not in table


def test_default_activities_have_the_device() -> None:
    with profile() as found:
        torch.ones(3, device="maca") + 1
    assert "add" in {k.name for k in kernels(found)}


def test_the_device_alone() -> None:
    with profile(activities=[ProfilerActivity.PrivateUse1]) as found:
        torch.ones(3, device="maca") + 1
    assert {e.device_type for e in found.events()} == {DeviceType.PrivateUse1}


def test_a_cpu_program_shows_no_device() -> None:
    with profile() as found:
        torch.ones(3) + 1
    assert not kernels(found)
    assert "MACA" not in found.key_averages().table()


def test_device_times_lie_inside_of_the_profile() -> None:
    found = profiled()
    average = {a.key: a for a in found.key_averages()}["aten::convolution"]
    assert 0 < average.device_time_total <= average.cpu_time_total * 2
    assert found.profiler is not None
    assert all(k.time_range.end >= k.time_range.start >= 0 for k in kernels(found))


def test_memory_of_operators() -> None:
    def program() -> torch.Tensor:
        return torch.empty(1000, 1000, device="maca")

    found = {a.key: a for a in profiled(program, profile_memory=True).key_averages()}
    assert found["aten::empty"].self_device_memory_usage == 4_000_000 - 4_000_000 % 4096 + 4096


def test_launches_of_the_queue_have_their_times() -> None:
    done = run_python(
        """
        import torch, macatensor
        from torch.profiler import profile, ProfilerActivity
        x = torch.randn(256, 256, device="maca")
        torch.maca.synchronize()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as found:
            stream = torch.maca.Stream()
            with torch.maca.stream(stream):
                y = x @ x
            z = x @ x
        events = [e for e in found.events() if e.device_type == torch.autograd.DeviceType.PrivateUse1 and e.name == "mm"]
        assert len({e.device_resource_id for e in events}) == 2, events
        assert all(e.time_range.elapsed_us() > 1 for e in events)
        """,
        MACA_TASK_QUEUE="1",
    )
    assert done.returncode == 0


def test_replays_and_tapes_are_kernels() -> None:
    x = torch.randn(8, device="maca")
    graph = torch.maca.MacaGraph()
    with torch.maca.graph(graph):
        y = (x + 1).exp()
    replayed = profiled(graph.replay)
    assert [k.name for k in kernels(replayed)] == ["add", "exp"]
    compiled = torch.compile(lambda t: (t + 1).exp())
    compiled(x)
    assert [k.name for k in kernels(profiled(lambda: compiled(x)))] == ["pointwise_program"]
    assert y.numel() == 8


def test_copies_are_named_by_direction() -> None:
    names = [k.name for k in kernels(profiled(lambda: torch.ones(4).to("maca").cpu()))]
    assert names == ["Memcpy HtoD", "Memcpy DtoH"]


def test_scripts_for_cuda_see_the_device() -> None:
    run_python(
        """
        import torch, macatensor.as_cuda
        from torch.profiler import profile, ProfilerActivity
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
            torch.ones(3, device="cuda") + 1
        names = {e.name for e in found.events() if e.device_type == torch.autograd.DeviceType.PrivateUse1}
        assert "add" in names, names
        """
    )


def test_old_profiler_with_use_device(capfd: pytest.CaptureFixture[str]) -> None:
    with torch.autograd.profiler.profile(use_device="maca") as found:
        torch.ones(3, device="maca") + 1
    assert "Self MACA" in found.key_averages().table()
    told = [line for line in capfd.readouterr().err.splitlines() if not line.startswith("USDT:")]
    assert told == []


def trace_of(found: profile, path: Path) -> dict[str, Any]:
    found.export_chrome_trace(str(path))
    opened: Any = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt") as file:
        trace: dict[str, Any] = json.load(file)
    return trace


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_traces_have_the_parts_of_cuda(tmp_path: Path, name: str) -> None:
    def program() -> None:
        with record_function("mine"):
            step()

    step = training_step()

    trace = trace_of(profiled(program, profile_memory=True, record_shapes=True), tmp_path / name)
    events = trace["traceEvents"]
    of = {c: [e for e in events if e.get("cat") == c] for c in {e.get("cat") for e in events}}
    assert of["kernel"] and of["gpu_memcpy"] and of["privateuse1_runtime"] and of["user_annotation"]
    operators = {e["args"]["External id"]: e for e in of["cpu_op"]}
    for kernel in of["kernel"]:
        owner = operators[kernel["args"]["External id"]]
        assert owner["ts"] <= kernel["ts"] and kernel["dur"] > 0
        assert {"stream", "device", "correlation"} <= set(kernel["args"])
    arrows = {(e["ph"], e["id"]) for e in of["ac2g"]}
    calls = {e["args"]["correlation"] for e in of["privateuse1_runtime"]}
    assert arrows == {(ph, number) for ph in "sf" for number in calls}
    on_device = [e for e in events if e.get("name") == "[memory]" and e["args"]["Device Type"] == 20]
    assert on_device and all("Total Allocated" in e["args"] for e in on_device)
    assert trace["deviceProperties"][0]["name"] == torch.maca.get_device_name()
    assert not [e for e in events if e.get("name") == "PythonSubclass"]


def test_schedules_and_the_handler_of_tensorboard(tmp_path: Path) -> None:
    with profile(
        activities=BOTH,
        schedule=schedule(wait=1, warmup=1, active=2),
        on_trace_ready=tensorboard_trace_handler(str(tmp_path)),
    ) as found:
        for _ in range(4):
            torch.ones(3, device="maca") + 1
            found.step()
    (written,) = tmp_path.glob("*.pt.trace.json")
    names = [e["name"] for e in json.loads(written.read_text())["traceEvents"] if e.get("cat") == "kernel"]
    assert names.count("add") == 2


def test_stacks_and_modules(tmp_path: Path) -> None:
    # without it PyTorch itself keeps no stacks for this file
    verbose = torch._C._profiler._ExperimentalConfig(verbose=True)
    found = profiled(with_stack=True, with_modules=True, with_flops=True, experimental_config=verbose)
    found.export_stacks(str(tmp_path / "stacks"), "self_privateuse1_time_total")
    assert "test_profiling.py" in (tmp_path / "stacks").read_text()
    assert any(a.flops for a in found.key_averages())


def test_a_module_moves_while_shapes_are_kept() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    net[1].weight = net[0].weight
    net(torch.ones(1, 2)).sum().backward()
    expected = net(torch.ones(1, 2)).detach()
    slope = net[0].weight.grad.clone()
    with profile(activities=BOTH, record_shapes=True):
        net(torch.ones(1, 2))
        net.to("maca")
        result = net(torch.ones(1, 2).to("maca"))
    assert all(p.device.type == "maca" and isinstance(p, torch.nn.Parameter) for p in net.parameters())
    assert net[0].weight is net[1].weight and len(list(net.parameters())) == 3
    torch.testing.assert_close(result.detach().cpu(), expected)
    torch.testing.assert_close(net[0].weight.grad.cpu(), slope)


def test_a_module_of_an_optimizer_moves_before() -> None:
    net = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with (
        profile(activities=BOTH, record_shapes=True),
        pytest.raises(RuntimeError, match="before it is profiled"),
    ):
        net(torch.ones(1, 2))
        net.to("maca")
    assert optimizer.param_groups[0]["params"][0] is net.weight
    assert type(net.weight) is torch.nn.Parameter and net.weight.device.type == "cpu"
    net(torch.ones(1, 2)).sum().backward()


def test_profiles_follow_one_another() -> None:
    first, second = profiled(), profiled()
    assert [k.name for k in kernels(first)] == [k.name for k in kernels(second)]


def test_a_point_finds_its_innermost_span() -> None:
    spans = [(1, 0, 100), (1, 10, 50), (1, 20, 30), (1, 60, 70), (2, 0, 15)]
    points = [(1, 5), (1, 25), (1, 40), (1, 55), (1, 65), (1, 101), (2, 12), (2, 20), (3, 1)]
    assert innermost(spans, points) == [0, 2, 1, 0, 3, None, 4, None, None]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """One profile with everything on."""
    step = training_step()

    def program() -> None:
        with record_function("mine"):
            step()
            torch.zeros(4096, device="maca")

    found = profiled(program, profile_memory=True, record_shapes=True, with_flops=True, with_stack=True)
    trace = trace_of(found, tmp_path_factory.mktemp("seen") / "trace.json")
    averages = found.key_averages(group_by_input_shape=True)
    return Seen(averages.table(), {a.key: a for a in averages}, trace["traceEvents"], trace)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.cuda)
def test_each_part_of_cuda_is_there(seen: Seen, part: Part) -> None:
    assert part.is_there(seen)


def test_the_page_has_the_table_of_parts() -> None:
    assert written() == page(), "python tests/profiler_parts.py --write"


def test_traces_follow_the_format_of_chrome(seen: Seen) -> None:
    jsonschema.validate(seen.trace, SCHEMA)


@pytest.fixture(scope="module")
def trained() -> profile:
    """Two steps with an optimizer, with all that a memory timeline needs."""
    net, x = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def program() -> None:
        for _ in range(2):
            net(x.cpu().to("maca")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    found = profiled(program, profile_memory=True, record_shapes=True, with_stack=True)
    found.kept = net, optimizer
    return found


def test_memory_timeline_knows_what_memory_is_for(trained: profile) -> None:
    of_memory = trained._memory_profile()
    sizes: dict[tuple[str, str], int] = {}
    for _, action, (key, version), size in of_memory.timeline:
        if key.device.type == "maca":
            category = of_memory._categories.get(key, version)
            at = action.name, category.name if category else ""
            sizes[at] = sizes.get(at, 0) + size
    net, optimizer = trained.kept
    held = sum(p.untyped_storage().nbytes() for p in net.parameters())
    assert sizes["PREEXISTING", "PARAMETER"] >= held
    momentum = sum(s["momentum_buffer"].nbytes for s in optimizer.state.values())
    assert momentum <= sizes["CREATE", "OPTIMIZER_STATE"] <= 8 * momentum
    for category in ("ACTIVATION", "GRADIENT", "INPUT"):
        assert sizes["CREATE", category] > 0
    assert sizes["CREATE", "TEMPORARY"] == sizes["DESTROY", "TEMPORARY"]


@pytest.mark.parametrize("name", ["m.json", "m.json.gz", "m.raw.json.gz", "m.html"])
def test_memory_timelines_are_exported(trained: profile, tmp_path: Path, name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PyTorch's, of the function itself
        trained.export_memory_timeline(str(tmp_path / name))
    if name == "m.html":
        assert "data:image/png" in (tmp_path / name).read_text()
        return
    opened: Any = gzip.open if name.endswith(".gz") else open
    with opened(tmp_path / name, "rt") as file:
        assert len(json.load(file)) >= 2


def test_memory_viz_draws_snapshots(trained: profile) -> None:
    kept = torch.ones(1000, device="maca")
    snapshot = torch.maca.memory._snapshot()
    assert "iB" in _memory_viz.segsum(snapshot)  # KiB, or MiB where other tests took large blocks
    assert "active_allocated" in _memory_viz.memory(snapshot, format_flamegraph=str)
    assert "stream_0" in _memory_viz.segments(snapshot, format_flamegraph=str)
    segments = snapshot["segments"]
    assert _memory_viz.compare(segments, segments, format_flamegraph=str) is not None
    for draw in (_memory_viz.trace_plot, _memory_viz.segment_plot):
        assert "<script" in draw(snapshot)
    assert "script" in _memory_viz.profile_plot(trained)
    assert kept.numel() == 1000


def test_execution_traces_have_operands_on_maca(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    profiled(execution_trace_observer=ExecutionTraceObserver().register_callback(str(path)))
    nodes = json.loads(path.read_text())["nodes"]
    (product,) = [n for n in nodes if n["name"] == "aten::addmm"]
    assert [value[-1] for value in product["inputs"]["values"][:3]] == ["maca:0"] * 3


def test_ranges_of_itt() -> None:
    step = training_step()
    with itt.range("mine"), torch.autograd.profiler.emit_itt():
        step()
    itt.mark("over")


@pytest.mark.supports(
    "torch.maca: prof_init prof_start prof_stop prof_finalize iteration_start iteration_end profile",
    "torch.maca.profiler: start stop profile",
)
def test_profiles_between_two_calls(tmp_path: Path) -> None:
    with torch.maca.profile(tmp_path / "first"):
        torch.maca.iteration_start()
        torch.ones(3, device="maca") + 1
        torch.maca.iteration_end()
    (trace,) = (tmp_path / "first").glob("*.pt.trace.json")
    names = {e["name"] for e in json.loads(trace.read_text())["traceEvents"]}
    assert "add" in names and any(name.startswith("ProfilerStep#") for name in names)
    torch.maca.prof_init(tmp_path / "second")
    torch.maca.profiler.start()
    with pytest.raises(RuntimeError, match="a profile runs"):
        torch.maca.prof_start()
    torch.maca.profiler.stop()
    with pytest.raises(RuntimeError, match="no profile runs"):
        torch.maca.prof_stop()
    torch.maca.prof_start()
    torch.maca.prof_finalize()
    torch.maca.prof_finalize()
    assert len(list((tmp_path / "second").glob("*.pt.trace.json"))) == 2
