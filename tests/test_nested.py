"""Nested tensors of layout torch.jagged on the device against those of the host."""

from __future__ import annotations

import copy
import io
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from nested_samples import OPERATORS, ask, moved, same
from torch import nn
from torch.nn import functional as F

import macatensor

JAGGED = torch.jagged
LENGTHS = [3, 1, 5, 2]
# all operators and samples take minutes: `make long` has them
IS_LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
STEP = 1 if IS_LONG else 9
ASKED = list(OPERATORS)[: None if IS_LONG else 15]


def batch(
    *shape: int, lengths: list[int] = LENGTHS, seed: int = 0, dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    drawn = torch.Generator().manual_seed(seed)
    return [torch.randn(n, *shape, generator=drawn).to(dtype) for n in lengths]


def ragged(device: str, *shape: int, **options: Any) -> torch.Tensor:
    """[4, *, ...] that needs a gradient, with offsets of its own."""
    made = torch.nested.nested_tensor(batch(*shape, **options), layout=JAGGED, device=device)
    return made.requires_grad_(made.dtype.is_floating_point)


def run(program: Callable[[torch.Tensor], Any], device: str, *shape: int) -> tuple[Any, Any]:
    leaf = ragged(device, *shape)
    result = program(leaf)
    gradient: Any = None
    if isinstance(result, torch.Tensor) and result.requires_grad:
        flat = result.values() if result.is_nested else result
        try:
            (gradient,) = torch.autograd.grad((flat * flat.detach().cos()).sum(), leaf, allow_unused=True)
        except (RuntimeError, NotImplementedError) as error:  # PyTorch has no gradient here
            gradient = type(error).__name__
    return result, gradient


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "itself": lambda t: t,
    "arithmetic": lambda t: (t * 2 + 1) / 3 - t,
    "functions": lambda t: t.sin().exp().relu() + F.silu(t) + F.gelu(t) + t.sigmoid() + F.mish(t),
    "compared": lambda t: (t > 0, t == t),
    "broadcast over all": lambda t: t + torch.arange(6.0, device=t.device),
    "broadcast over the batch": lambda t: t * torch.arange(24.0, device=t.device).reshape(4, 1, 6),
    "sum": lambda t: t.sum(),
    "sum of the last": lambda t: t.sum(-1),
    "sum of sequences": lambda t: t.sum(1),
    "sum of batch and sequences": lambda t: t.sum((0, 1), keepdim=True),
    "mean of sequences": lambda t: t.mean(1),
    "mean": lambda t: t.mean(-1, keepdim=True),
    "largest": lambda t: t.max(1),
    "largest of the last": lambda t: t.amax(-1),
    "softmax": lambda t: t.softmax(-1),
    "softmax over sequences": lambda t: t.detach().softmax(1),
    "log softmax": lambda t: t.log_softmax(-1),
    "layer norm": lambda t: F.layer_norm(t, (6,), torch.arange(6.0, device=t.device), torch.ones(6, device=t.device)),
    "rms norm": lambda t: F.rms_norm(t, (6,)),
    "padded": lambda t: torch.nested.to_padded_tensor(t, 0.5),
    "padded to a size": lambda t: t.to_padded_tensor(-1.0, output_size=(4, 7, 6)),
    "unbound": lambda t: torch.cat([part.sum(0) for part in t.unbind()]),
    "selected": lambda t: t[2],
    "sliced": lambda t: t.narrow(-1, 1, 3),
    "chunks": lambda t: torch.cat([c.values().sum(0) for c in t.chunk(2, dim=0)]),
    "split": lambda t: torch.cat(t.split(2, dim=-1), dim=-1),
    "transposed": lambda t: t.transpose(1, 2),
    "permuted": lambda t: t.unsqueeze(-1).permute(0, 2, 1, 3),
    "unflattened": lambda t: t.unflatten(-1, (2, 3)).transpose(1, 2),
    "flattened": lambda t: t.unflatten(-1, (2, 3)).flatten(2),
    "squeezed": lambda t: t.unsqueeze(2).squeeze(2),
    "matrix": lambda t: t @ torch.arange(12.0, device=t.device).reshape(6, 2),
    "batch of matrices": lambda t: t @ torch.arange(48.0, device=t.device).reshape(4, 6, 2),
    "gram": lambda t: t.transpose(1, 2) @ t,
    "linear": lambda t: F.linear(t, torch.arange(12.0, device=t.device).reshape(2, 6), torch.ones(2, device=t.device)),
    "concatenated": lambda t: torch.cat([t, t * 2], dim=-1),
    "stacked": lambda t: torch.stack([t, t * 2], dim=-1),
    "where": lambda t: torch.where(t > 0, t, t * 3),
    "masked": lambda t: t.masked_fill(t < 0, 0.0),
    "clamped": lambda t: t.clamp(-1, 1),
    "cast": lambda t: t.double(),
    "to the host": lambda t: t.cpu(),
    "values": lambda t: t.values(),
    "offsets": lambda t: (t.offsets(), t.lengths(), t.offsets().diff()),
    "likes": lambda t: (torch.zeros_like(t), torch.ones_like(t), torch.full_like(t, 3.0)),
    "in place": lambda t: t.detach().clone().mul_(2).add_(1),
    "without dropout": lambda t: F.dropout(t, 0.0),
    "contiguous": lambda t: t.transpose(1, 2).contiguous(),
    "numbers": lambda t: (t.dim(), t.numel(), t.size(0), t.size(2), t.is_nested, str(t.layout), t.is_contiguous()),
    "copied deeply": lambda t: copy.deepcopy(t.detach()),
}  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_programs_agree_with_the_host(program: Callable[[torch.Tensor], Any]) -> None:
    found, expected = run(program, "maca", 6), run(program, "cpu", 6)
    assert same(found, expected), (found, expected)


