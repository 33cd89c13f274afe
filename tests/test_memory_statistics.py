"""torch.maca's memory functions against what torch.cuda documents: names, identities, warnings and errors."""

from __future__ import annotations

import gc
import inspect

import pytest
import torch
import torch.cuda.memory
from running import run_python

POOLS = ("all", "small_pool", "large_pool")
PARTS = ("current", "peak", "allocated", "freed")
POOLED = ("allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes", "active_bytes",
          "inactive_split_bytes", "requested_bytes")  # fmt: skip


def test_the_names_and_parameters_of_torch_cuda() -> None:
    for name in ("caching_allocator_alloc", "caching_allocator_delete", "change_current_allocator", "empty_cache",
                 "get_allocator_backend", "get_per_process_memory_fraction", "list_gpu_processes",
                 "max_memory_allocated", "max_memory_cached", "max_memory_reserved", "mem_get_info",
                 "memory_allocated", "memory_cached", "memory_reserved", "memory_snapshot", "memory_stats",
                 "memory_stats_as_nested_dict", "memory_summary", "reset_accumulated_memory_stats",
                 "reset_max_memory_allocated", "reset_max_memory_cached", "reset_peak_memory_stats",
                 "set_per_process_memory_fraction"):  # fmt: skip
        ours = inspect.signature(getattr(torch.maca, name)).parameters
        cuda = inspect.signature(getattr(torch.cuda.memory, name)).parameters
        assert [(p.name, p.default) for p in ours.values()] == [(p.name, p.default) for p in cuda.values()], (
            name
        )
        assert getattr(torch.maca.memory, name) is getattr(torch.maca, name)


@pytest.mark.supports("torch.maca: max_memory_allocated memory_stats memory_stats_as_nested_dict")
def test_every_statistic_that_the_summary_of_cuda_needs() -> None:
    stats = torch.maca.memory_stats()
    assert list(stats) == sorted(stats)
    for name in POOLED:
        for pool in POOLS:
            for part in PARTS:
                assert isinstance(stats[f"{name}.{pool}.{part}"], int)
    nested = torch.maca.memory_stats_as_nested_dict()
    assert nested["allocated_bytes"]["all"]["peak"] == torch.maca.max_memory_allocated()
    for name in ("num_alloc_retries", "num_ooms", "max_split_size", "oversize_segments.current"):
        assert name in stats


def check_identities() -> None:
    stats = torch.maca.memory_stats()
    for name in POOLED:
        for pool in POOLS:
            current, peak, allocated, freed = (stats[f"{name}.{pool}.{part}"] for part in PARTS)
            assert 0 <= current <= peak and current == allocated - freed, (name, pool)
        for part in ("current", "allocated", "freed"):
            assert stats[f"{name}.all.{part}"] == sum(stats[f"{name}.{pool}.{part}"] for pool in POOLS[1:])
    assert stats["requested_bytes.all.current"] <= stats["allocated_bytes.all.current"]
    assert (
        stats["allocated_bytes.all.current"] + stats["inactive_split_bytes.all.current"]
        <= (stats["reserved_bytes.all.current"])
    )


def test_identities_over_a_random_program() -> None:
    done = run_python(
        """
        import random, torch, macatensor
        import test_memory_statistics as t
        random.seed(3)
        live = []
        for step in range(600):
            if live and random.random() < 0.5:
                live.pop(random.randrange(len(live)))
            else:
                size = random.choice([0, 1, 600, 70_000, 300_000, 3 << 20, 20 << 20])
                live.append(torch.empty(size, dtype=torch.uint8, device="maca"))
            if step % 50 == 0:
                t.check_identities()
                torch.maca.empty_cache()
            blocks = [b for s in torch.maca.memory_snapshot() for b in s["blocks"]] if step % 20 == 0 else None
            if blocks is not None:
                stats = torch.maca.memory_stats()
                used = [b for b in blocks if b["state"] == "active_allocated"]
                assert sum(b["size"] for b in used) == stats["allocated_bytes.all.current"]
                assert sum(b["requested_size"] for b in used) == stats["requested_bytes.all.current"]
                assert len(used) == stats["allocation.all.current"]
                segments = torch.maca.memory_snapshot()  # the pieces of one range for each pool
                in_use = {s["segment_type"] for s in segments if s["active_size"]}
                idle = [s for s in segments if s["segment_type"] in in_use]
                assert sum(s["total_size"] - s["active_size"] for s in idle) == stats["inactive_split_bytes.all.current"]
                waiting = sum(b["state"] == "inactive" for s in idle for b in s["blocks"])
                assert waiting == stats["inactive_split.all.current"]
        live.clear()
        torch.maca.empty_cache()
        stats = torch.maca.memory_stats()
        assert stats["inactive_split.all.current"] == stats["inactive_split_bytes.all.current"] == 0
        assert stats["reserved_bytes.all.current"] == stats["segment.all.current"] == 0
        """,
    )
    assert done.stderr == ""


