"""A call while it runs, and what its line says."""

from __future__ import annotations

import json
import threading
from array import array
from collections.abc import Sequence, Set
from typing import Any

import torch

from macatensor.accuracy.recording.describe import value_text
from macatensor.accuracy.recording.flatten import Found

_LEVELS = ("api", "aten")


class Open:
    """A call that has begun. What most calls lack is the class's: 24 stores for each call would take 1 us."""

    number = -1  # not recorded
    serial = -1
    module: str | None = None
    owner = 0  # id of the module, of a module's call
    parent: int | None = None
    forward: int | None = None
    node: str | None = None
    stack: int | None = None
    thread = ""  # as a member of a JSON object
    inputs: str | None = None
    outputs: str | None = None
    random = False
    matched = True  # op_list takes it
    unit: bool | None = None  # does ``skip`` take the operator that it is or belongs to? None: of none
    in_backward = False  # it began while a node of the autograd graph ran in its thread
    has_modules = False
    grad_fns: Sequence[tuple[Any, int, str]] = ()  # nodes that made its arguments, which result, the place
    received: Set[int] = frozenset()  # ids of tensors that collectives, which it has started, were given
    files = 0  # written after that of the inputs

    def __init__(self, level: int, name: str, op: str, direction: str):
        self.level, self.name, self.op, self.direction = level, name, op, direction
        self.tensors: Found = []  # among its arguments
        self.versions: list[int] = []  # of these

    def line(self, error: BaseException | None = None) -> str:
        """As :func:`macatensor.accuracy.records.line_of_call`, from texts that are there already."""
        text = (
            f'{{"call":{{"number":{self.number},"level":"{_LEVELS[self.level]}","name":"{self.name}",'
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


def versions_of(tensors: Found) -> list[int]:
    """How often PyTorch counted a write to each tensor's memory."""
    try:
        return [tensor._version for _, tensor in tensors]
    except RuntimeError:  # inference tensors do not count their writes
        return [_version_of(tensor) for _, tensor in tensors]


def _version_of(tensor: torch.Tensor) -> int:
    try:
        return tensor._version
    except RuntimeError:
        return -1


def written_since(call: Open) -> Found:
    """The arguments that were written since the call began."""
    after = versions_of(call.tensors)
    if after == call.versions:
        return []
    return [pair for pair, old, new in zip(call.tensors, call.versions, after) if old != new]
