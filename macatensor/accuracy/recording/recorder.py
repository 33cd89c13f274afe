"""One session's recording: calls come in as they begin and end, lines and tensors go out."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import torch
from torch.autograd.graph import Node

from macatensor.accuracy.recording.backward import Backward
from macatensor.accuracy.recording.collectives import Collectives
from macatensor.accuracy.recording.describe import Describer
from macatensor.accuracy.recording.flatten import Found
from macatensor.accuracy.recording.module_paths import ModulePaths
from macatensor.accuracy.recording.naming import class_name
from macatensor.accuracy.recording.random_state import generator_state
from macatensor.accuracy.recording.selection import Selection, SelectionByExecution
from macatensor.accuracy.recording.settings import Settings
from macatensor.accuracy.recording.stacks import Stacks
from macatensor.accuracy.recording.threads import API, Nodes, Open, Thread
from macatensor.accuracy.recording.writer import Writer, file_of
from macatensor.runtime.ffi import native_recorder
from macatensor.runtime.uncompiled import uncompiled

_Plainly = torch._C.DisableTorchFunction  # what the recorder asks of tensors is no call of the program


@uncompiled
class Recorder(native_recorder.RecordedCalls):
    """Records one session in one process. Its methods may be called from any thread.

    The base class, written in C, has what happens at every call: functions and operators that begin and end. It calls
    the methods below for what is rare, and reads what the first of them set.
    """

    def __init__(self, settings: Settings, writer: Writer):
        self.settings = settings
        self.has_stacks, self.has_inputs = settings.record_stack, settings.record_input
        self.has_outputs, self.has_tensors = settings.record_output, settings.record_level == 2
        self.writer = writer
        self.run: Path | None = None  # the run's folder
        kind = Selection if settings.numbering == "operator" else SelectionByExecution
        self.selection = kind(settings.op_range, settings.op_list, settings.skip)
        self.takes_all = self.selection.all
        self.active = True
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.lock = threading.RLock()
        self.describer = Describer(self.settings.record_level)
        self.stacks = Stacks(lambda number, frames: self.writer.stack(number, frames))
        self.paths = ModulePaths()
        self.collectives = Collectives(self)
        self.pending = self.collectives.pending
        self.backward = Backward(self)
        self.attach, self.backward_operator = self.backward.attach, self.backward.operator
        self.numbers, self.serials = itertools.count(), itertools.count()
        self.written = 0
        self.counts_forward: dict[str, int] = {}
        self.counts_backward: dict[str, int] = {}
        self.local = threading.local()
        self._threads: list[Thread] = []
        self.threads = 0
        self.forget()

    def begin_in_child(self) -> None:
        """After a fork: the child counts from 0."""
        self._begin_anew()

    # -- what is common to all calls ---------------------------------------------------------------------------
    def thread(self) -> Thread:
        """The calling thread's state."""
        try:
            found: Thread = self.local.thread
        except AttributeError:
            found = self.local.thread = Thread(len(self._threads))
            self._threads.append(found)
            self.threads = len(self._threads)
        return found

    def decide(self, call: Open, parent: Open | None, is_unit: bool) -> bool:
        """Is the call recorded? It gets its number if so."""
        selection = self.selection
        inside = selection.in_range(selection.known_as(call, parent, is_unit))
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

    # -- whole tensors, at level 2 -----------------------------------------------------------------------------
    def begin_files(self, call: Open) -> None:
        """The call's arguments are about to be described."""
        self.describer.file = file_of(call.number)

    def next_file(self, call: Open) -> None:
        """Tensors of the call that come after its inputs are about to be described."""
        call.files += 1
        self.describer.file = file_of(call.number, call.files)

    def keep_random(self, call: Open, args: Sequence[object], kwargs: Mapping[str, object] | None) -> None:
        """Keeps the state of the generator that an operator is about to draw from."""
        random = generator_state(args, kwargs)
        if random is not None:
            self.describer.saves["random"] = random
            call.random = True

    def save(self) -> None:
        """Writes the tensors that were described for the first time."""
        describer = self.describer
        if not describer.saves:
            return
        assert describer.file is not None
        self.writer.tensors(describer.file, describer.saves)
        describer.saves = {}

    # -- what is described piece by piece ------------------------------------------------------------------------
    def describe_more(self, call: Open, found: Found) -> str:
        """Describes arguments that are known only now: gradients come in one by one."""
        if self.has_tensors:
            self.next_file(call)
        text: str = self.describer.arguments(found, call.level)
        self.save()
        return text

    def describe_outputs(self, call: Open, found: Found, written: Collection[int] = ()) -> str | None:
        """Describes results that have places; None where they are not asked for."""
        if not found or not self.has_outputs:
            return None
        if self.has_tensors:
            self.next_file(call)
        text: str = self.describer.arguments(found, call.level, call.number, written)
        self.save()
        return text

    def write(self, call: Open) -> None:
        """Writes a call's line."""
        self.written += 1
        self.writer.line(call.line())

    def error_text(self, error: BaseException) -> str:
        """What a line says of what was raised."""
        return f"{type(error).__name__}: {error}"

    # -- functions and modules ---------------------------------------------------------------------------------
    def look(self) -> None:
        """Collectives are at work: perhaps some are done."""
        self.collectives.look()

    def started(self, call: Open, results: Found) -> None:
        """A function that has started collectives has returned."""
        self.collectives.function_ends(call, results)

    def left(self, calls: list[Open], call: Open) -> None:
        """A function has returned that is not the innermost: those within it have been left by what they raised."""
        if call in calls:
            del calls[calls.index(call) :]

    def function_begins(self, op: str, args: object, kwargs: Mapping[str, object] | None) -> Open:
        """A function of PyTorch's interface is called, where it is not C that sees it; returns the call."""
        with _Plainly(), self.lock:
            call = Open(API, self.name(op, "fwd"), op, "fwd")
            self.api_begins(call, args, kwargs, True)
            return call

    def function_ends(self, call: Open, result: object, error: BaseException | None) -> None:
        """The function has returned, or raised."""
        with _Plainly(), self.lock:
            self.left(self.thread().open, call)
            self.api_ends(call, result, error, None)

    def module_begins(self, module: torch.nn.Module, args: Sequence[object]) -> None:
        """A module is called."""
        with _Plainly(), self.lock:
            thread = self.thread()
            path = self.paths.path(module, [c.module for c in thread.open if c.owner])
            for outer in thread.open:
                outer.has_modules = True
            kind: type = type(module)
            op = class_name(kind)
            call = Open(API, self.name(op, "fwd"), op, "fwd")
            call.owner, call.module = id(module), path
            self.api_begins(call, args, None, not module._modules)

    def module_ends(
        self,
        module: torch.nn.Module,
        args: Sequence[object],
        kwargs: Mapping[str, object] | None,
        result: object,
        error: BaseException | None,
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
                inner = self.describe_more(call, native_recorder.flatten_call((), kwargs))[1:]
                call.inputs = call.inputs[:-1] + ("," if call.inputs != "[]" else "") + inner
            self.api_ends(call, result, error, module)

    # -- aten operators ----------------------------------------------------------------------------------------
    def nodes_of(self, thread: Thread, node: Node) -> Nodes | None:
        """The nodes of the thread that made a node of the autograd graph, where several threads run."""
        made = [t for t in self._threads if t.nodes.sequences]
        if len(made) <= 1:
            return made[0].nodes if made else None
        number = node.metadata.get("macatensor.thread")  # type: ignore[attr-defined]  # an attribute
        if number is not None:
            result: Nodes | None = self._threads[number].nodes
            return result
        return thread.nodes if thread.nodes.sequences else made[0].nodes

    def collective(
        self,
        call: Open,
        function: Open | None,
        args: Sequence[object],
        kwargs: Mapping[str, object] | None,
        result: object,
    ) -> None:
        """An operator of the open function, if any, has started a collective."""
        self.collectives.add(call, function, args, kwargs, result)

    # -- the end -----------------------------------------------------------------------------------------------
    def pause(self) -> None:
        """Lets everything go that must not stay when nothing is recorded."""
        with _Plainly(), self.lock:
            self.collectives.finish()
            self.backward.close()
            self.active = False
            self.describer.close()
            for thread in self._threads:
                thread.open.clear()

    def resume(self) -> None:
        """Goes on after a pause."""
        self.active = True
