"""Random programs of a few lines: views, writes in place, resizes, files. After each line the tensors of host and device agree.

    .venv/bin/python tests/fuzz/sequences.py --programs 3000 --first 0
    .venv/bin/python tests/fuzz/sequences.py --seed 17                    # one again, line by line

What has to agree: sizes, strides, dtypes, lazy bits, numbers, by how much versions grew, and which tensors share memory. What
PyTorch leaves undefined is not drawn: writes into what another operand reads in part, or into elements that share memory, and
memory that nobody has written. A program that differs is made shorter, and printed as one that can be run. Programs run in
processes of their own: one that dies is a crash, of the line that it had begun. Exit status 1 where anything was found.
"""

from __future__ import annotations

import copy
import random
import sys

import programs
import torch
from programs import Line, loaded
from recipes import shares_memory

import macatensor  # noqa: F401 - the device

DTYPES = ("float32", "float64", "int64", "int32", "bool", "float16", "complex64", "uint8", "bfloat16")
TENSORS = 6  # with more a program ends

# Lines by what they do. {i}, {j}: tensors; {d}, {e}: dimensions of {i}; {n}: -5 to 5; {m}: 0 to 5; {k}: 1 to 3; {x}: a number;
# {t}: a dtype; {size}: sizes. Bytes other than 0 and 1 are not seen as bool: kernels of the host library take them for numbers.
VIEWS = """{i}.narrow({d}, {m}, {k})  {i}[{m}::{k}]  {i}.select({d}, {n})  {i}.transpose({d}, {e})  {i}.unsqueeze({d})  {i}.squeeze()
{i}.squeeze({d})  {i}.expand(2, *{i}.shape)  {i}.expand_as({j})  {i}.view(-1)  {i}.view({size})  {i}.unflatten({d}, ({k}, -1))
{i}.diagonal({n}, {d}, {e})  {i}.unfold({d}, {k}, {k})  {i}.split({k}, {d})[-1]  {i}.chunk({k}, {d})[0]  torch.view_as_real({i})
torch.view_as_complex({i})  {i}.conj()  {i}.imag  {i}.mT  {i}.detach()  {i}.data  torch.ops.aten.alias({i})  {i}.movedim({d}, {e})
{i}.permute(*range({i}.dim())[::-1])  {i}.view({t}) if {t} is not torch.bool else {i}.view({i}.dtype)  {i}[..., None]  {i}[...]"""
RESULTS = """{i}.clone()  {i}.contiguous()  {i}.to({t})  {i} + {j}  {i} * {x}  torch.cat([{i}, {j}], {d})  torch.stack([{i}, {i}], {d})
{i}.sum({d})  {i}.cumsum({d})  torch.where({i} == {i}, {i}, {j})  {i}.flip({d})  {i}.roll({n}, {d})  {i}[{i} == {i}]  {i}.amax({d})
{i} @ {j}  {i} == {j}  {i}.new_zeros({size})  torch.select_scatter({i}, {i}.select({d}, {n}), {d}, {n})  {i}.resolve_conj()
{i}.sort({d}, stable=True)[0]  {i}.repeat({k}, *[1] * {i}.dim())  {i}.gather({d}, torch.zeros_like({i}, dtype=torch.long))
{i}.reshape(-1, {k})  {i}.flatten()  loaded({i})  copy.deepcopy({i}).contiguous()  {i}.tril({n})  {i}.masked_fill({i} == {i}, 2)"""
WRITES = """{i}.add_({j})  {i}.add_({x})  {i}.mul_({j})  {i}.copy_({j})  {i}.fill_({x})  {i}.zero_()  {i}.clamp_(-1, 1)  {i}.neg_()
{i}.cumsum_({d})  {i}.pow_(2)  {i}.tril_({n})  {i}.lerp_({j}, 0.5)  {i}.addcmul_({j}, {j})  {i}.masked_fill_({i} == {j}, {x})
{i}.scatter_({d}, torch.zeros_like({i}, dtype=torch.long), {x})  {i}.index_add_({d}, zeros({i}), {i}.select({d}, 0).unsqueeze({d}).clone())
{i}.index_fill_({d}, zeros({i}), {x})  {i}.put_(zeros({i}), ones({i}))  {i}.index_put_((zeros({i}),), ones({i})[0], accumulate=True)
torch._foreach_add_([{i}], 1)  torch._foreach_copy_([{i}], [{j}])  torch._foreach_mul_([{i}], [{j}])  torch.relu_({i})
torch.add({j}, {x}, out={i})  torch.sum({j}, {d}, out={i})  torch.cat([{j}, {j}], out={i})  torch.mul({j}, {j}, out={i})"""
CHANGES = """{i}.t_()  {i}.squeeze_({d})  {i}.unsqueeze_({d})  {i}.transpose_({d}, {e})  {i}.swapaxes_({d}, {e})  {i}.set_({j})
{i}.resize_({size}).zero_()  {i}.as_strided_({i}.shape, {i}.stride())  setattr({i}, "data", {j})"""
KINDS = {
    kind: [line for row in lines.splitlines() for line in row.split("  ")]
    for kind, lines in (("view", VIEWS), ("result", RESULTS), ("write", WRITES), ("change", CHANGES))
}


