"""Jagged tensors that a random program begins with, and the lines that it draws from. other_layouts.py runs them."""

from __future__ import annotations

import random

import torch
from sparse_programs import DTYPES, numbers, split, text

# {i}, {j}: tensors; {d}, {e}: dimensions of {i}; {m}: 0 to 4; {k}: 1 to 3; {x}: a number; {t}: a dtype
_NAMES = """abs ceil floor round trunc frac neg positive sgn sign sin cos tan tanh sigmoid exp expm1 erf log1p sqrt square relu isnan
isinf isfinite nan_to_num reciprocal rsqrt conj conj_physical angle logical_not bitwise_not deg2rad asinh atan signbit""".split()
_OF_MODULES = "relu gelu silu sigmoid tanh softplus elu leaky_relu hardswish mish logsigmoid selu relu6 hardtanh".split()
RESULTS = [
    *(f"{{i}}.{name}()" for name in _NAMES),
    *(f"torch.nn.functional.{name}({{i}})" for name in _OF_MODULES),
    *split("""{i} + {j}  {i} - {j}  {i} * {j}  {j} * {i}  {i} / {j}  {j} - {i}  {i} // {x}  {i} % {x}  {i} ** {k}  {i} ** {x}  {i} * {x}
{x} - {i}  {i} / {x}  {x} * {i}  {i} + {x}  torch.add({i}, {j}, alpha={k})  torch.maximum({i}, {j})  torch.minimum({i}, {j})
torch.atan2({i}, {j})  {i}.clamp(-1, 1)  {i}.clamp(min=0.5)  {i} > {j}  {i} == {j}  {i}.lt({x})  {i} != {x}  {i} >= {j}  {i} & {j}
{i} | {j}  ~{i}  torch.logical_and({i}, {j})  torch.logical_or({i}, {x} > 0)  torch.where({i} > 0, {i}, {j})  torch.where({i} > {j}, {i}, 0)
torch.where({i} == {i}, {x}, {i})  torch.addcmul({i}, {i}, {j})  torch.addcdiv({i}, {i}, {j})  torch.lerp({i}, {j}, 0.5)  {i}.sum()
{i}.masked_fill({i} > 0, {k})  {i}.sum({d})  {i}.sum({d}, keepdim=True)  {i}.sum((0, 1))  {i}.sum((1, 2))  {i}.sum(({d}, {e}))
{i}.sum({d}, dtype=torch.float64)  {i}.mean({d})  {i}.mean({d}, keepdim=True)  {i}.mean()  {i}.mean((1, 2))  {i}.amax({d}, keepdim=True)
{i}.amin({d})  {i}.amax({d})  {i}.amax()  {i}.max()  {i}.min()  {i}.max({d})[0]  {i}.argmax({d})  {i}.prod({d}, keepdim=True)  {i}.prod()
{i}.var({d})  {i}.std({d})  {i}.norm()  {i}.norm(2, {d})  {i}.any()  {i}.all()  {i}.any({d})  {i}.all({d}, keepdim=True)  {i}.cumsum({d})
{i}.logsumexp({d})  {i}.count_nonzero()  {i}.softmax({d})  {i}.log_softmax({d})  torch.softmax({i}, {d}, dtype=torch.float64)
torch.nn.functional.softmax({i}.transpose(1, 2), {d})  torch.nn.functional.layer_norm({i}, {i}.shape[-1:])
torch.nn.functional.layer_norm({i}, {i}.shape[-1:], row({i}), row({i}))  torch.nn.functional.layer_norm({i}, {i}.shape[-2:])
torch.nn.functional.rms_norm({i}, {i}.shape[-1:])  torch.nn.functional.rms_norm({i}, {i}.shape[-1:], row({i}))
torch.nn.functional.linear({i}, column({i}, -1, 3).t())  torch.nn.functional.linear({i}, column({i}, -1, 3).t(), column({i}, -1, 3)[0])
{i} @ column({i}, -1, 2)  torch.matmul({i}, column({i}, -1))  {i} @ {j}  {i} @ {i}.transpose(-1, -2)  {i}.transpose(-1, -2) @ {i}
{i}.bmm(column({i}, -1, 2).expand({i}.shape[0], -1, -1))  torch.bmm({i}.transpose(1, 2), {i})  torch.bmm({i}, {i}.transpose(1, 2))
{i}.matmul(column({i}, -1, 2).expand({i}.shape[0], -1, -1))  torch.nn.functional.dropout({i}, 0.0)
torch.nn.functional.embedding({i}.long().abs(), table({i}))  torch.nn.functional.scaled_dot_product_attention({i}, {i}, {i})
torch.nn.functional.scaled_dot_product_attention(*[{i}.unsqueeze(1).transpose(1, 2)] * 3)
torch.nn.functional.scaled_dot_product_attention(*[{i}.unflatten(-1, ({k}, -1)).transpose(1, 2)] * 3)
torch.nn.functional.scaled_dot_product_attention(*[{i}.transpose(1, 2)] * 3, scale=0.5)  torch.nn.functional.mse_loss({i}, {j})
torch.nn.functional.normalize({i}, dim={d})  torch.nn.functional.glu({i}, {d})
{i}.unbind()[-1]  {i}.unbind()[0]  {i}.unbind({d})[-1]  {i}.select({d}, {m})  {i}[{m}]  {i}[..., {m}]  {i}[:, {m}]  {i}[:, :, {m}]
{i}[..., {m}:]  {i}[{m}:]  {i}[..., None]  {i}.narrow({d}, {m}, {k})  {i}.index_select({d}, places({i}, {d}))  {i}.to_padded_tensor(0.0)
{i}.to_padded_tensor({x})  torch.nested.to_padded_tensor({i}, -1.0, output_size=({i}.shape[0], 5, *{i}.shape[2:]))  {i}.values()
{i}.offsets()  {i}.lengths()  {i}.transpose({d}, {e})  {i}.transpose(1, 2)  {i}.mT  {i}.permute(0, 2, 1)  {i}.permute(0, 1, 3, 2)
{i}.permute(0, 2, 1, 3)  {i}.squeeze({d})  {i}.squeeze()  {i}.unsqueeze({d})  {i}.unsqueeze(-1)  {i}.unsqueeze(1)  {i}.flatten({d}, {e})
{i}.flatten(2)  {i}.unflatten({d}, ({k}, -1))  {i}.view({i}.shape)  {i}.reshape({i}.shape)  {i}.view(*{i}.shape[:2], -1)
{i}.reshape({i}.shape[0], -1, {k})  {i}.expand({i}.shape)  {i}.expand_as({j})  {j}.expand_as({i})  {i}.split({k}, {d})[-1]
{i}.split([1, {k}], {d})[0]  {i}.chunk({k}, {d})[0]  {i}.chunk({k}, {d})[-1]  torch.cat([{i}, {j}], {d})  torch.cat([{i}, {i}], {d})
torch.stack([{i}, {i}], {d})  torch.stack([{i}, {j}], {d})  {i}.clone()  {i}.detach()  {i}.contiguous()  {i}.transpose(1, 2).contiguous()
{i}.to({t})  {i}.float()  {i}.bool()  loaded({i})  copy.deepcopy({i})  torch.zeros_like({i})  torch.ones_like({i})  torch.full_like({i}, {k})
torch.zeros_like({i}, dtype={t})  torch.empty_like({i}).zero_()  {i}.new_zeros(2, 3)  {i}.masked_select({i} > 0)  {i}.size(0)
torch.nested.nested_tensor_from_jagged({i}.values() * 2, {i}.offsets())  torch.nested.as_nested_tensor(list({i}.unbind()), layout=torch.jagged)
torch.nested.nested_tensor_from_jagged({i}.values(), {i}.offsets(), {i}.lengths())  {i}.dim()  {i}.is_contiguous()  {i}.numel()
torch.nested.masked_select({i}, {i} > 0)  torch.nested.narrow({i}, 1, 0, 1, layout=torch.jagged)  {i}.is_floating_point()  len({i})
torch.nested.narrow({j}, 1, torch.zeros({j}.shape[0], dtype=torch.long, device={j}.device), {i}.offsets().diff(), layout=torch.jagged)
{i}.stride(-1)  {i}.is_same_size({j})  torch.equal({i}, {j})  {i}.item()  {i}.flip({d})  {i}.repeat({k}, 1, 1)  {i}.tril()  {i}.sort({d})[0]
{i}.real  {i}.imag  torch.view_as_real({i})  {i}.index_put([{i}.offsets()[:1]], {i}.values()[:1])  torch.sin({i}, out=torch.zeros_like({i}))
torch.add({i}, {j}, out=torch.zeros_like({i}))  torch._foreach_add([{i}], [{j}])[0]"""),
]  # fmt: skip
WRITES = [
    *(f"{{i}}.{name}_()" for name in "abs neg relu floor ceil round sin sigmoid tanh exp square sqrt zero".split()),
    *split("""{i}.mul_({x})  {i}.mul_({j})  {i}.add_({j})  {i}.add_({x})  {i}.sub_({j}, alpha={k})  {i}.div_({x})  {i}.pow_({k})  {i}.copy_({j})
{i}.fill_({x})  {i}.clamp_(-1, 1)  {i}.masked_fill_({i} > 0, {x})  {i}.values().add_(1)  {i}.unbind()[0].zero_()  {i}.lerp_({j}, 0.5)
{i}.addcmul_({i}, {j})  {i}.requires_grad_(False)  torch.nn.functional.relu({i}, inplace=True)  {i}.transpose_(1, 2)  {i}.squeeze_({d})
{i}.unsqueeze_({d})  torch._foreach_add_([{i}], [{j}])  torch._foreach_mul_([{i}], {x})  torch._foreach_zero_([{i}])  {i}.bernoulli_(0)"""),
]  # fmt: skip


