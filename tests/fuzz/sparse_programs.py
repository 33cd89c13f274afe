"""Sparse tensors that a random program begins with, and the lines that it draws from. other_layouts.py runs them."""

from __future__ import annotations

import random

import torch

DTYPES = ("float32", "float64", "int64", "int32", "bool", "float16", "complex64", "uint8", "bfloat16")
COMPRESSED = ("csr", "csc", "bsr", "bsc")


def split(lines: str) -> list[str]:
    return [line for row in lines.splitlines() for line in row.split("  ") if line]


# {i}, {j}: tensors; {d}, {e}: dimensions of {i}; {m}: 0 to 4; {n}: 0 to 2; {k}: 1 to 3; {x}: a number; {t}: a dtype; {b}: sides of
# a block; {layout}: one of the five. PyTorch's select along a dense dimension of a COO tensor takes a negative index for another
# one, so none is drawn; nor is values() of a COO tensor without coalesce(), which asks whether somebody has called it before.
_NAMES = """abs asin asinh atan atanh ceil conj conj_physical cos deg2rad erf erfinv exp expm1 floor frac isfinite isinf isnan isneginf
isposinf log1p nan_to_num neg positive rad2deg relu resolve_conj round sgn sigmoid sign signbit sin sinh sqrt square tan tanh trunc
angle real imag logical_not""".split()
_CHANGED = """abs asin asinh atan atanh ceil conj_physical deg2rad erf erfinv expm1 floor frac log1p nan_to_num neg rad2deg relu round
sgn sign sin sinh sqrt square tan tanh trunc zero exp""".split()
RESULTS = [
    *(f"{{i}}.{name}()" for name in _NAMES if name not in ("real", "imag")),
    *split("""{i}.real  {i}.imag
{i} + {j}  {i} - {j}  {i} * {j}  {j} * {i}  {i} / {j}  torch.add({i}, {j}, alpha={k})  torch.sub({i}, {j}, alpha=0.5)  {i} + {i}.clone()
{i} * {x}  {x} * {i}  {i} / {x}  {i} // {x}  {i} ** {k}  {i}.pow({x})  {i} + {x}  torch.div({i}, {x}, rounding_mode="trunc")
{i} * number({i})  {i} / number({i})  number({i}) * {i}  {i} * column({i}, -1)  {i}.eq({j})  {i} > {x}  torch.addcmul({i}, {i}, {j})
{i}.sum()  {i}.sum({d})  {i}.sum({d}, keepdim=True)  {i}.sum(({d}, {e}))  {i}.sum(dtype=torch.float64)  torch.sparse.sum({i})
torch.sparse.sum({i}, {d})  torch.sparse.sum({i}, ({d}, {e}))  torch.sparse.sum({i}, {d}, dtype=torch.float64)  {i}.mean()  {i}.norm()
{i}.norm({k})  {i}.norm(float("inf"))  {i}.norm(0)  {i}.norm(2, {d})  {i}.any()  {i}.all()  {i}.prod()  {i}.amax()  {i}.std()
torch.sparse.softmax({i}, {d})  torch.sparse.log_softmax({i}, {d})  torch.sparse.softmax({i}, {d}, dtype=torch.float64)  {i}.softmax({d})
{i} @ {j}  torch.mm({i}, {j})  torch.sparse.mm({i}, {j})  {i} @ column({i}, -1)  {i} @ column({i}, -1, 3)  column({i}, -2, 2).t() @ {i}
{i} @ {i}.mT  {i}.mT @ {i}  torch.sparse.mm({i}.mT, {i})  torch.sparse.mm({i}, column({i}, -1, 3), "sum")  {i}.matmul({j})
torch.sparse.mm({i}, column({i}, -1, 3), "mean")  torch.sparse.mm({i}, column({i}, -1, 3), "amax")
torch.sparse.mm({i}, column({i}, -1, 2), "amin")  torch.sparse.mm({i}, {i}.mT, "sum")  {i}.mv(column({i}, -1))  torch.bmm({i}, {j})
torch.bmm({i}, column({i}, -1, 2).expand({i}.shape[0], -1, -1))  torch.addmm({j}, {i}, {j}, beta={k})  torch.addmm({j}, {i}, {i}.mT)
torch.addmm({j}, {i}, {j}, beta=0, alpha=2)  torch.addmm(column({i}, -2, 2), {i}, column({i}, -1, 2), beta=0.5, alpha={k})
torch.addmm({i} @ column({i}, -1, {k}), {i}, column({i}, -1, {k}))  torch.addmv(column({i}, -2), {i}, column({i}, -1), beta={k})
torch.sparse.addmm({j}, {i}, {j})  torch.sparse.addmm(column({i}, -2, 2), {i}, column({i}, -1, 2), beta={k}, alpha=0.5)
torch.baddbmm({j}, {i}, {i}.mT)  torch.hspmm({i}, column({i}, -1, 2))  torch.smm({i}, column({i}, -1, 2))
torch.sspaddmm({j}, {i}, {i}.mT.to_dense())  torch.sparse.sampled_addmm({i}, column({i}, -2, 2), column({i}, -1, 2).mT)
torch.sparse.sampled_addmm({i}, column({i}, -2, 2), column({i}, -1, 2).mT, beta={k}, alpha=0.5)  torch.nn.functional.linear({j}, {i})
torch.nn.functional.linear({i}, column({i}, -1, 2).t())  torch.sparse.sampled_addmm({i}, {j}, {j}.mT)  torch.mv({i}.mT, column({i}, -2))
torch.triangular_solve(column({i}, -2, 2), {i})[0]  {i}.to_dense()  {i}.to_dense(dtype={t})  {i}.to_sparse()  {i}.to_sparse({m})
{i}.to_sparse(layout={layout})  {i}.to_sparse(layout={layout}, blocksize={b})  {i}.to_sparse_csr()  {i}.to_sparse_csr({n})
{i}.to_sparse_csc()  {i}.to_sparse_csc({n})  {i}.to_sparse_bsr({b})  {i}.to_sparse_bsc({b})  {i}.to_sparse_bsr({b}, {n})  {i}.coalesce()
{i}.to_dense().to_sparse()  {i}.to_dense().to_sparse_csr()  {i}.coalesce().indices()  {i}.coalesce().values()  {i}.crow_indices()
{i}.col_indices()  {i}.ccol_indices()  {i}.row_indices()  {i}.to_sparse_csr().values()  {i}.to_sparse_csc().values()
{i}.t()  {i}.mT  {i}.H  {i}.mH  {i}.adjoint()  {i}.transpose({d}, {e})  {i}.permute(*range({i}.dim())[::-1])  {i}.movedim({d}, {e})
{i}.permute({d}, {e})  {i}.permute({d}, {e}, 1)  {i}.select({d}, {m})  {i}[{m}]  {i}[..., {m}]  {i}[{m}:]  {i}[:, {m}]  {i}[{m}, {k}]
{i}.narrow_copy({d}, {m}, {k})  {i}.narrow({d}, {m}, {k})  {i}.index_select({d}, places({i}, {d}))  {i}.unbind()[0]  {i}.unbind({d})[-1]
{i}.index_select({d}, places({i}, {d})[:0])  torch.cat([{i}, {j}], {d})  torch.cat([{i}, {i}], {d})  torch.stack([{i}, {i}], {d})
torch.stack([{i}, {j}], {d})  torch.vstack([{i}, {j}])  torch.hstack([{i}, {i}])  {i}.unsqueeze({d})  {i}.squeeze({d})  {i}.squeeze()
{i}.flatten()  {i}.reshape({i}.shape)  {i}.view({i}.shape)  {i}.expand(2, *{i}.shape)  {i}.expand_as({j})  {i}.unflatten({d}, ({k}, -1))
{i}.split({k}, {d})[0]  {i}.flip({d})  {i}.tril()  {i}.diagonal()  {i}.cumsum({d})  {i}.sparse_mask({j})  {j}.sparse_mask({i})
{i}.to_dense().sparse_mask({j})  {i}.clone()  {i}.detach()  {i}.to({t})  {i}.to(torch.complex64)  {i}.type({t})  {i}.contiguous()
loaded({i})  copy.deepcopy({i})  torch.zeros_like({i})  torch.zeros_like({i}, dtype={t})  torch.ones_like({i})  torch.full_like({i}, {k})
torch.zeros_like({i}, layout={layout})  torch.empty_like({i}).zero_()  {i}.new_zeros({i}.shape)  torch.nn.functional.relu({i})
torch.where({i}.to_dense() > 0, {i}, {j})  torch.mul({i}, {j}, out=torch.zeros_like({i}))  torch.add({i}, {j}, out=torch.zeros_like({i}))
torch.sin({i}, out=torch.zeros_like({i}))  torch.mm({i}, {j}, out=torch.zeros_like({i}))  {i}.masked_fill({i}.to_dense() > 0, {k})
torch.nn.functional.dropout({i}, 0.0)  {i}.dim()  {i}.sparse_dim()  {i}.dense_dim()  {i}.numel()  {i}.is_same_size({j})  len({i})
{i}.item()  {i}.tolist()  {i}.stride()  {i}.is_contiguous()  torch.equal({i}, {j})  {i}.is_floating_point()  {i}.is_sparse
{i}.is_nonzero()  torch.sparse_coo_tensor({i}.coalesce().indices(), {i}.coalesce().values(), {i}.shape)  {i}.float()  {i}.bool()
torch.sparse_csr_tensor({i}.crow_indices(), {i}.col_indices(), {i}.values(), {i}.shape)  torch.logical_and({i}, {j})  {i}.maximum({j})
torch._foreach_add([{i}], [{j}])[0]  torch._foreach_mul([{i}, {j}], {x})[0]  torch._foreach_norm([{i}])[0]"""),
]  # fmt: skip
WRITES = [
    *(f"{{i}}.{name}_()" for name in _CHANGED),
    *split("""{i}.mul_({x})  {i}.mul_({j})  {i}.add_({j})  {i}.add_({j}, alpha={k})  {i}.sub_({j})  {i}.div_({x})  {i}.pow_({k})
{i}.copy_({j})  {i}.copy_({i}.clone())  {i}.floor_divide_({x})  {i}.div_(number({i}))  {i}.t_()  {i}.transpose_({d}, {e})
{i}.unsqueeze_({d})  {i}.squeeze_({d})  {i}.fill_({x})  {i}.resize_({i}.shape)  {i}.resize_as_({j})
{i}.sparse_resize_({i}.shape, {i}.sparse_dim(), {i}.dense_dim())  {i}.sparse_resize_([s + 1 for s in {i}.shape], {i}.sparse_dim(), 0)
{i}.sparse_resize_and_clear_([{k}, {m}], {n}, 2 - {n})  {i}.add_({i})  {i}.mul_({i})  {i}.addmm_({i}, {j})  {i}.addmm_({i}, {i}.mT)
{i}.requires_grad_(False)  torch._foreach_add_([{i}], [{j}])  torch._foreach_mul_([{i}, {j}], {x})  torch._foreach_neg_([{i}])
torch._foreach_zero_([{i}])  torch._foreach_copy_([{i}], [{j}])  {i}.set_({j})  {i}.clamp_(-1, 1)  setattr({i}, "data", {j})"""),
]  # fmt: skip


