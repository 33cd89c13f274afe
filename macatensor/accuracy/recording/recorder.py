"""One session's recording: calls come in as they begin and end, lines and tensors go out."""

from __future__ import annotations

import itertools
import threading
from bisect import bisect_left
from pathlib import Path
from typing import Any

import torch

from macatensor.accuracy.recording import backward
from macatensor.accuracy.recording.calls import Open, Thread, version_of
from macatensor.accuracy.recording.collectives import Collectives
from macatensor.accuracy.recording.describe import Describer, Found, flatten_call, flatten_result
from macatensor.accuracy.recording.identity import Identities
from macatensor.accuracy.recording.module_paths import ModulePaths
from macatensor.accuracy.recording.operators import Operator, operator, written_by
from macatensor.accuracy.recording.random_state import generator_state
from macatensor.accuracy.recording.selection import Selection
from macatensor.accuracy.recording.settings import Settings
from macatensor.accuracy.recording.stacks import Stacks
from macatensor.accuracy.recording.writer import Writer, file_of

_node = torch._C._current_autograd_node
_sequence = torch._C._autograd._get_sequence_nr
_Plainly: Any = torch._C.DisableTorchFunction  # what the recorder asks of tensors is no call of the program


class Recorder:
    """Records one session in one process. Its methods may be called from any thread."""

    def __init__(self, settings: Settings, writer: Writer):
        self.settings = settings
        self.writer = writer
        self.run: Path | None = None  # the run's folder
        self.selection = Selection(settings.op_range, settings.op_list, settings.skip)
        self.active = True
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.lock = threading.RLock()
        self.identities = Identities()
        self.describer = Describer(self.settings.record_level, self.identities)
        self.stacks = Stacks()
        self.paths = ModulePaths()
        self.collectives = Collectives(self)
        self.backward = backward.Backward(self)
        self.numbers, self.serials = itertools.count(), itertools.count()
        self.written = 0
        self._counts: dict[tuple[str, str], int] = {}
        self._local = threading.local()
        self._threads: list[Thread] = []

    def begin_in_child(self) -> None:
        """After a fork: the child counts from 0."""
        self._begin_anew()

    # -- what is common to all calls ---------------------------------------------------------------------------
    def thread(self) -> Thread:
        """The calling thread's state."""
        found: Thread | None = getattr(self._local, "thread", None)
        if found is None:
            found = self._local.thread = Thread(len(self._threads))
            self._threads.append(found)
        return found

    def count(self, op: str, direction: str) -> int:
        """How many calls of this operator came before."""
        key = (op, direction)
        number = self._counts.get(key, 0)
        self._counts[key] = number + 1
        return number

    def decide(self, call: Open, parent: Open | None, is_unit: bool) -> bool:
        """Is the call recorded? It gets its number if so."""
        selection = self.selection
        if not selection.all:
            inside = selection.in_range(call.name)
            call.matched = (
                parent is not None and parent.matched and bool(selection.op_list)
            ) or selection.matches(call.op, call.name)
            if parent is not None:
                call.unit = parent.unit
            if call.unit is None and is_unit and inside and call.matched:
                call.unit = selection.unit()
            if not (inside and call.matched and (call.unit or not selection.skip)):
                return False
        call.number = next(self.numbers)
        return True

    def stack_of(self, call: Open) -> None:
        """Gives the call the number of the Python stack that it comes from."""
        if self.settings.record_stack:
            call.stack, frames = self.stacks.here(2)
            if frames is not None:
                self.writer.stack(call.stack, frames)

    def describe_inputs(self, call: Open, found: Found, random: Any = None) -> None:
        """Describes the arguments as they are now and writes those that are new."""
        describer = self.describer
        describer.file = file_of(call.number) if describer.level == 2 else None
        if self.settings.record_input:
            call.inputs = describer.arguments(found, call.level)
        if random is not None:
            describer.saves["random"] = random
            call.random = True
        self.save()

    def _next_file(self, call: Open) -> str | None:
        """For tensors of a call that come after its inputs."""
        if self.describer.level < 2:
            return None
        call.files += 1
        return file_of(call.number, call.files)

    def save(self) -> None:
        """Writes the tensors that were described for the first time."""
        describer = self.describer
        if describer.saves:
            assert describer.file is not None
            self.writer.tensors(describer.file, describer.saves)
            describer.saves = {}

    def describe_inputs_of_backward(self, call: Open, found: Found) -> str:
        """Describes gradients that come in; a call of several results is given them one by one."""
        describer = self.describer
        describer.file = self._next_file(call)
        text = describer.arguments(found, call.level)
        self.save()
        return text

    def describe_outputs(self, call: Open, found: Found, written: Any = ()) -> str:
        """Describes results. Without record_output they are still remembered as the call's."""
        describer = self.describer
        describer.file = self._next_file(call)
        if self.settings.record_output:
            text = describer.arguments(found, call.level, call.number, written)
            self.save()
            return text
        return ""

    def write(self, call: Open, error: BaseException | None = None) -> None:
        """Writes a call's line."""
        self.written += 1
        self.writer.line(call.line(error))

    # -- functions and modules ---------------------------------------------------------------------------------
    def function_begins(self, op: str, args: Any, kwargs: Any) -> Open:
        """A function of PyTorch's Python interface is called."""
        with _Plainly(), self.lock:
            thread = self.thread()
            parent = thread.open[-1] if thread.open else None
            return self._api_begins(thread, parent, op, args, kwargs, True)

    def _api_begins(
        self, thread: Thread, parent: Open | None, op: str, args: Any, kwargs: Any, is_unit: bool
    ) -> Open:
        if self.collectives.pending:
            self.collectives.look()
        call = Open("api", f"{op}.{self.count(op, 'fwd')}.fwd", op, "fwd")
        call.serial = next(self.serials)
        call.in_backward = _node() is not None
        if parent is not None:
            call.module = parent.module
            if parent.number >= 0:
                call.parent = parent.number
        thread.open.append(call)
        call.thread = thread.text
        taken = self.decide(call, parent, is_unit)
        call.found = flatten_call(args, kwargs)
        differentiates = torch.is_grad_enabled()
        for place, value in call.found:
            if isinstance(value, torch.Tensor):
                call.versions.append(version_of(value))
                if differentiates and value.requires_grad and (made := value.grad_fn) is not None:
                    call.grad_fns.append((made, value.output_nr, place))
        if taken:
            self.stack_of(call)
            self.describe_inputs(call, call.found)
        return call

    def function_ends(self, call: Open, result: Any, error: BaseException | None) -> None:
        """The function has returned, or raised."""
        with _Plainly(), self.lock:
            thread = self.thread()
            if call in thread.open:
                del thread.open[thread.open.index(call) :]
            self._api_ends(call, result, error, None)

    def _api_ends(self, call: Open, result: Any, error: BaseException | None, module: Any) -> None:
        if not self.active:
            return
        results = flatten_result(result) if error is None else []
        if error is None and torch.is_grad_enabled() and not call.has_modules:
            self.backward.attach(call, results, module)
        if call.number < 0:
            return
        given = [(p, v) for p, v in call.found if isinstance(v, torch.Tensor)]
        changed = {id(v): (p, v) for (p, v), before in zip(given, call.versions) if version_of(v) != before}
        returned = {id(v) for _, v in results}
        results += [pair for number, pair in changed.items() if number not in returned]
        if results:
            call.outputs = self.describe_outputs(call, results, changed) or None
        self.write(call, error)

    def module_begins(self, module: Any, args: Any) -> None:
        """A module is called."""
        with _Plainly(), self.lock:
            thread = self.thread()
            parent = thread.open[-1] if thread.open else None
            path = self.paths.path(module, [c.module for c in thread.open if c.owner])
            for outer in thread.open:
                outer.has_modules = True
            call = self._api_begins(
                thread, parent, _class_name(type(module)), args, None, not module._modules
            )
            call.owner, call.module = id(module), path

    def module_ends(
        self, module: Any, args: Any, kwargs: Any, result: Any, error: BaseException | None
    ) -> None:
        """The module has returned, or raised."""
        with _Plainly(), self.lock:
            thread = self.thread()
            for at in range(len(thread.open) - 1, -1, -1):
                if thread.open[at].owner == id(module):
                    break
            else:
                return  # recording began inside of it
            call = thread.open[at]
            del thread.open[at:]
            if kwargs and call.number >= 0 and call.inputs is not None:
                # a hook before the call is not given these: as they are now
                named = flatten_call((), kwargs)
                self.describer.file = self._next_file(call)
                inner = self.describer.arguments(named, "api")[1:]
                call.inputs = call.inputs[:-1] + ("," if call.inputs != "[]" else "") + inner
            self._api_ends(call, result, error, module)

    # -- aten operators ----------------------------------------------------------------------------------------
    def operator_begins(self, func: Any, args: Any, kwargs: Any) -> Open | None:
        """An operator is about to run below autograd."""
        facts = operator(func)
        if not facts.is_recorded:
            return None
        with _Plainly(), self.lock:
            if self.collectives.pending:
                self.collectives.look()
            thread = self.thread()
            parent = thread.open[-1] if thread.open else None
            node = _node()
            if node is not None and (parent is None or not parent.in_backward):
                call = self._backward_operator(thread, node, facts)
            else:
                call = self._forward_operator(thread, parent, facts)
            call.thread = thread.text
            if call.number >= 0:
                random = None
                if facts.is_random and self.describer.level == 2:
                    random = generator_state(args, kwargs)
                self.describe_inputs(call, flatten_call(args, kwargs), random)
            return call

    def _forward_operator(self, thread: Thread, parent: Open | None, facts: Operator) -> Open:
        call = Open("aten", f"{facts.packet}.{self.count(facts.packet, 'fwd')}.fwd", facts.op, "fwd")
        if parent is not None:
            call.module = parent.module
            if parent.number >= 0:
                call.parent = parent.number
        if self.decide(call, parent, True):
            if parent is not None and not parent.owner and parent.number >= 0:
                call.stack = parent.stack  # the line that called the function
            else:
                self.stack_of(call)
        made = _sequence()
        nodes = thread.nodes
        if made != nodes.last:  # autograd made the operator's node before it let it run
            nodes.last = made
            nodes.sequence.append(made - 1)
            nodes.call.append(call.number)
            nodes.api.append(-1 if parent is None else parent.serial)
            nodes.stack.append(-1 if call.stack is None else call.stack)
            nodes.flags.append(call.matched + 2 * (call.unit is True))
        return call

    def _backward_operator(self, thread: Thread, node: Any, facts: Operator) -> Open:
        call = Open("aten", f"{facts.packet}.{self.count(facts.packet, 'bwd')}.bwd", facts.op, "bwd")
        call.node = node.name().removeprefix("torch::autograd::")
        sequence = node._sequence_nr()
        parent = None
        nodes = self._nodes_of(thread, node)
        at = bisect_left(nodes.sequence, sequence) if nodes is not None else -1
        if nodes is not None and at < len(nodes.sequence):
            forward = nodes.call[at]
            call.forward = forward if forward >= 0 else None
            if nodes.stack[at] >= 0:
                call.stack = nodes.stack[at]
            parent = Open("api", "", "", "bwd")  # stands for the forward call's choice
            parent.matched = bool(nodes.flags[at] & 1)
            parent.unit = bool(nodes.flags[at] & 2)
            outer = self.backward.open.get(nodes.api[at])
            if outer is not None:
                call.module = outer.module
                if outer.number >= 0:
                    call.parent = outer.number
        if self.decide(call, parent, True) and call.stack is None:
            self.stack_of(call)
        return call

    def _nodes_of(self, thread: Thread, node: Any) -> Any:
        """The nodes of the thread that made a node: numbers are counted in each."""
        made = [t for t in self._threads if t.nodes.sequence]
        if len(made) <= 1:
            return made[0].nodes if made else None
        number = node.metadata.get("macatensor.thread")
        if number is not None:
            return self._threads[number].nodes
        return thread.nodes if thread.nodes.sequence else made[0].nodes

    def operator_ends(
        self, call: Open | None, func: Any, args: Any, kwargs: Any, result: Any, error: BaseException | None
    ) -> None:
        """The operator has run, or raised."""
        facts = operator(func)
        with _Plainly(), self.lock:
            written = written_by(facts, args, kwargs) if facts.written else []
            for _, tensor in written:
                self.identities.wrote(tensor)
            if call is None or call.number < 0 or not self.active:
                return
            if error is not None:
                self.write(call, error)
                return
            if facts.is_collective:
                self.collectives.add(call, args, kwargs, result)
                return
            results = flatten_result(result)
            if facts.is_blank and isinstance(result, torch.Tensor) and result.layout is torch.strided:
                self.identities.blank(result)
            if "wait_tensor" in facts.op:
                self.identities.wrote(result)
            returned = {id(v) for _, v in results}
            results += [pair for pair in written if id(pair[1]) not in returned]
            if results:
                if facts.is_pending:
                    self.describer.level, level = 0, self.describer.level
                    call.outputs = self.describe_outputs(call, results) or None
                    self.describer.level = level
                else:
                    call.outputs = self.describe_outputs(call, results, {id(v) for _, v in written}) or None
            self.write(call)

    # -- the end -----------------------------------------------------------------------------------------------
    def pause(self) -> None:
        """Lets everything go that must not stay when nothing is recorded."""
        with _Plainly(), self.lock:
            self.collectives.finish()
            self.backward.flush()
            self.backward.detach()
            self.active = False
            self.identities.close()
            for thread in self._threads:
                thread.open.clear()

    def resume(self) -> None:
        """Goes on after a pause."""
        self.active = True


def _class_name(kind: type) -> str:
    from macatensor.accuracy.recording.naming import class_name

    return class_name(kind)
