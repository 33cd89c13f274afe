"""The caching allocator as torch.maca shows it: statistics, limits, reuse, and nothing that grows for ever."""

from __future__ import annotations

import gc

import pytest
import torch
from running import LEVELS, allocated, nothing_leaked, run_python

import macatensor
from macatensor import maca


def test_allocated_follows_tensors() -> None:
    with nothing_leaked():
        before = allocated()
        x = torch.empty(1 << 20, device="maca")
        assert torch.maca.memory_allocated() - before >= 4 << 20
        views = [x[i:] for i in range(100)]
        assert torch.maca.memory_allocated() - before < 5 << 20
        del x
        assert torch.maca.memory_allocated() > before  # a view keeps the memory
        del views


def test_peaks_and_statistics() -> None:
    gc.collect()  # else cycles of earlier tests are freed between two figures that are compared
    torch.maca.reset_peak_memory_stats()
    start = torch.maca.memory_allocated()
    before = torch.maca.memory_stats()
    x = torch.empty(3 << 20, dtype=torch.uint8, device="maca")
    del x
    assert torch.maca.max_memory_allocated() - start >= 3 << 20
    torch.maca.reset_peak_memory_stats()
    assert torch.maca.max_memory_allocated() == torch.maca.memory_allocated()
    stats = torch.maca.memory_stats()
    assert stats["allocated_bytes.all.current"] == torch.maca.memory_allocated()
    # differences: what was counted before may have been reset
    made, freed, live = (
        stats[f"allocation.all.{n}"] - before[f"allocation.all.{n}"]
        for n in ("allocated", "freed", "current")
    )
    assert made >= 1 and made - freed == live
    assert torch.maca.memory_reserved() >= torch.maca.memory_allocated()
    assert torch.maca.max_memory_reserved() >= torch.maca.memory_reserved()
    free, total = torch.maca.mem_get_info()
    assert 0 < free <= total


def test_the_cache_is_reused_and_emptied() -> None:
    gc.collect()
    torch.maca.empty_cache()
    reserved = torch.maca.memory_reserved()
    x = torch.empty(32 << 20, dtype=torch.uint8, device="maca")
    made = torch.maca.memory_stats()["segment.all.allocated"]
    address = x.data_ptr()
    del x
    y = torch.empty(32 << 20, dtype=torch.uint8, device="maca")
    assert y.data_ptr() == address and torch.maca.memory_stats()["segment.all.allocated"] == made
    del y
    assert torch.maca.memory_reserved() > reserved
    torch.maca.empty_cache()
    assert torch.maca.memory_reserved() <= reserved


def test_memory_is_not_shared_between_live_tensors() -> None:
    sizes = [1, 7, 64, 500, 513, 4096, 70_000, 300_000, 1_000_000]
    tensors = [torch.full((n,), float(i), device="maca") for i, n in enumerate(sizes * 4)]
    for t in tensors[::2]:
        t.add_(0)
    del tensors[::3]
    more = [torch.full((n,), -1.0, device="maca") for n in sizes * 2]
    for t in tensors:
        assert t.min().item() == t.max().item() >= 0
    assert all(t.max().item() == -1 for t in more)


LIMITED = """
import gc, torch, macatensor
from macatensor import maca
limit = 64 << 20
free, total = torch.maca.mem_get_info()
assert total == limit and free <= limit
x = torch.ones(4 << 20, device="maca")
before = torch.maca.memory_allocated()
for make in (
    lambda: torch.empty(100 << 20, dtype=torch.uint8, device="maca"),
    lambda: maca(torch.ones(100 << 18)),
    lambda: [torch.empty(10 << 20, dtype=torch.uint8, device="maca") for _ in range(10)],
    lambda: x.expand(10, -1).contiguous(),
    lambda: torch.cat([x] * 5),
    lambda: torch.randn(10_000, 10_000, device="maca"),
    lambda: (x.reshape(2048, 2048) @ x.reshape(2048, 2048)) @ torch.empty(2048, 8192, device="maca"),
    lambda: torch.maca.torch if False else x.new_empty(1 << 40),
):
    try:
        make()
    except torch.OutOfMemoryError as error:
        text = str(error)
        assert isinstance(error, RuntimeError)
        for word in ("Tried to allocate", "Allocated: 16.00 MiB", "Reserved:", "Limit: 64.00 MiB"):
            assert word in text or word.startswith("Allocated"), text
    else:
        raise SystemExit("no error")
    gc.collect()
    assert torch.maca.memory_allocated() == before, torch.maca.memory_allocated() - before
    assert torch.maca.memory_reserved() <= limit
assert (x + 1).sum().item() == 2 * (4 << 20)
# backward that runs out
w = torch.ones(1 << 20, device="maca", requires_grad=True)
del x
gc.collect()
before = torch.maca.memory_allocated()
try:
    y = w
    kept = []
    for _ in range(40):
        y = y.exp()
        kept.append(y)
except torch.OutOfMemoryError:
    pass
else:
    raise SystemExit("no error")
del y, kept
gc.collect()
assert torch.maca.memory_allocated() == before
assert torch.maca.memory_stats()["num_ooms"] >= 9
print("lived")
"""


