"""Random programs of a few lines on sparse tensors and on jagged ones. After each line the results of host and device agree.

    .venv/bin/python tests/fuzz/other_layouts.py --programs 3000 --first 0
    .venv/bin/python tests/fuzz/other_layouts.py --seed 17                   # one again, line by line

Programs of even seeds are on sparse tensors of the five layouts, those of odd ones on jagged tensors. What has to agree: layouts,
sizes, dtypes, numbers, and the gradients of every fourth program. A result that the device owes to the host is a finding, too.
The device may compute what the host has no kernel for: a program ends there. Exit status 1 where anything was found.
"""

from __future__ import annotations

import copy
import random
import re
import sys

import programs
import torch
from programs import Line, loaded

import macatensor

DTYPES = ("float32", "float64", "int64", "int32", "bool", "float16", "complex64", "uint8", "bfloat16")
# What the host says where it has no kernel. The device may have one.
LACKS = re.compile(
    r"not implemented|not supported|unsupported|only support|Could not run|INTERNAL ASSERT|no view exists|MKL|is_contiguous|"
    r"doesn't support|does not support|expected (a )?sparse (row|column|compressed)|to be (sparse|strided)|currently|of format CSR|"
    r"sparse compressed layout must be|Cannot access (storage|data)|TensorAccessor|Sparse division requires|is not (defined|valid)|"
    r"transposed dimensions must be sparse|must match dtype of sparse|but got BFloat16",
    re.IGNORECASE,
)

