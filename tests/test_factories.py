"""Creation functions with ``device="maca"``: sizes, strides, dtypes and values are PyTorch's."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from running import nothing_leaked, same

import macatensor
from macatensor import MacaTensor, counters, maca

EXACT = [
    lambda d: torch.zeros(2, 3, device=d), lambda d: torch.ones(2, 3, device=d), lambda d: torch.ones((), device=d),
    lambda d: torch.zeros(0, 3, device=d), lambda d: torch.full((2, 2), 3.5, device=d),
    lambda d: torch.full((2,), 7, device=d), lambda d: torch.full((2,), True, device=d),
    lambda d: torch.full((2,), 1 + 2j, device=d), lambda d: torch.arange(5, device=d),
    lambda d: torch.arange(1, 10, 3, device=d), lambda d: torch.arange(0, 1, 0.25, device=d),
    lambda d: torch.arange(3, 3, device=d), lambda d: torch.arange(5, 0, -2, dtype=torch.int16, device=d),
    lambda d: torch.eye(3, device=d), lambda d: torch.eye(2, 4, device=d), lambda d: torch.eye(3, dtype=torch.int64, device=d),
    lambda d: torch.tensor([1, 2, 3], device=d), lambda d: torch.tensor(2.5, device=d),
    lambda d: torch.tensor([[1.0], [2.0]], dtype=torch.float64, device=d), lambda d: torch.tensor([], device=d),
    lambda d: torch.tensor([True, False], device=d), lambda d: torch.tensor([1 + 1j], device=d),
    lambda d: torch.scalar_tensor(3.0, device=d), lambda d: torch.tril_indices(3, 3, device=d),
    lambda d: torch.triu_indices(3, 4, 1, device=d), lambda d: torch.as_tensor(np.arange(3.0), device=d),
    lambda d: torch.asarray([1.0, 2.0], device=d), lambda d: torch.zeros(2, dtype=torch.bfloat16, device=d),
    lambda d: torch.ones(2, dtype=torch.bool, device=d), lambda d: torch.ones(2, dtype=torch.complex64, device=d),
    lambda d: torch.zeros(2, 3, 4, 5, device=d), lambda d: torch.range(1, 4, device=d),
    lambda d: torch.complex(torch.ones(2, device=d), torch.zeros(2, device=d)),
    lambda d: torch.ones(2, 3, device=d).new_zeros(4), lambda d: torch.ones(2, 3, device=d).new_ones((2, 2), dtype=torch.int32),
    lambda d: torch.ones(2, 3, device=d).new_full((3,), 2.0), lambda d: torch.ones(2, 3, device=d).new_tensor([1, 2]),
    lambda d: torch.zeros_like(torch.ones(2, 3, device=d).t()), lambda d: torch.ones_like(torch.ones(2, 3, device=d), dtype=torch.int8),
    lambda d: torch.full_like(torch.ones(2, 3, device=d), 4), lambda d: torch.diag(torch.ones(3, device=d)),
    lambda d: torch.block_diag(torch.ones(1, 2, device=d), torch.ones(2, 1, device=d)),
    lambda d: torch.cartesian_prod(torch.arange(2, device=d), torch.arange(3, device=d)),
    lambda d: torch.meshgrid(torch.arange(2, device=d), torch.arange(3, device=d), indexing="ij")[1].clone(),
]  # fmt: skip


@pytest.mark.parametrize("position", range(len(EXACT)))
def test_exact(position: int) -> None:
    same(EXACT[position]("maca"), EXACT[position]("cpu"))


CLOSE = [
    lambda d: torch.linspace(0, 1, 7, device=d), lambda d: torch.linspace(-3, 5, 1, device=d),
    lambda d: torch.linspace(0, 10, 4, dtype=torch.int64, device=d), lambda d: torch.logspace(0, 3, 5, device=d),
    lambda d: torch.linspace(0, 1, 0, device=d), lambda d: torch.hann_window(8, device=d),
    lambda d: torch.hamming_window(5, device=d), lambda d: torch.bartlett_window(6, device=d),
    lambda d: torch.blackman_window(6, device=d), lambda d: torch.vander(torch.arange(3.0, device=d)),
    lambda d: torch.polar(torch.ones(2, device=d), torch.zeros(2, device=d)),
]  # fmt: skip


@pytest.mark.parametrize("position", range(len(CLOSE)))
def test_close(position: int) -> None:
    ours, host = CLOSE[position]("maca"), CLOSE[position]("cpu")
    assert isinstance(ours, MacaTensor) and ours.dtype == host.dtype and ours.stride() == host.stride()
    torch.testing.assert_close(ours.cpu(), host)


IN_THE_IMAGE = [
    lambda t: t.new_empty_strided((3, 2), (1, 3)), lambda t: t.new_empty_strided([3, 2], [1, 3], dtype=torch.int32),
    lambda t: t.new_empty((4,)), lambda t: t.new_empty(4, 1, dtype=torch.bool), lambda t: torch.empty_like(t.t()),
    lambda t: torch.empty_like(t, memory_format=torch.contiguous_format), lambda t: torch.empty_like(t[:0]),
    lambda t: torch.empty_like(t, dtype=torch.complex64), lambda t: torch.zeros_like(t, dtype=torch.float64),
]  # fmt: skip


@pytest.mark.parametrize("position", range(len(IN_THE_IMAGE)))
def test_made_again_in_the_image(position: int) -> None:
    """The second call takes another way than the first: the same tensor in new memory."""
    make, image = IN_THE_IMAGE[position], torch.ones(2, 3, device="maca")
    host = make(image.cpu())
    first, second = make(image), make(image)
    for made in (first, second):
        assert isinstance(made, MacaTensor) and made.device == image.device
        assert (made.shape, made.stride(), made.dtype) == (host.shape, host.stride(), host.dtype)
        made.fill_(1)
    second.zero_()
    assert second.numel() == 0 or (bool(first.all()) and not bool(second.any()))


def test_made_again_deterministically_and_on_other_devices() -> None:
    image = torch.ones(2, 3, device="maca")
    for _ in range(2):
        torch.empty_like(image)
        assert torch.empty_like(image, device="cpu").device.type == "cpu"
        assert torch.zeros_like(image, device="meta").device.type == "meta"
        torch.use_deterministic_algorithms(True)
        try:
            assert bool(torch.empty_like(image).isnan().all())
        finally:
            torch.use_deterministic_algorithms(False)
        with pytest.raises(RuntimeError, match="maca:7|device"):
            torch.empty_like(image, device="maca:7")


def test_blanks_are_made_again_without_deciding_again() -> None:
    def facts(t: torch.Tensor) -> tuple[Any, ...]:
        return t.dtype, t.shape, t.stride(), t.device, t.is_contiguous()

    size = (3, 5, 7, 11)
    options: list[dict[str, Any]] = [
        {}, {"dtype": torch.int8}, {"memory_format": torch.channels_last}, {"dtype": torch.complex64, "layout": torch.strided},
    ]  # fmt: skip
    for given in options:
        first, second = torch.empty(size, device="maca", **given), torch.empty(size, device="maca", **given)
        assert facts(first)[:3] == facts(torch.empty(size, **given))[:3] and facts(first) == facts(second)
        assert first.data_ptr() != second.data_ptr()
        kept = weakref.ref(first._payload[2])
        del first, second
        gc.collect()
        assert kept() is torch.empty(size, device="maca", **given)._payload[2]
    for _ in range(2):
        with pytest.raises(RuntimeError, match="negative dimension"):
            torch.empty(-1, device="maca")
        with pytest.raises(RuntimeError, match="pinned"):
            torch.empty(2, device="maca", pin_memory=True)
        with pytest.raises(RuntimeError, match="maca:7|device"):
            torch.empty(2, device="maca:7")


def test_what_is_filled_next_is_not_filled_before() -> None:
    """Deterministic algorithms fill what stays uninitialized; here another value follows."""
    image = torch.ones(2, 3, device="maca")
    torch.use_deterministic_algorithms(True)
    try:
        for make, launches in ((torch.empty_like, 1), (torch.zeros_like, 0), (torch.ones_like, 1)):
            before = counters()["launches"]
            make(image)
            assert counters()["launches"] - before == launches
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    "make",
    [
        lambda d: torch.empty(2, 3, device=d), lambda d: torch.empty((), device=d), lambda d: torch.empty(0, device=d),
        lambda d: torch.empty_strided((2, 3), (1, 2), device=d), lambda d: torch.empty_strided((2, 3), (0, 1), device=d),
        lambda d: torch.empty(2, 3, 4, 5, device=d, memory_format=torch.channels_last),
        lambda d: torch.empty(2, 3, 4, 5, 6, device=d, memory_format=torch.channels_last_3d),
        lambda d: torch.empty_permuted((2, 3, 4), (2, 0, 1), device=d), lambda d: torch.empty(3, dtype=torch.int8, device=d),
        lambda d: torch.empty_like(torch.ones(2, 3, 4, 5, device=d).to(memory_format=torch.channels_last)),
        lambda d: torch.empty_like(torch.ones(4, 6, device=d)[:, ::2]), lambda d: torch.ones(2, device=d).new_empty((3, 4)),
        lambda d: torch.ones(2, device=d).new_empty_strided((3, 4), (1, 3)),
        lambda d: torch.empty_like(torch.ones(3, 1, device=d).expand(3, 4)),
        lambda d: torch.empty_like(torch.ones(2, 3, device=d).t(), memory_format=torch.contiguous_format),
    ],
)  # fmt: skip
def test_empty(make: object) -> None:
    ours, host = make("maca"), make("cpu")
    assert isinstance(ours, MacaTensor)
    assert (ours.shape, ours.stride(), ours.dtype) == (host.shape, host.stride(), host.dtype)


@pytest.mark.parametrize(
    "make",
    [
        lambda d: torch.rand(2, 3, device=d), lambda d: torch.randn(3, device=d, requires_grad=True),
        lambda d: torch.randint(0, 5, (4,), device=d), lambda d: torch.randperm(6, device=d),
        lambda d: torch.rand_like(torch.ones(2, 3, device=d)), lambda d: torch.randn_like(torch.ones(2, 3, device=d).t()),
        lambda d: torch.randint_like(torch.ones(2, device=d), 3), lambda d: torch.normal(0.0, 1.0, (2, 2), device=d),
        lambda d: torch.bernoulli(torch.full((4,), 0.5, device=d)), lambda d: torch.rand(2, dtype=torch.float64, device=d),
        lambda d: torch.randn(2, dtype=torch.complex64, device=d), lambda d: torch.rand(0, device=d),
        lambda d: torch.multinomial(torch.ones(3, device=d), 2),
    ],
)  # fmt: skip
def test_random(make: object) -> None:
    ours, host = make("maca"), make("cpu")
    assert isinstance(ours, MacaTensor)
    assert (ours.shape, ours.stride(), ours.dtype) == (host.shape, host.stride(), host.dtype)
    assert ours.requires_grad == host.requires_grad and ours.is_leaf


def test_requires_grad_and_parameters() -> None:
    x = torch.randn(3, device="maca", requires_grad=True)
    x.square().sum().backward()
    torch.testing.assert_close(x.grad.cpu(), 2 * x.detach().cpu())
    assert torch.tensor([1.0], device="maca", requires_grad=True).is_leaf


def test_default_device_and_dtype() -> None:
    with torch.device("maca"):
        assert isinstance(torch.zeros(2), MacaTensor)
        assert isinstance(torch.tensor([1.0]), MacaTensor)
        assert isinstance(torch.arange(3), MacaTensor)
    assert type(torch.zeros(2)) is torch.Tensor
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.zeros(2, device="maca").dtype == torch.float64
        assert torch.empty(2, device="maca").dtype == torch.float64
        assert torch.full((2,), 1.0, device="maca").dtype == torch.float64
        assert torch.rand(2, device="maca").dtype == torch.float64
        assert torch.arange(0, 1, 0.5, device="maca").dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_out_and_inference_mode() -> None:
    out = torch.empty(3, device="maca")
    torch.ones(3, out=out)
    assert out.tolist() == [1, 1, 1]
    torch.arange(3, out=out)
    assert out.tolist() == [0, 1, 2]
    with torch.inference_mode():
        x = torch.zeros(2, 3, device="maca")
        assert x.is_inference() and isinstance(x, MacaTensor) and x.t()[0].tolist() == [0, 0]


def test_bad_input() -> None:
    with nothing_leaked():
        for make in (
            lambda: torch.zeros(-1, device="maca"), lambda: torch.empty(2, -3, device="maca"),
            lambda: torch.empty_strided((2,), (-1,), device="maca"), lambda: torch.zeros(2, device="maca:1"),
            lambda: torch.empty(2, device="maca:3"), lambda: torch.arange(0, 5, -1, device="maca"),
            lambda: torch.eye(-1, device="maca"), lambda: torch.linspace(0, 1, -1, device="maca"),
            lambda: torch.empty(2, device="maca", pin_memory=True), lambda: torch.tensor([1.0], device="maca:1"),
            lambda: torch.empty(2**40, 2**40, device="maca"), lambda: torch.randint(5, 2, (3,), device="maca"),
            lambda: torch.empty_strided((2, 2), (1,), device="maca"), lambda: torch.arange(0, float("inf"), device="maca"),
            lambda: torch.randperm(-1, device="maca"), lambda: torch.rand(2, device="maca", dtype=torch.int64),
            lambda: torch.normal(0.0, -1.0, (2,), device="maca"), lambda: torch.empty(2**62, device="maca"),
            lambda: torch.empty(2, 3, device="maca", memory_format=torch.channels_last),
            lambda: torch.full((2,), 300, dtype=torch.uint8, device="maca"),
            lambda: torch.ones(2, dtype=torch.int8, device="maca").fill_(-129),
        ):  # fmt: skip
            with pytest.raises((RuntimeError, ValueError)):
                make()
        with pytest.raises((RuntimeError, NotImplementedError)):
            torch.empty(2, device="maca", layout=torch.sparse_csr)
    assert maca(1).item() == 1


def test_numbers_of_tensors_in_a_list() -> None:
    one, two = torch.tensor(1.5).maca(), torch.tensor([2.0]).maca()
    assert torch.tensor([one, 3.0]).tolist() == [1.5, 3.0]
    moved = torch.tensor([[one], [two]], device="maca")
    assert moved.device.type == "maca" and moved.tolist() == [[1.5], [2.0]]
    assert torch.as_tensor([torch.tensor(7).maca()]).tolist() == [7]
    with pytest.raises(ValueError, match="only one element tensors can be converted"):
        torch.tensor([torch.ones(2).maca()])


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_is_converted_and_copied_on_the_device(dtype: torch.dtype) -> None:
    host = torch.tensor([[0.0, -1.0, 2.0, float("nan")], [4.0, 5.0, 6.0, 448.0]])
    results = []
    for device in ("cpu", "maca"):
        with macatensor.fallback("error"):
            x = host.to(device).to(dtype)
            target = torch.zeros(2, 4, device=device).to(dtype)
            target[:, ::2].copy_(x[:, 1::2].float())
            target[:, 1::2] = x[:, ::2]
            empty = torch.zeros(0, 3, device=device).to(dtype)
            results.append([x, x.t().contiguous(), x.clone(), x.to(torch.bfloat16), target, empty, x[0, 1]])
            assert results[-1][0].device.type == device
    for ours, theirs in zip(results[1], results[0]):
        torch.testing.assert_close(ours.cpu().float(), theirs.float(), rtol=0, atol=0, equal_nan=True)
        assert ours.dtype == theirs.dtype and ours.stride() == theirs.stride()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_kaiser_windows(dtype: torch.dtype) -> None:
    for args in ((0,), (1,), (5,), (64, False), (7, True, 3.0), (8, False, 0.0)):
        ours = torch.kaiser_window(*args, dtype=dtype, device="maca")
        exact = torch.kaiser_window(*args, dtype=torch.float64)
        assert ours.dtype == dtype and ours.shape == exact.shape
        room = 16 * torch.finfo(dtype).eps if dtype is torch.float64 else torch.finfo(dtype).eps
        assert bool(((ours.cpu().double() - exact).abs() <= room).all())
    for bad in ({"window_length": -1}, {"window_length": 5, "dtype": torch.int64}):
        with pytest.raises(RuntimeError, match="kaiser_window"):
            torch.kaiser_window(**bad, device="maca")
