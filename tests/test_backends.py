"""``torch.backends.maca``: switches, their defaults, and what TF32 does to products."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from running import run_python
from torch.nn.attention import SDPBackend, sdpa_kernel

import macatensor

backend: Any = torch.backends.maca


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = backend.set_flags()
    products = backend.matmul.allow_tf32
    precision = torch.get_float32_matmul_precision()
    yield
    backend.set_flags(*before)
    torch.set_float32_matmul_precision(precision)
    backend.matmul.allow_tf32 = products
    torch.use_deterministic_algorithms(False)


@pytest.mark.supports(
    "torch.backends.maca: version enabled matmul.allow_fp16_reduced_precision_reduction matmul.allow_bf16_reduced_precision_reduction"
)
def test_defaults() -> None:
    import torch.backends.maca as imported

    assert imported is backend
    assert backend.is_available() and backend.is_built() and backend.enabled
    assert backend.version() > 0
    assert not backend.matmul.allow_tf32 and not backend.conv.allow_tf32 and not backend.allow_tf32
    assert not backend.benchmark and not backend.deterministic and backend.benchmark_limit == 10
    assert backend.matmul.allow_fp16_reduced_precision_reduction
    assert backend.matmul.allow_bf16_reduced_precision_reduction
    assert backend.is_acceptable(torch.ones(1, device="maca"))
    assert not backend.is_acceptable(torch.ones(1))


@pytest.mark.parametrize("owner", [backend, backend.matmul, backend.conv])
def test_unknown_attributes(owner: Any) -> None:
    with pytest.raises(AttributeError):
        owner.allow_tf23  # noqa: B018
    with pytest.raises(AttributeError):
        owner.allow_tf23 = True


def test_values_are_checked() -> None:
    with pytest.raises(TypeError, match="allow_tf32 expects a bool, got int"):
        backend.matmul.allow_tf32 = 1
    with pytest.raises(TypeError, match="benchmark expects a bool, got str"):
        backend.benchmark = "yes"


@pytest.mark.supports("torch.backends.maca: task_queue.mode library_info")
def test_the_library_and_its_queue() -> None:
    from macatensor.runtime import ffi

    assert backend.library_info() == torch.maca.library_info()
    before = backend.task_queue.mode
    try:
        for mode in ("0", "1", "auto"):
            backend.task_queue.mode = mode
            assert backend.task_queue.mode == mode == ffi.task_queue()
            assert (torch.ones(4, device="maca") + 1).tolist() == [2] * 4
        with pytest.raises(ValueError, match="got 'some'; accepted: 0, 1, auto"):
            backend.task_queue.mode = "some"
        assert backend.task_queue.mode == "auto"
    finally:
        backend.task_queue.mode = before


@pytest.mark.supports("torch.backends.maca: benchmark benchmark_limit deterministic")
def test_flags_are_restored() -> None:
    with backend.flags(enabled=True, benchmark=True, benchmark_limit=3, deterministic=True, allow_tf32=True):
        assert backend.benchmark and backend.benchmark_limit == 3 and backend.deterministic
        assert backend.conv.allow_tf32 and not backend.matmul.allow_tf32
    assert not backend.benchmark and backend.benchmark_limit == 10 and not backend.deterministic
    assert not backend.conv.allow_tf32


def test_frozen_flags() -> None:
    run_python(
        """
        import torch, macatensor
        b = torch.backends.maca
        torch.backends.disable_global_flags()
        for owner in (b, b.matmul, b.conv):
            try:
                owner.allow_tf32 = True
            except RuntimeError as e:
                assert "after disable_global_flags" in str(e), e
            else:
                raise SystemExit("not refused")
        with b.flags(allow_tf32=True):
            assert b.allow_tf32
        assert not b.allow_tf32
        torch.set_float32_matmul_precision("high")
        assert b.matmul.allow_tf32
        """
    )


@pytest.mark.supports("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE PYTORCH_ALLOW_CUDA_CUDNN_TF32")
@pytest.mark.parametrize("value", ["0", "1", None])
def test_environment(value: str | None) -> None:
    for name, attribute in (
        ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "matmul"),
        ("PYTORCH_ALLOW_CUDA_CUDNN_TF32", "conv"),
    ):
        code = f"import torch, macatensor; print(torch.backends.maca.{attribute}.allow_tf32)"
        assert run_python(code, **{name: value}).stdout.strip() == str(value == "1")


def rounded(x: torch.Tensor) -> torch.Tensor:
    """To 10 mantissa bits, to nearest, ties to even: in integers, as no arithmetic of PyTorch's does it."""
    bits = x.view(torch.int32)
    return ((bits + 0x0FFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)


@pytest.mark.supports("torch.backends.maca.matmul.allow_tf32")
def test_matmul_rounds_its_factors() -> None:
    ties = torch.tensor(
        [1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-10, 1 + 2.0**-11 + 2.0**-23, -1 - 2.0**-11]
    )
    x = ties[:, None].maca()
    one = torch.ones(1, 1, device="maca")
    assert (x @ one).cpu().equal(ties[:, None])
    backend.matmul.allow_tf32 = True
    nearest = torch.tensor([1.0, 1 + 2.0**-9, 1 + 2.0**-10, 1 + 2.0**-10, -1.0])
    assert (x @ one).cpu().flatten().equal(nearest)
    assert (one @ x.t()).cpu().flatten().equal(nearest)
    special = torch.tensor([[float("inf")], [-float("inf")], [float("nan")], [3.4028234e38], [1e-45], [-0.0]])
    got = (special.maca() @ one).cpu().flatten()
    assert got[0] == float("inf") and got[1] == -float("inf") and got[2].isnan()
    assert got[3] == float("inf") and got[4] == 0
    backend.matmul.allow_tf32 = False
    assert (x @ one).cpu().equal(ties[:, None])


@pytest.mark.parametrize("m, k, n", [(3, 5, 4), (64, 96, 80), (1, 40, 7)])
@pytest.mark.parametrize("transposed", [False, True])
def test_every_product(m: int, k: int, n: int, transposed: bool) -> None:
    a, b, c = torch.randn(m, k), torch.randn(k, n), torch.randn(m, n)
    if transposed:
        a, b = a.t().contiguous().t(), b.t().contiguous().t()
    p, q, s = a.maca(), b.maca(), c.maca()
    backend.matmul.allow_tf32 = True
    ar, br = rounded(a).double(), rounded(b).double()
    cases = [
        (torch.mm(p, q), ar @ br),
        (torch.addmm(s, p, q, beta=0.5, alpha=2), 0.5 * c.double() + 2 * ar @ br),
        (torch.bmm(p.expand(2, m, k), q.expand(2, k, n))[1], ar @ br),
        (torch.baddbmm(s[None], p[None], q[None])[0], c.double() + ar @ br),
        (torch.addbmm(s, p[None], q[None]), c.double() + ar @ br),
        (torch.nn.functional.linear(p, q.t()), ar @ br),
    ]
    for ours, exact in cases:
        torch.testing.assert_close(ours.cpu().double(), exact, rtol=1e-5, atol=1e-4)
        unrounded = exact - ar @ br + a.double() @ b.double()
        assert not torch.equal(ours.cpu(), unrounded.float())


def test_operands_that_cover_their_memory_in_part() -> None:
    whole = torch.randn(20, 30)
    a, b = whole[1:9:2, 3:13], whole[:10, ::6]
    on = whole.maca()
    backend.matmul.allow_tf32 = True
    ours = on[1:9:2, 3:13] @ on[:10, ::6]
    exact = rounded(a.contiguous()).double() @ rounded(b.contiguous()).double()
    torch.testing.assert_close(ours.cpu().double(), exact, rtol=1e-5, atol=1e-5)


def test_complex_and_other_types() -> None:
    z = torch.randn(4, 4, dtype=torch.complex64)
    double = torch.randn(4, 4, dtype=torch.float64)
    half = torch.randn(4, 4).bfloat16()
    before = [(t.maca() @ t.maca()).cpu() for t in (double, half)]
    backend.matmul.allow_tf32 = True
    zr = torch.view_as_complex(rounded(torch.view_as_real(z).contiguous())).to(torch.complex128)
    torch.testing.assert_close(
        (z.maca() @ z.maca()).cpu().to(torch.complex128), zr @ zr, rtol=1e-5, atol=1e-5
    )
    for t, same in zip((double, half), before):
        assert (t.maca() @ t.maca()).cpu().equal(same)


def test_vectors_keep_float32() -> None:
    a, v = torch.randn(6, 6), torch.randn(6)
    p, w = a.maca(), v.maca()
    before = [torch.mv(p, w).cpu(), torch.dot(w, w).cpu()]
    backend.matmul.allow_tf32 = True
    assert [t.tolist() for t in before] == [torch.mv(p, w).tolist(), torch.dot(w, w).tolist()]


@pytest.mark.parametrize("transposed", [False, True])
def test_convolution(transposed: bool) -> None:
    convolve = torch.nn.functional.conv_transpose2d if transposed else torch.nn.functional.conv2d
    x, w, bias = torch.randn(2, 4, 7, 7), torch.randn(4, 4, 3, 3), torch.randn(4)
    ours_x, ours_w = x.maca().requires_grad_(), w.maca().requires_grad_()
    backend.matmul.allow_tf32 = True  # another switch
    plain = convolve(ours_x, ours_w, bias.maca())
    torch.testing.assert_close(plain.cpu(), convolve(x, w, bias), rtol=1e-5, atol=1e-5)
    backend.conv.allow_tf32 = True
    y = convolve(ours_x, ours_w, bias.maca())
    xr, wr = rounded(x).double().requires_grad_(), rounded(w).double().requires_grad_()
    exact = convolve(xr, wr, bias.double())
    torch.testing.assert_close(y.cpu().double(), exact, rtol=1e-5, atol=1e-5)
    assert not torch.equal(y.cpu(), plain.cpu())
    grad = torch.randn_like(y.cpu())
    y.backward(grad.maca())
    exact.backward(rounded(grad).double())
    for ours, host in ((ours_x.grad, xr.grad), (ours_w.grad, wr.grad)):
        torch.testing.assert_close(ours.cpu().double(), host, rtol=1e-4, atol=1e-4)


def test_float32_matmul_precision_is_followed() -> None:
    torch.set_float32_matmul_precision("high")
    assert backend.matmul.allow_tf32
    torch.set_float32_matmul_precision("highest")
    assert not backend.matmul.allow_tf32
    backend.matmul.allow_tf32 = True
    assert torch.get_float32_matmul_precision() == "highest"  # the host's products are not ours to change


def test_deterministic_algorithms() -> None:
    from macatensor.runtime import plan_flags

    bit = plan_flags.plan_flags("mm") ^ 0
    torch.use_deterministic_algorithms(True)
    assert plan_flags.plan_flags("mm") != bit
    assert torch.empty(3, device="maca").isnan().all()
    assert torch.empty_strided((2, 2), (1, 2), dtype=torch.int32, device="maca").eq(2**31 - 1).all()
    assert torch.empty_like(torch.ones(2, device="maca")).isnan().all()
    x = torch.zeros(3, device="maca").index_add(
        0, torch.tensor([0, 0, 2], device="maca"), torch.ones(3).maca()
    )
    assert x.tolist() == [2.0, 0.0, 1.0]
    torch.use_deterministic_algorithms(False)
    assert plan_flags.plan_flags("mm") == bit
    with backend.flags(enabled=True, deterministic=True, allow_tf32=False):
        assert plan_flags.plan_flags("mm") != bit


def test_a_switch_drops_the_plans() -> None:
    from macatensor.runtime import plan_caches

    x = torch.ones(3, 3, device="maca")
    x @ x
    assert plan_caches.count_plans()
    torch.use_deterministic_algorithms(True)
    assert not plan_caches.count_plans()


def test_fft_plan_cache() -> None:
    cache = backend.fft_plan_cache
    cache.clear()
    assert cache.size == 0
    torch.fft.fft(torch.ones(12, device="maca"))
    assert cache.size == cache[0].size > 0
    assert cache.max_size > 0
    with pytest.raises(RuntimeError, match="max_size is fixed"):
        cache.max_size = 3
    with pytest.raises(RuntimeError, match="device index"):
        cache[1]
    cache.clear()
    assert cache.size == 0


def _attention_launches() -> int:
    q = torch.randn(1, 2, 4, 8, device="maca")
    macatensor.reset_counters()
    torch.nn.functional.scaled_dot_product_attention(q, q, q)
    return int(macatensor.counters()["launches"])


@pytest.mark.supports("torch.backends.maca.enable_flash_sdp")
def test_attention_switches() -> None:
    assert _attention_launches() == 1
    with sdpa_kernel(SDPBackend.MATH):
        assert _attention_launches() > 1
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        assert _attention_launches() == 1
    q = torch.randn(1, 2, 4, 8, device="maca")
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(RuntimeError, match="No available kernel"):
        torch.nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
    backend.enable_flash_sdp(False)
    try:
        assert (
            not backend.flash_sdp_enabled() and _attention_launches() == 1
        )  # the memory-efficient switch is on
    finally:
        backend.enable_flash_sdp(True)