# PyTorch's select along a dense dimension of a COO tensor takes a negative index for another one, so none is drawn.
# {i}, {j}: tensors; {d}, {e}: dimensions of {i}; {m}: 0 to 4; {k}: 1 to 3; {x}: a number; {t}: a dtype
_BOTH = """{i}.relu()  {i}.neg()  {i}.abs()  {i}.sin()  {i}.sqrt()  {i}.sgn()  {i}.ceil()  {i}.floor()  {i}.round()  {i}.tanh()
{i}.square()  {i}.isnan()  {i}.conj()  {i}.angle()  {i}.real  {i}.nan_to_num()  {i}.expm1()  {i}.erf()  {i}.log1p()
{i} + {j}  {i} - {j}  {i} * {j}  {i} * {x}  {x} * {i}  {i} / {x}  {i} // {x}  {i} ** {k}  {i}.add({j}, alpha={k})  {i}.sum()
{i}.sum({d})  {i}.sum({d}, keepdim=True)  {i}.clone()  {i}.detach()  {i}.to({t})  loaded({i})  copy.deepcopy({i})
torch.zeros_like({i})  torch.ones_like({i})  torch.full_like({i}, {k})  {i}.unsqueeze({d})  {i}.transpose({d}, {e})
{i}.select({d}, {m})  {i}[{m}]  {i}.unbind()[0]  torch.cat([{i}, {j}], {d})  torch.stack([{i}, {i}], {d})
{i} @ ones({i}, -1, 2)  {i}.values()  {i}.any()"""
SPARSE = (
    _BOTH
    + """  {i}.to_dense()  {i}.to_sparse()  {i}.to_sparse({m})  {i}.to_sparse_csr()  {i}.to_sparse_csc()
{i}.to_sparse_bsr((1, 2))  {i}.to_sparse_bsc((2, 1))  {i}.coalesce()  {i}.crow_indices()
{i}.ccol_indices()  {i}.t()  {i}.mT  {i}.H  {i}.permute(*range({i}.dim())[::-1])  {i}.narrow_copy({d}, {m}, {k})
{i}.index_select({d}, zeros({i}))  {i}.sparse_mask({j})  {i}.norm()  {i}.norm({k})  torch.sparse.sum({i}, {d})
torch.sparse.sum({i}, dtype=torch.float64)  torch.sparse.softmax({i}, {d})  torch.sparse.log_softmax({i}, {d})  {i} @ {j}
torch.sparse.mm({i}, {j})  torch.sparse.mm({i}, ones({i}, -1, 3), "mean")  torch.sparse.mm({i}, ones({i}, -1, 3), "amax")
{i}.mv(ones({i}, -1))  torch.bmm({i}, {j})  torch.addmm({j}, {i}, {j}, beta={k})  torch.hspmm({i}, ones({i}, -1, 2))
torch.smm({i}, ones({i}, -1, 2))  torch.sparse.sampled_addmm({i}, ones({i}, -2, 2), ones({i}, -1, 2).mT)  {j}.mul({i})
torch.sparse.addmm({j}, {i}, {j})  {i}.isinf()  {i}.asin()  {i}.deg2rad()  {i}.frac()  {i}.trunc()  {i}.sign()  {i}.positive()
torch.nn.functional.linear({j}, {i})  {i} * ones({i}, -1)  {i}.sparse_dim()  {i}.dense_dim()"""
)
JAGGED = (
    _BOTH
    + """  {i}.to_padded_tensor(0.0)  {i}.offsets()  {i}.mean({d})  {i}.mean({d}, keepdim=True)  {i}.amax({d}, keepdim=True)
{i}.amin({d})  {i}.max()  {i}.softmax({d})  {i}.log_softmax({d})  {i}.exp()  {i}.clamp(-1, 1)  {i} > {j}  {i} == {i}  {i}.chunk({k}, {d})[0]
torch.where({i} > 0, {i}, {j})  torch.nn.functional.layer_norm({i}, {i}.shape[-1:])  torch.nn.functional.gelu({i})  {i}.sigmoid()
torch.nn.functional.linear({i}, ones({i}, -1, 3).t())  torch.nn.functional.rms_norm({i}, {i}.shape[-1:])  {i}.unbind()[-1]
{i}.split({k}, {d})[-1]  {i}.squeeze({d})  {i}.flatten({d}, {e})  {i}.unflatten({d}, ({k}, -1))  {i}.any({d})  {i}.all({d})
{i}.view({i}.shape)  {i}.reshape({i}.shape)  {i}.masked_fill({i} > 0, {k})  {i}.permute(0, 2, 1)
{i}.size(0)  {i}.dim()  {i}.is_contiguous()  {i}.contiguous()  {i}.expand({i}.shape)  {i}.prod({d}, keepdim=True)  {i} & {j}  ~{i}
torch.addcmul({i}, {i}, {j})  torch.nn.functional.silu({i})  {i}.bmm(ones({i}, -1, 2).expand({i}.shape[0], -1, -1))  {i}.narrow({d}, {m}, {k})
torch.nn.functional.scaled_dot_product_attention(*[{i}.unsqueeze(1).transpose(1, 2)] * 3)  {i}.sum((0, 1))  {i}.var({d})  {i}.lt({x})"""
)
_WRITES = """{i}.neg_()  {i}.abs_()  {i}.relu_()  {i}.mul_({x})  {i}.mul_({j})  {i}.add_({j})  {i}.sub_({j})  {i}.div_({x})  {i}.zero_()
{i}.copy_({j})  {i}.floor_()  {i}.sin_()"""
SPARSE_WRITES = (
    _WRITES
    + """  torch._foreach_add_([{i}], [{j}])  torch._foreach_mul_([{i}, {j}], {x})  torch._foreach_neg_([{i}])
torch._foreach_zero_([{i}])  torch._foreach_copy_([{i}], [{j}])  {i}.t_()  {i}.transpose_({d}, {e})  {i}.requires_grad_(False)"""
)


def _split(lines: str) -> list[str]:
    return [line for row in lines.splitlines() for line in row.split("  ")]


RESULTS, WRITES = (_split(SPARSE), _split(JAGGED)), (_split(SPARSE_WRITES), _split(_WRITES))