MAKERS: dict[str, Callable[[str], Any]] = {
    "of the host's": lambda d: torch.nested.nested_tensor(batch(2), layout=JAGGED, device=d),
    "of lists": lambda d: torch.nested.nested_tensor([[1.0, 2.0], [3.0]], layout=JAGGED, device=d),
    "of the device's": lambda d: torch.nested.nested_tensor([t.to(d) for t in batch(2)], layout=JAGGED),
    "dtype": lambda d: torch.nested.nested_tensor(batch(2), layout=JAGGED, device=d, dtype=torch.float64),
    "integers": lambda d: torch.nested.nested_tensor(batch(2, dtype=torch.int64), layout=JAGGED, device=d),
    "of one tensor": lambda d: torch.nested.as_nested_tensor(torch.ones(3, 2, 4, device=d), layout=JAGGED),
    "later dimension": lambda d: torch.nested.nested_tensor(
        [torch.ones(2, n, 3) for n in LENGTHS], layout=JAGGED, device=d
    ),
    "of offsets": lambda d: torch.nested.nested_tensor_from_jagged(
        torch.arange(22.0, device=d).reshape(11, 2), torch.tensor([0, 3, 4, 9, 11], device=d)
    ),
    "of lengths": lambda d: torch.nested.nested_tensor_from_jagged(
        torch.arange(22.0, device=d).reshape(11, 2), lengths=torch.tensor(LENGTHS, device=d)
    ),
    "with holes": lambda d: torch.nested.nested_tensor_from_jagged(
        torch.arange(22.0, device=d).reshape(11, 2),
        torch.tensor([0, 3, 4, 9, 11], device=d),
        torch.tensor([1, 1, 4, 0], device=d),
    ),
    "narrowed": lambda d: torch.nested.narrow(
        torch.arange(24.0, device=d).reshape(3, 4, 2), 1, 0, torch.tensor([2, 4, 1], device=d), layout=JAGGED
    ),
    "narrowed from places": lambda d: torch.nested.narrow(
        torch.arange(24.0, device=d).reshape(3, 4, 2),
        1,
        torch.tensor([0, 1, 2], device=d),
        torch.tensor([2, 3, 1], device=d),
        layout=JAGGED,
    ),
    "by a mask": lambda d: torch.nested.masked_select(
        torch.arange(12.0, device=d).reshape(3, 4), (torch.arange(12, device=d) % 3 > 0).reshape(3, 4)
    ),
    "moved": lambda d: torch.nested.nested_tensor(batch(2), layout=JAGGED).to(d),
    "empty sequences": lambda d: torch.nested.nested_tensor(
        batch(2, lengths=[0, 3, 0]), layout=JAGGED, device=d
    ),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_makers_agree_with_the_host(make: Callable[[str], Any]) -> None:
    found, expected = make("maca"), make("cpu")
    assert found.device.type == "maca" and found.layout is JAGGED
    assert same(found, expected) and same(list(found.unbind()), list(expected.unbind()))
    assert (
        found.is_contiguous() == expected.is_contiguous()
        and found.values().stride() == expected.values().stride()
    )
    assert same(found + 1, expected + 1)
    if expected.lengths() is None:
        assert same(torch.nested.to_padded_tensor(found, 0), torch.nested.to_padded_tensor(expected, 0))


def test_parts_of_a_list_get_gradients() -> None:
    for device in ("cpu", "maca"):
        leaves = [t.to(device).requires_grad_() for t in batch(2)]
        made = torch.nested.as_nested_tensor(leaves, layout=JAGGED)
        (made * made).sum().backward()
        for leaf in leaves:
            torch.testing.assert_close(leaf.grad, 2 * leaf.detach())
    values = torch.ones(11, 2, device="maca", requires_grad=True)
    torch.nested.nested_tensor_from_jagged(
        values, lengths=torch.tensor(LENGTHS, device="maca")
    ).sum().backward()
    assert values.grad.tolist() == [[1.0, 1.0]] * 11


def heads(t: torch.Tensor) -> torch.Tensor:
    return t.unflatten(-1, (2, -1)).transpose(1, 2)


@pytest.mark.parametrize("lengths", [LENGTHS, [4, 4], [2, 0, 3], [7]], ids=str)
@pytest.mark.parametrize("width", [8, 6])
def test_attention_agrees_with_the_host(lengths: list[int], width: int) -> None:
    results = []
    for device in ("cpu", "maca"):
        leaf = ragged(device, 3 * width, lengths=lengths)
        query, key, value = (heads(t) for t in leaf.chunk(3, dim=-1))
        if device == "cpu":  # its way wants them so
            query, key, value = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (query, key, value))
        result = F.scaled_dot_product_attention(query, key, value, scale=0.3)
        (gradient,) = torch.autograd.grad(result.values().square().sum(), leaf)
        results.append((result, result.transpose(1, 2).flatten(2), gradient))
        assert result.transpose(1, 2).is_contiguous()
    assert same(results[1], results[0])


