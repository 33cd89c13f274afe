"""Types of a boxed call, as PyTorch's dispatcher makes it: what ``__torch_dispatch__`` is given and what it returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

# An argument or a result of an operator. PyTorch's own interface has Any for it; the operator's schema says more.
Value: TypeAlias = Any
Arguments: TypeAlias = tuple[Value, ...]
Keywords: TypeAlias = dict[str, Value]
Launcher: TypeAlias = Callable[[Arguments, "Keywords | None"], Value]
