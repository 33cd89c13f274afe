"""torch.maca's device functions, synchronization debugging, NVTX ranges, tensor types, and torch.accelerator."""

from __future__ import annotations

import types
import warnings
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from macatensor import maca
from macatensor.device import memory


def test_every_name_of_torch_cuda_that_is_promised() -> None:
    names = """StreamContext can_device_access_peer current_blas_handle current_device current_stream default_stream
        device device_count device_of get_arch_list get_device_capability get_device_name get_device_properties
        get_gencode_flags get_sync_debug_mode init ipc_collect is_available is_initialized is_bf16_supported set_device
        set_stream set_sync_debug_mode stream synchronize OutOfMemoryError ExternalStream Event Stream _sleep"""
    for name in names.split():
        assert hasattr(torch.cuda, name) and hasattr(torch.maca, name), name


def test_torch_maca_shows_what_it_serves() -> None:
    assert set(torch.maca.__all__) <= set(dir(torch.maca))
    shown = {name for name in dir(torch.maca) if not name.startswith("_")} - set(torch.maca.__all__)
    other = {n for n in shown if not isinstance(getattr(torch.maca, n), types.ModuleType)} - {"annotations"}
    assert not other
    assert all(name in torch.maca.__all__ for name in memory.__all__)  # a definition is enough


@pytest.mark.supports(
    "torch.maca: current_device device device_of init ipc_collect is_bf16_supported is_initialized set_device synchronize"
)
def test_choice_of_the_device() -> None:
    for device in (None, 0, -1, "maca", "maca:0", torch.device("maca")):
        with torch.maca.device(device):
            assert torch.maca.current_device() == 0
    for wrong, error in (
        (1, RuntimeError),
        ("maca:3", RuntimeError),
        ("cpu", ValueError),
        (object(), ValueError),
    ):
        for use in (torch.maca.device, torch.maca.set_device, torch.maca.synchronize, torch.maca.Stream,
                    torch.maca.current_stream, torch.maca.default_stream):  # fmt: skip
            with pytest.raises(error):
                use(wrong)
    torch.maca.set_device(-1)
    with torch.maca.device_of(torch.ones(1, device="maca")), torch.maca.device_of(torch.ones(1)):
        pass
    torch.maca.init()
    assert torch.maca.is_initialized() and torch.maca.is_bf16_supported() and torch.maca.ipc_collect() is None


@pytest.mark.supports(
    "torch.maca: DeviceProperties can_device_access_peer current_blas_handle get_arch_list get_device_capability get_device_name get_device_properties get_gencode_flags library_info"
)
def test_properties() -> None:
    properties = torch.maca.get_device_properties("maca:0")
    assert isinstance(properties, torch.maca.DeviceProperties)
    info = torch.maca.library_info()
    assert torch.maca.get_device_capability() == (properties.major, properties.minor)
    assert info["abi"] == f"{properties.major}.{properties.minor}" and info["name"] == properties.name
    assert torch.maca.get_arch_list() == [properties.simd] and torch.maca.get_gencode_flags() == ""
    assert torch.maca.current_blas_handle() == 0
    for function in (
        torch.maca.get_device_properties,
        torch.maca.get_device_name,
        torch.maca.get_device_capability,
    ):
        for wrong in (1, -1):
            with pytest.raises(AssertionError, match="Invalid device id"):
                function(wrong)
    assert torch.maca.can_device_access_peer(0, 0) is False
    with pytest.raises(AssertionError, match="Invalid device id"):
        torch.maca.can_device_access_peer(1, 0)
    with pytest.raises(AssertionError, match="Invalid peer device id"):
        torch.maca.can_device_access_peer(0, 1)


def synchronizing() -> dict[str, object]:
    x, y = maca(torch.arange(4.0)), torch.ones(4)
    event, stream = torch.maca.Event(), torch.maca.Stream()
    return {
        "item": lambda: x[0].item(),
        "bool": lambda: bool(x[0]),
        "cpu": lambda: x.cpu(),
        "tolist": lambda: x.tolist(),
        "copy to the host": lambda: y.copy_(x),
        "copy from the host": lambda: x.copy_(y),
        "to": lambda: y.to("maca"),
        "nonzero": lambda: x.nonzero(),
        "mask": lambda: x[x > 1],
        "unique": lambda: x.unique(),
        "equal": lambda: torch.equal(x, x),
        "repr": lambda: repr(x),
        "device": torch.maca.synchronize,
        "stream": stream.synchronize,
        "event": event.synchronize,
    }


@pytest.mark.parametrize("name", synchronizing())
def test_sync_debug_mode_acts(name: str) -> None:
    call = synchronizing()[name]
    try:
        torch.maca.set_sync_debug_mode("warn")
        with pytest.warns(UserWarning, match="called a synchronizing MACA operation"):
            call()
        torch.maca.set_sync_debug_mode(2)
        with pytest.raises(RuntimeError, match="called a synchronizing MACA operation"):
            call()
    finally:
        torch.maca.set_sync_debug_mode("default")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call()


