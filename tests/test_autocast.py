"""``torch.autocast("maca")``: the operators of PyTorch's CUDA lists, nesting, the cache of casts, training."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from running import run_python
from torch import nn

from macatensor.integration import autocast
from op_table import autocast as lists

HALVES = [torch.bfloat16, torch.float16]
HEADER = Path(torch.__file__).parent / "include/ATen/autocast_mode.h"


def _names(macro: str) -> set[str]:
    body = re.search(rf"#define {macro}\(_\)(.*?)\n\n", HEADER.read_text(), re.S)
    assert body, macro
    return {
        name + ("." + overload if overload else "")
        for name, overload in re.findall(r"_\((\w+)(?:, (\w+))?\)", body[1])
    }


@pytest.mark.parametrize(
    "macro, ours",
    [
        ("AT_FORALL_LOWER_PRECISION_FP", lists.LOWER_PRECISION),
        ("AT_FORALL_FP32", lists.FLOAT32),
        ("AT_FORALL_FP32_SET_OPT_DTYPE", lists.FLOAT32_RESULT),
        ("AT_FORALL_PROMOTE", lists.WIDEST),
    ],
)
def test_lists_are_pytorchs(macro: str, ours: tuple[str, ...]) -> None:
    missing = {
        n for n in _names(macro) - set(ours) if "dimname" not in n.lower()
    }  # of named tensors, which 2.11 has
    assert not missing
    if torch.__version__.startswith("2.13."):  # lists grow from version to version
        assert set(ours) == _names(macro)


@pytest.mark.supports("torch.autocast")
@pytest.mark.parametrize("dtype", HALVES)
def test_result_dtypes(dtype: torch.dtype) -> None:
    x, y = torch.rand(4, 4, device="maca") + 1, torch.rand(4, 4, device="maca") + 1
    image, kernel = torch.rand(1, 2, 5, 5, device="maca"), torch.rand(3, 2, 3, 3, device="maca")
    with torch.autocast("maca", dtype=dtype):
        half = x @ y
        for lower in (
            half,
            torch.mm(x, y),
            torch.einsum("ij,jk->ik", x, y),
            nn.functional.linear(x, y),
            nn.functional.conv2d(image, kernel),
            nn.functional.scaled_dot_product_attention(x[None], y[None], y[None]),
            torch.cat([half, half]),
            torch.linalg.multi_dot([x, y, x]),
        ):
            assert lower.dtype == dtype
        for wide in (
            half.exp(),
            half.pow(2),
            half.sum(),
            half.sum(1),
            half.softmax(1),
            half.norm(),
            half.norm(2, 1),
            nn.functional.layer_norm(half, (4,)),
            nn.functional.mse_loss(half, half),
            torch.cat([half, x]),
            torch.stack([x, half]),
            torch.addcmul(x, half, half),
            nn.functional.binary_cross_entropy_with_logits(half, torch.ones_like(half)),
        ):
            assert wide.dtype == torch.float32
        assert half.sum(dtype=torch.float64).dtype == torch.float64
        assert half.relu().dtype == dtype
        assert (half + x).dtype == torch.float32
        assert (x.double() @ y.double()).dtype == torch.float64
        assert x.int().sum().dtype == torch.int64


def test_float32_operators_compute_in_float32() -> None:
    x = torch.rand(64, device="maca").bfloat16()
    with torch.autocast("maca", dtype=torch.bfloat16):
        ours = x.exp()
    torch.testing.assert_close(ours.cpu(), x.cpu().float().exp())


def test_promotion_over_lists_and_indices() -> None:
    wide, half = torch.zeros(4, 4, device="maca"), torch.ones(4, 4, device="maca").bfloat16()
    rows = torch.tensor([1, 2], device="maca")
    with torch.autocast("maca", dtype=torch.bfloat16):
        for promoted in (
            torch.ops.aten.index_put(wide, [None, rows], half[:, :2]),
            torch.index_put(half, (rows,), wide[:2]),
            torch.scatter_add(wide, 0, torch.zeros(1, 4, dtype=torch.int64, device="maca"), half),
            torch.tensordot(half, wide, 1),
            torch.dot(half[0], wide[0]),
            torch.cross(half[:, :3], wide[:, :3], dim=1),
        ):
            assert promoted.dtype == torch.float32
        assert torch.tensordot(half, half, 1).dtype == torch.bfloat16


def test_inference_mode() -> None:
    """There composite operators arrive whole."""
    layer, kernel = nn.Linear(4, 4).to("maca"), torch.rand(3, 2, 3, 3, device="maca")
    x, image = torch.rand(2, 4, device="maca"), torch.rand(1, 2, 5, 5, device="maca")
    with torch.inference_mode(), torch.autocast("maca", dtype=torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
        assert nn.functional.conv2d(image, kernel).dtype == torch.bfloat16
        assert nn.functional.scaled_dot_product_attention(image, image, image).dtype == torch.bfloat16
        assert layer(x).softmax(1).dtype == torch.float32


def test_composites_keep_the_dtype_of_their_operands() -> None:
    """What they are put together from is not cast a second time."""
    x = torch.rand(3, 4, device="maca").bfloat16()
    calls: list[Any] = [
        lambda t: torch.addcmul(t, t, t),
        lambda t: torch.var(t, 1),
        lambda t: torch.trace(t[:, :3]),
        lambda t: torch.nn.functional.silu(t),
        lambda t: torch._weight_norm(t, t[:, :1]),
        lambda t: torch.nanmean(t),
    ]
    for call in calls:
        with torch.autocast("maca", dtype=torch.bfloat16):
            ours = call(x)
        assert ours.dtype in (torch.bfloat16, torch.float32)
        torch.testing.assert_close(ours.cpu().float(), call(x.cpu().float()), rtol=2e-2, atol=2e-2)


def test_transformer_layers_compute_in_half() -> None:
    layer = nn.MultiheadAttention(4, 2, batch_first=True).eval().to("maca")
    x = torch.rand(1, 3, 4, device="maca")
    with torch.no_grad(), torch.autocast("maca", dtype=torch.bfloat16):
        assert layer(x, x, x)[0].dtype == torch.bfloat16
        encoder = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval().to("maca")
        assert encoder(x).dtype == torch.float32  # its norm comes last
        torch.testing.assert_close(encoder(x).cpu(), encoder.cpu()(x.cpu()), rtol=5e-2, atol=5e-2)


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
def test_compiled_and_traced() -> None:
    layer, x = nn.Linear(3, 3).to("maca"), torch.rand(2, 3, device="maca")
    compiled = torch.compile(lambda t: layer(t).relu(), backend="aot_eager")
    with torch.autocast("maca", dtype=torch.bfloat16):
        y = compiled(x)
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert layer.weight.grad is not None and layer.weight.grad.dtype == torch.float32


def test_custom_operators_choose_a_dtype() -> None:
    @torch.library.custom_op("macatensor_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x + x

    twice.register_autocast("maca", torch.float16)
    x = torch.rand(2, device="maca")
    assert twice(x).dtype == torch.float32
    with torch.autocast("maca", dtype=torch.bfloat16):
        assert twice(x).dtype == torch.float16


def test_binary_cross_entropy_is_banned() -> None:
    p = torch.rand(3, device="maca")
    with torch.autocast("maca"), pytest.raises(RuntimeError, match="unsafe to autocast"):
        nn.functional.binary_cross_entropy(p, p)
    nn.functional.binary_cross_entropy(p, p)


def test_mixed_halves_are_refused_by_promotion() -> None:
    x = torch.rand(3, device="maca")
    with (
        torch.autocast("maca", dtype=torch.bfloat16),
        pytest.raises(RuntimeError, match="Unexpected floating"),
    ):
        torch.cat([x.half(), x.half()])


def test_state_and_nesting() -> None:
    x = torch.rand(2, 2, device="maca")
    assert not torch.is_autocast_enabled("maca")
    with torch.autocast("maca", dtype=torch.float16):
        assert torch.is_autocast_enabled("maca")
        assert torch.get_autocast_dtype("maca") == torch.float16
        assert not torch.is_autocast_enabled("cpu")
        with torch.autocast("maca", enabled=False):
            assert (x @ x).dtype == torch.float32
            with torch.autocast("maca", dtype=torch.bfloat16):
                assert (x @ x).dtype == torch.bfloat16
        assert (x @ x).dtype == torch.float16
        assert (x.cpu() @ x.cpu()).dtype == torch.float32
    assert (x @ x).dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.float32
        assert (x.cpu() @ x.cpu()).dtype == torch.bfloat16


def test_other_dtype_turns_it_off_with_a_warning() -> None:
    x = torch.rand(2, 2, device="maca")
    with pytest.warns(UserWarning, match="not support"), torch.autocast("maca", dtype=torch.float64):
        assert (x @ x).dtype == torch.float32


def test_weights_are_cast_once() -> None:
    layer, x = nn.Linear(3, 3).to("maca"), torch.rand(2, 3, device="maca")
    with torch.autocast("maca", dtype=torch.bfloat16):
        layer(x)
        assert autocast.cached_casts() == 2
        with torch.autocast("maca", dtype=torch.bfloat16):
            layer(x)
        assert autocast.cached_casts() == 2  # the inner region ended, the outer has not
        first = autocast._casts[id(layer.weight), torch.bfloat16, True][2]
        layer(x).sum().backward()
        assert autocast._casts[id(layer.weight), torch.bfloat16, True][2] is first
    assert autocast.cached_casts() == 0
    with torch.autocast("maca", dtype=torch.bfloat16, cache_enabled=False):
        layer(x)
        assert autocast.cached_casts() == 0


def test_a_cast_without_grad_keeps_the_graph() -> None:
    layer, x = nn.Linear(3, 3).to("maca"), torch.rand(2, 3, device="maca")
    with torch.autocast("maca", dtype=torch.bfloat16):
        with torch.no_grad():
            layer(x)
        layer(x).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype == torch.float32


def test_cast_follows_an_update_of_the_weight() -> None:
    layer, x = nn.Linear(3, 3, bias=False).to("maca"), torch.ones(1, 3, device="maca")
    with torch.autocast("maca", dtype=torch.bfloat16):
        layer(x)
        with torch.no_grad():
            layer.weight.fill_(2)
        assert layer(x).tolist() == [[6.0, 6.0, 6.0]]


class _Recorded(torch.autograd.Function):
    seen: list[Any] = []

    @staticmethod
    @torch.amp.custom_fwd(device_type="maca")
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x @ x

    @staticmethod
    @torch.amp.custom_bwd(device_type="maca")
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        _Recorded.seen.append((torch.is_autocast_enabled("maca"), (x @ x).dtype))
        return grad.float()


class _InFloat32(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="maca", cast_inputs=torch.float32)
    def forward(ctx: Any, x: Any) -> Any:
        assert not torch.is_autocast_enabled("maca")
        return x @ x

    @staticmethod
    @torch.amp.custom_bwd(device_type="maca")
    def backward(ctx: Any, grad: Any) -> Any:
        return grad


@pytest.mark.supports("torch.amp: custom_fwd custom_bwd")
def test_custom_functions_see_the_forward_state_in_backward() -> None:
    x = torch.rand(2, 2, device="maca", requires_grad=True)
    _Recorded.seen.clear()
    with torch.autocast("maca", dtype=torch.float16):
        y = _Recorded.apply(x)
        assert y.dtype == torch.float16
    y.sum().backward()  # on the device's autograd thread
    assert _Recorded.seen == [(True, torch.float16)]
    with torch.autocast("maca", dtype=torch.float16):
        z = _InFloat32.apply(x.detach().half().requires_grad_())
    assert z.dtype == torch.float32


def test_checkpoint_recomputes_under_autocast() -> None:
    from torch.utils.checkpoint import checkpoint

    layer, x = nn.Linear(3, 3).to("maca"), torch.rand(2, 3, device="maca")
    seen = []

    def block(value: Any) -> Any:
        y = layer(value)
        seen.append(y.dtype)
        return layer(y)  # the recomputation stops at the last tensor that backward wants

    with torch.autocast("maca", dtype=torch.bfloat16):
        loss = checkpoint(block, x, use_reentrant=False).sum()
    loss.backward()
    assert seen == [torch.bfloat16, torch.bfloat16]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers(kind: Any) -> None:
    layer = kind(4, 4).to("maca")
    with torch.autocast("maca", dtype=torch.bfloat16):
        y, _ = layer(torch.rand(3, 2, 4, device="maca"))
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert layer.weight_hh_l0.grad.dtype == torch.float32


def test_under_vmap_and_grad() -> None:
    w, x = torch.rand(3, 3, device="maca"), torch.rand(5, 3, device="maca")
    with torch.autocast("maca", dtype=torch.bfloat16):
        gradient = torch.func.grad(lambda w: torch.func.vmap(lambda row: w @ row)(x).sum())(w)
    assert gradient.dtype == torch.float32
    torch.testing.assert_close(gradient.cpu(), x.cpu().sum(0).expand(3, 3), rtol=2e-2, atol=0)


def _trained(device: str, dtype: torch.dtype | None) -> list[float]:
    """Losses of ten steps of a small network."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(8 * 16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4),
    )  # fmt: skip
    x, target = torch.randn(32, 1, 8, 8), torch.randint(4, (32,))
    model, x, target = model.to(device), x.to(device), target.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        with torch.autocast(device, dtype=dtype, enabled=dtype is not None):
            loss = nn.functional.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("dtype", HALVES)
