"""Writes a failing call as one file of plain torch code: inputs embedded, expected and got values, exit status 1 or 0."""

from __future__ import annotations

import base64
import subprocess
import sys
import textwrap
import zlib
from pathlib import Path

import torch

from macatensor.accuracy.local.circumstances import LAUNCHES_BEFORE, Circumstance
from macatensor.accuracy.local.fences import FILL, MARGIN
from macatensor.accuracy.local.op_call import OpCall, Tensors
from macatensor.dispatch.placed_results import may_place_results
from macatensor.parity.chains import by_chains
from macatensor.parity.measure import allowance
from macatensor.parity.reference import Aim, dim_of_positions
from macatensor.parity.watch import ELSEWHERE, NamedKernel, written_by
from macatensor.runtime.boxed import Value
from macatensor.runtime.meta import meta_of_tensor

RACE_RUNS = 200
TRIAL_SECONDS = 300  # after which a repro that does not end is none
_LITERAL = 256  # elements written as numbers; more are written as compressed bytes


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype)


def _values(row: torch.Tensor) -> str:
    """A 1-D tensor as an expression."""
    if row.numel() > _LITERAL:
        raw = bytes(row.contiguous().view(torch.uint8).tolist())
        packed = base64.b85encode(zlib.compress(raw, 9)).decode()
        lines = "\n".join(f'    "{part}"' for part in textwrap.wrap(packed, 96))
        return f"packed(\n{lines},\n    {_dtype(row.dtype)},\n)"
    # repr of the float64 gives back the very bits of any narrower float
    numbers = repr((row.to(torch.complex128) if row.is_complex() else _plain(row)).tolist())
    return f"torch.tensor({numbers}, dtype={_dtype(row.dtype)})"


def _plain(row: torch.Tensor) -> torch.Tensor:
    return row.double() if row.is_floating_point() else row


def tensor_code(t: torch.Tensor, to_device: bool = True) -> str:
    """An expression for a host tensor, on ``device`` with its strides: a row of memory, seen by ``as_strided``."""
    meta = meta_of_tensor(t)
    start = int(t.storage_offset())
    if t.is_contiguous() and not start:
        memory = t.reshape(-1)
        shaped = "" if t.dim() == 1 else f".view({list(t.shape)})"
    else:
        memory = torch.as_strided(t, (start + meta.extent,), (1,), 0)
        shaped = f".as_strided({list(t.shape)}, {list(t.stride())}{f', {start}' if start else ''})"
    moved = ".to(device)" if to_device else ""
    return f"{_values(memory)}{moved}{shaped}"


def value_code(value: Value, names: dict[int, str]) -> str:
    """An argument as an expression; tensors by their names."""
    if isinstance(value, torch.Tensor):
        return names[id(value)]
    if isinstance(value, (list, tuple)):
        inner = ", ".join(value_code(v, names) for v in value)
        return f"[{inner}]"
    if isinstance(value, torch.device):
        return "torch.device(device)"
    if value is None or isinstance(
        value, (bool, int, float, complex, str, torch.dtype, torch.layout, torch.memory_format)
    ):
        return repr(value)
    raise NotImplementedError(f"accuracy: a {type(value).__name__} cannot be written in a repro")


# kernels that no aten operator names: what launches them
_KERNELS = {
    "sdpa_forward": (
        "def call(query, key, value, mask, is_causal, scale):\n"
        "    attention = torch.nn.functional.scaled_dot_product_attention\n"
        "    with torch.no_grad():\n"
        "        return attention(query, key, value, mask, is_causal=is_causal, scale=scale)",
        1,
    ),
    "sdpa_backward": (
        "def call(grad, query, key, value, mask, output, logsumexp, is_causal, scale):\n"
        "    attention = torch.nn.functional.scaled_dot_product_attention\n"
        "    operands = [t.detach().requires_grad_() for t in (query, key, value)]\n"
        "    result = attention(*operands, mask, is_causal=is_causal, scale=scale)\n"
        "    return torch.autograd.grad(result, operands, grad)",
        3,
    ),
}


def _at_positions(source: str, positions: torch.Tensor, operand: str, call: OpCall) -> str:
    """What the operand has at the positions that a result gives."""
    dim = dim_of_positions(call.row, call.args)
    if positions.dim() == call.args[0].dim():
        return f"{operand}.cpu().gather({dim}, {source}.cpu())"
    return f"{operand}.cpu().gather({dim}, {source}.cpu().unsqueeze({dim})).squeeze({dim})"


# PyTorch's own out= may take a copy: the kernel is to write its results where the file looks
_PLACED = """\
def call(*args, places, **kwargs):
    if device != "maca":
        return torch.ops.{0}(*args, **kwargs)
    from macatensor.dispatch.placed_results import place_results

    place_results(torch.ops.{0}, args, kwargs, places)"""


def _fences(
    call: OpCall, names: dict[int, str], results: Tensors
) -> tuple[dict[str, bool], str, list[tuple[str, str]], str]:
    """What the file looks at instead of results: tensors by name and whether they may be written, the function to call,
    further tensors, and further arguments."""
    args, kwargs = call.args, call.kwargs
    written = written_by(call.func, call.row, args, kwargs)
    here = {i: t for i, t in enumerate(call.operands) if t is not None and i not in call.at_host}
    fences = {names[id(t)]: id(t) in written for t in here.values()}
    if not may_place_results(call.func):
        return fences, f"call = torch.ops.{call.func}", [], ""
    made = [
        (f"r{i}", f"torch.empty_strided({list(t.shape)}, {list(t.stride())}, dtype={_dtype(t.dtype)})")
        for i, t in enumerate(t for t in results if t is not None)
    ]
    fences |= {name: True for name, _ in made}
    return fences, _PLACED.format(call.func), made, f", places=[{', '.join(name for name, _ in made)}]"


