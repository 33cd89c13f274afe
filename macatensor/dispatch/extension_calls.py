"""Operators of users' own, ``mine::bias_gelu``, that a joined library has a kernel of the same name for.

They have no row: what the results are, the user's fake kernel says (``torch.library.register_fake``), and PyTorch's words for
what is wrong with a call are those of the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import torch
from torch._ops import OpOverload

from macatensor.dispatch.kernel_calls import KernelLauncher
from macatensor.dispatch.launcher import Run
from macatensor.dispatch.plan import infer
from macatensor.dispatch.rowless import without_row
from macatensor.dispatch.signature import Form, Signature
from macatensor.runtime import extensions
from macatensor.runtime.boxed import Arguments, Value
from macatensor.runtime.tensor import Payload
from op_table import Kind, Row
from op_table.row import ALL

if TYPE_CHECKING:
    from macatensor.dispatch.request import Scalar

_HOST_KEYS = ("CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd", "PrivateUse1")


class ExtensionLauncher(KernelLauncher):
    """Calls of an operator that is no operator of PyTorch's: nothing is known of it but its schema and its fake kernel."""

    def __init__(self, func: OpOverload):
        name = func.name()
        row = Row(name, Kind.KERNEL, ALL, kernel=name, why="a joined library has its kernel")
        super().__init__(func, row, Form.DIRECT, func)

    def check_dtype(self, full: list[Value]) -> None:
        """The kernel and the fake kernel say which dtypes there are."""

    def ask_host(self, full: list[Value], heard: bool = False) -> None:
        """What a number may be, the operator itself says."""

    def infer(self, signature: Signature, full: list[Value]) -> Value:
        """What the fake kernel gives, or raises."""
        return infer(signature, full, self.row)

    def refuse(self, full: list[Value], reason: str) -> NoReturn:
        raise RuntimeError(f"{self.signature.name}: {reason}")

    def declined(self, full: list[Value], reason: str) -> Run:
        """The user's kernel in Python, or the host's; an error where there is neither."""
        has = torch._C._dispatch_has_kernel_for_dispatch_key
        if not any(has(self.func.name(), key) for key in _HOST_KEYS):
            raise NotImplementedError(
                f"{self.signature.name} has no kernel on maca for this call ({reason}), and none for the host that could serve "
                "in its place"
            )

        def run(args: Arguments, payloads: Sequence[Payload], scalars: Sequence[Scalar]) -> Value:
            split = self.signature.positional
            return without_row(self.func, args[:split], self.signature.named(args), reason)

        return run


def serves(func: OpOverload) -> bool:
    """Has a joined library a kernel of this operator's name? Those of PyTorch's have rows."""
    return func.namespace != "aten" and bool(extensions.naming(func.name()))
