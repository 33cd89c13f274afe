"""Operators that count, group and align: what parity samples cannot say."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import macatensor
from macatensor.parity.transport import fetch, place


@pytest.mark.parametrize(
    "classes, count",
    [([0, 5], 3), ([0, -1], 3), ([], -1), ([0, 2], 0), ([0, -2], -1)],
    ids=["large", "negative", "empty", "none", "inferred"],
)
def test_one_hot_refuses_what_pytorch_refuses(classes, count) -> None:
    host = torch.tensor(classes, dtype=torch.int64)
    with pytest.raises(RuntimeError) as theirs:
        F.one_hot(host, count)
    with pytest.raises(RuntimeError) as ours:
        F.one_hot(place(host), count)
    assert str(ours.value) == str(theirs.value)


def test_one_hot_in_inference_mode() -> None:
    with torch.inference_mode():
        got = F.one_hot(place(torch.tensor([[0, 2]])), 4)
    assert fetch(got).tolist() == [[[1, 0, 0, 0], [0, 0, 1, 0]]]


def test_tensor_split_wants_its_positions_on_the_host() -> None:
    x = place(torch.arange(8.0))
    assert [len(t) for t in x.tensor_split(torch.tensor([2, 5]))] == [2, 3, 3]
    with pytest.raises(RuntimeError, match="expected tensor_indices_or_sections to be on cpu"):
        x.tensor_split(place(torch.tensor([2, 5])))


@pytest.mark.parametrize("as_tensors", [False, True], ids=["lists", "tensors"])
@pytest.mark.parametrize("concatenated", [False, True], ids=["padded", "concatenated"])
def test_ctc_of_several_lengths(concatenated, as_tensors) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(9, 4, 5, generator=generator, dtype=torch.float64)
    inputs, labels = [9, 4, 1, 0], [3, 0, 3, 2]
    targets = torch.randint(1, 5, (4, 3), generator=generator)
    if concatenated:
        targets = torch.cat([row[:n] for row, n in zip(targets, labels)])
    given = (torch.tensor(inputs), torch.tensor(labels)) if as_tensors else (inputs, labels)
    results = []
    for x, goal in (
        (scores.clone().requires_grad_(), targets),
        (place(scores).requires_grad_(), place(targets)),
    ):
        loss = F.ctc_loss(x.log_softmax(-1), goal, *given, reduction="none", zero_infinity=True)
        (gradient,) = torch.autograd.grad(loss.sum(), x)
        results.append((loss.detach(), gradient))
    (loss, gradient), (our_loss, our_gradient) = results
    assert torch.allclose(fetch(our_loss), loss, rtol=1e-12)
    assert torch.allclose(fetch(our_gradient), gradient, rtol=0, atol=1e-12)


@pytest.mark.parametrize("placed", [(), (0,), (0, 1)], ids=["host", "one", "device"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_ctc_of_lengths_on_host_or_device(placed: tuple[int, ...], reduction: str) -> None:
    scores = torch.randn(9, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    targets, lengths = (
        torch.tensor([1, 2, 3, 4, 1, 2]),
        [torch.tensor([9, 8, 7, 9]), torch.tensor([3, 1, 2, 0])],
    )
    results = []
    for x, goal, given in (
        (scores.clone().requires_grad_(), targets, lengths),
        (place(scores).requires_grad_(), place(targets), [place(n) if i in placed else n for i, n in enumerate(lengths)]),
    ):  # fmt: skip
        loss = F.ctc_loss(x.log_softmax(-1), goal, *given, reduction=reduction)
        results.append((loss.detach().cpu(), torch.autograd.grad(loss, x)[0].cpu()))
    (loss, gradient), (our_loss, our_gradient) = results
    assert torch.allclose(our_loss, loss, rtol=1e-12)
    assert torch.allclose(our_gradient, gradient, rtol=0, atol=1e-12)
    with pytest.raises(RuntimeError, match="integral"):
        F.ctc_loss(place(scores), place(targets), lengths[0].float(), lengths[1])


def test_embedding_bag_scales_by_frequency() -> None:
    """Against the formula: PyTorch's CPU kernel divides by the frequency of another word."""
    words = torch.tensor([1, 2, 2, 4, 2, 1])
    table = place(torch.ones(6, 3)).requires_grad_()
    bags = F.embedding_bag(
        place(words), table, place(torch.tensor([0, 4])), mode="sum", scale_grad_by_freq=True
    )
    bags.sum().backward()
    assert table.grad.cpu()[:, 0].tolist() == [0, 1, 1, 0, 1, 0]


def test_strided_operands_are_copied_and_counted() -> None:
    data = torch.randn(4, 6, dtype=torch.float64).t()
    before = macatensor.counters()["strided_copies"]
    got = torch.segment_reduce(place(data), "sum", lengths=place(torch.tensor([2, 4])))
    assert macatensor.counters()["strided_copies"] == before + 1
    assert torch.equal(fetch(got), torch.stack([data[:2].sum(0), data[2:].sum(0)]))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [False, True])
def test_bytes_are_resampled_to_the_same_bytes(mode, antialias) -> None:
    generator = torch.Generator().manual_seed(0)
    for channels, size in ((3, (7, 40)), (6, (30, 5)), (4, (64, 64))):
        x = torch.randint(0, 256, (2, channels, 24, 17), generator=generator, dtype=torch.uint8)
        want = F.interpolate(x, size, mode=mode, antialias=antialias)
        got = F.interpolate(place(x), size, mode=mode, antialias=antialias)
        assert torch.equal(fetch(got), want)