def test_training_agrees_with_the_host(dtype: torch.dtype) -> None:
    """bfloat16 keeps 8 bits: a loss near 1 is known to about 0.01, and ten steps carry that on; float16 to 0.002."""
    bound = 0.03 if dtype == torch.bfloat16 else 0.006
    ours = _trained("maca", dtype)
    assert ours[-1] < 0.7 * ours[0]
    for host in (_trained("cpu", dtype), _trained("cpu", None)):
        torch.testing.assert_close(ours, host, rtol=0, atol=bound)


def test_host_programs_keep_their_autocast() -> None:
    """Host autocast makes no cast of ours and leaves PyTorch's functions in place."""
    run_python(
        """
        import torch
        clear = torch.clear_autocast_cache
        import macatensor
        layer, x = torch.nn.Linear(3, 3), torch.rand(2, 3)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert layer(x).dtype == torch.bfloat16
        assert torch.clear_autocast_cache is clear
        """
    )


@pytest.mark.supports("torch.maca.get_amp_supported_dtype")
def test_casts_are_given_back() -> None:
    layer, x = nn.Linear(256, 256).to("maca"), torch.rand(2, 256, device="maca")
    torch.maca.synchronize()
    before = torch.maca.memory_allocated()
    with torch.autocast("maca", dtype=torch.bfloat16), torch.no_grad():
        layer(x)
        assert torch.maca.memory_allocated() > before
    assert torch.maca.memory_allocated() == before
    assert torch.maca.get_amp_supported_dtype() == HALVES


@pytest.mark.parametrize("dtype", HALVES)
def test_transforms_are_in_float32(dtype: torch.dtype) -> None:
    x = torch.rand(4, 8, device="maca", dtype=dtype)
    with torch.autocast("maca", dtype=dtype):
        assert torch.fft.fftn(x).dtype is torch.complex64
        assert torch.fft.irfft(torch.fft.rfft(x)).dtype is torch.float32
