"""Facts about PyTorch that the code relies on. A failure here names what a new PyTorch changed."""

from __future__ import annotations

import copyreg
import importlib
import inspect
from typing import Any

import pytest
import torch
from running import run_python
from torch.utils._python_dispatch import TorchDispatchMode

from macatensor import MacaTensor, maca

aten = torch.ops.aten


class Recorder(TorchDispatchMode):
    """The overloads that reach the dispatcher below autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def recorded(call: Any) -> list[str]:
    with Recorder() as recorder:
        call()
    return recorder.seen


def test_registration_from_python() -> None:
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend as setup

    assert list(inspect.signature(setup).parameters)[:1] == ["rename"]
    assert "backend_module" in inspect.signature(setup).parameters
    assert torch._C._get_privateuse1_backend_name() == "maca"
    assert torch.maca is not None and torch.device("maca").type == "maca"


def test_wrappers_have_real_sizes_strides_offset_and_device() -> None:
    class Wrapper(torch.Tensor):
        __torch_dispatch__ = classmethod(lambda *a: NotImplemented)

    t = torch.Tensor._make_wrapper_subclass(
        Wrapper, (2, 3), (1, 2), 5, None, torch.complex64, torch.strided, torch.device("maca", 0)
    )
    assert (t.shape, t.stride(), t.storage_offset(), t.dtype) == ((2, 3), (1, 2), 5, torch.complex64)
    assert t.device == torch.device("maca:0") and t.get_device() == 0
    torch._C._set_conj(t, True)
    torch._C._set_neg(t, True)
    assert t.is_conj() and t.is_neg()


def test_factories_reach_the_devices_key_without_torch_dispatch() -> None:
    name = "aten::empty.memory_format"
    assert torch._C._dispatch_has_kernel_for_dispatch_key(name, "PrivateUse1")
    assert torch._C._dispatch_has_kernel_for_dispatch_key("aten::_to_copy", "PrivateUse1")
    assert torch._C._dispatch_has_kernel_for_dispatch_key("aten::empty_strided", "PrivateUse1")
    assert isinstance(torch.empty(2, device="maca"), MacaTensor)


def test_to_copy_is_selected_by_its_device_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    from macatensor.operators import factories

    calls = []
    registered = factories.to_device
    monkeypatch.setattr(factories, "to_device", lambda *a, **k: calls.append(a) or registered(*a, **k))
    torch.ones(2).to("maca")
    torch.ones(2).maca()
    assert len(calls) == 2
    torch.ones(2).to(torch.float64)
    torch.ones(2).to("cpu", copy=True)
    assert len(calls) == 2


def test_torch_tensor_excludes_the_python_key() -> None:
    assert torch.tensor([[1.0, 2.0]], device="maca").tolist() == [[1.0, 2.0]]


def test_recurrent_layers_take_fused_cells_or_arrive_whole() -> None:
    for layer, names in (
        (torch.nn.LSTM, ("_thnn_fused_lstm_cell", "lstm")),
        (torch.nn.GRU, ("_thnn_fused_gru_cell", "gru")),
    ):
        module, x = layer(3, 4, device="maca"), torch.rand(2, 1, 3, device="maca")
        seen = " ".join(recorded(lambda module=module, x=x: module(x)))
        operator = f"aten::{names[1]}.input"
        taken_over = torch._C._dispatch_has_kernel_for_dispatch_key(operator, "AutogradPrivateUse1")
        assert taken_over or names[0] in seen


def test_attention_is_taken_over_on_the_autograd_key() -> None:
    assert torch._C._dispatch_has_kernel_for_dispatch_key(
        "aten::scaled_dot_product_attention", "AutogradPrivateUse1"
    )


def test_composite_operators_arrive_undecomposed_under_inference_mode() -> None:
    x, w = maca(torch.rand(1, 3, 8, 8)), maca(torch.rand(4, 3, 3, 3))

    def call() -> None:
        torch.nn.functional.conv2d(x, w)

    with torch.inference_mode():
        assert "aten.conv2d.default" in recorded(call)
    assert "aten.convolution.default" in recorded(call)
    assert torch._C._dispatch_has_kernel_for_dispatch_key("aten::conv2d", "CompositeImplicitAutograd")


@pytest.mark.parametrize(
    "name",
    ["squeeze_", "t_", "transpose_", "as_strided_", "unsqueeze_", "swapaxes_", "swapdims_", "squeeze_.dim"],
)
def test_tag_of_operators_that_change_the_wrapper(name: str) -> None:
    packet, _, overload = name.partition(".")
    assert torch.Tag.inplace_view in getattr(getattr(aten, packet), overload or "default").tags


def test_the_data_setter_replaces_what_a_wrapper_spans() -> None:
    x, y = maca(torch.zeros(2)), maca(torch.ones(5, 5))
    with torch.utils._mode_utils.no_dispatch():
        torch.Tensor.data.__set__(x, y)
    assert x.shape == (5, 5) and x.stride() == (5, 1)


def test_swapping_tensors() -> None:
    assert not copyreg._slotnames(MacaTensor), "a slot would keep Module.to from swapping Parameters"
    p, q = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(maca(torch.zeros(3)))
    torch.utils.swap_tensors(p, q)
    assert (
        isinstance(p, MacaTensor)
        and p.shape == (3,)
        and p.tolist() == [0, 0, 0]
        and type(q) is torch.nn.Parameter
    )
    assert torch.__future__.get_swap_module_params_on_conversion() is False
    source = inspect.getsource(importlib.import_module("torch.nn.modules.module").Module._apply)
    assert "get_swap_module_params_on_conversion" in source and "swap_tensors" in source


def test_foreach_looks_at_the_type() -> None:
    optimizer = importlib.import_module("torch.optim.optimizer")
    assert MacaTensor in optimizer._foreach_supported_types
    w = torch.ones(2, device="maca", requires_grad=True)
    w.grad = torch.ones_like(w)
    seen = recorded(torch.optim.SGD([w], lr=0.1, foreach=True).step)
    assert any("_foreach_" in name for name in seen)


def test_pinning_asks_the_device_once_one_is_registered() -> None:
    for name in ("_pin_memory", "is_pinned"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CPU")
    assert torch.ones(2).pin_memory().is_pinned()


def test_overloads_live_forever_and_hash_in_python() -> None:
    overload = aten.add.Tensor
    assert getattr(torch.ops.aten, "add").Tensor is overload  # noqa: B009 - a fresh look-up
    assert isinstance(type(overload).__hash__, type(lambda: 0)), (
        "a C hash would let dispatch look up by overload"
    )


def test_rebuilders_that_every_pytorch_has() -> None:
    assert list(inspect.signature(torch._utils._rebuild_device_tensor_from_cpu_tensor).parameters) == [
        "data", "dtype", "device", "requires_grad",
    ]  # fmt: skip
    assert hasattr(torch._utils, "_rebuild_parameter")
    rebuilders = torch._weights_only_unpickler._get_allowed_globals()
    assert "torch._utils._rebuild_device_tensor_from_cpu_tensor" in rebuilders


def test_pytorchs_tolist_and_numpy_refuse_subclasses() -> None:
    x = maca([1.0])
    for refuse in (torch.Tensor.tolist, torch.Tensor.numpy):
        with pytest.raises((RuntimeError, TypeError)):
            refuse(x)


def test_no_generator_for_a_python_device() -> None:
    with pytest.raises(RuntimeError, match="getNewGenerator"):
        torch._C.Generator(device="maca")


def test_checkpoint_asks_the_device_module() -> None:
    checkpoint = importlib.import_module("torch.utils.checkpoint")
    assert "_initialized" in inspect.getsource(checkpoint) and torch.maca._initialized
    assert {"get_rng_state", "set_rng_state", "device"} <= set(dir(torch.maca))


NHWC = torch.rand(2, 4, 6, 6).to(memory_format=torch.channels_last)
DIFFER = {
    "convolution": lambda x: aten.convolution.default(x, torch.empty(8, 4, 3, 3, device=x.device).to(
        memory_format=torch.channels_last), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
    "channel_shuffle": lambda x: aten.channel_shuffle.default(x, 2),
    "pixel_shuffle": lambda x: aten.pixel_shuffle.default(x, 2),
    "reflection_pad2d": lambda x: aten.reflection_pad2d.default(x, [1, 1, 1, 1]),
    "replication_pad2d": lambda x: aten.replication_pad2d.default(x, [1, 1, 1, 1]),
    "roll": lambda x: aten.roll.default(x, [1], [2]),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFER)
def test_operators_whose_meta_kernel_loses_channels_last(name: str) -> None:
    call = DIFFER[name]
    host = call(NHWC)
    ours = call(maca(NHWC))
    assert ours.stride() == host.stride(), f"the host {host.stride()}, ours {ours.stride()}"


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x + 1, lambda x: x.relu(), lambda x: x.sum(1), lambda x: x.double(), lambda x: x.clone(),
        lambda x: torch.nn.functional.max_pool2d(x, 2), lambda x: torch.nn.functional.avg_pool2d(x, 2),
        lambda x: torch.nn.functional.adaptive_avg_pool2d(x, 2), lambda x: torch.nn.functional.interpolate(x, scale_factor=2.0),
        lambda x: torch.nn.functional.batch_norm(x, None, None, training=True), lambda x: torch.cat([x, x], 1),
        lambda x: x.softmax(1), lambda x: x.mean((2, 3), keepdim=True), lambda x: torch.where(x > 0, x, 0.0),
        lambda x: x[:, 1:] * 2, lambda x: torch.nn.functional.group_norm(x, 2), lambda x: x.flip(2), lambda x: x.cumsum(1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last], ids=str)
def test_strides_follow_the_hosts(call: Any, form: torch.memory_format) -> None:
    host = torch.rand(2, 4, 6, 6).to(memory_format=form)
    assert call(host.to("maca", memory_format=form)).stride() == call(host).stride()


def test_the_engine_threads_the_device_unless_forbidden() -> None:
    import threading

    seen = []
    x = torch.ones(2, device="maca", requires_grad=True)
    y, host = x * 2, torch.ones((), requires_grad=True) * 2
    y.register_hook(lambda g: seen.append(threading.get_ident()))
    torch.autograd.backward(
        [y.sum(), host], retain_graph=True
    )  # with a root of the host ours forbids nothing
    with torch.autograd.set_multithreading_enabled(False):
        torch.autograd.backward([y.sum(), host])
    assert seen[0] != threading.get_ident(), "policies could be thread-locals now"
    assert seen[1] == threading.get_ident(), "backward passes would not run on the calling thread"
    # the one function that every pass enters by, and who has it by name
    assert torch.autograd._engine_run_backward is torch.autograd.graph._engine_run_backward


def test_autocast_reads_its_dtypes_from_the_module() -> None:
    assert torch.bfloat16 in torch.maca.get_amp_supported_dtype()
    with torch.autocast("maca", dtype=torch.bfloat16):
        assert torch.is_autocast_enabled("maca")


def test_torch_brings_libgomp_under_its_plain_name() -> None:
    run_python(
        """
        import torch
        with open("/proc/self/maps") as maps:
            names = {line.split("/")[-1].strip() for line in maps if "libgomp" in line}
        assert any(name.startswith("libgomp") for name in names), names
        """
    )