@pytest.mark.supports("torch.maca: get_sync_debug_mode set_sync_debug_mode")
def test_sync_debug_mode_lets_the_rest_pass() -> None:
    x, y = maca(torch.arange(4.0)), torch.ones(4)
    torch.maca.set_sync_debug_mode("error")
    try:
        assert torch.maca.get_sync_debug_mode() == 2
        z = (x + 1).relu().sum()
        z = x.to("cpu", non_blocking=True)
        x.copy_(y, non_blocking=True)
        y.to("maca", non_blocking=True)
        torch.ones(3, device="maca").mul_(2)
        torch.maca.Stream().wait_stream(torch.maca.current_stream())
    finally:
        torch.maca.set_sync_debug_mode(0)
    assert torch.maca.get_sync_debug_mode() == 0 and z.tolist() == [0, 1, 2, 3]
    for wrong in ("loud", 3, -1):
        with pytest.raises(RuntimeError, match="invalid value of debug_mode"):
            torch.maca.set_sync_debug_mode(wrong)


@pytest.mark.supports("torch.maca.nvtx: mark range_push range_pop")
def test_nvtx_feeds_the_profiler() -> None:
    nvtx = torch.maca.nvtx
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        assert nvtx.range_push("outer") == 0 and nvtx.range_push("inner") == 1
        assert nvtx.range_pop() == 1 and nvtx.range_pop() == 0 and nvtx.range_pop() < 0
        nvtx.mark("instant")
        with nvtx.range("step {}", 3):
            torch.ones(2, device="maca")
        handle = nvtx.range_start("handled")
        nvtx.range_end(handle)
        nvtx.range_end(handle)  # unknown by now

        @nvtx.range("decorated")
        def function() -> int:
            return 5

        assert function() == 5
    seen = {event.key for event in prof.key_averages()}
    assert {"outer", "inner", "instant", "step 3", "handled", "decorated"} <= seen


@pytest.mark.refuses(
    "torch.maca.jiterator", reason="kernels are compiled ahead of time, in the device library"
)
def test_jiterator_is_refused_with_the_reason() -> None:
    with pytest.raises(NotImplementedError, match="compiles no code at run time"):
        torch.maca.jiterator._create_jit_fn("template <typename T> T f(T x) { return x; }")
    with pytest.raises(NotImplementedError, match="custom_op"):
        torch.maca.jiterator._create_multi_output_jit_fn("", 2)


TYPES = {"FloatTensor": torch.float32, "DoubleTensor": torch.float64, "HalfTensor": torch.float16,
         "BFloat16Tensor": torch.bfloat16, "ByteTensor": torch.uint8, "CharTensor": torch.int8,
         "ShortTensor": torch.int16, "IntTensor": torch.int32, "LongTensor": torch.int64,
         "BoolTensor": torch.bool}  # fmt: skip


@pytest.mark.supports(
    "torch.maca: FloatTensor DoubleTensor HalfTensor BFloat16Tensor ByteTensor CharTensor ShortTensor IntTensor LongTensor BoolTensor",
    "torch.Tensor.type",
)
@pytest.mark.parametrize("name", TYPES)
def test_tensor_types(name: str) -> None:
    kind, dtype = getattr(torch.maca, name), TYPES[name]
    cpu = getattr(torch, name)
    x = kind([[1, 0], [1, 1]])
    assert x.device.type == "maca" and x.dtype == dtype and x.tolist() == cpu([[1, 0], [1, 1]]).tolist()
    assert kind(2, 3).shape == (2, 3) and kind().shape == (0,) and kind(torch.Size([4])).shape == (4,)
    assert kind(x).data_ptr() == x.data_ptr()
    assert isinstance(x, kind) and not isinstance(cpu([1]), kind) and not isinstance(x, cpu)
    assert x.type() == f"torch.maca.{name}"
    one = torch.ones(2, device="maca")
    assert one.type(f"torch.maca.{name}").dtype == dtype and one.type(kind).dtype == dtype
    assert torch.ones(2).type(kind).device.type == "maca" and one.type(f"torch.{name}").device.type == "cpu"
    other = torch.zeros(2, device="maca", dtype=torch.complex64)
    for wrong in (other, torch.ones(2), 1.5, True):
        with pytest.raises(TypeError):
            kind(wrong)
    with pytest.raises(RuntimeError, match="legacy constructor"):
        kind(2, device="cpu")
    with pytest.raises(TypeError):
        kind(2, dtype=torch.float32)
    assert torch.ones(2).type() == "torch.FloatTensor"  # of the host, unchanged


