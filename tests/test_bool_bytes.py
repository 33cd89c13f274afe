"""A mask of uint8 viewed as bool may hold any byte: all but 0 are true, as on the CPU."""

from collections.abc import Callable

import pytest
import torch

BYTES = [0, 255, 1, 2, 128, 0, 3, 254]
Use = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

USES: dict[str, Use] = {
    "sum": lambda m, x: m.sum(),
    "sum of columns": lambda m, x: m.reshape(-1, 2).sum(0),
    "prod": lambda m, x: m.prod(),
    "mean": lambda m, x: m.mean(dtype=torch.float32),
    "any": lambda m, x: m.any(),
    "all": lambda m, x: m[1:5].all(),
    "amax": lambda m, x: m.amax(),
    "max along": lambda m, x: m.reshape(-1, 2).max(0).values,
    "argmax": lambda m, x: m.to(torch.uint8).argmax(),
    "count_nonzero": lambda m, x: m.count_nonzero(),
    "cumsum": lambda m, x: m.cumsum(0),
    "cumprod": lambda m, x: m.cumprod(0),
    "cummax": lambda m, x: m.cummax(0).values,
    "logcumsumexp": lambda m, x: m.float().logcumsumexp(0),
    "float": lambda m, x: m.float(),
    "half": lambda m, x: m.half(),
    "int8": lambda m, x: m.to(torch.int8),
    "long": lambda m, x: m.long(),
    "complex": lambda m, x: m.to(torch.complex64),
    "~": lambda m, x: ~m,
    "&": lambda m, x: m & m.flip(0),
    "|": lambda m, x: m | m.flip(0),
    "^": lambda m, x: m ^ torch.ones_like(m),
    "&=": lambda m, x: m.clone().logical_and_(m.flip(0)),
    "==": lambda m, x: m == torch.ones_like(m),
    "!=": lambda m, x: m != 1,
    "<": lambda m, x: m < torch.ones_like(m),
    "equal": lambda m, x: torch.tensor(m.equal(m != 0)),
    "logical_not": lambda m, x: m.logical_not(),
    "logical_xor": lambda m, x: m.logical_xor(m.flip(0)),
    "bool + bool": lambda m, x: m + m.flip(0),
    "bool * bool": lambda m, x: m * m,
    "bool * float": lambda m, x: m * x,
    "bool * number": lambda m, x: m * 3,
    "maximum": lambda m, x: m.maximum(m.flip(0)),
    "heaviside": lambda m, x: torch.heaviside(m, torch.ones_like(m)),
    "addcmul": lambda m, x: torch.addcmul(x, m, x),
    "where": lambda m, x: torch.where(m, x, -x),
    "where of masks": lambda m, x: torch.where(x > 2, m, m.flip(0)),
    "masked_fill": lambda m, x: x.masked_fill(m, 9),
    "masked_select": lambda m, x: x.masked_select(m),
    "masked_scatter": lambda m, x: x.masked_scatter(m, -x),
    "x[m]": lambda m, x: x[m],
    "index_put": lambda m, x: x.index_put((m,), torch.tensor(7.0, device=x.device)),
    "nonzero": lambda m, x: m.nonzero(),
    "clone": lambda m, x: m.clone(),
    "cat": lambda m, x: torch.cat([m, m]),
    "pad": lambda m, x: torch.nn.functional.pad(m, (1, 1)),
    "sort": lambda m, x: m.sort(stable=True).indices,
    "unique": lambda m, x: m.unique(),
    "unique counts": lambda m, x: m.unique(return_counts=True)[1],
    "index_add": lambda m, x: torch.zeros_like(m).index_add(0, x.long() % 4, m),
    "scatter_add": lambda m, x: torch.zeros_like(m).scatter_add(0, x.long() % 4, m),
    "scatter_reduce": lambda m, x: torch.zeros_like(m).scatter_reduce(0, x.long() % 4, m, "amax"),
    "accumulated": lambda m, x: torch.zeros_like(m).index_put((x.long() % 4,), m, accumulate=True),
    "addr": lambda m, x: torch.addr(torch.zeros(8, 8, dtype=torch.bool, device=m.device), m, m),
    "bincount": lambda m, x: m.long().bincount(),
    "copied into floats": lambda m, x: torch.zeros_like(x).copy_(m),
    "copied into bools": lambda m, x: torch.zeros_like(m).copy_(m),
    "attention": lambda m, x: torch.nn.functional.scaled_dot_product_attention(
        torch.ones(1, 1, 1, 4, device=x.device),
        torch.ones(1, 1, 8, 4, device=x.device),
        x[None, None, :, None].expand(1, 1, 8, 4),
        attn_mask=m[None, None, None],
    ),
    "dropout's gradient": lambda m, x: torch.ops.aten.native_dropout_backward(x, m, 2.0),
    "foreach": lambda m, x: torch._foreach_add([x], [m])[0],
    "item": lambda m, x: torch.tensor(m[1].item()),
    "one in the middle": lambda m, x: m[3:4].sum(),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("step", [1, 2], ids=["dense", "strided"])
def test_every_byte_but_zero_is_true(use: Use, step: int) -> None:
    memory = torch.tensor(BYTES, dtype=torch.uint8).repeat_interleave(step)
    on_cpu, on_maca = memory.view(torch.bool)[::step], memory.to("maca").view(torch.bool)[::step]
    x = torch.arange(8.0)
    expected, got = use(on_cpu, x), use(on_maca, x.to("maca")).cpu()
    if expected.dtype == torch.bool:
        expected, got = expected.view(torch.uint8) != 0, got.view(torch.uint8) != 0
    assert got.dtype == expected.dtype
    assert torch.equal(got, expected)