HELP = {
    "torch": torch, "copy": copy, "loaded": loaded,
    "zeros": lambda t: torch.zeros(1, dtype=torch.long, device=t.device),
    "ones": lambda t: torch.ones(1, dtype=t.dtype, device=t.device),
}  # fmt: skip


def first_tensors(seed: int) -> list[torch.Tensor]:
    """Two on the host, small whole numbers or quarters."""
    draw = random.Random(seed)
    found = []
    for _ in range(2):
        size = [draw.choice((0, 1, 2, 3, 4, 4, 3, 2)) for _ in range(draw.randint(0, 4))]
        dtype = getattr(torch, draw.choice(DTYPES))
        numbers = torch.randint(-5, 6, size, generator=torch.Generator().manual_seed(draw.randrange(1 << 30)))
        found.append(numbers.to(dtype) / 4 if dtype.is_floating_point else numbers.to(dtype))
    return found


def next_line(draw: random.Random, tensors: list[torch.Tensor]) -> Line:
    i, j = draw.randrange(len(tensors)), draw.randrange(len(tensors))
    rank = tensors[i].dim()
    dimension = lambda: draw.randint(-rank - (draw.random() < 0.05), max(rank - (draw.random() < 0.95), 0))  # noqa: E731
    kind = draw.choices(tuple(KINDS), (4, 3, 4, 1))[0]
    text = draw.choice(KINDS[kind]).format(
        i=f"a[{i}]", j=f"a[{j}]", d=dimension(), e=dimension(), n=draw.randint(-5, 5), m=draw.randint(0, 5),
        k=draw.randint(1, 3), x=draw.choice((0.5, 2, -1, 0, 3, True, 1.5, 1j)), t=f"torch.{draw.choice(DTYPES)}",
        size=tuple(draw.randint(0, 4) for _ in range(draw.randint(0, 4))),
    )  # fmt: skip
    return Line(kind, text)


def is_defined(line: Line, tensors: list[torch.Tensor]) -> bool:
    """Does PyTorch say what it gives? Of tensors on the host."""
    used = [tensors[i] for i in range(len(tensors)) if f"a[{i}]" in line.text]
    if ("index_fill_" in line.text or ".roll(" in line.text) and not all(t.numel() for t in used):
        return False  # where there are no elements the CPU looks at no index and at no dimension
    if line.kind != "write":
        return True
    if "out=" in line.text and len(used) == 1:
        return False
    if len({t.untyped_storage().data_ptr() for t in used}) < len(used):
        return False
    return not any(shares_memory(t.shape, t.stride()) for t in used)


