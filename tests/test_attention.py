"""``scaled_dot_product_attention`` over many blocks of queries and keys: against float64."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from running import threads_restored
from torch.nn.attention import SDPBackend, sdpa_kernel

HALF_ULP = torch.finfo(torch.float32).eps / 2

# heads, heads of the keys, queries, keys, features of a key, features of a value
SHAPES = [
    (3, 3, 63, 70, 24, 24),  # too few queries to pack for
    (3, 3, 64, 64, 64, 64),
    (2, 2, 97, 513, 64, 64),  # one query and one key over a block
    (2, 2, 200, 1100, 5, 19),  # features that fill no vector
    (4, 2, 130, 130, 16, 40),  # two heads to a head of keys
    (1, 1, 300, 40, 300, 8),  # more features than a panel is deep
    (2, 2, 200, 300, 300, 257),  # the same, and with a causal mask fewer keys than are packed
    (2, 2, 65, 1, 8, 8),
    (5, 1, 1, 700, 32, 32),
]


@pytest.fixture(autouse=True, params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    with threads_restored(request.param):
        yield request.param


def operands(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    heads, key_heads, queries, keys, e, ev = shape
    torch.manual_seed(0)
    sizes = (2, heads, queries, e), (2, key_heads, keys, e), (2, key_heads, keys, ev)
    return [torch.randn(size, dtype=dtype) for size in sizes]


def mask_of(kind: str, shape: tuple[int, ...]) -> torch.Tensor | None:
    heads, _, queries, keys, _, _ = shape
    if kind == "bool":
        mask = torch.rand(2, 1, queries, keys) > 0.3
        mask[0, 0, queries // 2] = False  # a row that sees nothing
        return mask
    return torch.randn(heads, 1, keys) if kind == "float" else None


def weights_of(
    q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor | None, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights in float64, and which part of itself another order of the sums in float32 may add to each."""
    scale = 1 / math.sqrt(q.shape[-1])
    score = q @ k.mT * scale
    size = q.abs() @ k.abs().mT * scale
    if mask is not None and mask.dtype is torch.bool:
        score = score.masked_fill(~mask, -math.inf)
    elif mask is not None:
        score, size = score + mask.double(), size + mask.double().abs()
    if causal:
        score = score.masked_fill(~torch.ones(score.shape[-2:], dtype=torch.bool).tril(), -math.inf)
    # A weight inherits the error of its own score and of the greatest one, each a sum of as many roundings as terms.
    of_scores = 2 * HALF_ULP * (q.shape[-1] + 3) * size.amax(-1, keepdim=True)
    # Weights sum in 16 lanes and by blocks, exponentials are right to 1.1 ULP, what is kept shrinks once a block.
    of_sums = HALF_ULP * (k.shape[-2] / 8 + 40)
    return score.softmax(-1).nan_to_num(0.0), of_scores + of_sums


def exact(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The result in float64, and how far another order of the sums in float32 may be from it."""
    group = q.shape[1] // k.shape[1]
    q, k, v = q.double(), k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
    weights, part = weights_of(q, k, mask, causal)
    return weights @ v, (weights @ v.abs()) * part


def gradient_bounds(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    gradient: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,
) -> list[torch.Tensor]:
    """How far from float64 each element of the gradients of ``q``, ``k`` and ``v`` may be: each sum errs by half an
    ULP of its terms' sizes for each of its terms, and hands on the errors of what it adds."""
    group, scale = q.shape[1] // k.shape[1], 1 / math.sqrt(q.shape[-1])
    result, of_result = exact(q, k, v, mask, causal)
    q, k, v = q.double(), k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
    gradient = gradient.double()
    weights, part = weights_of(q, k, mask, causal)

    def roundings(terms: int) -> float:
        return HALF_ULP * (terms + 3)

    by_weight = gradient @ v.mT  # the gradient of each weight
    mean = (gradient * result).sum(-1, keepdim=True)  # what the softmax takes off it
    size = gradient.abs() @ v.abs().mT
    size_of_mean = (gradient * result).abs().sum(-1, keepdim=True)
    of_difference = roundings(v.shape[-1]) * (size + size_of_mean)
    of_difference = of_difference + (gradient.abs() * of_result).sum(-1, keepdim=True)
    by_score = weights * (by_weight - mean) * scale
    of_score = weights * of_difference * scale + by_score.abs() * (part + roundings(1))
    of_q = of_score @ k.abs() + roundings(k.shape[-2]) * by_score.abs() @ k.abs()
    of_k = of_score.mT @ q.abs() + roundings(q.shape[-2] * group) * by_score.abs().mT @ q.abs()
    of_v = (weights * (part + roundings(q.shape[-2] * group))).mT @ gradient.abs()
    return [of_q, *(t.unflatten(1, (-1, group)).sum(2) for t in (of_k, of_v))]


def root_mean_square(error: torch.Tensor) -> float:
    return error.square().mean().sqrt().item()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["none", "causal", "bool", "float"])
