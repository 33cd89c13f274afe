"""Collectives run on after they return: their results are described when the work is done."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

from macatensor.accuracy.recording.describe import Describer
from macatensor.accuracy.recording.flatten import Found
from macatensor.accuracy.recording.threads import API, Open
from macatensor.runtime.ffi import native_recorder

if TYPE_CHECKING:
    from torch.distributed import Work


class _Started(NamedTuple):
    call: Open
    function: Open | None  # that started it
    tensors: list[tuple[str, torch.Tensor]]
    work: Work | None


class Recording(Protocol):
    """What collectives ask of their recorder."""

    describer: Describer

    def describe_outputs(self, call: Open, found: Found, written: Collection[int] = ()) -> str | None: ...

    def write(self, call: Open) -> None: ...


class Collectives:
    """Collectives of one session that are still at work. Waiting for them here could make ranks wait for each other."""

    def __init__(self, recorder: Recording):
        self._recorder = recorder
        self.pending: list[_Started] = []
        self._returned: list[
            tuple[Open, Found]
        ] = []  # functions with their results; what they started goes on

    def add(
        self,
        call: Open,
        function: Open | None,
        args: Sequence[object],
        kwargs: Mapping[str, object] | None,
        result: object,
    ) -> None:
        """A collective was started; every tensor it was given may be a result."""
        found = native_recorder.flatten_call(args, kwargs)
        tensors = [(place, held) for place, held in found if isinstance(held, torch.Tensor)]
        self.pending.append(_Started(call, function, tensors, _work(result)))
        if function is not None:
            function.received = {*(function.received or ()), *(id(v) for _, v in tensors)}
        self.look()

    def function_ends(self, call: Open, results: Found) -> None:
        """A function that has started collectives has returned: its line is written when they are done."""
        self._returned.append((call, results))
        self.look()

    def look(self) -> None:
        """Writes those that are done."""
        for started in list(self.pending):
            if started.work is None or started.work.is_completed():
                self._done(started)
        for held in list(self._returned):
            call, results = held
            if not any(started.function is call for started in self.pending):
                self._returned.remove(held)
                received = call.received or set()
                results = [*results, *(pair for pair in call.tensors if id(pair[1]) in received)]
                if call.number >= 0:
                    call.outputs = self._recorder.describe_outputs(call, results, received)
                    self._recorder.write(call)

    def finish(self) -> None:
        """Waits for those that are left: the recording ends."""
        for started in self.pending:
            if started.work is not None:
                started.work.wait()
        self.look()

    def _done(self, started: _Started) -> None:
        self.pending.remove(started)
        call, tensors = started.call, started.tensors
        for _, tensor in tensors:
            self._recorder.describer.wrote(tensor)
        call.outputs = self._recorder.describe_outputs(call, [*tensors], {id(v) for _, v in tensors})
        if call.parent >= 0:
            for _, tensor in tensors:
                self._recorder.describer.written_by(tensor, API, call.parent)
        self._recorder.write(call)


def _work(result: object) -> Work | None:
    """The Work among what a collective returned; None if there is none."""
    from torch.distributed import Work

    for held in result if isinstance(result, (list, tuple)) else (result,):
        if isinstance(held, torch.ScriptObject):
            return Work.unbox(held)
    return None