def ones(t: torch.Tensor, dim: int, *more: int) -> torch.Tensor:
    """Of as many rows as a dimension has, dense."""
    return torch.ones(t.shape[dim], *more, dtype=t.dtype, device=t.device)


HELP = {
    "torch": torch, "copy": copy, "loaded": loaded, "ones": ones,
    "zeros": lambda t: torch.zeros(1, dtype=torch.long, device=t.device),
}  # fmt: skip


def _numbers(draw: random.Random, size: list[int], dtype: torch.dtype) -> torch.Tensor:
    """Small whole numbers or quarters, half of them zero."""
    seed = torch.Generator().manual_seed(draw.randrange(1 << 30))
    numbers = torch.randint(-5, 6, size, generator=seed) * torch.randint(0, 2, size, generator=seed)
    return numbers.to(dtype) / 4 if dtype.is_floating_point else numbers.to(dtype)


def _sparse_program(draw: random.Random, size: list[int], dtype: torch.dtype) -> str:
    """What makes a tensor on ``device``."""
    kind = draw.choice(("coo", "coo", "dense", "csr", "csc", "bsr", "bsc"))
    if kind == "coo" and size and all(size):
        dims, count = draw.randint(1, len(size)), draw.randint(0, 5)
        at = [[draw.randrange(n) for _ in range(count)] for n in size[:dims]]
        values = _numbers(draw, [count, *size[dims:]], dtype)
        made = f"torch.sparse_coo_tensor(torch.tensor({at}, dtype=torch.long).reshape({dims}, {count}), {_text(values)}, {size})"
        return f"{made}{draw.choice(('', '.coalesce()'))}.to(device)"
    numbers = _numbers(draw, size, dtype)
    dense = _text(numbers)
    if kind in ("csr", "csc") and len(size) >= 2:
        if len(size) > 2 and draw.random() < 0.3 and size[0]:  # matrices of a batch, of as many elements each
            return f"{_text(torch.ones(size).to(dtype))}.to_sparse_{kind}().to(device)"
        return f"{dense}.to_sparse_{kind}({len(size) - 2}).to(device)"
    if kind in ("bsr", "bsc") and len(size) == 2 and all(size):
        block = tuple(draw.choice([b for b in (1, 2, n) if n % b == 0]) for n in size)
        return f"{dense}.to_sparse_{kind}({block}).to(device)"
    return f"{dense}.to(device)"


def _text(t: torch.Tensor) -> str:
    return f"torch.tensor({t.tolist()}, dtype={t.dtype}).reshape({tuple(t.shape)})"


def needs_gradients(seed: int) -> bool:
    return seed % 8 < 2


def first_programs(seed: int) -> list[str]:
    """What makes the first two tensors."""
    draw = random.Random(seed)
    dtype = getattr(torch, draw.choice(DTYPES[: 4 if draw.random() < 0.6 else None]))
    if seed % 2 == 0:
        size = [draw.choice((1, 2, 3, 4, 4, 3, 2, 0)) for _ in range(draw.choice((2, 2, 2, 3, 1, 0)))]
        others = [size, size[::-1]][draw.random() < 0.2]
        return [_sparse_program(draw, size, dtype), _sparse_program(draw, others, dtype)]
    lengths = [draw.choice((0, 1, 2, 3, 4)) for _ in range(draw.randint(1, 4))]
    inner = [draw.choice((1, 2, 3, 4)) for _ in range(draw.choice((1, 1, 2)))]
    total, begins = sum(lengths), [sum(lengths[:k]) for k in range(len(lengths) + 1)]
    members = "torch.nested.nested_tensor_from_jagged({}.to(device), {})"
    first = members.format(
        _text(_numbers(draw, [total, *inner], dtype)), f"torch.tensor({begins}).to(device)"
    )
    second = members.format(_text(_numbers(draw, [total, *inner], dtype)), "a[0].offsets()")
    return [
        first,
        second if draw.random() < 0.8 else f"{_text(_numbers(draw, [1, 1, *inner], dtype))}.to(device)",
    ]