def test_results(shape: tuple[int, ...], kind: str) -> None:
    q, k, v = operands(shape)
    mask = mask_of(kind, shape)
    result = F.scaled_dot_product_attention(
        q.maca(),
        k.maca(),
        v.maca(),
        None if mask is None else mask.maca(),
        is_causal=kind == "causal",
        enable_gqa=shape[0] != shape[1],
    )
    expected, bound = exact(q, k, v, mask, kind == "causal")
    assert ((result.cpu().double() - expected).abs() <= bound).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("causal", [False, True])
def test_halves_sum_in_float32(dtype: torch.dtype, causal: bool) -> None:
    q, k, v = operands((2, 2, 140, 600, 24, 40), dtype)
    result = F.scaled_dot_product_attention(q.maca(), k.maca(), v.maca(), is_causal=causal)
    expected, bound = exact(q, k, v, None, causal)
    rounding = expected.abs() * torch.finfo(dtype).eps / 2 + torch.finfo(dtype).smallest_normal
    assert result.dtype is dtype
    assert ((result.cpu().double() - expected).abs() <= 1.01 * (bound + rounding)).all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("layout", ["heads inside", "expanded", "offset", "transposed"])
def test_layouts(layout: str, causal: bool) -> None:
    q, k, v = operands((4, 4, 100, 530, 24, 24))
    if layout == "heads inside":  # as a projection leaves them: [batch, tokens, heads, features]
        q, k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v))
        ours = [t.transpose(1, 2).maca().transpose(1, 2) for t in (q, k, v)]
    elif layout == "expanded":
        k, v = k[:, :1].expand_as(k), v[:1, :, :1].expand_as(v)
        ours = [q.maca(), k[:, :1].maca().expand(k.shape), v[:1, :, :1].maca().expand(v.shape)]
    elif layout == "offset":
        ours = [F.pad(t, (3, 0, 2, 0)).maca()[..., 2:, 3:] for t in (q, k, v)]
    else:  # features apart
        ours = [t.mT.maca().mT for t in (q, k, v)]
    result = F.scaled_dot_product_attention(*ours, is_causal=causal)
    expected, bound = exact(q, k, v, None, causal)
    assert ((result.cpu().double() - expected).abs() <= bound).all()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["none", "causal", "bool", "float"])
def test_gradients(shape: tuple[int, ...], kind: str) -> None:
    """Each element within its bound, and all together as near to float64 as PyTorch's own: the sums of both differ in
    their order and, by processor, in the rounding of products, so the root mean square has four times PyTorch's."""
    tensors = operands(shape)
    mask = mask_of(kind, shape)
    torch.manual_seed(1)
    gradient = torch.randn(*tensors[0].shape[:-1], shape[-1])

    def gradients(dtype: torch.dtype, device: str) -> list[torch.Tensor]:
        leaves = [t.to(device, dtype, copy=True).requires_grad_() for t in tensors]
        here = None if mask is None else mask.to(device)
        if here is not None and here.is_floating_point():
            here = here.to(dtype)
        y = F.scaled_dot_product_attention(
            *leaves, here, is_causal=kind == "causal", enable_gqa=shape[0] != shape[1]
        )
        y.backward(gradient.to(device, dtype))
        return [t.grad.cpu().double() for t in leaves if t.grad is not None]

    ours, native = gradients(torch.float32, "maca"), gradients(torch.float32, "cpu")
    expected = gradients(torch.float64, "cpu")
    bounds = gradient_bounds(*tensors, gradient, mask, kind == "causal")
    ulp = torch.finfo(torch.float32).eps * max(c.abs().max().item() for c in expected)  # of what may cancel
    for a, b, c, bound in zip(ours, native, expected, bounds, strict=True):
        assert ((a - c).abs() <= bound).all()
        assert root_mean_square(a - c) <= 4 * max(root_mean_square(b - c), ulp / 4)


def test_nan_and_infinities() -> None:
    q, k, v = operands((2, 2, 70, 600, 16, 16))
    q[0, 0, 3, 2] = math.nan  # its row alone
    k[1, 1, 550, 0] = math.inf  # a score of Inf or -Inf in every row of the head
    v[1, 0, 20, 5] = math.nan  # its feature alone
    v[0, 1, 21, 6] = -math.inf
    result = F.scaled_dot_product_attention(q.maca(), k.maca(), v.maca()).cpu()
    expected = F.scaled_dot_product_attention(q, k, v)
    assert torch.equal(result.isnan(), expected.isnan())
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_a_token_after_the_last_is_not_seen() -> None:
    """Causal: nothing of the keys that come later reaches a row, not even by a weight of zero, beyond its block."""
    q, k, v = operands((1, 1, 1200, 1200, 16, 16))
    v[:, :, 1100:] = math.nan
    result = F.scaled_dot_product_attention(q.maca(), k.maca(), v.maca(), is_causal=True).cpu()
    expected, bound = exact(q[:, :, :900], k[:, :, :900], v[:, :, :900], None, True)
    assert ((result[:, :, :900].double() - expected).abs() <= bound).all()


