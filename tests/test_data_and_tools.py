"""``torch.utils``' tools with tensors on maca: data loaders, timers, profilers, checkpoints by address, TensorBoard."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from running import run_python
from torch import nn
from torch.utils import data
from torch.utils.benchmark import Compare, Timer


@pytest.mark.supports("torch.utils.data")
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_the_host_go_to_the_device(workers: int) -> None:
    dataset = data.TensorDataset(torch.arange(40.0).reshape(20, 2), torch.arange(20))
    loader = data.DataLoader(dataset, 6, shuffle=True, num_workers=workers, pin_memory=True)
    seen = []
    for x, y in loader:
        assert x.is_pinned() and y.device.type == "cpu"
        x, y = x.to("maca", non_blocking=True), y.to("maca", non_blocking=True)
        assert torch.equal(x[:, 0], y * 2.0)
        seen += y.tolist()
    assert sorted(seen) == list(range(20)) and seen != sorted(seen)


@pytest.mark.supports("torch.utils.data")
@pytest.mark.parametrize("workers", [0, 1])
def test_datasets_on_the_device(workers: int) -> None:
    """A worker process is forked with the device's tensors; its batches are copied back. CUDA refuses that."""
    dataset = data.TensorDataset(torch.arange(12.0, device="maca"), torch.arange(12, device="maca"))
    loader = data.DataLoader(dataset, 5, num_workers=workers)
    batches = [(x.tolist(), y.device.type) for x, y in loader]
    assert batches == [([0, 1, 2, 3, 4], "maca"), ([5, 6, 7, 8, 9], "maca"), ([10, 11], "maca")]


@pytest.mark.supports("torch.utils.data")
def test_samplers_and_collation() -> None:
    dataset = data.TensorDataset(torch.arange(12.0, device="maca"))
    weights = torch.tensor([0.0] * 6 + [1.0] * 6)
    for sampler in (data.WeightedRandomSampler(weights, 12), data.SubsetRandomSampler(range(6, 12))):
        assert all((x >= 6).all() for (x,) in data.DataLoader(dataset, 4, sampler=sampler))
    batches = data.BatchSampler(data.RandomSampler(dataset), 5, drop_last=True)
    assert [len(x) for (x,) in data.DataLoader(dataset, batch_sampler=batches)] == [5, 5]
    first, second = data.random_split(dataset, [8, 4])
    both = data.ConcatDataset([first, second])
    assert len(both) == 12 and both[0][0].device.type == "maca"
    made = data.default_collate([{"x": torch.ones(2, device="maca"), "n": n} for n in range(3)])
    assert made["x"].shape == (3, 2) and made["x"].device.type == "maca" and made["n"].tolist() == [0, 1, 2]
    assert data.default_convert([torch.ones(1, device="maca")])[0].device.type == "maca"
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        next(iter(data.DataLoader(dataset, 4, pin_memory=True)))


@pytest.mark.supports("torch.utils.benchmark.Timer")
def test_timer() -> None:
    x = torch.rand(64, 64, device="maca")
    timers = [
        Timer(statement, globals={"x": x}, label="product", sub_label=statement, description="maca")
        for statement in ("x @ x", "x.mm(x)")
    ]
    measured = [t.blocked_autorange(min_run_time=0.02) for t in timers]
    assert all(m.median > 0 and len(m.times) >= 1 for m in measured)
    assert timers[0].timeit(5).number_per_run == 5 and timers[0].adaptive_autorange(max_run_time=0.1).iqr >= 0
    table = str(Compare(measured))
    assert "x.mm(x)" in table and "maca" in table


SCRIPT = """
import torch, macatensor
x = torch.rand(50, 50, device="maca", requires_grad=True)
for _ in range(3):
    (x @ x).relu().sum().backward()
"""


@pytest.mark.refuses("torch.utils.bottleneck", reason="PyTorch has removed it; the profilers it ran work")
def test_bottleneck(tmp_path: Path) -> None:
    """What it did, by hand: a script under cProfile, then under the autograd profiler."""
    assert importlib.util.find_spec("torch.utils.bottleneck") is None, "it is back: run it here"
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = run_python(
        """
        import cProfile, pstats, runpy, sys, torch, macatensor
        runpy.run_path(sys.argv[1])  # once: what PyTorch imports late would fill the table
        profile = cProfile.Profile()
        profile.runcall(runpy.run_path, sys.argv[1])
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)
        with torch.autograd.profiler.profile() as autograd:
            runpy.run_path(sys.argv[1])
        print(autograd.key_averages().table(sort_by="self_cpu_time_total", row_limit=30))
        """,
        str(script),
    )
    assert "run_backward" in done.stdout and "aten::mm" in done.stdout and "MmBackward0" in done.stdout


@pytest.mark.supports("torch.utils.model_zoo", "torch.hub.load_state_dict_from_url")
def test_checkpoints_by_address(tmp_path: Path) -> None:
    from torch.utils import model_zoo

    host = nn.Conv2d(3, 4, 3)
    for name, model in (("maca", nn.Conv2d(3, 4, 3).to("maca")), ("cpu", host)):
        model.load_state_dict(host.state_dict())
        torch.save(model.state_dict(), tmp_path / f"{name}.pth")
        address = (tmp_path / f"{name}.pth").as_uri()
        for i, (load, location) in enumerate(
            (f, place)
            for f in (model_zoo.load_url, torch.hub.load_state_dict_from_url)
            for place in (None, "maca", "cpu")
        ):
            state = load(
                address, model_dir=str(tmp_path / f"{name}{i}"), map_location=location, progress=False
            )
            assert state["weight"].device.type == (location or name)
            assert torch.equal(state["weight"].cpu(), host.weight)


@pytest.mark.supports("torch.__config__")
def test_config() -> None:
    assert (
        "PyTorch built with" in torch.__config__.show()
        and "ATen/Parallel" in torch.__config__.parallel_info()
    )
    import macatensor

    assert macatensor.device.library_info()["path"]  # what torch.__config__ says of a build, maca says here


@pytest.mark.supports("torch.utils.tensorboard.SummaryWriter")
def test_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)).to("maca")
    image = torch.rand(2, 3, 8, 8, device="maca")
    scores = torch.rand(10, device="maca")
    with SummaryWriter(str(tmp_path)) as writer:
        writer.add_scalar("loss", torch.tensor(0.5, device="maca"), 1)
        writer.add_scalars("losses", {"train": torch.tensor(0.25, device="maca")}, 1)
        writer.add_histogram("weight", model[0].weight, 1)
        writer.add_image("image", image[0], 1)
        writer.add_images("images", image, 1)
        writer.add_pr_curve("curve", scores > 0.5, scores, 1)
        writer.add_embedding(torch.rand(4, 3, device="maca"), metadata=list("abcd"))
        writer.add_mesh("mesh", torch.rand(1, 10, 3, device="maca"))
        writer.add_audio("sound", torch.rand(1, 100, device="maca") - 0.5, 1)
        writer.add_tensor("tensor", scores, 1)
        writer.add_hparams({"lr": 0.1}, {"accuracy": torch.tensor(0.5, device="maca")}, run_name=".")
        writer.add_graph(model, image)
    events: Any = EventAccumulator(str(tmp_path)).Reload()
    assert events.Scalars("loss")[0].value == 0.5
    histogram = events.Histograms("weight")[0].histogram_value
    assert histogram.num == 108 and histogram.sum == pytest.approx(model[0].weight.sum().item(), abs=1e-3)
    assert {"image", "images"} <= set(events.Tags()["images"]) and events.Graph().node
