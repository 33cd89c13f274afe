"""Whether a graph is being captured, for those who must refuse then what cannot be part of one."""

from __future__ import annotations

from typing import Any

current: Any = None  # the MacaGraph that is being captured
operator: Any = None  # the OpOverload that runs meanwhile, the outermost


def refuse(what: str) -> None:
    """Raises RuntimeError while a graph is being captured: ``what`` needs the host, which no replay asks."""
    if current is not None:
        by = f"{operator}: " if operator is not None else ""
        raise RuntimeError(
            f"{by}{what} is not permitted while a graph is being captured: a replay repeats launches on the device "
            "only. Do it before the capture, or leave the operator out of the graph"
        )
