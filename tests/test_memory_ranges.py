"""The caching allocator in one growing range for each pool, and in segments where a library has no ranges."""

from __future__ import annotations

from pathlib import Path

import pytest
from interposer_library import host_library
from running import run_python

# Every live tensor keeps what was written to it, whatever is allocated, freed and given back beside it.
PROGRAM = """
import random, torch, macatensor
random.seed(0)
streams = [torch.maca.default_stream(), torch.maca.Stream(), torch.maca.Stream()]
sizes = [1, 100, 127, 4000, 16_000, 16_500, 70_000, 300_000, 1_500_000]
live = []
for step in range(1500):
    with torch.maca.stream(random.choice(streams)):
        if live and (random.random() < 0.5 or len(live) > 40):
            value, tensor = live.pop(random.randrange(len(live)))
            assert tensor.min().item() == tensor.max().item() == value, (step, value, tensor.numel())
            del tensor
        else:
            size = int(random.choice(sizes) * random.choice([1, 1, 0.9, 1.3])) + 1
            live.append((step, torch.full((size,), step, dtype=torch.int32, device="maca")))
    if step % 100 == 99:
        torch.maca.empty_cache()
        stats = torch.maca.memory_stats()
        assert stats["reserved_bytes.all.current"] >= stats["allocated_bytes.all.current"]
        snapshot = torch.maca.memory_snapshot()
        assert sum(s["total_size"] for s in snapshot) == stats["reserved_bytes.all.current"]
        assert len(snapshot) == stats["segment.all.current"]
        for s in snapshot:
            at = s["address"]
            for b in s["blocks"]:
                assert b["address"] == at
                at += b["size"]
            assert at == s["address"] + s["total_size"]
for value, tensor in live:
    assert tensor.min().item() == tensor.max().item() == value
del live, tensor
torch.maca.empty_cache()
stats = torch.maca.memory_stats()
assert stats["reserved_bytes.all.current"] == stats["segment.all.current"] == stats["allocation.all.current"] == 0
"""


@pytest.mark.parametrize("limit", [None, "48M"])
def test_live_tensors_keep_their_memory(limit: str | None) -> None:
    run_python(
        PROGRAM.replace("len(live) > 40", "len(live) > 8") if limit else PROGRAM, MACA_DEVICE_MEMORY=limit
    )


def test_live_tensors_keep_their_memory_in_segments(interposer: Path) -> None:
    run_python(
        PROGRAM,
        MACA_LIBRARY=interposer,
        MACA_INTERPOSER_TARGET=host_library(),
        MACA_INTERPOSER_MODE="optional",
    )


def test_middle_memory_is_returned_and_taken_again() -> None:
    run_python(
        """
        import torch, macatensor
        MiB = 1 << 20
        a, b, c = (torch.full((20 * MiB,), i, dtype=torch.uint8, device="maca") for i in range(3))
        reserved = torch.maca.memory_reserved()
        assert 60 * MiB <= reserved <= 62 * MiB
        place = b.data_ptr()
        del b
        torch.maca.empty_cache()  # c lies behind it
        assert torch.maca.memory_reserved() == reserved - 20 * MiB
        assert torch.maca.memory_stats()["segment.large_pool.current"] == 2
        x = torch.full((30 * MiB,), 3, dtype=torch.uint8, device="maca")  # the hole is too small
        y = torch.full((19 * MiB,), 4, dtype=torch.uint8, device="maca")
        assert y.data_ptr() == place and torch.maca.memory_reserved() <= reserved + 32 * MiB
        for value, t in enumerate((a, None, c, x, y)):
            assert t is None or t.min().item() == t.max().item() == value
        """
    )


def test_fragments_never_add_up_to_an_oom() -> None:
    run_python(
        """
        import torch, macatensor
        MiB = 1 << 20
        live = [torch.full((4 * MiB,), i, dtype=torch.uint8, device="maca") for i in range(15)]
        del live[::2]
        big = torch.full((30 * MiB,), 100, dtype=torch.uint8, device="maca")  # no gap is larger than 4 MiB
        assert torch.maca.memory_stats()["num_alloc_retries"] == 1
        assert torch.maca.memory_reserved() <= 64 * MiB
        for i, t in enumerate(live):
            assert t.min().item() == t.max().item() == 2 * i + 1
        assert big.min().item() == big.max().item() == 100
        """,
        MACA_DEVICE_MEMORY="64M",
    )
