"""Parity: every row of the op table against a float64 reference from the same inputs, judged by the row's bound."""

from __future__ import annotations

from macatensor.parity.runner import Result, run, run_row, select

__all__ = ["Result", "run", "run_row", "select"]
