"""Backward calls of Python functions and modules, and parameters' gradients.

When a function returns, its autograd nodes are those between its results and its arguments. Hooks on them tell what
gradient came in and what went out. No hook holds a node or a tensor: they would keep each other alive.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch.autograd.graph import Node
from torch.utils.hooks import RemovableHandle

from macatensor.accuracy.recording.describe import Describer
from macatensor.accuracy.recording.flatten import Found
from macatensor.accuracy.recording.module_paths import ModulePaths
from macatensor.accuracy.recording.stacks import Stacks
from macatensor.accuracy.recording.threads import API, Nodes, Open, Thread
from macatensor.runtime.uncompiled import uncompiled

_LIMIT = 1 << 14  # nodes of one call; a longer one has no backward call of its own
_ACCUMULATE = "torch.autograd.AccumulateGrad"
_THREAD = "macatensor.thread"  # in a node's metadata

_AccumulateGrad: type = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]
_Plainly = torch._C.DisableTorchFunction
_TENSOR: Any = torch.Tensor  # whose attributes a subclass cannot forbid
_grad_fn, _output_nr = _TENSOR.grad_fn.__get__, _TENSOR.output_nr.__get__
_graph_task = torch._C._current_graph_task_id

_Edges = list[tuple[int, str]]  # which of the gradients that a node is given or returns, and what it is of


class _Gradients:
    """The gradients that pass the nodes of one call, and what the backward call takes over from that forward call."""

    __slots__ = (
        "stem",
        "op",
        "module",
        "unit",
        "number",
        "serial",
        "stack",
        "matched",
        "nodes",
        "left",
        "task",
        "call",
    )

    def __init__(self, call: Open, nodes: int):
        self.stem = call.name.removesuffix(".fwd")
        self.op, self.module, self.unit, self.matched = call.op, call.module, call.unit, call.matched
        self.number, self.serial, self.stack = call.number, call.serial, call.stack
        self.nodes = self.left = nodes  # left: those that have not run yet
        self.task = -1
        self.call: Open | None = None  # the backward call, while it runs


def _name_of(node: Node) -> str:
    """A node's name without the namespace of PyTorch's own."""
    name: str = node.name()
    return name.removeprefix("torch::autograd::")


def _found(edges: _Edges, given: Sequence[torch.Tensor | None]) -> Found:
    return [(place, given[i]) for i, place in edges if i < len(given) and given[i] is not None]


def _joined(whole: str, more: str | None) -> str:
    """What comes piece by piece: a list of JSON goes on with another."""
    if more is None or more == "[]":
        return whole
    return more if whole == "[]" else f"{whole[:-1]},{more[1:]}"


class Recording(Protocol):
    """What backward calls ask of their recorder."""

    active: bool
    lock: threading.RLock
    has_inputs: bool
    has_outputs: bool
    has_stacks: bool
    has_tensors: bool
    takes_all: bool
    threads: int
    numbers: Iterator[int]
    describer: Describer
    paths: ModulePaths
    stacks: Stacks

    def thread(self) -> Thread: ...
    def nodes_of(self, thread: Thread, node: Node) -> Nodes | None: ...
    def name(self, op: str, direction: str) -> str: ...
    def decide(self, call: Open, parent: Open | None, is_unit: bool) -> bool: ...
    def begin_files(self, call: Open) -> None: ...
    def describe_more(self, call: Open, found: Found) -> str: ...
    def describe_outputs(self, call: Open, found: Found, written: Collection[int] = ()) -> str | None: ...
    def save(self) -> None: ...
    def write(self, call: Open) -> None: ...


@uncompiled
class Backward:
    """The backward calls of one recorder."""

    def __init__(self, recorder: Recording):
        self._recorder = recorder
        self.running: dict[int, Open] = {}  # the backward calls that run, by the forward call's serial number
        self._gradients: dict[int, _Gradients] = {}  # theirs
        self._tasks: set[int] = set()  # of the autograd engine that are at work
        self._watched: list[RemovableHandle] = []  # hooks of leaves

    def close(self) -> None:
        """Writes what is left, and takes the hooks of leaves away; those of nodes go with their graph."""
        self._flush(list(self._gradients.values()))
        for hook in self._watched:
            hook.remove()
        self._watched.clear()

    # -- a call has returned -----------------------------------------------------------------------------------
    def attach(self, call: Open, tensors: Found, module: torch.nn.Module | None) -> None:
        """Hooks the nodes that a call has made; ``tensors`` are its results that require gradients."""
        known = call.grad_fns or ()
        coming: dict[Node, _Edges] = {}  # by the nodes that made results and not arguments
        met = set()
        for place, tensor in tensors:
            node = _grad_fn(tensor)
            if node is None or id(tensor) in met or any(node is maker for maker, _, _ in known):
                continue
            met.add(id(tensor))
            coming.setdefault(node, []).append((_output_nr(tensor), place))
        if not coming:
            return
        going = self._walk(call, list(coming), known, module)
        if going is None:
            return
        gradients = _Gradients(call, len(going))
        number = self._recorder.thread().number if self._recorder.threads > 1 else None
        for node, edges in going:
            results = coming.get(node)
            if results is not None:
                node.register_prehook(functools.partial(self._came_in, gradients, results, _name_of(node)))
            node.register_hook(functools.partial(self._went_out, gradients, edges))
            if number is not None:
                node.metadata[_THREAD] = number  # type: ignore[index]  # an attribute

    def _walk(
        self,
        call: Open,
        nodes: list[Node],
        known: Sequence[tuple[Node, int, str]],
        module: torch.nn.Module | None,
    ) -> list[tuple[Node, _Edges]] | None:
        """The nodes between results and arguments, and where the gradients that each returns belong; None: too many."""
        seen = set(nodes)
        going: list[tuple[Node, _Edges]] = []
        for node in nodes:  # which grow meanwhile
            edges: _Edges = []
            going.append((node, edges))
            for index, (following, number) in enumerate(node.next_functions):
                if following is None or following in seen:
                    continue
                place, is_argument = "", False
                for maker, result, at in known:
                    if maker is following:
                        is_argument = True
                        if result == number:
                            place = at
                if not is_argument:
                    if type(following) is not _AccumulateGrad:
                        if len(nodes) >= _LIMIT:
                            return None
                        seen.add(following)
                        nodes.append(following)
                        continue
                    leaf: torch.Tensor = following.variable  # type: ignore[attr-defined]
                    place = _place_of_leaf(call, module, leaf)
                    if module is None:
                        self._watch(leaf)
                edges.append((index, place or f"{_name_of(node)}.{index}"))
        return going

    def _watch(self, leaf: torch.Tensor) -> None:
        """Records the gradient of a leaf each time it has been accumulated."""
        hook = self._accumulated
        if hook not in (leaf._post_accumulate_grad_hooks or {}).values():
            self._watched.append(leaf.register_post_accumulate_grad_hook(hook))

    # -- operators ---------------------------------------------------------------------------------------------
    def operator(self, thread: Thread, node: Node, call: Open) -> None:
        """An operator begins that a node runs; it belongs to the forward call that made the node."""
        recorder = self._recorder
        call.node = _name_of(node)
        nodes = recorder.nodes_of(thread, node) if recorder.threads > 1 else thread.nodes
        facts = None if nodes is None else nodes.of(node._sequence_nr())
        if facts is not None:
            call.forward, function, call.stack, matched, unit = facts
            outer = self.running.get(function)
            if outer is not None:
                call.module, call.parent = outer.module, outer.number
        if recorder.takes_all:
            call.number = next(recorder.numbers)
        elif facts is None:
            recorder.decide(call, None, True)
        else:
            self._decide(call, bool(matched), bool(unit))
        if call.number >= 0 and call.stack < 0 and recorder.has_stacks:
            call.stack = recorder.stacks.here()

    # -- its backward call -------------------------------------------------------------------------------------
    def _decide(self, call: Open, matched: bool, unit: bool | None) -> None:
        """Is a backward call recorded? As the forward call's choice was."""
        parent = Open(API, "", "", "bwd")
        parent.matched, parent.unit = matched, unit
        self._recorder.decide(call, parent, True)

    def _begins(self, gradients: _Gradients) -> Open:
        """The call's first node runs."""
        recorder = self._recorder
        call = gradients.call = Open(API, f"{gradients.stem}.bwd", gradients.op, "bwd")
        call.serial, call.module, call.forward = gradients.serial, gradients.module, gradients.number
        call.inputs = call.outputs = "[]"
        call.thread = recorder.thread().text
        if recorder.takes_all:
            call.number = next(recorder.numbers)
        else:
            self._decide(call, gradients.matched, gradients.unit)
        call.stack = gradients.stack
        if call.number >= 0 and call.stack < 0 and recorder.has_stacks:
            call.stack = recorder.stacks.here()
        self.running[gradients.serial] = call
        self._gradients[gradients.serial] = gradients
        gradients.task = task = _graph_task()
        if task not in self._tasks:
            self._tasks.add(task)
            torch.autograd.Variable._execution_engine.queue_callback(functools.partial(self._task_ends, task))
        return call

    def _came_in(
        self, gradients: _Gradients, edges: _Edges, node: str, given: Sequence[torch.Tensor | None]
    ) -> None:
        """A hook before a node."""
        recorder = self._recorder
        if not recorder.active:
            return
        with _Plainly(), recorder.lock:
            call = gradients.call or self._begins(gradients)
            if call.node is None:
                call.node = node
            if call.number >= 0 and recorder.has_inputs:
                call.inputs = _joined(call.inputs or "[]", recorder.describe_more(call, _found(edges, given)))

    def _went_out(
        self, gradients: _Gradients, edges: _Edges, given: Sequence[torch.Tensor | None], _: object
    ) -> None:
        """A hook after a node."""
        recorder = self._recorder
        if not recorder.active:
            return
        with _Plainly(), recorder.lock:
            call = gradients.call or self._begins(gradients)
            if call.number >= 0:
                call.outputs = _joined(
                    call.outputs or "[]", recorder.describe_outputs(call, _found(edges, given))
                )
            gradients.left -= 1
            if gradients.left <= 0:
                self._end(gradients)

    def _end(self, gradients: _Gradients) -> None:
        """All nodes of the call have run, or backward is over."""
        call, gradients.call = gradients.call, None
        gradients.left = gradients.nodes
        self.running.pop(gradients.serial, None)
        self._gradients.pop(gradients.serial, None)
        if call is None or call.number < 0:
            return
        if not self._recorder.has_inputs:
            call.inputs = None
        if not self._recorder.has_outputs:
            call.outputs = None
        self._recorder.write(call)

    def _task_ends(self, task: int) -> None:
        """A task of the autograd engine is over: calls some of whose nodes were not needed are written."""
        with _Plainly(), self._recorder.lock:
            self._tasks.discard(task)
            self._flush([g for g in self._gradients.values() if g.task == task])

    def _flush(self, left: list[_Gradients]) -> None:
        for gradients in sorted(left, key=lambda g: -g.serial):
            self._end(gradients)

    def _accumulated(self, leaf: torch.Tensor) -> None:
        """A leaf has its gradient."""
        recorder = self._recorder
        if not recorder.active:
            return
        with _Plainly(), recorder.lock:
            call = Open(API, recorder.name(_ACCUMULATE, "bwd"), _ACCUMULATE, "bwd")
            call.thread, call.node = recorder.thread().text, "AccumulateGrad"
            call.module = recorder.paths.parameter(leaf)
            if not recorder.decide(call, None, True):
                return
            if recorder.has_tensors:
                recorder.begin_files(call)
            if recorder.has_inputs:
                call.inputs = recorder.describer.arguments([("variable", leaf)], API)
            recorder.save()
            gradient = leaf.grad
            call.outputs = recorder.describe_outputs(call, [("grad", gradient)], {id(gradient)})
            recorder.write(call)


def _place_of_leaf(call: Open, module: torch.nn.Module | None, leaf: torch.Tensor) -> str:
    """The name by which a module or a call knows a leaf, or ""."""
    if module is not None:
        for name, held in module._parameters.items():
            if held is leaf:
                return str(name)
    return next((place for place, held in reversed(call.tensors) if held is leaf), "")