def repro_text(
    call: OpCall,
    why: str,
    where: str,
    device: str,
    race: bool = False,
    name: str = "repro.py",
    trespasses: bool = False,
) -> str:
    """The file's text. ``trespasses``: it looks at memory that the call must leave alone, and not at results.

    Raises:
        NotImplementedError: the results have several right values (eigenvectors), or an argument has no literal form.
    """
    from jinja2 import Environment, PackageLoader

    results, changed = call.run(device)
    aimed = [] if trespasses else call.aims(results, changed, device)
    operands = call.operands
    names: dict[int, str] = {}
    inputs = []
    for i, t in enumerate(operands):
        if t is None:
            continue
        if id(t) not in names:
            names[id(t)] = f"x{len(names)}"
            inputs.append((names[id(t)], tensor_code(t, i not in call.at_host and not trespasses)))
    args = [value_code(a, names) for a in call.args]
    args += [f"{k}={value_code(v, names)}" for k, v in call.kwargs.items()]
    fences: dict[str, bool] = {}
    passed = ""
    kernel = isinstance(call.func, NamedKernel)
    define, count = (
        _KERNELS[call.func._schema.name] if kernel else (f"call = torch.ops.{call.func}", len(results))
    )
    if trespasses:
        fences, define, made, passed = _fences(call, names, results)
        inputs += made
    checks = []
    for i, (got, aim) in enumerate(zip(results + changed, aimed)):
        if got is None or aim is None or (kernel and i >= count):
            continue
        source = f"results[{i}]" if i < len(results) else names[id(operands[i - len(results)])]
        want = aim.want.resolve_conj().resolve_neg().contiguous()
        if aim.positions:
            source = _at_positions(source, got, names[id(operands[0])], call)
        allowed = "0.0"
        if aim.bound is not None:
            allowed = tensor_code(_allowed(got, want, aim, device), to_device=False)
        checks.append(
            {
                "source": source,
                "dtype": _dtype(want.dtype if aim.positions else got.dtype),
                "want": tensor_code(want, to_device=False),
                "allowed": allowed,
                "got": _shown(got),
                "shown": _shown(want),
            }
        )
    if not checks and not fences:
        raise NotImplementedError(
            f"accuracy: results of {call.name} have several right values; no repro of one file"
        )
    template = Environment(
        loader=PackageLoader("macatensor.accuracy.local", "."),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    ).get_template("repro.py.j2")
    return template.render(
        operator=call.name, why=why.replace('"""', "'''"), where=where, device=device, inputs=inputs, define=define,
        arguments=", ".join(args) + passed, fences=fences, margin=MARGIN, fill=FILL,
        state=None if call.state is None else [b for word in call.state for b in word.to_bytes(8, "little")],
        rewritten=call.circumstance is Circumstance.REWRITTEN, launches_before=LAUNCHES_BEFORE,
        on_stream=call.circumstance is Circumstance.STREAM, checks=checks, runs=RACE_RUNS if race else 1, name=name,
        packs=any("packed(" in code for _, code in inputs) or any("packed(" in c["want"] + c["allowed"] for c in checks),
    )  # fmt: skip


def _allowed(got: torch.Tensor, want: torch.Tensor, aim: Aim, device: str) -> torch.Tensor:
    """The error that each element of a result may have, by the law that its verdict follows."""
    assert aim.bound is not None
    error = allowance(got.dtype, want, aim.bound, aim.terms, aim.loose).contiguous()
    if aim.chains is not None and bool(((got - want).abs() > error).any()):
        found = by_chains(got, want, aim.bound, aim.terms, aim.chains, aim.result)
        flat = error.view(-1)
        looked, allowed = (
            torch.tensor(found.elements, dtype=torch.int64, device="cpu"),
            torch.tensor(found.allowed, dtype=flat.dtype, device="cpu"),
        )
        if len(looked):  # those that nobody looked at may lie as far off as these
            flat *= float((allowed / flat[looked]).max())
            flat[looked] = allowed
    return error if device == "maca" else ELSEWHERE * error


def _shown(t: torch.Tensor) -> str:
    flat = t.reshape(-1)[:6].tolist()
    return ", ".join(f"{v:.9g}" if isinstance(v, float) else str(v) for v in flat) + (
        " …" if t.numel() > 6 else ""
    )


def write_repro(
    file: Path,
    call: OpCall,
    why: str,
    where: str,
    device: str,
    race: bool = False,
    trespasses: bool = False,
) -> Path:
    """Writes :func:`repro_text`; an existing file is never overwritten, a number is added to the name."""
    file.parent.mkdir(parents=True, exist_ok=True)
    chosen, number = file, 1
    while chosen.exists():
        number += 1
        chosen = file.with_name(f"{file.stem}_{number}{file.suffix}")
    text = repro_text(call, why, where, device, race, chosen.name, trespasses)
    chosen.write_text(text)
    return chosen


def fails(file: Path) -> bool:
    """Does the file end with status 1 in a process of its own, with this one's environment?"""
    try:
        ended = subprocess.run(
            [sys.executable, str(file)], capture_output=True, check=False, timeout=TRIAL_SECONDS
        )
    except subprocess.TimeoutExpired:
        return False
    return ended.returncode == 1