def test_snapshots_read_no_freed_memory() -> None:
    run_python(
        """
        import torch, macatensor
        live = [torch.empty(size, device="maca") for size in (1, 1000, 300000)]
        segments = torch.maca.memory_snapshot()
        assert sum(s["total_size"] for s in segments) == torch.maca.memory_reserved(), segments[:2]
        """,
        MALLOC_PERTURB_="85",  # glibc overwrites what is freed
    )


def test_pools() -> None:
    before = torch.maca.memory_stats()
    small = torch.empty(1000, device="maca")
    large = torch.empty(1 << 20, device="maca")
    stats = torch.maca.memory_stats()
    for pool in POOLS[1:]:
        assert stats[f"allocation.{pool}.current"] == before[f"allocation.{pool}.current"] + 1
    assert stats["requested_bytes.small_pool.current"] - before["requested_bytes.small_pool.current"] == 4000
    del small, large


@pytest.mark.supports("torch.maca.reset_accumulated_memory_stats")
def test_resets() -> None:
    run_python(
        """
        import torch, macatensor
        kept = torch.empty(1000, device="maca")
        torch.empty(1 << 20, device="maca")
        torch.maca.reset_peak_memory_stats()
        torch.maca.reset_accumulated_memory_stats()
        stats = torch.maca.memory_stats()
        assert stats["allocation.all.allocated"] == stats["allocation.all.freed"] == stats["num_ooms"] == 0
        assert stats["allocated_bytes.all.peak"] == stats["allocated_bytes.all.current"] > 0
        """
    )


@pytest.mark.supports(
    "torch.maca: max_memory_cached memory_cached reset_max_memory_allocated reset_max_memory_cached"
)
def test_deprecated_names_warn_as_in_cuda() -> None:
    for name, says in (("reset_max_memory_allocated", "resets /all/ peak"), ("reset_max_memory_cached", "resets /all/ peak"),
                       ("memory_cached", "renamed to `torch.maca.memory_reserved`"),
                       ("max_memory_cached", "renamed to `torch.maca.max_memory_reserved`")):  # fmt: skip
        with pytest.warns(FutureWarning, match=says):
            getattr(torch.maca, name)()


def cuda_summary(stats: dict[str, int], abbreviated: bool, monkeypatch: pytest.MonkeyPatch) -> str:
    """The table of torch.cuda's own function over our statistics."""
    monkeypatch.setattr(torch.cuda.memory, "memory_stats", lambda device=None: stats)
    return torch.cuda.memory.memory_summary(0, abbreviated)


