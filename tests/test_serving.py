"""``torch.ops.maca``: what servers of language models call, against float64 computations of what it means."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn import functional

import macatensor

OPS: Any = torch.ops.maca
BLOCK = 4


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def caches(dtype: torch.dtype, kv_heads: int = 2, width: int = 24) -> list[torch.Tensor]:
    return [drawn(9, BLOCK, kv_heads, width, seed=s, dtype=dtype) for s in (1, 2)]


# blocks in no order, of which a sequence has as many as it needs; what stands beyond is nonsense
TABLES = torch.tensor([[5, 1, -7], [8, 999, 0], [3, 0, 2], [4, -1, -1]], dtype=torch.int32)
LENGTHS = torch.tensor([7, 3, 12, 0], dtype=torch.int32)


def attended(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    slopes: torch.Tensor | None = None,
    window: int = -1,
    softcap: float = 0.0,
) -> torch.Tensor:
    query, keys, values = (t.double() for t in (query, keys, values))
    out = torch.zeros_like(query)
    group = query.shape[1] // keys.shape[2]
    for s, length in enumerate(LENGTHS.tolist()):
        first = 0 if window < 0 else max(0, length - 1 - window)
        places = [(int(TABLES[s, t // BLOCK]), t % BLOCK) for t in range(first, length)]
        for h in range(query.shape[1] if places else 0):
            k, v = (torch.stack([c[b, o, h // group] for b, o in places]) for c in (keys, values))
            scores = k @ query[s, h] * scale
            if softcap:
                scores = softcap * torch.tanh(scores / softcap)
            if slopes is not None:
                scores = scores + slopes[h].double() * torch.arange(first - length + 1, 1)
            out[s, h] = scores.softmax(0) @ v
    return out


HOW: dict[str, dict[str, Any]] = {
    "plain": {},
    "alibi": {"alibi_slopes": torch.tensor([0.5, 0.25, 0.125, 1.0, 2.0, 0.1])},
    "window": {"window": 4},
    "softcap": {"softcap": 2.0},
}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("device", ["maca", "cpu"])
def test_paged_attention_is_attention(device: str, dtype: torch.dtype, how: str) -> None:
    query, options = drawn(4, 6, 24, dtype=dtype), HOW[how]
    keys, values = caches(dtype)
    given = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    operands = [t.to(device) for t in (query, keys, values, TABLES, LENGTHS)]
    before = macatensor.counters()
    found = OPS.paged_attention(*operands, 0.2, **given)
    after = macatensor.counters()
    assert after["launches"] - before["launches"] == (device == "maca")
    assert after["fallbacks"] == before["fallbacks"]
    slopes = options.get("alibi_slopes")
    expected = attended(
        query, keys, values, 0.2, slopes, options.get("window", -1), options.get("softcap", 0.0)
    )
    assert found.dtype is dtype and found.device.type == device
    # weights and 12 values of about 1 each are rounded to float32, or float64; the result once more to its dtype
    eps = torch.finfo(dtype).eps + 64 * torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    assert (found.cpu().double() - expected).abs().max() <= 2 * eps
    assert not found[3].any()  # of no tokens


def test_serving_runs_where_operators_are_watched() -> None:
    found, expected = ([c.maca() for c in caches(torch.float32)] for _ in range(2))
    new, slots = drawn(4, 2, 24, dtype=torch.float32).maca(), torch.tensor([1, 2, -1, 30]).maca()
    OPS.reshape_and_cache(new, new + 1, *expected, slots)
    with macatensor.accuracy.overflow():
        OPS.reshape_and_cache(new, new + 1, *found, slots)
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])


def test_strided_operands_and_many_heads_of_one() -> None:
    query = drawn(4, 24, 6, dtype=torch.float32).transpose(1, 2)
    keys, values = (drawn(9, 1, BLOCK, 24, seed=s, dtype=torch.float32).transpose(1, 2) for s in (1, 2))
    tables = TABLES.repeat_interleave(2, 1)[:, ::2]
    found = OPS.paged_attention(
        *(t.maca() for t in (query, keys, values)), tables.maca(), LENGTHS.maca(), 0.3
    )
    assert torch.allclose(found.cpu().double(), attended(query, keys, values, 0.3), 0, 1e-5)


def test_blocks_that_are_not_there_are_errors() -> None:
    query, (keys, values) = drawn(4, 2, 24), caches(torch.float64)
    for tables, lengths, what in (
        (torch.where(TABLES < 0, 0, TABLES), torch.full_like(LENGTHS, 12), "block 999 of a cache of 9"),
        (TABLES, torch.full_like(LENGTHS, 13), "a sequence of 13 tokens has 3 blocks of 4"),
    ):
        with pytest.raises(IndexError, match=what):
            OPS.paged_attention(*(t.maca() for t in (query, keys, values, tables.int(), lengths)), 1.0).cpu()
    with pytest.raises(RuntimeError, match="expected block_tables of int32, got torch.int64"):
        OPS.paged_attention(*(t.maca() for t in (query, keys, values, TABLES.long(), LENGTHS)), 1.0)
    with pytest.raises(RuntimeError, match="expected caches .* of which E is the query's"):
        OPS.paged_attention(*(t.maca() for t in (query[..., :8], keys, values, TABLES, LENGTHS)), 1.0)


@pytest.mark.parametrize("device", ["maca", "cpu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_keys_and_values_go_to_their_slots(device: str, dtype: torch.dtype) -> None:
    key, value = (drawn(2, 5, 24, seed=s, dtype=dtype).transpose(0, 1) for s in (3, 4))
    slots = torch.tensor([33, -1, 0, 7, 33])
    kept = [c.to(device) for c in caches(dtype)]
    OPS.reshape_and_cache(key.to(device), value.to(device), *kept, slots.to(device))
    for cache, new, found in zip(caches(dtype), (key, value), kept):
        for token in (2, 3, 4):  # 4 after 0, whose slot it takes
            cache[slots[token] // BLOCK, slots[token] % BLOCK] = new[token]
        assert torch.equal(found.cpu(), cache)


def test_slots_that_are_not_there_are_errors() -> None:
    key, kept = drawn(1, 2, 24).maca(), [c.maca() for c in caches(torch.float64)]
    with pytest.raises(IndexError, match="slot 36 of a cache of 36"):
        OPS.reshape_and_cache(key, key, *kept, torch.tensor([36]).maca())
        torch.maca.synchronize()


@pytest.mark.parametrize("is_neox", [True, False])
def test_rotary_embedding_turns_pairs(is_neox: bool) -> None:
    size, turned, positions = 16, 8, torch.tensor([3, 0, 11])
    angle = torch.arange(12.0, dtype=torch.float64)[:, None] / 10.0 ** torch.arange(turned // 2)
    cache = torch.cat((angle.cos(), angle.sin()), 1)
    query, key = drawn(3, 3 * size), drawn(3, size, seed=1)
    given = [t.clone().maca() for t in (query, key)]
    OPS.rotary_embedding(positions.maca(), *given, size, cache.maca(), is_neox)
    for tensor, found in zip((query, key), given):
        expected = tensor.clone().view(3, -1, size)
        for i in range(turned // 2):
            a, b = (i, i + turned // 2) if is_neox else (2 * i, 2 * i + 1)
            turn = torch.polar(torch.ones(3, dtype=torch.float64), angle[positions, i])[:, None]
            pair = torch.complex(expected[..., a].clone(), expected[..., b].clone()) * turn
            expected[..., a], expected[..., b] = pair.real, pair.imag
        assert torch.allclose(found.cpu(), expected.view_as(tensor), 0, 1e-13)


def test_norms_and_gates() -> None:
    x, residual, weight = drawn(5, 24), drawn(5, 24, seed=1), drawn(24, seed=2)

    def normal(t: torch.Tensor) -> torch.Tensor:
        return t * (t.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight

    assert torch.allclose(OPS.rms_norm(x.maca(), weight.maca(), 1e-5).cpu(), normal(x), 0, 1e-12)
    first, second = x.clone().maca(), residual.clone().maca()
    OPS.fused_add_rms_norm(first, second, weight.maca(), 1e-5)
    assert torch.equal(second.cpu(), x + residual)
    assert torch.allclose(first.cpu(), normal(x + residual), 0, 1e-12)
    a, b = x.chunk(2, -1)
    assert torch.allclose(OPS.silu_and_mul(x.maca()).cpu(), a * a.sigmoid() * b, 0, 1e-13)
    assert torch.allclose(
        OPS.gelu_and_mul(x.maca(), "tanh").cpu(), functional.gelu(a, approximate="tanh") * b, 0, 1e-13
    )


def test_words_are_drawn_by_their_chances() -> None:
    torch.manual_seed(0)
    chances = torch.tensor([0.4, 0.1, 0.3, 0.05, 0.15])
    count = 20_000
    logits = chances.log().expand(count, 5).maca()

    def shares(**how: float) -> list[float]:
        given = {k: torch.full((count,), v).maca() for k, v in how.items()}
        return (OPS.sample(logits, **given).cpu().bincount(minlength=5) / count).tolist()

    sharper = chances.square() / chances.square().sum()
    for found, expected in (
        (shares(), chances.tolist()),
        (shares(temperature=0.5), sharper.tolist()),
        (shares(top_k=2), [4 / 7, 0, 3 / 7, 0, 0]),
        (shares(top_k=0), chances.tolist()),
        (shares(top_p=0.75), [0.4 / 0.85, 0, 0.3 / 0.85, 0, 0.15 / 0.85]),
        (shares(top_p=0.0), [1, 0, 0, 0, 0]),
        (shares(temperature=0.0, top_k=3), [1, 0, 0, 0, 0]),
    ):
        # six standard errors of a share
        assert all(abs(f - e) <= 6 * math.sqrt(e * (1 - e) / count) for f, e in zip(found, expected)), found


def test_a_step_compiles_to_one_graph() -> None:
    query, (keys, values) = (
        drawn(4, 6, 24, dtype=torch.float32).maca(),
        [c.maca() for c in caches(torch.float32)],
    )
    new, slots = drawn(4, 2, 24, dtype=torch.float32).maca(), torch.tensor([1, 2, -1, 30]).maca()
    tables, lengths, weight = TABLES.maca(), LENGTHS.maca(), torch.ones(24).maca()

    def step(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        OPS.reshape_and_cache(new, new + 1, keys, values, slots)
        found: torch.Tensor = OPS.paged_attention(query, keys, values, tables, lengths, 0.2)
        return OPS.rms_norm(found, weight).sum(-1)

    copies = keys.clone(), values.clone()
    expected = step(query, *copies)
    found = torch.compile(step, fullgraph=True)(query, keys, values)
    assert torch.allclose(found, expected, 1e-5, 1e-6)
    assert torch.equal(keys, copies[0]) and torch.equal(values, copies[1])
