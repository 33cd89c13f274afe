"""``flash_attn`` where it is not installed: its functions against a plain float64 computation of what they mean."""

from __future__ import annotations

import math
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
import torch
from running import run_python

from macatensor.packages import stand_ins

B, H = 2, 4


@pytest.fixture(autouse=True)
def names() -> Iterator[None]:
    stand_ins.provide("flash_attn")
    yield
    stand_ins.withdraw()


def flash(name: str, module: str = "flash_attn") -> Any:
    return getattr(import_module(module), name)


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    first: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Output, logsumexp and weights of one sequence: q [L, H, D], k and v [S, Hk, D], each score by itself."""  # fmt: skip
    length, heads, width = q.shape
    count = k.shape[0]
    left, right = window_size[0], 0 if causal else window_size[1]
    scores = []
    for h in range(heads):
        key = k[:, h * k.shape[1] // heads]
        for i in range(length):
            at = i + count - length
            row = []
            for j in range(count):
                hidden = j < first or (right >= 0 and j > at + right) or (left >= 0 and j < at - left)
                score = (q[i, h] * key[j]).sum() * (scale or 1 / math.sqrt(width))
                score = softcap * torch.tanh(score / softcap) if softcap else score
                if alibi_slopes is not None:
                    score = score - alibi_slopes[h] * abs(at - j)
                row.append(torch.full_like(score, -math.inf) if hidden else score)
            scores.append(torch.stack(row))
    table = torch.stack(scores).reshape(heads, length, count)
    lse = table.logsumexp(-1)
    blind = lse == -math.inf
    weights = (table - lse.masked_fill(blind, 0.0).unsqueeze(-1)).exp()
    values = v.repeat_interleave(heads // v.shape[1], 1)
    return torch.einsum("hls,shd->lhd", weights, values), lse.masked_fill(blind, math.inf), weights


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "scale": {"softmax_scale": 0.3},
    "causal": {"causal": True},
    "window": {"window_size": (2, 1)},
    "left window": {"window_size": (1, -1)},
    "causal window": {"window_size": (2, 5), "causal": True},
    "softcap": {"softcap": 0.7},
    "alibi": {"alibi_slopes": [0.5, 0.25, 0.125, 0.0625]},
    "all": {"causal": True, "window_size": (3, 0), "softcap": 2.0, "alibi_slopes": [0.5, 0.2, 0.1, 0.3]},
}
SIZES = [(5, 5, H), (3, 6, 2), (6, 3, 1), (1, 4, 2)]


def split(options: dict[str, Any], device: str) -> tuple[dict[str, Any], dict[str, Any]]:
    ours, theirs = dict(options), dict(options)
    if "alibi_slopes" in options:
        theirs["alibi_slopes"] = torch.tensor(options["alibi_slopes"], dtype=torch.float64)
        ours["alibi_slopes"] = torch.tensor(options["alibi_slopes"], device=device)
        theirs["alibi_slopes"] = ours["alibi_slopes"].cpu().double()  # the numbers that float32 has
    if "softmax_scale" in options:
        theirs["scale"] = theirs.pop("softmax_scale")
    return ours, theirs


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_attention_and_gradients_agree(options: dict[str, Any], sizes: tuple[int, int, int]) -> None:
    length, count, heads = sizes
    leaves = [
        drawn(B, n, h, 8, seed=i) for i, (n, h) in enumerate([(length, H), (count, heads), (count, heads)])
    ]
    ours, theirs = split(options, "maca")
    host = [t.clone().requires_grad_() for t in leaves]
    expected = torch.stack([reference(*parts, **theirs)[0] for parts in zip(*host)])
    device = [t.maca().requires_grad_() for t in leaves]
    found = flash("flash_attn_func")(*device, **ours)
    assert found.device.type == "maca" and torch.allclose(found.cpu(), expected, 1e-10, 1e-12)
    weights = drawn(*expected.shape, seed=9)
    wanted = torch.autograd.grad((expected * weights).sum(), host)
    for grad, want in zip(torch.autograd.grad((found * weights.maca()).sum(), device), wanted):
        assert torch.allclose(grad.cpu(), want.nan_to_num(), 1e-9, 1e-11)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["causal", "window", "alibi", "softcap"])
def test_halves_are_close(dtype: torch.dtype, name: str) -> None:
    leaves = [drawn(B, 6, 2, 16, seed=i, dtype=dtype) for i in range(3)]
    leaves[0] = drawn(B, 3, H, 16, seed=4, dtype=dtype)
    ours, theirs = split(OPTIONS[name], "maca")
    expected = torch.stack([reference(*(t.double() for t in parts), **theirs)[0] for parts in zip(*leaves)])
    found = flash("flash_attn_func")(*(t.maca() for t in leaves), **ours)
    assert found.dtype == dtype
    assert (found.cpu().double() - expected).abs().max() <= 8 * torch.finfo(dtype).eps * expected.abs().max()


def test_weights_and_logsumexp_are_returned() -> None:
    q, k, v = drawn(B, 4, H, 8), drawn(B, 3, 2, 8, seed=1), drawn(B, 3, 2, 8, seed=2)
    found = flash("flash_attn_func")(q.maca(), k.maca(), v.maca(), causal=True, return_attn_probs=True)
    expected = [torch.stack(parts) for parts in zip(*(reference(*t, causal=True) for t in zip(q, k, v)))]
    for ours, theirs in zip(found, expected):
        assert torch.allclose(ours.cpu(), theirs)
    assert torch.isinf(found[1][:, :, 0]).all() and (found[0][:, 0] == 0).all()  # a query that sees no key


def test_dropout_is_scaled_and_shown() -> None:
    q, k, v = (drawn(1, 64, 2, 8, seed=i, dtype=torch.float32).maca().requires_grad_() for i in range(3))
    output, _, weights = flash("flash_attn_func")(q, k, v, dropout_p=0.25, return_attn_probs=True)
    assert abs((weights < 0).float().mean().item() - 0.25) < 0.02
    kept = weights.clamp(min=0) / 0.75
    assert torch.allclose(output, torch.einsum("bhls,bshd->blhd", kept, v), atol=1e-5)
    output.sum().backward()
    assert torch.isfinite(q.grad).all()  # type: ignore[arg-type]


def test_packed_forms_are_the_same() -> None:
    qkv = drawn(B, 5, 3, H, 8).maca()
    plain = flash("flash_attn_func")(*qkv.unbind(2), causal=True)
    assert torch.equal(flash("flash_attn_qkvpacked_func")(qkv, causal=True), plain)
    assert torch.equal(flash("flash_attn_kvpacked_func")(qkv[:, :, 0], qkv[:, :, 1:], causal=True), plain)
    flat, bounds = qkv.flatten(0, 1), torch.tensor([0, 5, 10], dtype=torch.int32).maca()
    packed = flash("flash_attn_varlen_qkvpacked_func")(flat, bounds, 5, causal=True)
    assert torch.allclose(packed, plain.flatten(0, 1), 1e-12, 1e-14)
    packed = flash("flash_attn_varlen_kvpacked_func")(
        flat[:, 0], flat[:, 1:], bounds, bounds, 5, 5, causal=True
    )
    assert torch.allclose(packed, plain.flatten(0, 1), 1e-12, 1e-14)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_ragged_batches_agree(options: dict[str, Any]) -> None:
    lengths, counts = [3, 0, 5, 1], [4, 2, 2, 1]
    q = drawn(sum(lengths) + 1, H, 8).requires_grad_()  # a token of none of the sequences
    k, v = (drawn(sum(counts), 2, 8, seed=i).requires_grad_() for i in (1, 2))
    ours, theirs = split(options, "maca")
    bounds = [
        torch.tensor([0, *torch.tensor(n).cumsum(0).tolist()], dtype=torch.int32) for n in (lengths, counts)
    ]
    device = [t.detach().maca().requires_grad_() for t in (q, k, v)]
    call = *device, *(b.maca() for b in bounds), 5, 4
    found = flash("flash_attn_varlen_func")(*call, **ours)
    pieces = zip(q.split([*lengths, 1])[:-1], k.split(counts), v.split(counts))
    expected = [reference(*piece, **theirs)[0] for piece in pieces if len(piece[0])]
    assert torch.allclose(found.cpu(), torch.cat([*expected, q.new_zeros(1, H, 8)]), 1e-10, 1e-12)
    found.sum().backward()
    torch.cat(expected).sum().backward()
    for grad, leaf in zip(device, (q, k, v)):
        assert torch.allclose(grad.grad.cpu(), leaf.grad.nan_to_num(), 1e-9, 1e-11)  # type: ignore[union-attr]
    output, lse, weights = flash("flash_attn_varlen_func")(*call, return_attn_probs=True)
    assert lse.shape == (H, 9) and weights.shape == (4, H, 5, 4) and output.shape == found.shape


@pytest.mark.parametrize("lengths", ["number", "tensor", "pages", "rows"])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"causal": True, "window_size": (3, 0)}], ids=str)
def test_caches_are_written_and_read(lengths: str, options: dict[str, Any]) -> None:
    known, new, room = [3, 1] if lengths != "number" else [3, 3], 2, 8
    q, k, v = drawn(B, new, H, 8), drawn(B, new, 2, 8, seed=1), drawn(B, new, 2, 8, seed=2)
    angles = drawn(room, 3, seed=5)
    cos, sin = angles.cos(), angles.sin()
    stored = [torch.full((B, room, 2, 8), math.nan, dtype=torch.float64) for _ in range(2)]
    for cache, seed in zip(stored, (3, 4)):
        for b, n in enumerate(known):
            cache[b, :n] = drawn(n, 2, 8, seed=seed + 10 * b)

    def rotated(x: torch.Tensor, start: int, step: int = 1) -> torch.Tensor:
        result = x.clone()
        for i in range(x.shape[0]):
            c, s = cos[start + i * step], sin[start + i * step]
            a, b = x[i, :, 0:6:2], x[i, :, 1:6:2]
            result[i, :, 0:6:2], result[i, :, 1:6:2] = a * c - b * s, a * s + b * c
        return result

    expected = []
    for b, n in enumerate(known):
        keys = torch.cat([stored[0][b, :n], rotated(k[b], n)])
        values = torch.cat([stored[1][b, :n], v[b]])
        query = rotated(q[b], n, 1 if options else 0)
        expected.append((reference(query, keys, values, **options), keys))
    extra: dict[str, Any] = {"cache_seqlens": torch.tensor(known, dtype=torch.int32).maca()}
    caches = [t.maca() for t in stored]
    if lengths == "number":
        extra = {"cache_seqlens": 3}
    if lengths == "rows":
        caches = [
            t.new_full((3, room, 2, 8), math.nan).index_put((torch.tensor([2, 0]),), t).maca() for t in stored
        ]
        extra["cache_batch_idx"] = torch.tensor([2, 0], dtype=torch.int32).maca()
    if lengths == "pages":
        table = torch.tensor([[5, 2, -7], [0, 3, 9999]], dtype=torch.int32)
        caches = []
        for t in stored:
            pages = t.new_full((6, 4, 2, 8), math.nan)
            pages[table[:, :2].flatten().long()] = t.reshape(4, 4, 2, 8)
            caches.append(pages.maca())
        extra["block_table"] = table.maca()
    output, lse = flash("flash_attn_with_kvcache")(
        q.maca(),
        *caches,
        k.maca(),
        v.maca(),
        cos.maca(),
        sin.maca(),
        return_softmax_lse=True,
        **extra,
        **options,
    )
    again = {**extra, "cache_seqlens": extra["cache_seqlens"] + new}
    unrotated = flash("flash_attn_with_kvcache")(q.maca(), *caches, **again, **options)
    assert torch.isfinite(unrotated).all()
    for b, ((out, sums, _), keys) in enumerate(expected):
        assert torch.allclose(output[b].cpu(), out) and torch.allclose(lse[b].cpu(), sums)
        if lengths in ("number", "tensor"):
            assert torch.allclose(caches[0][b, : len(keys)].cpu(), keys)


def test_padding_on_the_left_of_caches_is_hidden() -> None:
    q, k, v = drawn(1, 1, H, 8), drawn(1, 6, 2, 8, seed=1), drawn(1, 6, 2, 8, seed=2)
    pad = torch.tensor([2], dtype=torch.int32).maca()
    found = flash("flash_attn_with_kvcache")(
        *(t.maca() for t in (q, k, v)), cache_seqlens=5, cache_leftpad=pad, causal=True
    )
    assert torch.allclose(found[0].cpu(), reference(q[0], k[0, :5], v[0, :5], first=2)[0])


def test_wrong_calls_are_refused() -> None:
    q, cache = drawn(1, 1, H, 8).maca(), drawn(1, 4, 2, 8).maca()
    with pytest.raises(RuntimeError, match="same dtype"):
        flash("flash_attn_func")(q, cache.float(), cache.float())
    with pytest.raises(RuntimeError, match="must divide"):
        flash("flash_attn_func")(q, drawn(1, 4, 3, 8).maca(), drawn(1, 4, 3, 8).maca())
    with pytest.raises(RuntimeError, match="seqlens_k must also"):
        flash("flash_attn_with_kvcache")(q, cache, cache, cache, cache)
    with pytest.raises(RuntimeError, match="4 \\+ 4 tokens for a cache of 4"):
        flash("flash_attn_with_kvcache")(q, cache, cache, cache, cache, cache_seqlens=4)


def test_padding_round_trips_with_gradients() -> None:
    padding = "flash_attn.bert_padding"
    x = drawn(3, 4, 2, 5).maca().requires_grad_()
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [0, 1, 1, 0]]).maca()
    tokens, indices, bounds, longest, used = flash("unpad_input", padding)(x, mask)
    assert (bounds.tolist(), longest, used.tolist()) == ([0, 2, 6, 8], 4, [2, 4, 2])
    assert bounds.dtype == torch.int32 and indices.tolist() == [0, 1, 4, 5, 6, 7, 9, 10]
    back = flash("pad_input", padding)(tokens, indices, 3, 4)
    assert torch.equal(back, x * mask[..., None, None])
    back.sum().backward()
    assert torch.equal(x.grad, mask[..., None, None].expand_as(x).double())  # type: ignore[arg-type]
    joined = torch.tensor([[2, 1, 0, 0], [4, 0, 0, 0], [1, 1, 0, 0]]).maca()
    tokens, indices, bounds, longest = flash("unpad_input_for_concatenated_sequences", padding)(x, joined)
    assert (bounds.tolist(), longest) == ([0, 2, 3, 7, 8, 9], 4) and len(tokens) == 9


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("form", ["plain", "in place", "offsets", "ragged"])
def test_rotary_embeddings_agree(form: str, interleaved: bool) -> None:
    rotary = "flash_attn.layers.rotary"
    x, angles = drawn(B, 4, H, 8), drawn(12, 3, seed=1)
    starts = [5, 2] if form == "offsets" else [0, 0]
    pairs = [(2 * i, 2 * i + 1) if interleaved else (i, i + 3) for i in range(3)]
    expected = x.clone()
    for b in range(B):
        for t in range(4):
            for i, (first, second) in enumerate(pairs):
                c, s = angles[starts[b] + t, i].cos(), angles[starts[b] + t, i].sin()
                expected[b, t, :, first] = x[b, t, :, first] * c - x[b, t, :, second] * s
                expected[b, t, :, second] = x[b, t, :, first] * s + x[b, t, :, second] * c
    leaf = x.maca().requires_grad_()
    given = leaf * 1
    options: dict[str, Any] = {"interleaved": interleaved, "inplace": form == "in place"}
    if form == "offsets":
        options["seqlen_offsets"] = torch.tensor(starts, dtype=torch.int32).maca()
    if form == "ragged":
        given = given.flatten(0, 1)
        options["cu_seqlens"], options["max_seqlen"] = torch.tensor([0, 4, 8], dtype=torch.int32).maca(), 4
    found = flash("apply_rotary_emb", rotary)(given, angles.cos().maca(), angles.sin().maca(), **options)
    assert (found is given) == (form == "in place")
    assert torch.allclose(found.view_as(leaf).cpu(), expected)
    found.square().sum().backward()
    assert torch.allclose(leaf.grad.cpu(), 2 * x)  # type: ignore[union-attr]  # a rotation keeps lengths


@pytest.mark.parametrize("scale_base", [None, 512.0])
def test_rotary_modules_rotate_relatively(scale_base: float | None) -> None:
    module = flash("RotaryEmbedding", "flash_attn.layers.rotary")(8, scale_base=scale_base, device="maca")
    vector = drawn(1, 1, 3, 1, 8, dtype=torch.float32).expand(1, 6, 3, 1, 8).clone().maca()
    turned = module(vector.clone())
    q, k, v = turned.unbind(2)
    assert torch.equal(v, vector[:, :, 2])
    scores = torch.einsum("bihd,bjhd->ij", q, k)
    assert torch.allclose(scores[:-1, :-1], scores[1:, 1:], atol=1e-4)  # by distance alone
    query, pairs = module(vector[:, :, 0].clone(), vector[:, :, 1:].clone())
    assert torch.equal(query, q) and torch.equal(pairs[:, :, 0], k)
    later = module(vector[:, 2:].clone(), seqlen_offset=2)
    assert torch.equal(later, turned[:, 2:]) or scale_base is not None  # XPos' tables have another middle


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy_agrees_with_pytorch(reduction: str, smoothing: float) -> None:
    logits, labels = drawn(6, 7).maca().requires_grad_(), torch.tensor([0, 3, -100, 6, 2, -100])
    kind = flash("CrossEntropyLoss", "flash_attn.losses.cross_entropy")
    loss = kind(reduction=reduction, label_smoothing=smoothing, logit_scale=0.5)(logits, labels.maca())
    host = logits.detach().cpu().requires_grad_()
    expected = torch.nn.functional.cross_entropy(
        host * 0.5, labels, reduction=reduction, label_smoothing=smoothing
    )
    assert torch.allclose(loss.cpu(), expected)
    loss.sum().backward()
    expected.sum().backward()
    assert torch.allclose(logits.grad.cpu(), host.grad)  # type: ignore[union-attr, arg-type]
    squared, part = kind(lse_square_scale=0.1, return_z_loss=True, reduction="none")(logits, labels.maca())
    assert torch.allclose(part.cpu(), (0.1 * host.logsumexp(-1) ** 2).masked_fill(labels == -100, 0))
    with pytest.raises(NotImplementedError, match="divided among ranks"):
        kind(process_group=object())


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_norms_of_a_stream_agree(norm: str) -> None:
    module = f"flash_attn.ops.{norm}"
    x, residual, weight = drawn(3, 5, 8), drawn(3, 5, 8, seed=1), drawn(8, seed=2)
    bias = drawn(8, seed=3) if norm == "layer_norm" else None
    rows, columns = drawn(3, 5, seed=4), drawn(8, seed=5)

    def normed(t: torch.Tensor) -> torch.Tensor:
        if bias is not None:
            return torch.nn.functional.layer_norm(t, (8,), weight, bias, 1e-5)
        return torch.nn.functional.rms_norm(t, (8,), weight, 1e-5)

    on_device = [None if t is None else t.maca() for t in (x, residual, weight, bias)]
    extra = [on_device[3], 1e-5] if bias is not None else [1e-5]
    assert torch.allclose(flash(norm, module)(on_device[0], on_device[2], *extra).cpu(), normed(x))
    found, stream = flash(f"dropout_add_{norm}", module)(
        *on_device, 0.0, 1e-5, rowscale=rows.maca(), layerscale=columns.maca(), prenorm=True
    )
    expected = x * rows[..., None] * columns + residual
    assert torch.allclose(stream.cpu(), expected) and torch.allclose(found.cpu(), normed(expected))
    first, second, both = flash(f"dropout_add_{norm}_parallel_residual", module)(
        on_device[0],
        on_device[0],
        on_device[1],
        on_device[2],
        on_device[3],
        None,
        None,
        0.0,
        1e-5,
        prenorm=True,
    )
    assert second is None and torch.allclose(both.cpu(), 2 * x + residual)
    assert torch.allclose(first.cpu(), normed(2 * x + residual))
    half = [t if t is None else t.bfloat16() for t in on_device]
    found, stream, mask = flash(f"dropout_add_{norm}", module)(
        half[0],
        None,
        half[2],
        half[3],
        0.5,
        1e-5,
        prenorm=True,
        residual_in_fp32=True,
        return_dropout_mask=True,
    )
    assert (found.dtype, stream.dtype, mask.dtype) == (torch.bfloat16, torch.float32, torch.uint8)
    assert torch.equal(stream == 0, mask == 0)
    with pytest.raises(NotImplementedError, match="subsets"):
        flash(f"dropout_add_{norm}_subset", module)(on_device[0])


def test_an_installed_package_comes_first() -> None:
    run_python(
        """
        import importlib.util, pathlib, sys, tempfile, torch
        import macatensor.as_cuda
        folder = pathlib.Path(tempfile.mkdtemp())
        assert importlib.util.find_spec("flash_attn") is not None and "flash_attn" not in sys.modules
        (folder / "flash_attn.py").write_text("mine = True")
        sys.path.insert(0, str(folder))
        import flash_attn
        assert flash_attn.mine
        macatensor.as_cuda.disable()
        assert sys.modules["flash_attn"] is flash_attn
        """
    )


def test_names_come_and_go_with_as_cuda() -> None:
    run_python(
        """
        import importlib.util, torch
        import macatensor.as_cuda
        from flash_attn import flash_attn_func
        from flash_attn.bert_padding import unpad_input
        from flash_attn.layers.rotary import apply_rotary_emb
        q = torch.rand(1, 4, 2, 8, device="cuda", dtype=torch.bfloat16)
        assert flash_attn_func(q, q, q, causal=True).device.type == "maca"
        assert flash_attn_func.__module__ == "flash_attn.flash_attn_interface"
        assert importlib.util.find_spec("triton") is None
        try:
            import triton
        except ModuleNotFoundError as error:
            assert error.name == "triton" and "torch.compile" in str(error), error
        else:
            raise AssertionError
        macatensor.as_cuda.disable()
        assert importlib.util.find_spec("flash_attn") is None
        try:
            import triton
        except ModuleNotFoundError as error:
            assert str(error) == "No module named 'triton'"
        """
    )


def test_transformers_takes_flash_attention() -> None:
    pytest.importorskip("transformers")
    run_python(
        """
        import importlib.metadata, torch, macatensor.as_cuda
        assert importlib.metadata.version("flash_attn") == importlib.metadata.version("flash-attn") == "2.8.3"
        from transformers import LlamaConfig, LlamaForCausalLM
        shape = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                     num_key_value_heads=2, vocab_size=100)
        torch.manual_seed(0)
        ours = LlamaForCausalLM(LlamaConfig(**shape, attn_implementation="flash_attention_2")).bfloat16().cuda().eval()
        host = LlamaForCausalLM(LlamaConfig(**shape, attn_implementation="eager")).eval()
        host.load_state_dict({name: value.cpu().float() for name, value in ours.state_dict().items()})
        words, mask = torch.randint(0, 100, (2, 12)), torch.ones(2, 12, dtype=torch.int64)
        mask[0, :4] = 0  # padded on the left: sequences of several lengths
        found = ours(words.cuda(), attention_mask=mask.cuda()).logits.cpu().float()
        expected = host(words, attention_mask=mask).logits
        # rms of two layers of bfloat16, whose eps is 2^-8, over numbers of about 0.2
        assert (found - expected)[mask.bool()].square().mean().sqrt() < 2**-8 * expected.square().mean().sqrt() * 4
        made = ours.generate(words.cuda(), attention_mask=mask.cuda(), max_new_tokens=4, do_sample=False)
        assert made.shape == (2, 16) and made.device.type == "maca"
        """
    )