def test_a_limit() -> None:
    assert run_python(LIMITED, MACA_DEVICE_MEMORY="64M").stdout.strip() == "lived"


def test_a_limit_that_is_no_size() -> None:
    said = run_python("import macatensor", MACA_DEVICE_MEMORY="lots", expect=1).stderr
    assert "MACA_DEVICE_MEMORY" in said and "8G" in said


def test_ten_thousand_signatures_do_not_pile_up() -> None:
    done = run_python(
        """
        import gc, torch, macatensor
        from macatensor import maca
        from macatensor.runtime import meta
        with open("/proc/self/statm") as f: pass
        def resident():
            gc.collect()
            with open("/proc/self/statm") as f:
                return int(f.read().split()[1]) * 4096
        base = torch.ones(20_000, device="maca")
        def run(n):
            for i in range(1, n):
                x = base[:i]
                x + x
        run(5_000)
        before = resident()
        run(10_000)
        run(10_000)
        grown = resident() - before
        assert grown < 40 << 20, grown
        assert macatensor.counters()["plan_evictions"] > 0
        assert len(meta._interned) < 40_000
        """
    )
    assert done.stderr == ""


def test_many_launches_do_not_grow() -> None:
    x = torch.ones(16, device="maca")
    for _ in range(1000):
        x + x
    start = allocated()
    blocks = torch.maca.memory_stats()["allocation.all.current"]
    for _ in range(20_000):
        y = x + x
        y.mul_(2)
        x[1:]
    del y
    assert allocated() == start and torch.maca.memory_stats()["allocation.all.current"] == blocks


def test_graphs_free_their_memory() -> None:
    layer = maca(torch.nn.Linear(64, 64))
    with nothing_leaked():
        for _ in range(3):
            y = layer(torch.rand(8, 64, device="maca")).tanh().sum()
            y.backward()
            layer.zero_grad(set_to_none=True)
        del y
    with nothing_leaked():
        x = torch.rand(8, 64, device="maca", requires_grad=True)
        g = torch.autograd.grad(layer(x).sum(), x, create_graph=True)[0]
        del x, g


def test_counters() -> None:
    x = torch.ones(16, device="maca")
    x + x
    macatensor.reset_counters()
    assert all(v == 0 for v in macatensor.counters().values())
    x + x
    x + x
    counters = macatensor.counters()
    assert counters["launches"] == 2 and counters["plan_hits"] == 2 and counters["plan_misses"] == 0
    maca(torch.ones(256))
    assert macatensor.counters()["bytes_to_device"] == 1024
    x.tolist()
    assert macatensor.counters()["bytes_to_host"] == 64
    for name in ("fallbacks", "strided_copies", "layout_conversions", "bytes_on_device"):
        assert isinstance(macatensor.counters()[name], int)


def test_device_module() -> None:
    maca_module = torch.maca
    assert (
        maca_module.is_available() and maca_module.device_count() == 1 and maca_module.current_device() == 0
    )
    assert torch.get_device_module("maca") is torch.maca
    properties = maca_module.get_device_properties()
    assert properties.name == maca_module.get_device_name() and properties.kernel_count > 100
    assert properties.total_memory > 0 and properties.simd in LEVELS
    info = maca_module.library_info()
    assert info["abi"].startswith("2.") and info["path"]
    with maca_module.device(0):
        pass
    maca_module.set_device("maca:0")
    for wrong in (1, "maca:1", torch.device("maca", 2)):
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            maca_module.set_device(wrong)
    assert torch.accelerator.current_accelerator().type == "maca"
