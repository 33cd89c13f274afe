"""Tensors that leave the device by other ways than PyTorch's files: safetensors, processes, DLPack, NumPy."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing
import torch.utils.dlpack
from running import run_python, same
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import nn

from macatensor import MacaTensor


@pytest.fixture(autouse=True)
def _typed_storages() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="TypedStorage is deprecated")
        yield


DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


@pytest.mark.supports("safetensors")
@pytest.mark.parametrize("dtype", DTYPES)
def test_safetensors_round_trip(dtype: torch.dtype, tmp_path: Path) -> None:
    host = {"a": (torch.rand(3, 4) * 5).to(dtype), "scalar": torch.ones((), dtype=dtype)}
    save_file({k: v.maca() for k, v in host.items()}, tmp_path / "x.safetensors")
    loaded = load_file(tmp_path / "x.safetensors")
    for name, value in host.items():
        assert loaded[name].equal(value)
        same(loaded[name].to("maca"), value)


def test_safetensors_of_nhwc_and_shared_tensors(tmp_path: Path) -> None:
    """The file is row-major, which PyTorch's channels_last tensors on the host are refused for; ours lie NHWC by their transfer."""
    image = torch.rand(2, 3, 4, 5).maca()
    for given in (image, image.contiguous()):
        save_file({"image": given}, tmp_path / "x.safetensors")
        assert load_file(tmp_path / "x.safetensors")["image"].equal(image.cpu())
    with pytest.raises(ValueError, match="non contiguous"):
        save_file({"image": image.transpose(0, 1)}, tmp_path / "x.safetensors")
    for shared in (torch.ones(2, device="maca"), image):
        with pytest.raises(RuntimeError, match="share memory"):
            save_file({"a": torch.ones(2, 3, 4, 5).maca(), **dict.fromkeys("bc", shared)}, tmp_path / "y")