class Side:
    """The tensors of one device."""

    def __init__(self, tensors: list[torch.Tensor], device: str) -> None:
        self.tensors = [t.to(device, copy=True) for t in tensors]
        self.born = [t._version for t in self.tensors]
        self.space = {**HELP, "a": self.tensors}

    def run(self, line: Line) -> str:
        """The error's class, empty where there was none."""
        try:
            exec(line.program(), self.space)
        except Exception as error:
            return "RuntimeError" if isinstance(error, RuntimeError) else type(error).__name__
        self.born += [t._version for t in self.tensors[len(self.born) :]]
        return ""

    def shared(self) -> list[int]:
        """For each tensor, the first one with the same memory."""
        memory = [(t.untyped_storage().data_ptr(), t.untyped_storage().nbytes()) for t in self.tensors]
        return [memory.index(m) if m[1] else i for i, m in enumerate(memory)]


def differs(host: Side, device: Side, results: set[int]) -> str:
    """In what; empty where in nothing. ``results``: tensors with memory of their own, whose strides are free."""
    for i, (want, got) in enumerate(zip(host.tensors, device.tensors)):
        facts = []
        for side, t in ((host, want), (device, got)):
            strides = (
                [s for n, s in zip(t.shape, t.stride()) if n > 1] if t.numel() and i not in results else None
            )
            facts.append(
                (tuple(t.shape), strides, t.dtype, t.is_conj(), t.is_neg(), t._version - side.born[i])
            )
        if facts[0] != facts[1]:
            return f"a[{i}] is {facts[1]} and not {facts[0]}: sizes, strides, dtype, lazy bits, writes"
        try:
            torch.testing.assert_close(
                got.cpu().resolve_conj(), want.resolve_conj(), equal_nan=True, rtol=0.02, atol=0.02
            )
        except AssertionError as error:
            return f"a[{i}]: {str(error).splitlines()[0]}"
    if host.shared() != device.shared():
        return f"other tensors share memory: {device.shared()} and not {host.shared()}"
    return ""


def run(seed: int, lines: list[Line] | None = None, mark: object = None) -> tuple[list[Line], str]:
    """The program of a seed, or its first tensors with other ``lines``: those that ran, and in what the last one differs."""
    draw, done = random.Random(seed + 1), []
    host, device = (Side(first_tensors(seed), name) for name in ("cpu", "maca"))
    results: set[int] = {0, 1}
    for k in range(draw.randint(3, 14) if lines is None else len(lines)):
        line = next_line(draw, host.tensors) if lines is None else lines[k]
        if not is_defined(line, host.tensors):
            continue
        done.append(line)
        errors = []
        for side in (host, device):
            if mark is not None:
                mark(side is device, done)  # type: ignore[operator]
            errors.append(side.run(line))
        if errors[0] != errors[1]:
            return done, f"raises {errors[1] or 'nothing'} and not {errors[0] or 'nothing'}"
        if errors[0]:
            if "out=" in line.text:  # the host may have resized it by then
                break
            continue
        if line.kind == "result" or "out=" in line.text or "resize_" in line.text or "set" in line.text:
            results |= {len(host.tensors) - 1} if line.kind == "result" else set(range(len(host.tensors)))
        if found := differs(host, device, results):
            return done, found
        if len(host.tensors) > TENSORS:
            break
    return done, ""


def source(seed: int, lines: list[Line]) -> str:
    """A program that shows it."""
    made = [
        f"torch.tensor({t.tolist()}, dtype={t.dtype}).reshape({tuple(t.shape)}).to(device)"
        for t in first_tensors(seed)
    ]
    return "\n".join(
        ["import copy, torch, macatensor", "from programs import loaded  # tests/fuzz",
         "zeros = lambda t: torch.zeros(1, dtype=torch.long, device=t.device)",
         "ones = lambda t: torch.ones(1, dtype=t.dtype, device=t.device)",
         'for device in ("cpu", "maca"):', f"    a = [{', '.join(made)}]",
         *(f"    {line.program()}" for line in lines), "    print(a)"]
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(programs.main(__doc__, __file__, run, source))
