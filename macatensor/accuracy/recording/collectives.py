"""Collectives run on after they return: their results are described when the work is done."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from macatensor.accuracy.recording.flatten import Found
from macatensor.accuracy.recording.threads import API
from macatensor.runtime.ffi import native_recorder


class _Started(NamedTuple):
    call: Any
    function: Any | None  # that started it
    tensors: Found
    work: Any


class Collectives:
    """Collectives of one session that are still at work. Waiting for them here could make ranks wait for each other."""

    def __init__(self, recorder: Any):
        self._recorder = recorder
        self.pending: list[_Started] = []
        self._returned: list[
            tuple[Any, Found]
        ] = []  # functions with their results; what they started goes on

    def add(self, call: Any, function: Any | None, args: Any, kwargs: Any, result: Any) -> None:
        """A collective was started; every tensor it was given may be a result."""
        tensors = [
            pair for pair in native_recorder.flatten_call(args, kwargs) if isinstance(pair[1], torch.Tensor)
        ]
        self.pending.append(_Started(call, function, tensors, _work(result)))
        if function is not None:
            function.received = {*(function.received or ()), *(id(v) for _, v in tensors)}
        self.look()

    def function_ends(self, call: Any, results: Found) -> None:
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
                results = [*results, *(pair for pair in call.tensors if id(pair[1]) in call.received)]
                if call.number >= 0:
                    call.outputs = self._recorder.describe_outputs(call, results, call.received)
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
        call.outputs = self._recorder.describe_outputs(call, tensors, {id(v) for _, v in tensors})
        if call.parent >= 0:
            for _, tensor in tensors:
                self._recorder.describer.written_by(tensor, API, call.parent)
        self._recorder.write(call)


def _work(result: Any) -> Any:
    """The Work among what a collective returned; None if there is none."""
    from torch.distributed import Work

    for held in result if isinstance(result, (list, tuple)) else (result,):
        if isinstance(held, torch.ScriptObject):
            return Work.unbox(held)
    return None