@pytest.mark.supports(
    "torch.accelerator: current_accelerator current_device_index current_stream device_count empty_cache get_device_capability get_memory_info is_available max_memory_allocated max_memory_reserved memory_allocated memory_reserved memory_stats reset_peak_memory_stats set_device_index set_stream synchronize"
)
def test_accelerator() -> None:
    accelerator = torch.accelerator
    assert accelerator.current_accelerator().type == "maca" and accelerator.is_available()
    assert accelerator.device_count() == 1 and accelerator.current_device_index() == 0
    accelerator.set_device_index(0)
    accelerator.synchronize()
    accelerator.synchronize("maca:0")
    assert accelerator.current_stream() == torch.maca.current_stream()
    stream, before = torch.maca.Stream(), accelerator.current_stream()
    accelerator.set_stream(stream)
    assert torch.maca.current_stream() == stream
    accelerator.set_stream(before)
    x = torch.ones(1000, device="maca")
    assert accelerator.memory_allocated() == torch.maca.memory_allocated() > 0
    assert accelerator.memory_reserved() == torch.maca.memory_reserved()
    accelerator.reset_peak_memory_stats()
    assert accelerator.max_memory_allocated() == torch.maca.memory_allocated()
    assert accelerator.max_memory_reserved() == torch.maca.max_memory_reserved()
    assert accelerator.memory_stats() == torch.maca.memory_stats()
    accelerator.empty_cache()
    if hasattr(accelerator, "get_memory_info"):
        assert accelerator.get_memory_info()[1] == torch.maca.mem_get_info()[1]
    assert torch.float32 in accelerator.get_device_capability()["supported_dtypes"]
    with pytest.raises((RuntimeError, ValueError)):
        accelerator.synchronize("cpu")
    del x


def test_accelerator_functions_are_pytorchs_for_other_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("cpu")
    )
    with pytest.raises(RuntimeError, match="Backend doesn't support synchronizing"):
        torch.accelerator.synchronize(0)


def test_the_module_lists_its_public_names() -> None:
    assert {name for name in dir(torch.maca) if not name.startswith("__")} == set(torch.maca.__all__)


def test_pinning_a_device_tensor_names_its_type() -> None:
    with pytest.raises(RuntimeError, match="cannot pin 'torch.maca.FloatTensor' only dense CPU tensors"):
        torch.ones(3, device="maca").pin_memory()


@pytest.mark.supports("torch.maca: memory_usage utilization temperature power_draw clock_rate")
@pytest.mark.supports("torch.maca.amp: autocast GradScaler custom_fwd custom_bwd")
def test_mixed_precision_by_its_old_names() -> None:
    layer, x = torch.nn.Linear(4, 4, device="maca"), torch.rand(2, 4, device="maca")
    with torch.maca.amp.autocast():
        assert layer(x).dtype == torch.float16
    with torch.maca.amp.autocast(dtype=torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    with torch.maca.amp.autocast(enabled=False):
        assert layer(x).dtype == torch.float32
    assert torch.maca.amp.autocast()(layer)(x).dtype == torch.float16
    scaler = torch.maca.amp.GradScaler(init_scale=8.0)
    assert scaler.scale(x.sum()).device == x.device and scaler.get_scale() == 8

    class Double(torch.autograd.Function):
        @staticmethod
        @torch.maca.amp.custom_fwd(cast_inputs=torch.float32)
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            assert x.dtype == torch.float32 and not torch.is_autocast_enabled("maca")
            return 2 * x

        @staticmethod
        @torch.maca.amp.custom_bwd
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return 2 * gradient

    half = x.half().requires_grad_()
    with torch.maca.amp.autocast():
        Double.apply(half).sum().backward()
    assert half.grad.unique().tolist() == [2]


@pytest.mark.supports(
    "torch.maca.nccl: version is_available", "torch.maca: device_memory_used is_tf32_supported"
)
def test_what_programs_ask_of_nccl_and_drivers() -> None:
    assert torch.maca.nccl.version() == torch.maca.get_device_capability()
    x = torch.rand(2, 3, device="maca")
    assert torch.maca.nccl.is_available([x])
    assert not any(map(torch.maca.nccl.is_available, ([x, x], [x.t()], [x.cpu()], [x.to_sparse()])))
    free, total = torch.maca.mem_get_info()
    assert 0 <= torch.maca.device_memory_used() <= total and torch.maca.is_tf32_supported()
    assert torch.maca.AcceleratorError is torch.AcceleratorError and torch.maca.has_half
    for name in ("preferred_linalg_library", "preferred_blas_library"):
        assert getattr(torch.backends.maca, name)() == getattr(torch.backends.cuda, name)()
    with pytest.raises(RuntimeError, match="MAGMA"):
        torch.backends.maca.preferred_linalg_library("magma")


def test_sensors_are_known_or_none() -> None:
    held = torch.empty(1 << 20, device="maca")
    assert 0 <= torch.maca.memory_usage() <= 100 and held.numel()
    for ask in (torch.maca.utilization, torch.maca.temperature, torch.maca.power_draw, torch.maca.clock_rate):
        assert ask() is None and ask("maca:0") is None
        with pytest.raises(RuntimeError):
            ask("maca:1")