def test_attention_over_other_sequences_and_causal() -> None:
    query, memory = (ragged("maca", 8, seed=s, lengths=n) for s, n in ((0, [3, 1]), (1, [2, 6])))
    crossed = F.scaled_dot_product_attention(heads(query), heads(memory), heads(memory))
    causal = F.scaled_dot_product_attention(heads(query), heads(query), heads(query), is_causal=True)
    for i, (q, m) in enumerate(zip(query.detach().cpu().unbind(), memory.detach().cpu().unbind())):
        q, m = (t.unflatten(-1, (2, 4)).transpose(0, 1) for t in (q, m))
        expected = F.scaled_dot_product_attention(q, m, m)
        torch.testing.assert_close(crossed.detach().cpu().unbind()[i], expected)
        expected = F.scaled_dot_product_attention(q, q, q, is_causal=True)
        torch.testing.assert_close(causal.detach().cpu().unbind()[i], expected)


def test_attention_that_has_no_way_says_so() -> None:
    query = heads(ragged("maca", 8))
    with pytest.raises(RuntimeError, match="No viable backend"):
        F.scaled_dot_product_attention(
            query.transpose(1, 2).flatten(2), *[query.transpose(1, 2).flatten(2)] * 2
        )
    with pytest.raises(ValueError, match="Masks"):
        F.scaled_dot_product_attention(query, query, query, attn_mask=torch.ones(1, device="maca"))
    other = heads(ragged("maca", 8, lengths=[2, 1]))
    with pytest.raises(RuntimeError, match="batches of"):
        F.scaled_dot_product_attention(query, other, other)