def next_line(draw: random.Random, seed: int, tensors: list[torch.Tensor]) -> Line:
    i, j = draw.randrange(len(tensors)), draw.randrange(len(tensors))
    rank = tensors[i].dim()
    dimension = lambda: draw.randint(-rank, max(rank - (draw.random() < 0.97), 0))  # noqa: E731
    kind = draw.choices(("result", "write"), (6, 1))[0]
    text = draw.choice((RESULTS if kind == "result" else WRITES)[seed % 2]).format(
        i=f"a[{i}]", j=f"a[{j}]", d=dimension(), e=dimension(), m=draw.randint(0, 4),
        k=draw.randint(1, 3), x=draw.choice((0.5, 2, -1, 1.5, True, 0.25)), t=f"torch.{draw.choice(DTYPES)}",
    )  # fmt: skip
    return Line(kind, text)


class Side:
    """The tensors of one device."""

    def __init__(self, seed: int, device: str) -> None:
        self.tensors: list[torch.Tensor] = []
        self.space = {**HELP, "a": self.tensors, "device": torch.device(device)}
        for program in first_programs(seed):
            made = eval(program, self.space)
            if needs_gradients(seed) and (made.is_floating_point() or made.is_complex()):
                made = made.detach().requires_grad_()
            self.tensors.append(made)
        self.leaves = list(self.tensors)
        self.result: object = None

    def run(self, line: Line) -> Exception | None:
        try:
            if line.kind == "write":
                exec(line.text, self.space)
            else:
                self.result = eval(line.text, self.space)
                if isinstance(self.result, torch.Tensor):
                    self.tensors.append(self.result)
        except Exception as error:
            return error
        return None

    def gradients(self) -> list[torch.Tensor | None]:
        """Of the last tensor's numbers, each of its own weight."""
        total = torch.zeros((), device=self.space["device"], dtype=torch.float64)
        for part in _dense(self.tensors[-1]):
            number = torch.view_as_real(part) if part.is_complex() else part
            weights = torch.arange(1.0, number.numel() + 1, device=number.device, dtype=torch.float64)
            total = total + (number.double().reshape(-1) * weights).sum()
        total.backward()
        return [t.grad for t in self.leaves]


def _dense(t: torch.Tensor) -> list[torch.Tensor]:
    if t.is_nested:
        return list(t.unbind())
    return [t if t.layout is torch.strided else t.to_dense()]


def facts(t: object) -> object:
    """What of a result has to agree beside its numbers."""
    if not isinstance(t, torch.Tensor):
        return t
    more: tuple[int, ...] = ()
    if t.layout is torch.sparse_coo:
        more = (t.sparse_dim(), t.dense_dim())
    return t.layout, t.dtype, [tuple(p.shape) for p in _dense(t)], more, t.requires_grad


def differs(want: object, got: object) -> str:
    """In what; empty where in nothing."""
    try:
        expected = facts(want)
    except Exception:  # PyTorch takes its own result not apart: a jagged one whose ragged dimension moved, a sparse one that is none
        return ""
    if facts(got) != expected:
        return f"is {facts(got)} and not {expected}"
    if isinstance(want, torch.Tensor) and isinstance(got, torch.Tensor):
        for one, other in zip(_dense(want.detach()), _dense(got.detach())):
            try:
                # sums and functions of halves differ by their last bits
                torch.testing.assert_close(
                    other.cpu().resolve_conj(), one.resolve_conj(), equal_nan=True, rtol=0.02, atol=0.02
                )
            except AssertionError as error:
                return str(error).splitlines()[0]
    return ""


