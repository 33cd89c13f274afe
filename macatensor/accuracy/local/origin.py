"""Where a call comes from: its direction, its autograd node, and the Python stack, of a backward call its forward's."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from macatensor.dispatch import sites
from macatensor.runtime.callers import OURS, TORCH

_FRAME = re.compile(r'  File "(.+)", line (\d+), in (.+)')
_SHOWN = 8
_INSIDE = (TORCH, "<frozen")


@dataclass(frozen=True)
class Origin:
    """``frames``: ``"file:line function"``, innermost last, without this package's own."""

    direction: str  # "fwd" or "bwd"
    node: str = ""  # of a backward call: "TanhBackward0"
    frames: tuple[str, ...] = ()

    @property
    def own(self) -> list[str]:
        """The frames outside of PyTorch."""
        return [f for f in self.frames if not f.startswith(_INSIDE)]

    @property
    def shown(self) -> list[str]:
        """The innermost of :attr:`own` for a message."""
        return self.own[-_SHOWN:]

    @property
    def line(self) -> str:
        """``"train.py:12 step"``, the innermost line outside of PyTorch, or ``""``."""
        return self.own[-1] if self.own else ""

    def __str__(self) -> str:
        of = f" of {self.node}" if self.node else ""
        way = "forward" if self.direction == "fwd" else f"backward{of}"
        return f"{way}, {self.line}" if self.line else way


def _shown(filename: str) -> bool:
    return not filename.startswith((OURS, "<frozen"))


def origin() -> Origin:
    """Of the operator that is running. A backward call has its forward's stack inside of :func:`traced` only."""
    if torch._C._current_graph_task_id() == -1:
        stack = [f for f in reversed(sites.here("").frames) if _shown(f.filename)]
        frames = [f"{f.filename}:{f.line} {f.name}" for f in stack]
        return Origin("fwd", "", tuple(frames))
    node: Any = torch._C._current_autograd_node()
    if node is None:
        return Origin("bwd")
    found = []
    for text in node.metadata.get("traceback_", []):
        match = _FRAME.match(text)
        if match and _shown(match[1]):
            found.append(f"{match[1]}:{match[2]} {match[3]}")
    return Origin("bwd", node.name().rpartition("::")[2], tuple(found))


@contextlib.contextmanager
def traced() -> Iterator[None]:
    """Autograd keeps the forward's stack in every node that is made inside."""
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        yield
