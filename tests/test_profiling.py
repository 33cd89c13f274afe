"""torch.profiler shows the device as it shows CUDA: kernels with their operators, memory, traces."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from running import run_python
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function, schedule, tensorboard_trace_handler

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


def test_profiles_follow_one_another() -> None:
    first, second = profiled(), profiled()
    assert [k.name for k in kernels(first)] == [k.name for k in kernels(second)]


def test_a_point_finds_its_innermost_span() -> None:
    spans = [(1, 0, 100), (1, 10, 50), (1, 20, 30), (1, 60, 70), (2, 0, 15)]
    points = [(1, 5), (1, 25), (1, 40), (1, 55), (1, 65), (1, 101), (2, 12), (2, 20), (3, 1)]
    assert innermost(spans, points) == [0, 2, 1, 0, 3, None, 4, None, None]
