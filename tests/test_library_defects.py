"""Calls that a library under our kernels answers wrongly, and that must not reach it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from running import run_python, threads_restored

EPSILON = torch.finfo(torch.float32).eps


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    with threads_restored():
        yield


def test_relu_after_a_product_keeps_nan() -> None:
    """oneDNN's fused relu makes 0 of NaN; PyTorch's operator keeps it."""
    a, b = torch.randn(5, 7), torch.randn(7, 9)
    a[1, 2], a[3, 4] = torch.nan, torch.inf
    for bias in (torch.randn(9), torch.full((9,), -100.0)):
        expected = torch._addmm_activation(bias, a, b)
        ours = torch._addmm_activation(bias.maca(), a.maca(), b.maca()).cpu()
        assert expected[1].isnan().all()
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("channels", [(3, 64), (8, 16), (12, 20), (20, 12)])
@pytest.mark.parametrize("size", [(8, 20), (7, 7), (1, 5)])
def test_weight_gradients_of_strided_pixels(
    threads: int, channels: tuple[int, int], size: tuple[int, int]
) -> None:
    """oneDNN 3.2's jit_1x1 loses a part of them on several threads where channels do not fill its blocks."""
    torch.set_num_threads(threads)
    into, out = channels
    for stride in (1, 2, 3):
        x, w = torch.randn(4, into, *size), torch.randn(out, into, 1, 1)
        exact_x, exact_w = x.double().requires_grad_(), w.double().requires_grad_()
        exact = F.conv2d(exact_x, exact_w, stride=stride)
        grad = torch.randn_like(exact)
        exact.backward(grad)
        ours_x, ours_w = x.maca().requires_grad_(), w.maca().requires_grad_()
        F.conv2d(ours_x, ours_w, stride=stride).backward(grad.float().maca())
        assert exact_x.grad is not None and exact_w.grad is not None
        for ours, host, factor, terms in (
            (ours_w.grad, exact_w.grad, x, grad[:, 0].numel()),
            (ours_x.grad, exact_x.grad, w, out),
        ):
            assert ours is not None
            largest = float(factor.abs().max()) * float(grad.abs().max())
            # one rounding a term, and one more each time that it is added to a sum of at most all terms
            torch.testing.assert_close(ours.cpu().double(), host, rtol=0, atol=EPSILON * largest * terms)


def test_strided_pixels_leave_no_memory() -> None:
    """oneDNN 3.2's jit_1x1, with AVX-512, writes beyond its scratch memory where channels do not fill blocks of 16."""
    run_python(
        """
        import torch, macatensor
        for threads in (2, 3):
            torch.set_num_threads(threads)
            for batch, size, into, out, stride in (
                (4, (14, 14), 8, 16, [2, 2]), (3, (11, 14), 8, 12, [1, 2]), (1, (16, 8), 8, 1, [2, 1]), (2, (9, 9), 24, 8, [2, 2])
            ):
                x, w = torch.randn(batch, into, *size).maca(), torch.randn(out, into, 1, 1).maca()
                rest = [0], stride, [0, 0], [1, 1], False, [0, 0], 1, [True, True, False]
                grad = torch.nn.functional.conv2d(x, w, stride=stride)
                torch.ops.aten.convolution_backward(grad, x, w, *rest)
        """,
        MACA_MEMORY_FENCE="1",
    )


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("width, stride", [(2, 3), (3, 4), (4, 5), (1, 1), (3, 3)])
def test_weight_gradients_of_images_narrower_than_a_stride(width: int, stride: int, transposed: bool) -> None:
    """oneDNN 3.2's jit_bf16, with AVX-512, multiplies memory that it never wrote: what lay there before."""
    for kernel, padding in ((3, 2), (5, 3), (7, 4)):
        x = torch.randn(2, 64, width, dtype=torch.bfloat16)
        w = torch.randn(*((64, 32) if transposed else (32, 64)), kernel, dtype=torch.bfloat16)
        rest = None, [stride], [padding], [1], transposed, [0], 1, [False, True, False]
        try:
            result = torch.ops.aten.convolution(x.double(), w.double(), *rest[:-1])
        except RuntimeError:  # nothing is left of so small an image
            continue
        grad = torch.randn(result.shape, dtype=torch.bfloat16)
        for power in range(10, 20, 2):  # freed blocks of the sizes that a workspace may have
            torch.full((1 << power,), math.nan, device="maca")
        _, exact, _ = torch.ops.aten.convolution_backward(grad.double(), x.double(), w.double(), *rest)
        _, ours, _ = torch.ops.aten.convolution_backward(grad.maca(), x.maca(), w.maca(), *rest)
        terms = grad[:, 0].numel()
        largest = float(x.abs().max()) * float(grad.abs().max())
        # the sum is float32's and is rounded to bfloat16 once
        torch.testing.assert_close(
            ours.cpu().double(), exact, rtol=2**-8, atol=EPSILON * largest * terms * terms
        )