@pytest.mark.parametrize(
    "call",
    [
        lambda d: F.embedding_bag(d(torch.tensor([1, 9])), d(torch.ones(4, 2)), d(torch.tensor([0]))),
        lambda d: F.embedding_bag(d(torch.tensor([1, 2])), d(torch.ones(4, 2)), d(torch.tensor([1]))),
        lambda d: F.multi_margin_loss(d(torch.ones(2, 3)), d(torch.tensor([0, 3]))),
        lambda d: F.multilabel_margin_loss(d(torch.ones(1, 3)), d(torch.tensor([[0, 3, -1]]))),
        lambda d: torch.segment_reduce(d(torch.ones(4)), "sum", lengths=d(torch.tensor([1, 2]))),
        lambda d: torch.segment_reduce(d(torch.ones(4)), "sum", lengths=d(torch.tensor([-1, 5]))),
        lambda d: torch.bincount(d(torch.tensor([1, -1]))),
        lambda d: torch.histc(d(torch.tensor([1.0, float("nan")]))),
        lambda d: torch.histc(d(torch.ones(3)), 5, 3, 1),
        lambda d: torch.unique(d(torch.ones(2, dtype=torch.complex64))),
        lambda d: F.grid_sample(d(torch.ones(1, 2, 0, 3)), d(torch.ones(1, 2, 2, 2)), align_corners=False),
        lambda d: F.fractional_max_pool2d(d(torch.ones(1, 2, 4, 4)), 3, 3),
    ],
    ids="bag-index bag-offset margin multilabel segment-sum segment-negative bincount histc-nan histc-range "
    "unique-complex grid-empty fractional-window".split(),
)
def test_errors_have_pytorchs_class(call) -> None:
    with pytest.raises(Exception) as theirs:
        call(lambda t: t)
    with macatensor.fallback("error"), pytest.raises(type(theirs.value)):
        call(place)


@pytest.mark.parametrize("dtype", [torch.int16, torch.int64, torch.float32])
@pytest.mark.parametrize("reach", [3, 1000, 10**6])
def test_uniques_of_few_and_of_many(reach: int, dtype: torch.dtype) -> None:
    """Keys that a table counts, keys that are sorted, and a view of either."""
    torch.manual_seed(0)
    for count in (2, 300, 5000):
        x = torch.randint(-min(reach, 10**4), min(reach, 10**4), (count, 2)).to(dtype)
        for given, ours in ((x, place(x)), (x[:, 1], place(x)[:, 1])):
            for got, want in zip(
                *(torch.unique(t, return_inverse=True, return_counts=True) for t in (ours, given))
            ):
                assert torch.equal(fetch(got), want)


@pytest.mark.parametrize(
    "call, launches",
    [
        (lambda x: torch.bincount(x), 3),
        (lambda x: torch.unique(x, return_inverse=True), 3),
        (lambda x: torch.histc(x.view(torch.float64), 100, 0, 1), 1),
    ],
    ids=["bincount", "unique", "histc"],
)
def test_counting_takes_few_launches(call, launches) -> None:
    """One where the size is known, else two and the copy of the size."""
    x = place(torch.arange(1000))
    call(x)
    before = macatensor.counters()["launches"]
    call(x)
    assert macatensor.counters()["launches"] - before <= launches


def test_histograms_of_no_width_and_of_too_much() -> None:
    x = torch.tensor([-3e38, 1.0, 2.0, 3e38, float("nan")])
    for low, high in ((1, 1 + 1e-9), (-3e38, 3e38)):
        assert torch.histc(place(x), 3, low, high).sum().item() == (1 if high < 2 else 4)
    double = torch.rand(70_001, dtype=torch.float64)
    assert torch.equal(
        fetch(torch.histc(place(double)[::2], 1000, 0.25, 0.5)), torch.histc(double[::2], 1000, 0.25, 0.5)
    )


def test_histograms_of_halves_whose_products_overflow() -> None:
    x = torch.tensor([1000.0, 999.0, 0.0, 500.0, -1000.0])
    for dtype in (torch.float16, torch.bfloat16):
        got = torch.histc(place(x.to(dtype)), 100, 0, 1000)
        assert got[torch.tensor([0, -1])].tolist() == [1, 2] and got[49:51].sum() == 1 and got.sum() == 4
        assert torch.histc(place(x.to(dtype)), 3, 0, 1e-45).tolist() == [1, 0, 0]
    wide = place(torch.tensor([60000.0, -60000.0, 3.0], dtype=torch.float16))
    assert torch.histc(wide, 4).tolist() == [1, 0, 1, 1]


@pytest.mark.parametrize("count", [1, 15, 16, 17, 255, 257, 70_001, 300_007])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.int64])
def test_counts_of_any_number_of_integers(count, dtype) -> None:
    """Of one element in a lane or of none, with a gap between elements, and of so many that each thread has a table."""
    given = torch.randint(0, 100, (2 * count,)).to(dtype)
    given[2 * count - 2] = 101  # the greatest is the last one that is counted
    for x in (given[::2], given):
        assert torch.equal(fetch(torch.bincount(place(x))), torch.bincount(x))
    given[2 * count - 2] = -1 if dtype is not torch.uint8 else 255
    if dtype is torch.uint8:
        assert torch.equal(fetch(torch.bincount(place(given)[::2])), torch.bincount(given[::2]))
    else:
        with pytest.raises(RuntimeError, match="1-d non-negative"):
            torch.bincount(place(given)[::2])
