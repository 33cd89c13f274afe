"""``torch.Storage`` on maca: bytes, addresses, copies, and tensors over them."""

from __future__ import annotations

import concurrent.futures
import copy
import io
import threading
from typing import Any

import pytest
import torch
from running import nothing_leaked
from torch.multiprocessing.reductions import StorageWeakRef


@pytest.mark.supports("torch.Tensor: data_ptr storage untyped_storage")
def test_size_and_address() -> None:
    x = torch.ones(3, 4, device="maca")
    y = x[1:, 2:]
    assert x.untyped_storage().nbytes() == y.untyped_storage().nbytes() == len(y.storage()) * 4 == 48
    assert y.data_ptr() == x.data_ptr() + (4 + 2) * 4 and x.data_ptr() != 0
    assert (
        x.untyped_storage().data_ptr()
        == y.untyped_storage().data_ptr()
        == y.storage().data_ptr()
        == x.data_ptr()
    )
    assert x[:0].data_ptr() == 0 and torch.empty(0, device="maca").untyped_storage().data_ptr() == 0
    assert x.untyped_storage() is x.untyped_storage() and isinstance(
        x.untyped_storage(), torch.UntypedStorage
    )
    storage = x.untyped_storage()
    assert storage.device == torch.device("maca", 0) and storage.get_device() == 0 and storage.is_maca
    assert not storage.is_cuda and not storage.is_pinned() and not storage.is_shared()
    with pytest.raises(TypeError, match="cannot pin"):
        storage.pin_memory()
    with pytest.raises(RuntimeError, match="cannot be shared between processes"):
        storage.share_memory_()


def test_bytes_are_read_and_written() -> None:
    x = torch.arange(3.0, device="maca")
    storage = x.untyped_storage()
    host = x.cpu().untyped_storage()
    assert (
        storage.tolist() == host.tolist()
        and storage[7] == host[7]
        and storage[2:8].tolist() == host[2:8].tolist()
    )
    assert x.storage()[2] == 2.0 and x.storage().tolist() == [0.0, 1.0, 2.0]
    assert "device=maca:0" in repr(storage) and "device=maca:0" in repr(x.storage())
    storage.fill_(0)
    assert x.tolist() == [0, 0, 0]
    storage[3] = 64
    x.storage()[1] = 5.0
    assert x.tolist() == [2.0, 5.0, 0.0]
    storage.byteswap(torch.float32)
    assert x.cpu().untyped_storage().tolist()[0] == 64
    with pytest.raises(IndexError):
        storage[12]


@pytest.mark.supports("torch.UntypedStorage")
def test_copies_between_devices() -> None:
    with nothing_leaked():
        host = torch.arange(6.0).untyped_storage()
        for moved in (host.maca(), host.to(device="maca"), torch.UntypedStorage(list(host), device="maca")):
            assert moved.device.type == "maca" and moved.tolist() == host.tolist()
            for back in (moved.cpu(), moved.to(device="cpu"), torch.UntypedStorage(24).copy_(moved)):
                assert back.device.type == "cpu" and back.tolist() == host.tolist()
            for copied in (moved.clone(), copy.copy(moved), copy.deepcopy(moved)):
                assert copied.tolist() == host.tolist() and copied.data_ptr() != moved.data_ptr()
        typed = torch.FloatStorage([1, 2]).maca()
        assert (
            typed.tolist() == [1.0, 2.0]
            and typed.cpu().tolist() == [1.0, 2.0]
            and typed.dtype == torch.float32
        )
        assert typed.double().tolist() == [1.0, 2.0] and typed.clone().is_maca
        with pytest.raises(RuntimeError, match="size does not match"):
            moved.copy_(torch.UntypedStorage(3))
        with pytest.raises(RuntimeError, match="size does not match"):
            torch.UntypedStorage(3).copy_(moved)
        del moved, back, copied, typed


def test_copies_from_elsewhere_are_refused() -> None:
    storage = torch.UntypedStorage(8, device="maca")
    with pytest.raises(NotImplementedError, match="got meta"):
        storage.copy_(torch.UntypedStorage(8, device="meta"))
    with pytest.raises(TypeError, match="got bytes"):
        storage.copy_(b"12345678")


def test_tensors_over_a_storage() -> None:
    storage = torch.UntypedStorage(24, device="maca").fill_(0)
    x = torch.empty(0, device="maca").set_(storage)
    y = torch.empty(0, device="maca").set_(storage, 1, (2, 2), (2, 1))
    y.fill_(3)
    assert x.tolist() == [0, 3, 3, 3, 3, 0] and x.data_ptr() == storage.data_ptr()
    assert torch.ones(1, device="maca").new(storage).tolist() == x.tolist()
    assert torch.ones(1, device="maca").new(2, 3).shape == (2, 3)
    assert torch.tensor(torch.FloatStorage([1, 2]), device="maca").tolist() == [1, 2]


BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "host storage": (
        lambda x: x.set_(torch.ones(3).untyped_storage()),
        RuntimeError,
        "the devices must match",
    ),
    "host storage, new": (lambda x: x.new(torch.FloatStorage(3)), RuntimeError, "the devices must match"),
    "another dtype": (
        lambda x: x.set_(torch.DoubleStorage(3).maca()),
        RuntimeError,
        "Expected a Storage of type",
    ),
    "past all memory": (
        lambda x: x.set_(x.untyped_storage(), 2, (2**61,)),
        RuntimeError,
        "overflow",
    ),
    "before the start": (
        lambda x: x.set_(x.untyped_storage(), -1, (1,)),
        RuntimeError,
        "out of bounds|offset",
    ),
    "resize": (lambda x: x.untyped_storage().resize_(-1), RuntimeError, "non-negative"),
    "left outside": (lambda x: (x.untyped_storage().resize_(4), x + 1), RuntimeError, "outside its memory"),
    "negative size": (lambda x: torch.UntypedStorage(-1, device="maca"), RuntimeError, "non-negative"),
    "two sizes": (lambda x: torch.UntypedStorage(1, 2, device="maca"), TypeError, "size or a sequence"),
    "another device": (lambda x: torch.UntypedStorage(1, device="maca:1"), RuntimeError, "device ordinal"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str) -> None:
    call, error, says = BAD[name]
    with pytest.raises(error, match=says):
        call(torch.ones(3, device="maca"))


@pytest.mark.parametrize("device", ["cpu", "maca"])
def test_storages_grow_for_all_their_tensors(device: str) -> None:
    x = torch.arange(4.0, device=device)
    view, storage = x[1:], x.untyped_storage()
    storage.resize_(32)
    assert storage.nbytes() == 32 and x.tolist() == [0, 1, 2, 3]
    y = torch.zeros(2, device=device).set_(storage, 2, (10,))
    assert storage.nbytes() == 48 and y[:2].tolist() == [2, 3]
    x.resize_(20).fill_(7)
    assert view.tolist() == [7, 7, 7] and y.tolist() == [7] * 10 and storage.nbytes() == 80
    weight = torch.eye(4, device=device)
    before = (weight @ weight)[0, 0].item() + (weight @ weight)[1, 1].item()
    weight.untyped_storage().resize_(128)
    weight.mul_(2)
    assert before == 2 and (weight @ weight).trace().item() == 16
    storage.resize_(0)
    assert storage.nbytes() == 0
    assert torch.Tensor.set_(y, weight.untyped_storage(), 0, (3,), (1,)).tolist() == [2, 0, 0]
    assert torch.Tensor.set_(y).numel() == 0


def test_a_graph_keeps_the_memory_it_captured() -> None:
    x = torch.ones(4, device="maca")
    graph = torch.maca.MacaGraph()
    with torch.maca.graph(graph):
        y = x + 1
    with pytest.raises(RuntimeError, match="captured graph"):
        x.untyped_storage().resize_(64)
    x.fill_(3)
    graph.replay()
    assert y.tolist() == [4] * 4
    del graph
    x.untyped_storage().resize_(64)
    assert x.tolist() == [3] * 4


def test_resizing_beside_threads_that_use_the_memory() -> None:
    x = torch.ones(1 << 20, device="maca")
    done = threading.Event()

    def use() -> None:
        while not done.is_set():
            assert float((x * 2).amax()) == float(x.cpu().amax()) * 2

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        users = [pool.submit(use) for _ in range(2)]
        for n in range(20):
            x.untyped_storage().resize_((4 << 20) + 4096 * n)
            torch.maca.empty_cache()
        done.set()
    assert [user.result() for user in users] == [None, None]


def test_saved() -> None:
    storage = torch.arange(3.0, device="maca").untyped_storage()
    file = io.BytesIO()
    torch.save({"bytes": storage}, file)
    file.seek(0)
    loaded = torch.load(file)["bytes"]
    assert loaded.device.type == "maca" and loaded.tolist() == storage.tolist()


def test_host_storages_are_as_ever() -> None:
    made = torch.UntypedStorage(4).fill_(7)
    assert type(made) is torch.UntypedStorage and made.tolist() == [7] * 4 and not made.is_maca
    assert torch.UntypedStorage([1, 2]).copy_(torch.UntypedStorage([3, 4])).tolist() == [3, 4]
    assert torch.FloatStorage([1, 2]).clone().tolist() == [1, 2]
    assert torch.UntypedStorage(4, device="meta").device.type == "meta"


def test_tensors_are_made_of_loose_storages() -> None:
    x = torch.arange(3.0, device="maca")
    for storage in (
        x.untyped_storage().clone(),
        copy.deepcopy(x.untyped_storage()),
        x.untyped_storage()[:12],
        torch.UntypedStorage(4, device="maca").resize_(12).copy_(x.untyped_storage()),
    ):
        assert torch.equal(torch.tensor(storage, dtype=torch.float32, device="maca"), x)


def test_weak_references_are_to_the_memory() -> None:
    """As AOTAutograd asks which of its inputs share some."""
    base = torch.zeros(8, device="maca")
    first, second = (StorageWeakRef(t.untyped_storage()) for t in (base[:4], base[2:6]))
    assert first == second and hash(first) == hash(second) and not first.expired()
    assert first != StorageWeakRef(torch.zeros(8, device="maca").untyped_storage())
    del base
    assert first.expired() and second.expired()


def test_set_without_a_source_leaves_nothing() -> None:
    x = torch.ones(3, device="maca")
    view = x[1:]
    assert x.set_() is x and x.shape == (0,) and x.device.type == "maca" and x.untyped_storage().nbytes() == 0
    assert view.tolist() == [1.0, 1.0]


def test_a_tangents_memory_is_compared_whole() -> None:
    for device in ("cpu", "maca"):
        memory = torch.zeros(10, device=device)
        assert torch.ops.aten._has_same_storage_numel(memory[:5], memory)
        assert not torch.ops.aten._has_same_storage_numel(memory[:5], torch.zeros(5, device=device))