# image, weight, stride, padding, dilation, transposed, groups
FAR_BEYOND_THE_EDGE = [
    ((1, 16, 64), (16, 16, 5), (2,), (17,), (7,), False, 1),
    ((2, 2, 3, 100), (16, 2, 1, 9), (1, 3), (0, 28), (1, 7), False, 1),
    ((2, 17, 37), (17, 40, 5), (3,), (28,), (7,), True, 1),
    ((2, 1, 3, 33), (1, 40, 2, 7), (1, 5), (0, 18), (3, 3), True, 1),
    ((2, 16, 7, 2, 3), (16, 16, 7, 3, 3), (2, 1, 1), (3, 1, 1), (1, 1, 1), False, 1),
    ((3, 4, 4, 1, 6), (16, 4, 7, 1, 5), (2, 1, 1), (5, 0, 2), (1, 1, 1), False, 1),
    ((2, 32, 2, 2, 50), (14, 16, 5, 7, 5), (2, 1, 1), (4, 3, 2), (1, 1, 1), False, 2),
    ((2, 96, 4, 1, 38), (96, 40, 5, 3, 11), (3, 2, 1), (4, 1, 5), (1, 1, 1), True, 3),
    ((3, 5, 10, 18), (5, 1, 1, 1), (1, 5), (0, 0), (2, 7), True, 1),
    ((3, 34, 2, 76), (10, 17, 1, 2), (1, 1), (0, 1), (3, 3), False, 2),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", FAR_BEYOND_THE_EDGE, ids=str)
def test_weight_gradients_of_windows_far_beyond_the_edge(
    case: tuple[
        tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...], bool, int
    ],
    dtype: torch.dtype,
) -> None:
    """oneDNN's jit:avx512_core, PyTorch's too, and jit_bf16 are wrong throughout; some read and write beyond their memory."""
    image, weight, stride, padding, dilation, transposed, groups = case
    torch.manual_seed(0)
    x, w = torch.randn(image, dtype=dtype).maca(), torch.randn(weight, dtype=dtype).maca()
    rest = None, stride, padding, dilation, transposed, [0] * len(stride), groups
    gradient = torch.randn_like(torch.ops.aten.convolution(x, w, *rest))
    weights = [False, True, False]

    def computed(*operands: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.convolution_backward(*operands, *rest, weights)[1].cpu().double()

    # not PyTorch's, whose process it may end: float64 goes through plain loops
    exact = computed(gradient.double(), x.double(), w.double())
    sizes = computed(gradient.double().abs(), x.double().abs(), w.double())
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        bound = 8 * torch.finfo(dtype).eps * sizes
        assert (computed(gradient, x, w) - exact).abs().le(bound).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_with_a_bias(dtype: torch.dtype) -> None:
    """oneDNN 3.2 has no float16 gradients of convolutions and no float16 product with a bias of that dtype, not even
    where the processor computes in float16: there they are its reference loops, or nothing."""
    torch.manual_seed(0)
    calls = {
        F.linear: (torch.randn(33, 64), torch.randn(48, 64), torch.randn(48)),
        F.conv2d: (torch.randn(2, 8, 9, 7), torch.randn(16, 8, 3, 3), torch.randn(16)),
        F.conv_transpose2d: (torch.randn(2, 8, 9, 7), torch.randn(8, 16, 3, 3), torch.randn(16)),
    }
    for call, operands in calls.items():
        halves = [t.to(dtype) for t in operands]
        exact = [t.double().requires_grad_() for t in halves]
        sizes = [t.double().abs().requires_grad_() for t in halves]
        ours = [t.maca().requires_grad_() for t in halves]
        wanted, of_sizes, got = call(*exact), call(*sizes), call(*ours)
        gradient = torch.randn_like(wanted).to(dtype)
        wanted.backward(gradient.double())
        of_sizes.backward(gradient.double().abs())
        got.backward(gradient.maca())
        pairs = [(got.detach(), wanted, of_sizes)] + [
            (o.grad, e.grad, s.grad) for o, e, s in zip(ours, exact, sizes)
        ]
        for result, right, size in pairs:
            assert result is not None and right is not None and size is not None
            # one rounding of the result, and float32's of the sum
            error = ((result.cpu().double() - right).abs() / size).detach()
            assert float(error.max()) <= torch.finfo(dtype).eps


@pytest.mark.parametrize("bias", [False, True])
def test_products_of_rows_two_pages_apart(bias: bool) -> None:
    """They are read from a copy with gaps; the right factor, met unchanged, from a packed one. The bits stay."""
    torch.manual_seed(0)
    x, w, b = torch.randn(260, 2048), torch.randn(1030, 2048), torch.randn(1030) if bias else None
    exact = F.linear(x.double(), w.double(), None if b is None else b.double())
    size = F.linear(x.abs().double(), w.abs().double())
    ours = [t if t is None else t.maca() for t in (x, w, b)]
    results = [F.linear(*ours).cpu() for _ in range(3)]
    assert all(torch.equal(r, results[0]) for r in results)
    # sums of 2048 terms in 16 lanes or more
    assert ((results[0].double() - exact).abs() <= (2048 / 16 + 8) * EPSILON * (size + 5)).all()