def first_programs(draw: random.Random) -> list[str]:
    """What makes the first tensors on ``device``."""
    dtype = getattr(torch, draw.choice(DTYPES[: 4 if draw.random() < 0.6 else None]))
    lengths = [draw.choice((0, 1, 2, 3, 4)) for _ in range(draw.randint(1, 4))]
    inner = [draw.choice((1, 2, 3, 4)) for _ in range(draw.choice((1, 1, 1, 2, 2, 3)))]
    total = sum(lengths)
    begins = torch.tensor([sum(lengths[:k]) for k in range(len(lengths) + 1)])
    chance = draw.random()
    if chance < 0.3:
        parts = ", ".join(text(numbers(draw, [n, *inner], dtype)) for n in lengths)
        made = [f"torch.nested.nested_tensor([{parts}], layout=torch.jagged, device=device)"]
    elif chance < 0.45:  # sequences with holes behind them
        kept = torch.tensor([draw.randint(0, n) for n in lengths])
        values = text(numbers(draw, [total, *inner], dtype))
        members = ", ".join(f"{t}.to(device)" for t in (values, text(begins), text(kept)))
        made = [f"torch.nested.nested_tensor_from_jagged({members})"]
    elif chance < 0.55:  # the ragged dimension is not the first
        values = text(numbers(draw, [inner[0], total, *inner[1:]], dtype))
        members = ", ".join(f"{t}.to(device)" for t in (values, text(begins)))
        made = [f"torch.nested.nested_tensor_from_jagged({members}, jagged_dim=2)"]
    else:
        values = text(numbers(draw, [total, *inner], dtype))
        members = ", ".join(f"{t}.to(device)" for t in (values, text(begins)))
        made = [f"torch.nested.nested_tensor_from_jagged({members})"]
    for _ in range(draw.choice((1, 1, 2))):
        of = dtype if draw.random() < 0.85 else getattr(torch, draw.choice(DTYPES))
        if draw.random() < 0.6:
            values = f"{text(numbers(draw, [total, *inner], of))}.to(device)"
            made.append(f"torch.nested.nested_tensor_from_jagged({values}, a[0].offsets())")
        else:
            size = draw.choice(
                (
                    [1, 1, *inner],
                    inner,
                    [len(lengths), 1, *inner],
                    [inner[-1], 2],
                    [],
                    [len(lengths), 4, *inner],
                    [1],
                )
            )
            made.append(f"{text(numbers(draw, size, of))}.to(device)")
    return made
