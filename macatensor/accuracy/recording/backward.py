"""Backward calls of Python functions and modules, and parameters' gradients.

When a function returns, its autograd nodes are those between its results and its arguments. Hooks on them tell what
gradient came in and what went out. No hook holds a node or a tensor: they would keep each other alive.
"""

from __future__ import annotations

from typing import Any

import torch

from macatensor.accuracy.recording.calls import Open
from macatensor.accuracy.recording.flatten import Found
from macatensor.accuracy.recording.identity import API
from macatensor.accuracy.recording.uncompiled import uncompiled

_LIMIT = 1 << 14  # nodes of one call; a longer one has no backward call of its own
GRADIENT = "torch.autograd.AccumulateGrad"


@uncompiled
class Backward:
    """The backward calls of one session."""

    def __init__(self, recorder: Any):
        self.recorder = recorder
        self.open: dict[int, Any] = {}  # the forward call's serial number -> its backward call, while it runs
        self._running: dict[int, _Gradients] = {}
        self._handles: list[Any] = []
        self._tasks: set[int] = set()

    def attach(self, call: Any, results: Found, module: Any) -> None:
        """Hooks the nodes that a call has made; ``results`` are tensors, those that it wrote among them."""
        before = {id(node) for node, _, _ in call.grad_fns}
        starts: list[tuple[Any, list[tuple[int, str]]]] = []
        met: set[int] = set()
        for place, value in results:
            if not value.requires_grad or id(value) in met:
                continue
            met.add(id(value))
            node = value.grad_fn
            if node is None or id(node) in before:
                continue
            for other, places in starts:
                if other is node:
                    places.append((value.output_nr, place))
                    break
            else:
                starts.append((node, [(value.output_nr, place)]))
        if not starts:
            return
        place_of = {(id(node), number): place for node, number, place in call.grad_fns}
        leaves = {id(v): p for p, v in call.tensors if v.is_leaf}
        if module is not None:
            leaves.update({id(p): name for name, p in module._parameters.items() if p is not None})
        nodes = [node for node, _ in starts]
        seen = {id(node) for node in nodes}
        edges: list[list[tuple[int, str]]] = []
        for node in nodes:
            out = []
            for i, (following, number) in enumerate(node.next_functions):
                if following is None or id(following) in seen:
                    continue
                if id(following) in before:
                    out.append((i, place_of.get((id(following), number), f"{node.name()}.{i}")))
                elif (leaf := getattr(following, "variable", None)) is not None:
                    out.append((i, leaves.get(id(leaf), f"{node.name()}.{i}")))
                    if module is None:
                        self._watch(leaf)
                elif len(nodes) < _LIMIT:
                    seen.add(id(following))
                    nodes.append(following)
                else:
                    return
            edges.append(out)
        gradients = _Gradients(self, call, len(nodes))
        several = len(self.recorder._threads) > 1
        number = self.recorder.thread().number
        for node, places in starts:
            node.register_prehook(gradients.coming(places, node.name()))
        for node, out in zip(nodes, edges):
            node.register_hook(gradients.going(out))
            if several:
                node.metadata["macatensor.thread"] = number

    def _watch(self, leaf: torch.Tensor) -> None:
        """Records the gradient of a leaf each time it has been accumulated."""
        hooks = leaf._post_accumulate_grad_hooks
        if hooks and any(isinstance(h, _Accumulated) and h.owner is self for h in hooks.values()):
            return
        self._handles.append(leaf.register_post_accumulate_grad_hook(_Accumulated(self)))

    def begin(self, gradients: _Gradients) -> None:
        """A call's first node runs."""
        recorder, forward = self.recorder, gradients.forward
        call = gradients.running = Open(API, f"{gradients.stem}.bwd", forward.op, "bwd")
        call.serial, call.module, call.stack = forward.serial, forward.module, forward.stack
        call.forward = forward.number if forward.number >= 0 else None
        call.thread = recorder.thread().text
        call.inputs, call.outputs = "[]", "[]"
        recorder.decide(call, forward, True)
        if call.number >= 0 and call.stack is None:
            recorder.stack_of(call)
        self.open[forward.serial] = call
        self._running[forward.serial] = gradients
        task = torch._C._current_graph_task_id()
        if task not in self._tasks:
            self._tasks.add(task)

            def over() -> None:
                self._tasks.discard(task)
                with torch._C.DisableTorchFunction(), recorder.lock:
                    self.flush(task)

            torch.autograd.Variable._execution_engine.queue_callback(over)
        gradients.task = task

    def end(self, gradients: _Gradients) -> None:
        """All nodes of a call have run, or backward is over."""
        call = gradients.running
        gradients.running, gradients.left = None, gradients.nodes
        self.open.pop(gradients.forward.serial, None)
        self._running.pop(gradients.forward.serial, None)
        if call is None or call.number < 0:
            return
        if not self.recorder.has_inputs:
            call.inputs = None
        if not self.recorder.has_outputs:
            call.outputs = None
        self.recorder.write(call)

    def flush(self, task: int | None = None) -> None:
        """Writes the calls some of whose nodes were not needed."""
        for gradients in list(self._running.values()):
            if task is None or gradients.task == task:
                self.end(gradients)

    def detach(self) -> None:
        """Takes the hooks off the leaves; those of nodes go with their graph."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def accumulated(self, leaf: torch.Tensor) -> None:
        """A leaf has its gradient."""
        recorder = self.recorder
        if not recorder.active:
            return
        with torch._C.DisableTorchFunction(), recorder.lock:
            call = Open(API, recorder.name(GRADIENT, "bwd"), GRADIENT, "bwd")
            call.node, call.thread = "AccumulateGrad", recorder.thread().text
            call.module = recorder.paths.parameter(leaf)
            if not recorder.decide(call, None, True):
                return
            recorder.describe_inputs(call, [("variable", leaf)])
            call.outputs = recorder.describe_outputs(call, [("grad", leaf.grad)], {id(leaf.grad)})
            recorder.write(call)


@uncompiled
class _Accumulated:
    """A leaf's hook."""

    def __init__(self, owner: Backward):
        self.owner = owner

    def __call__(self, leaf: torch.Tensor) -> None:
        self.owner.accumulated(leaf)


