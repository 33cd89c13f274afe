"""Private pools: what is allocated under one is apart from all other memory, and goes back with it."""

from __future__ import annotations

import gc
import threading

import pytest
import torch
from running import nothing_leaked

MIB = 1 << 20


def of_pool(pool: torch.maca.MemPool) -> int:
    return sum(segment["allocated_size"] for segment in pool.snapshot())


def reserved_of(number: int) -> int:
    return sum(s["total_size"] for s in torch.maca.memory_snapshot((0, number)))


def test_only_what_is_inside() -> None:
    pool = torch.maca.MemPool()
    assert pool.use_count() == 1 and pool.allocator is None and pool.snapshot() == []
    before = torch.empty(100, device="maca")
    with torch.maca.use_mem_pool(pool, "maca:0"):
        assert pool.use_count() == 2
        small = torch.full((100,), 2.0, device="maca")
        large = torch.zeros(3 * MIB, device="maca") + small[0]
    after = torch.empty(100, device="maca")
    assert pool.use_count() == 1
    assert 12 * MIB + 400 <= of_pool(pool) <= 12 * MIB + 2048
    inside = [(b["address"], b["size"]) for s in pool.snapshot() for b in s["blocks"]]
    for tensor, expected in ((before, False), (small, True), (large, True), (after, False)):
        assert any(a <= tensor.data_ptr() < a + n for a, n in inside) is expected
    assert small.sum().item() == 200 and large.eq(2).all()
    assert reserved_of(0) + reserved_of(pool.id[1]) == torch.maca.memory_reserved()


def test_an_open_pool_keeps_its_memory() -> None:
    pool = torch.maca.MemPool()
    with torch.maca.use_mem_pool(pool):
        address = torch.empty(4 * MIB, device="maca").data_ptr()
    gc.collect()
    torch.maca.empty_cache()
    assert of_pool(pool) == 0 and reserved_of(pool.id[1]) >= 16 * MIB
    elsewhere = torch.empty(4 * MIB, device="maca")
    assert elsewhere.data_ptr() != address
    with torch.maca.use_mem_pool(pool):
        assert torch.empty(4 * MIB, device="maca").data_ptr() == address


def test_memory_goes_back_with_the_pool() -> None:
    with nothing_leaked():
        pool = torch.maca.MemPool()
        with torch.maca.use_mem_pool(pool):
            kept, dropped = (torch.ones(3 * MIB, device="maca") for _ in range(2))
        del dropped
        number = pool.id[1]
        assert reserved_of(number) == 24 * MIB
        del pool
        assert reserved_of(number) == 12 * MIB and kept.sum().item() == 3 * MIB
        del kept
        torch.maca.empty_cache()
        assert reserved_of(number) == 0


def test_pools_nest_and_threads_have_their_own() -> None:
    outer, inner = torch.maca.MemPool(), torch.maca.MemPool()
    assert outer.id != inner.id
    made: list[torch.Tensor] = []
    with torch.maca.use_mem_pool(outer):
        with torch.maca.use_mem_pool(inner):
            made.append(torch.empty(MIB, device="maca"))
        assert (of_pool(outer), of_pool(inner)) == (0, 4 * MIB)
        made.append(torch.empty(MIB, device="maca"))
        assert of_pool(outer) == 4 * MIB
        thread = threading.Thread(target=lambda: made.append(torch.empty(MIB, device="maca")))
        thread.start()
        thread.join()
    assert of_pool(outer) == of_pool(inner) == 4 * MIB and len(made) == 3
    with pytest.raises(ValueError, match="left"), torch.maca.use_mem_pool(outer):
        raise ValueError("left")
    assert outer.use_count() == 1 and torch.empty(MIB, device="maca").numel() and of_pool(outer) == 4 * MIB


def test_blocks_are_whole_where_asked() -> None:
    pool = torch.maca.MemPool(no_split=True)
    with torch.maca.use_mem_pool(pool):
        tensors = [torch.empty(256, device="maca") for _ in range(3)]
    assert [len(s["blocks"]) for s in pool.snapshot()] == [1, 1, 1] and len(tensors) == 3


@pytest.mark.parametrize("serves", [True, False])
def test_a_pool_serves_others_last(serves: bool) -> None:
    gc.collect()
    torch.maca.empty_cache()
    pool = torch.maca.MemPool(use_on_oom=serves)
    with torch.maca.use_mem_pool(pool):
        address = torch.empty(16 * MIB, device="maca").data_ptr()
    total = torch.maca.mem_get_info()[1]
    torch.maca.set_per_process_memory_fraction((torch.maca.memory_reserved() + MIB) / total)
    try:
        if serves:
            assert torch.empty(16 * MIB, device="maca").data_ptr() == address
        else:
            with pytest.raises(torch.OutOfMemoryError):
                torch.empty(16 * MIB, device="maca")
    finally:
        torch.maca.set_per_process_memory_fraction(1.0)


def test_what_is_no_allocator_is_refused() -> None:
    with pytest.raises(TypeError, match=r"MemPool got int for allocator; expected None or the mem_allocator"):
        torch.maca.MemPool(3)  # type: ignore[arg-type]