class Encoder(nn.Module):
    """Words, attention and a head, over sequences of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.norm, self.mixed, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)
        self.head = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.0), nn.Linear(16, 3))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        query, key, value = (
            heads(t).transpose(1, 2).contiguous().transpose(1, 2)
            for t in self.mixed(self.norm(x)).chunk(3, dim=-1)
        )
        x = x + self.out(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))
        return torch.nested.to_padded_tensor(self.head(x), 0.0).sum(1)


def test_an_encoder_trains_as_on_the_host() -> None:
    torch.manual_seed(0)
    host = Encoder()
    ours = copy.deepcopy(host).to("maca")
    sequences, labels = [torch.randint(20, (n,)) for n in LENGTHS], torch.tensor([0, 2, 1, 1])
    before = macatensor.counters()["fallbacks"]
    losses: list[list[float]] = []
    for module, device in ((host, "cpu"), (ours, "maca")):
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.05)
        words = torch.nested.nested_tensor(sequences, layout=JAGGED, device=device)
        losses.append([])
        for _ in range(5):
            optimizer.zero_grad()
            loss = F.cross_entropy(module(words), labels.to(device))
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-4) and losses[1][-1] < losses[1][0]
    assert macatensor.counters()["fallbacks"] == before


def test_dropout_drops_a_share_of_the_elements() -> None:
    values = torch.ones(4000, 5, device="maca", requires_grad=True)
    offsets = torch.tensor([0, 100, 4000], device="maca")
    dropped = F.dropout(torch.nested.nested_tensor_from_jagged(values, offsets), 0.25)
    kept = dropped.values() != 0
    assert 0.73 < kept.float().mean().item() < 0.77
    dropped.sum().backward()
    torch.testing.assert_close(values.grad, kept / 0.75)


def test_autocast_reaches_linear_layers() -> None:
    layer, t = nn.Linear(6, 4, device="maca"), ragged("maca", 6)
    with torch.autocast("maca", dtype=torch.bfloat16):
        assert layer(t).dtype is torch.bfloat16
        assert F.scaled_dot_product_attention(*[heads(t)] * 3).dtype is torch.bfloat16


def test_files_copies_and_text() -> None:
    t = ragged("maca", 2)
    file = io.BytesIO()
    torch.save({"batch": t}, file)
    for where in (None, "cpu", "maca"):
        file.seek(0)
        loaded = torch.load(file, weights_only=True, map_location=where)["batch"]
        assert loaded.device.type == (where or "maca") and loaded.requires_grad and same(loaded, t)
    assert same(copy.deepcopy(t), t) and copy.deepcopy(t).requires_grad
    shown = repr(t)
    assert shown.startswith("NestedTensor(size=(4, j") and "maca:0" in shown and "requires_grad=True" in shown
    assert same(macatensor.maca(torch.nested.nested_tensor(batch(2), layout=JAGGED)), t)
    assert same(t.to("cpu").to("maca"), t)


def test_compiled_programs_take_them() -> None:
    def program(t: torch.Tensor) -> torch.Tensor:
        return t.sin() * 2 + 1

    compiled = torch.compile(program, backend="maca")
    for seed in range(2):
        t = ragged("maca", 4, seed=seed).detach()
        assert same(compiled(t), program(t))


def test_strided_ones_are_refused_by_name() -> None:
    tensors, matrices = [torch.ones(2), torch.ones(3)], [torch.ones(3, 2), torch.ones(4, 2)]
    on_device = [t.maca() for t in tensors]
    for make in (
        lambda: torch.nested.nested_tensor(tensors).to("maca"),
        lambda: torch.nested.nested_tensor(tensors, device="maca"),
        lambda: torch.matmul(torch.nested.nested_tensor(matrices), torch.ones(2, 2, device="maca")),
        lambda: torch.matmul(torch.nested.nested_tensor(matrices), torch.ones(2, device="maca")),
        lambda: torch.nested.nested_tensor(on_device),
        lambda: torch.nested.as_nested_tensor([t.requires_grad_() for t in on_device]),
        lambda: torch.nested.as_nested_tensor(torch.ones(2, 3, device="maca")),
        lambda: torch._nested_tensor_from_mask(torch.ones(2, 3, 1).maca(), torch.ones(2, 3).bool().maca()),
    ):
        with pytest.raises(NotImplementedError, match=r"layout=torch\.jagged"):
            make()


@pytest.mark.parametrize(
    "make",
    [
        lambda n: torch.empty(2, n, device="maca"),
        lambda n: torch.zeros(2, n, device="maca"),
        lambda n: torch.empty_strided((n,), (1,), device="maca"),
        lambda n: torch.ones(2, device="maca").new_zeros((2, n)),
        lambda n: torch.ones(2, device="maca").new_empty((2, n)),
    ],
)
def test_dense_tensors_have_no_ragged_dimension(make: Callable[[Any], torch.Tensor]) -> None:
    with pytest.raises(RuntimeError, match="expected to contain only concrete integers"):
        make(ragged("maca", 4).shape[1])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool, torch.float16], ids=str)
def test_padding_of_any_dtype(dtype: torch.dtype) -> None:
    values, ends = (torch.arange(10).reshape(5, 2) % 3).to(dtype), torch.tensor([0, 2, 2, 5])
    to_padded, to_jagged = (
        torch.ops.aten._jagged_to_padded_dense_forward,
        torch.ops.aten._padded_dense_to_jagged_forward,
    )
    for padding in (0.0, 1.0, float("inf"), float("-inf")):
        for length in (0, 1, 4):
            expected = to_padded(values, [ends], [length], padding)
            found = to_padded(values.maca(), [ends.maca()], [length], padding)
            assert torch.equal(found.cpu(), expected)
    padded = to_padded(values, [ends], [3])
    assert torch.equal(to_jagged(padded.maca(), [ends.maca()], 5).cpu(), to_jagged(padded, [ends], 5))


@pytest.mark.parametrize(
    "call",
    [
        lambda m: torch.ops.aten._padded_dense_to_jagged_forward(m(torch.ones(2, 3, 1)), [m(torch.tensor([0, 2, 4]))], 5),
        lambda m: torch.ops.aten._padded_dense_to_jagged_forward(m(torch.ones(2, 3, 1)), [m(torch.tensor([0, 4, 5]))], 5),
        lambda m: torch.ops.aten._padded_dense_to_jagged_forward(m(torch.ones(3)), [m(torch.tensor([0, 1]))]),
        lambda m: torch.ops.aten._jagged_to_padded_dense_forward(m(torch.ones(3, 1)), [m(torch.ones(1, 2).long())], [3]),
    ],
)  # fmt: skip
def test_misuse_raises_what_the_host_raises(call: Callable[..., Any]) -> None:
    with pytest.raises(RuntimeError) as expected:
        call(lambda t: t)
    with pytest.raises(RuntimeError) as found:
        call(lambda t: t.maca())
    assert str(found.value).splitlines()[0] == str(expected.value).splitlines()[0]


@pytest.mark.parametrize("name", ASKED)
def test_samples_of_the_database_agree(name: str) -> None:
    before, told = macatensor.counters()["fallbacks"], list[str]()
    counts = ask(name, STEP, told)
    assert not told and sum(counts.values()), told
    assert macatensor.counters()["fallbacks"] == before


def test_moved_samples_keep_what_they_share() -> None:
    first = torch.nested.nested_tensor(batch(2), layout=JAGGED)
    one, other = moved(first), moved(torch.randn_like(first))
    assert one.size(1) == other.size(1) and same(one + other, first + other.cpu())