class _Forward:
    """What a backward call takes over from its forward call."""

    __slots__ = ("op", "number", "serial", "module", "stack", "matched", "unit")

    def __init__(self, call: Any):
        self.op, self.number, self.serial = call.op, call.number, call.serial
        self.module, self.stack = call.module, call.stack
        self.matched, self.unit = call.matched, call.unit


@uncompiled
class _Gradients:
    """The gradients that pass the nodes of one call."""

    __slots__ = ("owner", "forward", "stem", "nodes", "left", "running", "task")

    def __init__(self, owner: Backward, call: Any, nodes: int):
        self.owner, self.forward = owner, _Forward(call)
        self.stem = call.name.removesuffix(".fwd")
        self.nodes = self.left = nodes
        self.running: Any | None = None
        self.task = -1

    def _begun(self) -> Any:
        """The backward call, which begins with the first hook that runs."""
        if self.running is None:
            self.owner.begin(self)
        assert self.running is not None
        return self.running

    def coming(self, places: list[tuple[int, str]], name: str) -> Any:
        """The hook before a node: the gradients of the call's results."""

        def hook(gradients: tuple[torch.Tensor | None, ...]) -> None:
            recorder = self.owner.recorder
            if not recorder.active:
                return
            with torch._C.DisableTorchFunction(), recorder.lock:
                call = self._begun()
                call.node = call.node or name.removeprefix("torch::autograd::")
                if call.number >= 0 and recorder.has_inputs:
                    found = [
                        (p, gradients[i])
                        for i, p in places
                        if i < len(gradients) and gradients[i] is not None
                    ]
                    call.inputs = _joined(call.inputs, recorder.describe_more(call, found))

        return hook

    def going(self, edges: list[tuple[int, str]]) -> Any:
        """The hook after a node: the gradients of the call's arguments."""

        def hook(into: tuple[torch.Tensor | None, ...], out_of: Any) -> None:
            recorder = self.owner.recorder
            if not recorder.active:
                return
            with torch._C.DisableTorchFunction(), recorder.lock:
                call = self._begun()
                if call.number >= 0 and edges:
                    found: Found = [(p, into[i]) for i, p in edges if i < len(into) and into[i] is not None]
                    call.outputs = _joined(call.outputs, recorder.describe_outputs(call, found))
                self.left -= 1
                if self.left <= 0:
                    self.owner.end(self)

        return hook


def _joined(first: str | None, second: str | None) -> str | None:
    if not first or not second or first == "[]":
        return second or first
    return first if second == "[]" else f"{first[:-1]},{second[1:]}"
