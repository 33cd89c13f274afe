"""What tests of one way to compute convolutions share: a case and its operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Compute = Callable[..., torch.Tensor]
Case = tuple[Compute, tuple[int, ...], tuple[int, ...], dict[str, Any]]  # convolution, image, weight, how


def name(case: Case) -> str:
    compute, image, weight, options = case
    return f"{compute.__name__} {image} {weight} {options}"


def drawn(case: Case) -> list[torch.Tensor]:
    """Image, weight, bias and the result's gradient."""
    compute, x, w, how = case
    torch.manual_seed(0)
    image, weight = torch.randn(x), torch.randn(w)
    result = compute(image, weight, **how)
    return [image, weight, torch.randn(result.shape[1]), torch.randn_like(result)]


def check_written_again(case: Case) -> None:
    """Of a weight that stays, which is packed, and then is written."""
    compute, _, _, how = case
    image, weight, bias, _ = (t.maca() for t in drawn(case))
    with torch.inference_mode():
        first = compute(image, weight, bias, **how)
        for _ in range(3):
            assert torch.equal(compute(image, weight, bias, **how), first)
        weight.mul_(2)
        assert torch.equal(compute(image, weight, **how), 2 * compute(image, weight / 2, **how))
