"""A call while it runs, and what its line says."""

from __future__ import annotations

import json
import threading
from array import array
from typing import Any

import torch

from macatensor.accuracy.recording.describe import Found, value_text


class Open:
    """A call that has begun."""

    __slots__ = (
        "number",  # -1: not recorded
        "serial",
        "level",
        "name",
        "op",
        "direction",
        "module",
        "owner",
        "parent",
        "forward",
        "node",
        "stack",
        "thread",
        "inputs",
        "outputs",
        "random",
        "matched",
        "unit",
        "in_backward",
        "has_modules",
        "found",
        "grad_fns",
        "versions",
        "files",
    )

    def __init__(self, level: str, name: str, op: str, direction: str):
        self.level, self.name, self.op, self.direction = level, name, op, direction
        self.number = self.serial = -1
        self.module: str | None = None
        self.owner = 0  # id of the module, of a module's call
        self.parent: int | None = None
        self.forward: int | None = None
        self.node: str | None = None
        self.stack: int | None = None
        self.thread = ""  # as a member of a JSON object
        self.inputs: str | None = None
        self.outputs: str | None = None
        self.random = False
        self.matched = True  # op_list takes it
        self.unit: bool | None = (
            None  # does ``skip`` take the operator that it is or belongs to? None: of none
        )
        self.in_backward = False  # it began while a node of the autograd graph ran in its thread
        self.has_modules = False
        self.found: Found = []
        self.grad_fns: list[tuple[Any, int, str]] = []
        self.versions: list[int] = []
        self.files = 0  # written after that of the inputs

    def line(self, error: BaseException | None = None) -> str:
        """As :func:`macatensor.accuracy.records.line_of_call`, from texts that are there already."""
        text = (
            f'{{"call":{{"number":{self.number},"level":"{self.level}","name":"{self.name}",'
            f'"op":"{self.op}","direction":"{self.direction}"'
        )
        if self.module is not None:
            text += f',"module":{value_text(self.module)}'
        if self.parent is not None:
            text += f',"parent":{self.parent}'
        if self.forward is not None:
            text += f',"forward":{self.forward}'
        if self.node is not None:
            text += f',"node":"{self.node}"'
        text += self.thread
        if self.inputs is not None:
            text += f',"inputs":{self.inputs}'
        if self.outputs is not None:
            text += f',"outputs":{self.outputs}'
        if self.stack is not None:
            text += f',"stack":{self.stack}'
        if self.random:
            text += ',"random":"random"'
        if error is not None:
            text += f',"error":{value_text(f"{type(error).__name__}: {error}")}'
        return text + "}}\n"


class Nodes:
    """Which forward call made an autograd node, by its sequence number: PyTorch counts nodes in each thread.

    Arrays, since a dictionary would take 200 bytes for each operator of the program.
    """

    __slots__ = ("last", "sequence", "call", "api", "stack", "flags")

    def __init__(self) -> None:
        self.last = 0
        self.sequence, self.call, self.api, self.stack = array("q"), array("q"), array("q"), array("q")
        self.flags = array("b")


class Thread:
    """What a thread of the program is doing."""

    __slots__ = ("name", "text", "open", "nodes", "number")

    def __init__(self, number: int) -> None:
        self.number = number  # identifiers are used again
        named = [t.name for t in threading.enumerate() if t.ident == threading.get_ident()]
        self.name = named[0] if named else "autograd"  # the autograd engine's threads are unknown to Python
        self.text = f',"thread":{json.dumps(self.name)}'
        self.open: list[Open] = []
        self.nodes = Nodes()


def version_of(tensor: torch.Tensor) -> int:
    """How often PyTorch counted a write to the tensor's memory."""
    try:
        return tensor._version
    except RuntimeError:  # inference tensors do not count their writes
        return -1
