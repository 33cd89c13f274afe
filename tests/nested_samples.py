"""PyTorch's samples of operators over jagged nested tensors (``njt_op_db``), on maca against the host.

``python tests/nested_samples.py`` asks all of them and prints the counts.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch.testing._internal.opinfo.definitions.nested import njt_op_db
from torch.utils._pytree import tree_leaves, tree_map

# PyTorch draws normal numbers for these, which take integers alone
_UNDRAWN = {"bitwise_left_shift", "bitwise_right_shift"}
OPERATORS = {op.full_name: op for op in njt_op_db if op.supports_njt and op.full_name not in _UNDRAWN}
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5, "equal_nan": True}


def moved(value: Any) -> Any:
    """A leaf on maca where it was one on the host."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().to("maca").requires_grad_(value.requires_grad)


def parts(value: Any) -> Any:
    """What a tensor is made of, on the host, without a place in a graph."""
    if isinstance(value, str):  # which PyTorch's comparison does not take
        return list(value.encode())
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach()
    if not value.is_nested:
        return value.cpu()
    lengths = value.lengths()
    return {
        "values": value.values().cpu(),
        "offsets": value.offsets().cpu(),
        "lengths": None if lengths is None else lengths.cpu(),
        "ragged": value._ragged_idx,
    }


def same(found: Any, expected: Any) -> bool:
    """Values, offsets, lengths, dtypes and sizes; numbers up to rounding."""
    try:
        with torch.no_grad():
            torch.testing.assert_close(tree_map(parts, found), tree_map(parts, expected), **TOLERANCE)
    except AssertionError:
        return False
    return True


def outcome(op: Any, sample: Any, move: Any) -> tuple[Any, Any]:
    """Result and gradients of a call whose arguments were moved, or the errors in their places."""
    arguments = tree_map(move, (sample.input, sample.args, sample.kwargs))
    try:
        result = op.op(arguments[0], *arguments[1], **arguments[2])
    except Exception as error:
        return error, None
    leaves = [t for t in tree_leaves(arguments) if isinstance(t, torch.Tensor) and t.requires_grad]
    results = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
    if not leaves or not results:
        return result, None
    try:
        ones = [torch.ones_like(t) for t in results]
        return result, list(torch.autograd.grad(results, leaves, ones, allow_unused=True))
    except Exception as error:
        return result, error


def judged(found: Any, expected: Any, again: Any) -> str:
    """``same``, ``differs``, ``refused`` by maca alone, ``refused alike``, ``maca alone``, or ``random``."""
    if isinstance(expected, Exception) or isinstance(found, Exception):
        if not isinstance(found, Exception):
            return "maca alone"
        return "refused alike" if isinstance(expected, Exception) else "refused"
    if same(found, expected):
        return "same"
    return "differs" if same(again, expected) else "random"


def samples(op: Any, step: int) -> Iterator[Any]:
    """Every ``step``-th of an operator's samples, in float32 where it takes that."""
    dtype = torch.float32 if torch.float32 in op.dtypes else torch.int64
    requires_grad = op.supports_autograd and dtype is torch.float32
    try:
        for number, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=requires_grad)):
            # PyTorch's own gradient of a part of size 0 ends the process
            if number % step == 0 and 0 not in sample.kwargs.get("split_sizes", ()):
                yield sample
    except RuntimeError:  # PyTorch cannot draw one in this dtype
        return


def ask(name: str, step: int = 1, told: list[str] | None = None) -> Counter[str]:
    """How often what came out, forward and backward."""
    op, counts = OPERATORS[name], Counter[str]()
    for sample in samples(op, step):
        expected, again = (outcome(op, sample, lambda t: t) for _ in range(2))
        found = outcome(op, sample, moved)
        for i, way in enumerate(("forward", "backward")):
            if found[i] is None and expected[i] is None:
                continue
            word = judged(found[i], expected[i], again[i])
            counts[f"{way} {word}"] += 1
            if told is not None and word in ("differs", "refused"):
                told.append(
                    f"{name} [{sample.name}] {way} {word}: {found[i]!r:.300} for {expected[i]!r:.300}"
                )
    return counts


def main() -> None:
    total, told = Counter[str](), list[str]()
    step = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    for name in OPERATORS:
        total += ask(name, step, told)
    print("\n".join(told))
    print(len(OPERATORS), "operators:", dict(sorted(total.items())))


if __name__ == "__main__":
    main()