@pytest.mark.parametrize("queries", [1, 80])
def test_no_keys(queries: int) -> None:
    q, k, v = operands((2, 2, queries, 0, 16, 16))
    result = F.scaled_dot_product_attention(q.maca(), k.maca(), v.maca())
    assert torch.equal(result.cpu(), torch.zeros_like(q))


def test_same_bits_for_any_number_of_threads(threads: int) -> None:
    q, k, v = (t.maca() for t in operands((3, 3, 300, 700, 24, 24)))
    many = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.set_num_threads(1)
    assert torch.equal(many, F.scaled_dot_product_attention(q, k, v, is_causal=True))


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks_on_the_math_path(kind: str) -> None:
    shape = (4, 2, 20, 30, 16, 16)
    q, k, v = operands(shape)
    mask = mask_of(kind, shape)
    assert mask is not None
    with sdpa_kernel(SDPBackend.MATH):
        result = F.scaled_dot_product_attention(q.maca(), k.maca(), v.maca(), mask.maca(), enable_gqa=True)
    expected, bound = exact(q, k, v, mask, False)
    # the sum of the weights is another one there, and so is where they are scaled
    assert ((result.cpu().double() - expected).abs() <= 2 * bound).all()


def test_second_gradients_see_the_mask() -> None:
    q, k, v = operands((2, 2, 6, 7, 4, 4), torch.float64)
    mask = torch.rand(6, 7) > 0.4
    mask[:, 0] = True

    def second(device: str) -> list[torch.Tensor]:
        leaves = [t.to(device, copy=True).requires_grad_() for t in (q, k, v)]
        with sdpa_kernel(
            [SDPBackend.MATH] if device == "cpu" else [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
        ):
            y = F.scaled_dot_product_attention(*leaves, mask.to(device))
            first = torch.autograd.grad(y.square().sum(), leaves, create_graph=True)
            return [t.cpu() for t in torch.autograd.grad(sum(t.square().sum() for t in first), leaves)]

    for a, b in zip(second("maca"), second("cpu"), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_halves_take_float32_masks_and_masks_beside_causal() -> None:
    q, k, v = operands((2, 2, 70, 70, 16, 16))
    mask = torch.randn(70, 70)
    both = F.scaled_dot_product_attention(q.maca(), k.maca(), v.maca(), mask.maca(), is_causal=True)
    expected, bound = exact(q, k, v, mask, True)
    assert ((both.cpu().double() - expected).abs() <= bound).all()
    q, k, v = (t.bfloat16() for t in (q, k, v))
    half = F.scaled_dot_product_attention(q.maca(), k.maca(), v.maca(), mask.maca())
    expected, bound = exact(q, k, v, mask, False)
    assert ((half.cpu().double() - expected).abs() <= 1.01 * (bound + expected.abs() * 2**-8)).all()


@pytest.mark.parametrize(
    "shapes, dtypes, mask",
    [
        ([(4,), (4,), (4,)], [torch.float32] * 3, None),
        ([(2, 4, 8)] * 3, [torch.float32, torch.float64, torch.float32], None),
        ([(2, 4, 8)] * 3, [torch.float32] * 3, torch.ones(4, 4, dtype=torch.int64)),
        ([(2, 4, 8)] * 3, [torch.float32] * 3, torch.ones(4, 4, dtype=torch.float64)),
        ([(2, 4, 8)] * 3, [torch.int64] * 3, None),
        ([(2, 4, 8), (2, 4, 7), (2, 4, 8)], [torch.float32] * 3, None),
    ],
    ids=["too few dimensions", "dtypes", "mask of integers", "mask of float64", "integers", "features"],
)
def test_bad_operands_get_the_error_of_the_cpu(
    shapes: list[tuple[int, ...]], dtypes: list[torch.dtype], mask: torch.Tensor | None
) -> None:
    tensors = [torch.ones(s, dtype=d) for s, d in zip(shapes, dtypes, strict=True)]

    def message(device: str) -> str:
        with pytest.raises(RuntimeError) as caught:
            F.scaled_dot_product_attention(
                *[t.to(device) for t in tensors], None if mask is None else mask.to(device)
            )
        return str(caught.value)

    assert message("maca").startswith(message("cpu").split("\n")[0])
