"""One session's recording: calls come in as they begin and end, lines and tensors go out."""

from __future__ import annotations

import itertools
import threading
from bisect import bisect_left
from pathlib import Path
from typing import Any

import torch

from macatensor.accuracy.recording import backward
from macatensor.accuracy.recording.calls import Open, Thread, versions_of, written_since
from macatensor.accuracy.recording.collectives import Collectives
from macatensor.accuracy.recording.describe import Describer
from macatensor.accuracy.recording.flatten import Found, flatten_call, flatten_result
from macatensor.accuracy.recording.identity import API, ATEN, Identities
from macatensor.accuracy.recording.module_paths import ModulePaths
from macatensor.accuracy.recording.naming import class_name
from macatensor.accuracy.recording.operators import Operator, operator, written_by
from macatensor.accuracy.recording.random_state import generator_state
from macatensor.accuracy.recording.selection import Selection
from macatensor.accuracy.recording.settings import Settings
from macatensor.accuracy.recording.stacks import Stacks
from macatensor.accuracy.recording.writer import Writer, file_of
from macatensor.tensor import MacaTensor

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
        self._counts: dict[str, dict[str, int]] = {"fwd": {}, "bwd": {}}
        self._local = threading.local()
        self._threads: list[Thread] = []

    def begin_in_child(self) -> None:
        """After a fork: the child counts from 0."""
        self._begin_anew()

    # -- what is common to all calls ---------------------------------------------------------------------------
    def thread(self) -> Thread:
        """The calling thread's state."""
        try:
            found: Thread = self._local.thread
        except AttributeError:
            found = self._local.thread = Thread(len(self._threads))
            self._threads.append(found)
        return found

    def name(self, op: str, direction: str) -> str:
        """The name of an operator's next call: with how many came before."""
        counts = self._counts[direction]
        number = counts.get(op, 0)
        counts[op] = number + 1
        return f"{op}.{number}.{direction}"

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
        if describer.saves:
            self.save()

    def save(self) -> None:
        """Writes the tensors that were described for the first time."""
        describer = self.describer
        assert describer.file is not None
        self.writer.tensors(describer.file, describer.saves)
        describer.saves = {}

    def describe_more(self, call: Open, found: Found) -> str:
        """Describes arguments that are known only now: gradients come in one by one."""
        describer = self.describer
        if describer.level == 2:
            describer.file = _next_file(call)
        text = describer.arguments(found, call.level)
        if describer.saves:
            self.save()
        return text

    def describe_outputs(self, call: Open, found: Found, written: Any = ()) -> str | None:
        """Describes results; None where they are not asked for."""
        if not found or not self.settings.record_output:
            return None
        describer = self.describer
        if describer.level == 2:
            describer.file = _next_file(call)
        text = describer.arguments(found, call.level, call.number, written)
        if describer.saves:
            self.save()
        return text

    def write(self, call: Open, error: BaseException | None = None) -> None:
        """Writes a call's line."""
        self.written += 1
        self.writer.line(call.line(error))

    # -- functions and modules ---------------------------------------------------------------------------------
    def function_begins(self, op: str, args: Any, kwargs: Any) -> Open:
        """A function of PyTorch's Python interface is called."""
        with _Plainly(), self.lock:
            thread = self.thread()
            return self._api_begins(thread, Open(API, self.name(op, "fwd"), op, "fwd"), args, kwargs, True)

    def _api_begins(self, thread: Thread, call: Open, args: Any, kwargs: Any, is_unit: bool) -> Open:
        if self.collectives.pending:
            self.collectives.look()
        call.serial = next(self.serials)
        if _node() is not None:
            call.in_backward = True
        parent = thread.open[-1] if thread.open else None
        if parent is not None:
            if call.module is None:
                call.module = parent.module
            if parent.number >= 0:
                call.parent = parent.number
        thread.open.append(call)
        call.thread = thread.text
        taken = self.decide(call, parent, is_unit)
        found, call.tensors = flatten_call(args, kwargs)
        call.versions = versions_of(call.tensors)
        if call.tensors and torch.is_grad_enabled():
            call.grad_fns = [
                (made, value.output_nr, place)
                for place, value in call.tensors
                if value.requires_grad and (made := value.grad_fn) is not None
            ]
        if taken:
            self.stack_of(call)
            self.describe_inputs(call, found)
        return call

    def function_ends(self, call: Open, result: Any, error: BaseException | None) -> None:
        """The function has returned, or raised."""
        with _Plainly(), self.lock:
            calls = self.thread().open
            if calls and calls[-1] is call:
                calls.pop()
            elif call in calls:
                del calls[calls.index(call) :]
            self._api_ends(call, result, error, None)

    def _api_ends(self, call: Open, result: Any, error: BaseException | None, module: Any) -> None:
        if not self.active:
            return
        results, tensors = flatten_result(result) if error is None else ([], [])
        written = written_since(call)
        if error is None and not call.has_modules and torch.is_grad_enabled():
            self.backward.attach(call, [*tensors, *written] if written else tensors, module)
        if call.number < 0:
            return
        if call.received and error is None:
            self.collectives.function_ends(call, results)
            return
        changed = {id(v): (p, v) for p, v in written}
        if changed:
            returned = {id(v) for _, v in tensors}
            results += [pair for number, pair in changed.items() if number not in returned]
        call.outputs = self.describe_outputs(call, results, changed)
        self.write(call, error)

    def module_begins(self, module: Any, args: Any) -> None:
        """A module is called."""
        with _Plainly(), self.lock:
            thread = self.thread()
            path = self.paths.path(module, [c.module for c in thread.open if c.owner])
            for outer in thread.open:
                outer.has_modules = True
            kind: Any = type(module)
            op = class_name(kind)
            call = Open(API, self.name(op, "fwd"), op, "fwd")
            call.owner, call.module = id(module), path
            self._api_begins(thread, call, args, None, not module._modules)

    def module_ends(
        self, module: Any, args: Any, kwargs: Any, result: Any, error: BaseException | None
    ) -> None:
        """The module has returned, or raised."""
        with _Plainly(), self.lock:
            calls = self.thread().open
            for at in range(len(calls) - 1, -1, -1):
                if calls[at].owner == id(module):
                    break
            else:
                return  # recording began inside of it
            call = calls[at]
            del calls[at:]
            if kwargs and call.number >= 0 and call.inputs is not None:
                # a hook before the call is not given these: as they are now
                named, _ = flatten_call((), kwargs)
                inner = self.describe_more(call, named)[1:]
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
                self.describe_inputs(call, flatten_call(args, kwargs)[0], random)
            return call

    def _forward_operator(self, thread: Thread, parent: Open | None, facts: Operator) -> Open:
        call = Open(ATEN, self.name(facts.packet, "fwd"), facts.op, "fwd")
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
        call = Open(ATEN, self.name(facts.packet, "bwd"), facts.op, "bwd")
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
            parent = Open(API, "", "", "bwd")  # stands for the forward call's choice
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
        if len(self._threads) == 1:
            return thread.nodes
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
                if type(tensor) is not MacaTensor:  # whose writes the runtime counts
                    self.identities.wrote(tensor)
            if call is None or call.number < 0 or not self.active:
                return
            if error is not None:
                self.write(call, error)
                return
            if facts.is_collective:
                opened = self.thread().open
                self.collectives.add(call, opened[-1] if opened else None, args, kwargs, result)
                return
            results, tensors = flatten_result(result)
            if facts.is_blank and isinstance(result, torch.Tensor) and result.layout is torch.strided:
                self.identities.blank(result, self.describer.value_of(result))
            if facts.is_wait:
                self.identities.wrote(result)
            changed = {id(v): (p, v) for p, v in written}
            if changed:
                returned = {id(v) for _, v in tensors}
                results += [pair for number, pair in changed.items() if number not in returned]
            if facts.is_pending:
                self.describer.level, level = 0, self.describer.level
                call.outputs = self.describe_outputs(call, results)
                self.describer.level = level
            else:
                call.outputs = self.describe_outputs(call, results, changed)
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


def _next_file(call: Open) -> str:
    """For tensors of a call that come after its inputs."""
    call.files += 1
    return file_of(call.number, call.files)