def numbers(draw: random.Random, size: list[int], dtype: torch.dtype) -> torch.Tensor:
    """Small whole numbers or quarters, half of them zero."""
    seed = torch.Generator().manual_seed(draw.randrange(1 << 30))
    found = torch.randint(-5, 6, size, generator=seed) * torch.randint(0, 2, size, generator=seed)
    if dtype.is_complex:
        return (found + 1j * torch.randint(-2, 3, size, generator=seed)).to(dtype)
    return found.to(dtype) / 4 if dtype.is_floating_point else found.to(dtype)


def text(t: torch.Tensor) -> str:
    """What makes it on the host."""
    made = f"torch.tensor({t.tolist()}, dtype={t.dtype})"
    return (
        made if t.numel() else f"{made}.reshape({tuple(t.shape)})"
    )  # a list without elements has lost its sides


def coo(draw: random.Random, size: list[int], dtype: torch.dtype, dense: int) -> str:
    """Elements in any order, some of them twice."""
    sides, more = size[: len(size) - dense], size[len(size) - dense :]
    count = draw.randint(0, 5) if all(sides) else 0
    if not sides:
        count = min(count, 1)
    at = torch.tensor([[draw.randrange(n) for _ in range(count)] for n in sides], dtype=torch.long)
    made = f"torch.sparse_coo_tensor({text(at.reshape(len(sides), count))}, {text(numbers(draw, [count, *more], dtype))}, {size})"
    return made + draw.choice(("", ".coalesce()"))


