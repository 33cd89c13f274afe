"""Calls as JSON: what is measured again without the program that made them."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._ops import OpOverload

from macatensor.choices import deciding
from macatensor.choices.deciding import Asked
from macatensor.dispatch.signature import read
from macatensor.files.untrusted import Json, json_of, readable, sizes
from macatensor.runtime.boxed import Value
from macatensor.runtime.tensor import MacaTensor
from op_table import TABLE

KIND, VERSION = "macatensor shapes", 1
_LONGEST = 64  # lists of numbers in a call: strides, paddings


def described(asked: Asked) -> Json:
    """The operator and its arguments; of tensors what their memory is like."""
    return {"operator": asked.row.name, "arguments": [_written(v) for v in asked.full]}


def _written(value: Value) -> Json:
    if isinstance(value, MacaTensor):
        return {
            "dtype": str(value.dtype).removeprefix("torch."),
            "size": list(value.shape),
            "stride": list(value.stride()),
        }
    if isinstance(value, (list, tuple)):
        return [_written(v) for v in value]
    if isinstance(value, (bool, int, str)) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return None  # devices, layouts and generators: not part of a plan


def _read(value: Json) -> Value:
    if isinstance(value, dict):
        dtype = getattr(torch, str(value.get("dtype")), None)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"no dtype of PyTorch: {value.get('dtype')!r}")
        size, stride = sizes(value.get("size")), sizes(value.get("stride"))
        readable(size, stride)
        return torch.empty_strided(size, stride, dtype=dtype, device="maca")
    if isinstance(value, list):
        if len(value) > _LONGEST:
            raise ValueError(f"a list of {len(value)} values")
        return [_read(v) for v in value]
    return value


def operator_of(name: object) -> OpOverload:
    """The overload of a row whose library has several algorithms. Raises ValueError for another."""
    row = TABLE.get(name) if isinstance(name, str) else None
    if row is None or row.kernel_name not in deciding.KERNELS:
        raise ValueError(f"{name!r} is no operator of which a library has several algorithms")
    packet = getattr(torch.ops.aten, row.operator)
    overload: OpOverload = getattr(packet, row.name.partition(".")[2] or "default")
    return overload


def run(call: Json) -> None:
    """Runs a call on memory of any content, so that its way is decided. Raises ValueError for what is no call, and
    what the operator raises."""
    given = call.get("arguments") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(given, list):
        raise ValueError("no call of an operator")
    func = operator_of(call.get("operator"))
    arguments: list[Any] = [_read(v) for v in given]
    signature = read(func)
    if len(arguments) != len(signature.arguments):
        raise ValueError(f"{func} takes {len(signature.arguments)} arguments, the file has {len(arguments)}")
    with torch.no_grad():
        signature.call(func, arguments)


@contextlib.contextmanager
def recording() -> Iterator[dict[str, Json]]:
    """Collects the calls of the block by signature, each once."""
    found: dict[str, Json] = {}

    def note(asked: Asked, signature: str) -> None:
        if signature not in found:
            found[signature] = described(asked)

    before, deciding.watcher = deciding.watcher, note
    try:
        yield found
    finally:
        deciding.watcher = before


def store(calls: Mapping[str, Json] | Sequence[Json], path: Path) -> None:
    """Writes calls for :func:`load`."""
    listed = list(calls.values()) if isinstance(calls, Mapping) else list(calls)
    facts = {"shapes": KIND, "version": VERSION, "calls": listed}
    path.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def load(path: Path) -> list[Json]:
    """The calls of :func:`store`, or of a bank. Raises OSError, and ValueError for another file."""
    if path.suffix == ".jsonl":
        from macatensor.choices import bank

        return [e.call for e in bank.read(path, of_this_machine=False).values() if e.call is not None]
    facts = json_of(path)
    if not isinstance(facts, dict) or facts.get("shapes") != KIND or facts.get("version") != VERSION:
        raise ValueError(f"{path} holds no shapes of version {VERSION}; `macatensor tune --dump` writes such")
    calls = facts.get("calls")
    if not isinstance(calls, list):
        raise ValueError(f"{path} lists no calls")
    return calls
