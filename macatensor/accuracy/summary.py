"""The host library's single pass over a tensor's elements."""

from __future__ import annotations

from typing import Any

import torch


def summarize(tensor: torch.Tensor) -> Any:
    """The numbers of a tensor whose elements the host library reaches; None of any other."""
    return None
