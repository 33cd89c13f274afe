"""Collectives run on after they return: their results are described when the work is done."""

from __future__ import annotations

from typing import Any

import torch

from macatensor.accuracy.recording.calls import Open
from macatensor.accuracy.recording.flatten import Found, flatten_call
from macatensor.accuracy.recording.identity import API


class Collectives:
    """Collectives of one session that are still at work. Waiting for them here could make ranks wait for each other."""

    def __init__(self, recorder: Any):
        self._recorder = recorder
        self.pending: list[tuple[Open, Found, Any]] = []

    def add(self, call: Open, args: Any, kwargs: Any, result: Any) -> None:
        """A collective was started; every tensor it was given may be a result."""
        _, tensors = flatten_call(args, kwargs)
        self.pending.append((call, tensors, _work(result)))
        self.look()

    def look(self) -> None:
        """Writes those that are done."""
        for entry in list(self.pending):
            work = entry[2]
            if work is None or work.is_completed():
                self._done(entry)

    def finish(self) -> None:
        """Waits for those that are left: the recording ends."""
        for entry in list(self.pending):
            if entry[2] is not None:
                entry[2].wait()
            self._done(entry)

    def _done(self, entry: tuple[Open, Found, Any]) -> None:
        self.pending.remove(entry)
        call, found, _ = entry
        for _, tensor in found:
            self._recorder.identities.wrote(tensor)
        call.outputs = self._recorder.describe_outputs(call, found, {id(v) for _, v in found})
        if call.parent is not None:
            for _, tensor in found:
                self._recorder.identities.written_by(tensor, API, call.parent)
        self._recorder.write(call)


def _work(result: Any) -> Any:
    """The Work among what a collective returned; None if there is none."""
    from torch.distributed import Work

    for held in result if isinstance(result, (list, tuple)) else (result,):
        if isinstance(held, torch.ScriptObject):
            return Work.unbox(held)
    return None