@pytest.mark.supports("torch.maca.memory_summary")
def test_the_summary_is_cudas_table(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()  # what earlier tests left must not be freed between the two tables
    kept = [torch.empty(n, device="maca") for n in (10, 1 << 20, 3 << 20)]
    for abbreviated in (False, True):
        cuda = cuda_summary(torch.maca.memory_stats(), abbreviated, monkeypatch)
        ours = torch.maca.memory_summary(abbreviated=abbreviated)
        assert len(ours.splitlines()) == len(cuda.splitlines())
        for mine, theirs in zip(ours.splitlines(), cuda.splitlines()):
            if "CUDA" in theirs or "cudaMalloc" in theirs:
                theirs = theirs.replace("CUDA", "MACA").replace("cudaMalloc", "macaMalloc")
            assert mine == theirs
    del kept


@pytest.mark.supports(
    "torch.maca: empty_cache get_per_process_memory_fraction mem_get_info set_per_process_memory_fraction OutOfMemoryError"
)
def test_fractions() -> None:
    assert torch.maca.get_per_process_memory_fraction() == 1.0
    for wrong, error in (
        (1, TypeError),
        ("0.5", TypeError),
        (-0.1, ValueError),
        (1.5, ValueError),
        (float("nan"), ValueError),
    ):
        with pytest.raises(error, match="fraction"):
            torch.maca.set_per_process_memory_fraction(wrong)
    gc.collect()
    torch.maca.empty_cache()
    try:
        torch.maca.set_per_process_memory_fraction(0.0)
        assert torch.maca.get_per_process_memory_fraction() == 0.0
        with pytest.raises(torch.maca.OutOfMemoryError, match="Limit: 0 bytes"):
            torch.empty(64 << 20, device="maca")
        torch.maca.set_per_process_memory_fraction(0.5)
        total = torch.maca.mem_get_info()[1]
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(total * 6 // 10, dtype=torch.uint8, device="maca")
    finally:
        torch.maca.set_per_process_memory_fraction(1.0)
    assert torch.empty(64 << 20, dtype=torch.uint8, device="maca").numel() == 64 << 20


@pytest.mark.supports("torch.maca: caching_allocator_alloc caching_allocator_delete")
def test_raw_allocations() -> None:
    before = torch.maca.memory_stats()["requested_bytes.all.current"]
    stream = torch.maca.Stream()
    addresses = [
        torch.maca.caching_allocator_alloc(1000),
        torch.maca.caching_allocator_alloc(1000, "maca:0", stream),
        torch.maca.caching_allocator_alloc(1000, 0, 0),
    ]
    assert len(set(addresses)) == 3 and torch.maca.caching_allocator_alloc(0) == 0
    assert torch.maca.memory_stats()["requested_bytes.all.current"] == before + 3000
    for address in addresses:
        torch.maca.caching_allocator_delete(address)
        with pytest.raises(RuntimeError, match="invalid device pointer"):
            torch.maca.caching_allocator_delete(address)
    torch.maca.caching_allocator_delete(0)
    assert torch.maca.memory_stats()["requested_bytes.all.current"] == before
    with pytest.raises(TypeError, match="stream"):
        torch.maca.caching_allocator_alloc(8, stream="fast")
    with pytest.raises(torch.OutOfMemoryError):
        torch.maca.caching_allocator_alloc(1 << 60)
    with pytest.raises(ValueError):
        torch.maca.caching_allocator_alloc(-8)


@pytest.mark.supports("torch.maca: memory_allocated reset_peak_memory_stats")
def test_device_arguments() -> None:
    for device in (None, 0, "maca", "maca:0", torch.device("maca", 0)):
        assert torch.maca.memory_allocated(device) >= 0 and torch.maca.memory_stats(device)
    for function in (torch.maca.memory_allocated, torch.maca.memory_stats, torch.maca.mem_get_info,
                     torch.maca.reset_peak_memory_stats, torch.maca.memory_summary):  # fmt: skip
        with pytest.raises(ValueError, match="Expected a maca device"):
            function("cpu")
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            function(1)
        with pytest.raises(ValueError):
            function(1.5)


@pytest.mark.supports("torch.maca: get_allocator_backend list_gpu_processes")
@pytest.mark.refuses(
    "torch.maca.change_current_allocator",
    reason="the runtime allocates from import on; a library brings its own",
)
def test_backend_and_processes() -> None:
    assert torch.maca.get_allocator_backend() == "native"
    with pytest.raises(RuntimeError, match="already initialized allocator"):
        torch.maca.change_current_allocator(None)
    assert torch.maca.list_gpu_processes().startswith("GPU:0\nprocess ")


@pytest.mark.supports("torch.maca.memory_snapshot")
def test_snapshot_in_cudas_form() -> None:
    x = torch.empty(100, device="maca")
    segments = torch.maca.memory_snapshot()
    assert {
        "address",
        "total_size",
        "allocated_size",
        "active_size",
        "requested_size",
        "stream",
        "segment_type",
        "blocks",
    } <= set(segments[0])
    (block,) = [b for s in segments for b in s["blocks"] if b["address"] == x.data_ptr()]
    assert block["requested_size"] == 400 and block["size"] >= 400 and block["state"] == "active_allocated"
    assert torch.maca.memory_snapshot((1, 2)) == []
    assert torch.cuda._memory_viz.segsum({"segments": segments, "device_traces": [[]]})


@pytest.mark.supports("torch.maca.memory: _record_memory_history _dump_snapshot")
def test_history_tells_operators_and_lines(tmp_path) -> None:
    with pytest.raises(RuntimeError, match="expected state"):
        torch.maca.memory._record_memory_history("everything")
    torch.maca.memory._record_memory_history()
    try:
        x = torch.zeros(1000, device="maca")
        y = x + 1
    finally:
        torch.maca.memory._record_memory_history(None)
    z = x + 1
    found = {b["address"]: b["frames"] for s in torch.maca.memory_snapshot() for b in s["blocks"]}
    assert found[y.data_ptr()][0]["name"] == "aten.add.Tensor"
    assert found[y.data_ptr()][1]["filename"] == __file__ and found[y.data_ptr()][1]["line"] > 0
    assert found[x.data_ptr()] and found[z.data_ptr()] == []
    torch.maca.memory._dump_snapshot(str(tmp_path / "snapshot.pickle"))
    assert (tmp_path / "snapshot.pickle").stat().st_size > 0


OUT_OF_MEMORY = """
import torch, macatensor
small = torch.ones(100, device="maca")
try:
    torch.empty(64 << 20, device="maca")
except torch.maca.OutOfMemoryError as error:
    assert isinstance(error, torch.OutOfMemoryError) and isinstance(error, RuntimeError)
    assert "Largest live tensors: 400 bytes (torch.maca.memory._record_memory_history()" in str(error), error
torch.maca.memory._record_memory_history()
weights = torch.ones(8 << 20, device="maca")
grads = weights[: 1 << 20] * 2
try:
    torch.empty(64 << 20, device="maca")
except torch.maca.OutOfMemoryError as error:
    text = str(error)
    assert "Tried to allocate 256.00 MiB" in text and "Limit: 128.00 MiB" in text
    assert "32.00 MiB made by aten.empty.memory_format at <string>:10" in text, text
    assert "4.00 MiB made by aten.mul.Tensor at <string>:11" in text, text
    print("named")
"""


def test_out_of_memory_names_the_largest_tensors() -> None:
    assert run_python(OUT_OF_MEMORY, MACA_DEVICE_MEMORY="128M").stdout == "named\n"