def test_safetensors_of_models(tmp_path: Path) -> None:
    """Models with tied weights and NHWC ones go through save_model and load_model, on either device."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(2, 3, 3)
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
            self.second.weight = self.first.weight

    model = Tied().to("maca")
    assert model.conv.weight.is_contiguous(memory_format=torch.channels_last)
    save_model(model, str(tmp_path / "m.safetensors"))
    for device in ("cpu", "maca"):
        other = Tied().to(device)
        load_model(other, str(tmp_path / "m.safetensors"))
        assert other.first.weight is other.second.weight
        for a, b in zip(other.parameters(), model.parameters()):
            assert a.device.type == device and a.detach().cpu().equal(b.detach().cpu())


def test_states_keep_memory_formats_between_devices() -> None:
    host = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to(memory_format=torch.channels_last)
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    for source in (host, plain):
        ours = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to("maca")
        strides = ours[0].weight.stride()
        ours.load_state_dict(source.state_dict())
        assert ours[0].weight.stride() == strides == (27, 1, 9, 3)
        for name, value in ours.state_dict().items():
            assert value.cpu().equal(source.state_dict()[name])
        back = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
        row_major = back[0].weight.stride()
        back.load_state_dict(ours.state_dict())
        assert back[0].weight.stride() == row_major
        assert back[0].weight.equal(source[0].weight)
        assigned = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
        assigned.load_state_dict(ours.state_dict(), assign=True)
        assert isinstance(assigned[0].weight, MacaTensor) and assigned[0].weight.stride() == strides


@pytest.mark.supports("torch.multiprocessing")
def test_processes_get_copies() -> None:
    x = torch.arange(6.0, device="maca")
    context = torch.multiprocessing.get_context("spawn")
    with context.Pool(1, initializer=importlib.import_module, initargs=("macatensor",)) as pool:
        negated = pool.apply(torch.neg, (x,))
        pool.apply(torch.Tensor.zero_, (x,))
    assert isinstance(negated, MacaTensor) and negated.tolist() == [0.0, -1.0, -2.0, -3.0, -4.0, -5.0]
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_memory_is_not_shared() -> None:
    x = torch.ones(2, device="maca")
    assert not x.is_shared()
    with pytest.raises(RuntimeError, match="cannot be shared between processes"):
        x.share_memory_()
    with pytest.raises(RuntimeError, match="cannot be shared between processes"):
        nn.Linear(2, 2).to("maca").share_memory()


@pytest.mark.supports("torch.Tensor.__dlpack__")
def test_dlpack_shares_memory_within_pytorch() -> None:
    x = torch.arange(6.0).reshape(2, 3).maca()[:, 1:]
    makers: list[Callable[[torch.Tensor], torch.Tensor]] = [
        torch.from_dlpack,
        lambda t: torch.from_dlpack(torch.utils.dlpack.to_dlpack(t)),
        lambda t: torch.from_dlpack(torch.to_dlpack(t)),
        lambda t: torch.asarray(t.__dlpack__()),
        lambda t: torch.from_dlpack(t, device="maca"),
    ]
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64):
        for make in makers:
            given = x.to(dtype)
            taken = make(given)
            assert isinstance(taken, MacaTensor)
            assert (taken.data_ptr(), taken.stride()) == (given.data_ptr(), given.stride())
            assert taken.tolist() == given.tolist()
    assert torch.from_dlpack(x, copy=True).data_ptr() != x.data_ptr()
    assert x.__dlpack_device__() == (12, 0)
    assert torch.from_dlpack(torch.utils.dlpack.to_dlpack(x.cpu())).equal(x.cpu())
    same(torch.from_dlpack(np.arange(3)).to("maca"), torch.arange(3))
    assert torch.from_dlpack(x, device="cpu").equal(x.cpu())


def test_a_capsule_keeps_its_tensor_and_goes() -> None:
    before = torch.maca.memory_allocated()
    capsule = torch.ones(1 << 20, device="maca").__dlpack__()
    assert torch.maca.memory_allocated() > before
    x = torch.from_dlpack(capsule)
    assert x.sum().item() == 1 << 20
    with pytest.raises(RuntimeError, match="consumed only once"):
        torch.from_dlpack(capsule)
    del x, capsule
    torch.ones(1 << 20, device="maca").__dlpack__()  # nobody takes it
    assert torch.maca.memory_allocated() == before


def test_dlpack_refuses_in_words() -> None:
    x = torch.ones(2, device="maca")
    with pytest.raises((BufferError, RuntimeError), match="[Dd]evice"):
        np.from_dlpack(x)
    with pytest.raises(BufferError, match=r"Use Tensor.cpu\(\) first"):
        x.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError, match=r"Use Tensor.cpu\(\) first"):
        x.__dlpack__(dl_device=(1, 0), copy=False)
    with pytest.raises(BufferError, match="require gradient"):
        torch.from_dlpack(torch.ones(2, device="maca", requires_grad=True))
    with pytest.raises(BufferError, match="conjugate"):
        torch.ones(2, device="maca", dtype=torch.complex64).conj().__dlpack__()


@pytest.mark.xfail(
    tuple(map(int, np.__version__.split(".")[:2])) < (2, 1),
    reason="NumPy asks for a device from 2.1 on",
    strict=True,
)
def test_dlpack_copies_to_the_host_when_asked() -> None:
    x = torch.arange(6.0).reshape(2, 3).maca()
    assert (np.from_dlpack(x, device="cpu") == x.cpu().numpy()).all()
    with pytest.raises(BufferError, match="require gradient"):
        np.from_dlpack(x.requires_grad_(), device="cpu")


@pytest.mark.supports("torch.Tensor.__array__")
def test_numpy_refuses_as_for_cuda() -> None:
    x = torch.ones(2, device="maca")
    uses: list[Any] = [np.asarray, np.sin, lambda t: np.array(t, dtype=np.float64), lambda t: t.__array__()]
    for use in [*uses, lambda t: t.numpy(), lambda t: np.ones(2) + t.__array__()]:
        with pytest.raises(
            TypeError, match=r"can't convert maca:0 device type tensor to numpy. Use Tensor.cpu\(\)"
        ):
            use(x)
    assert x.numpy(force=True).tolist() == [1.0, 1.0]
    with pytest.raises(AttributeError, match="__cuda_array_interface__"):
        x.__cuda_array_interface__  # noqa: B018


def test_exporters_held_by_name_and_host_tensors() -> None:
    run_python(
        """
        import torch
        from torch.utils.dlpack import from_dlpack, to_dlpack  # held since before the device was there
        assert from_dlpack(to_dlpack(torch.ones(2, device="maca"))).tolist() == [1, 1]
        import macatensor, numpy as np
        x = torch.arange(3.0)
        y = torch.from_dlpack(torch.utils.dlpack.to_dlpack(x))
        y[0] = 7
        assert x[0] == 7 and np.from_dlpack(x)[0] == 7
        assert x.share_memory_().is_shared()
        assert x.storage().data_ptr() == x.data_ptr()
        """
    )