def _both_raise(errors: list[Exception | None]) -> str:
    """What is wrong where at least one of host and device raises; empty: nothing."""
    host, device = errors
    if host is not None and (device is None or isinstance(host, (NotImplementedError, AttributeError))):
        # the device may have what the host lacks
        known = isinstance(host, (NotImplementedError, AttributeError)) or LACKS.search(str(host))
        return "" if known else f"raises nothing and not {type(host).__name__}: {str(host)[:200]}"
    if host is None:
        return f"raises {type(device).__name__}: {str(device)[:200]}"
    # an index that is none is either
    kinds = [RuntimeError if isinstance(e, (RuntimeError, IndexError)) else type(e) for e in (host, device)]
    return (
        ""
        if kinds[0] is kinds[1] or LACKS.search(str(host))
        else f"raises {type(device).__name__}, not {type(host).__name__}"
    )


def run(seed: int, lines: list[Line] | None = None, mark: object = None) -> tuple[list[Line], str]:
    """The program of a seed, or its first tensors with other ``lines``: those that ran, and in what the last one differs."""
    draw, done = random.Random(seed + 1), []
    host, device = Side(seed, "cpu"), Side(seed, "maca")
    for k in range(draw.randint(1, 4) if lines is None else len(lines)):
        line = next_line(draw, seed, host.tensors) if lines is None else lines[k]
        done.append(line)
        errors = []
        for side in (host, device):
            if mark is not None:
                mark(side is device, done)  # type: ignore[operator]
            before = macatensor.counters()["fallbacks"]
            errors.append(side.run(line))
        on_host = macatensor.counters()["fallbacks"] - before
        of_nothing = any(f"a[{i}]" in line.text and not _has_elements(t) for i, t in enumerate(host.tensors))
        if any(errors):
            # of no elements the host asks not even for their dtype
            lacks = of_nothing and errors[0] is None and isinstance(errors[1], NotImplementedError)
            return done, "" if lacks else _both_raise(errors)
        if on_host and not of_nothing:
            return done, "is computed on the host"
        last = -1 if line.kind == "result" else int(re.findall(r"a\[(\d+)\]", line.text)[0])
        want, got = (side.result if line.kind == "result" else side.tensors[last] for side in (host, device))
        if found := differs(want, got):
            return done, "" if of_nothing else found  # which the host gives any dtype
        if not isinstance(want, torch.Tensor):
            break
    return done, _gradients_differ(host, device) if host.tensors[-1].requires_grad and done[
        -1
    ].kind == "result" else ""


def _has_elements(t: torch.Tensor) -> bool:
    if t.is_nested:
        return bool(t._values.numel())  # values() of complex numbers has no gradient
    return bool(t.numel()) and (t.layout is torch.strided or bool(t._nnz()))


def _gradients_differ(host: Side, device: Side) -> str:
    try:
        expected = host.gradients()
    except Exception:
        return ""
    before = macatensor.counters()["fallbacks"]
    try:
        found = device.gradients()
    except Exception as error:
        return f"its gradient raises {type(error).__name__}: {str(error)[:200]}"
    if macatensor.counters()["fallbacks"] > before:
        return "its gradient is computed on the host"
    for k, (want, got) in enumerate(zip(expected, found)):
        if (want is None) != (got is None):
            return f"there is {'a' if want is None else 'no'} gradient of a[{k}]"
        if want is not None and (text := differs(want, got)):
            return f"the gradient of a[{k}]: {text}"
    return ""


def source(seed: int, lines: list[Line]) -> str:
    """A program that shows it."""
    return "\n".join(
        ["import copy, torch, macatensor", "from programs import loaded  # tests/fuzz",
         "from other_layouts import ones", "zeros = lambda t: torch.zeros(1, dtype=torch.long, device=t.device)",
         'for device in ("cpu", "maca"):', "    a = []", *(f"    a.append({p})" for p in first_programs(seed)),
         *(["    a = [t.detach().requires_grad_(t.dtype.is_floating_point or t.dtype.is_complex) for t in a]"] if needs_gradients(seed) else []),
         *(f"    {line.program()}" for line in lines), "    print(a)"]
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(programs.main(__doc__, __file__, run, source))