def compressed(
    draw: random.Random, kind: str, batch: list[int], matrix: list[int], dense: list[int], dtype: torch.dtype
) -> str:
    """As many elements in each matrix of the batch, some of them zero."""
    block = (
        [draw.choice([b for b in (1, 2, n) if b and n % b == 0]) for n in matrix] if kind[0] == "b" else []
    )
    rows, columns = [n // b for n, b in zip(matrix, block or [1, 1])]
    if kind.endswith("c"):
        rows, columns = columns, rows
    cells = [(r, c) for r in range(rows) for c in range(columns)]
    count = draw.randint(0, min(len(cells), 6))
    begins: list[list[int]] = []
    along: list[list[int]] = []
    matrices = batch[0] if batch else 1
    for _ in range(matrices):
        taken = sorted(draw.sample(cells, count))
        begins.append([sum(r < row for r, _ in taken) for row in range(rows + 1)])
        along.append([c for _, c in taken])
    index = draw.choice((torch.int64, torch.int64, torch.int32))
    members = (
        torch.tensor(begins, dtype=index).reshape(*batch, rows + 1),
        torch.tensor(along, dtype=index).reshape(*batch, count),
        numbers(draw, [*batch, count, *block, *dense], dtype),
    )
    made = ", ".join(text(t) for t in members)
    return f"torch.sparse_{kind}_tensor({made}, {[*batch, *matrix, *dense]})"


def first_programs(draw: random.Random) -> list[str]:
    """What makes the first tensors on ``device``."""
    names = DTYPES[: 4 if draw.random() < 0.5 else None]
    dtype = getattr(torch, draw.choice(names))
    matrix = [draw.choice((1, 2, 3, 4, 4, 3, 2, 0)) for _ in range(2)]
    first = _tensor(draw, matrix, dtype)
    made = [first]
    for _ in range(draw.choice((1, 1, 2))):
        of = dtype if draw.random() < 0.85 else getattr(torch, draw.choice(DTYPES))
        chance = draw.random()
        if chance < 0.25:  # dense, which broadcasts
            n, m = matrix
            size = draw.choice(([n, m], [m], [1, m], [n, 1], [], [m, n], [m, 2], [2, n, m]))
            made.append(text(numbers(draw, size, of)))
        else:
            made.append(_tensor(draw, matrix[::-1] if chance < 0.45 else matrix, of))
    return [f"{m}.to(device)" for m in made]


def _tensor(draw: random.Random, matrix: list[int], dtype: torch.dtype) -> str:
    kind = draw.choice(("coo", "coo", "coo", "dense", *COMPRESSED))
    few = lambda chance: [draw.choice((1, 2, 3, 2, 0))] if draw.random() < chance else []  # noqa: E731
    if kind in COMPRESSED:
        return compressed(draw, kind, few(0.2), matrix, few(0.15), dtype)
    if kind == "dense":
        return text(numbers(draw, few(0.1) + matrix, dtype))
    size = draw.choice((matrix, matrix, matrix, matrix[:1], [], matrix + few(1), few(1) + matrix))
    dense = draw.choice((0, 0, 0, 1, 1, 2))
    return coo(draw, size, dtype, min(dense, len(size)))
