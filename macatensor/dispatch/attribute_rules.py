"""What kernels are told beside the arguments of the operator's schema: by the name that rows of the op table give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from macatensor.dispatch.request import Attribute

_Told = Callable[[], Sequence[tuple[str, Attribute]]]
_Rule = TypeVar("_Rule", bound=_Told)

ATTRIBUTE_RULES: dict[str, _Told] = {}


def attribute_rule(function: _Rule) -> _Rule:
    """Makes a function the rule of rows that name it."""
    ATTRIBUTE_RULES[function.__name__] = function
    return function


@attribute_rule
def order_of_cpu() -> tuple[tuple[str, int], tuple[str, bool]]:
    """How this machine's PyTorch packs weights of 4 bits: rows of a block, and whether the second half of a block lies in the
    high bits of the first, or each odd row in those of the one before. Rows that fill no block lie in one of the latter kind."""
    capability = torch.backends.cpu.get_cpu_capability()
    rows = 64 if capability == "AVX512" else 32  # four vectors of float32
    return ("block_rows", rows), ("by_halves", capability in ("AVX512", "AVX2"))
