"""The documented interface: sessions that record until they are told to stop."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from macatensor.accuracy.recording import processes
from macatensor.accuracy.recording.environment import environment
from macatensor.accuracy.recording.modes import hub
from macatensor.accuracy.recording.quiet import quiet
from macatensor.accuracy.recording.random_state import initial_states
from macatensor.accuracy.recording.recorder import Recorder
from macatensor.accuracy.recording.runs import new_run, rank
from macatensor.accuracy.recording.settings import Numbering, Settings
from macatensor.accuracy.recording.writer import Writer

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_sessions: list[Session] = []  # those that have not ended, oldest first


class Session:
    """A recording. ``folder`` is that of its run, ``<output_dir>/run-NNN``; None in a process that is not recorded."""

    def __init__(self, settings: Settings, enabled: bool, run: Path | None = None, is_child: bool = False):
        self.settings = settings
        self.enabled = False
        self.ended = False
        self._is_child = is_child
        self.recorder: Recorder | None = None
        self.folder: Path | None = None
        if is_child or settings.chooses_this_process():
            # refused before anything is written
            self.recorder = Recorder(settings, None)  # type: ignore[arg-type]
            self.folder = new_run(Path(settings.output_dir).absolute()) if run is None else run
            self.recorder.run = self.folder
            self._start_writing()
        _sessions.append(self)
        if len(_sessions) == 1:
            atexit.register(_end_all)
        if enabled:
            self.switch(True)

    def _start_writing(self) -> None:
        assert self.recorder is not None and self.folder is not None
        self._pid = os.getpid()
        run, settings = self.folder, self.settings
        with quiet():  # another session may be recording
            states = initial_states()

        def open_folder() -> tuple[Path, dict[str, object]]:
            mine = rank() or 0
            with quiet():
                held = environment()
            held |= {
                "rank": mine,
                "group_rank": settings.rank(),
                "recorder": settings.shown(),
                "random": states,
            }
            return run / f"process-{mine}-{os.getpid()}", held

        self.recorder.writer = Writer(open_folder)

    def switch(self, enabled: bool) -> None:
        """Pauses the session or goes on. While it is paused nothing of it is left in PyTorch."""
        if self.ended:
            raise RuntimeError("accuracy: this session has ended; start_record begins another one")
        if self.recorder is None or enabled == self.enabled:
            self.enabled = enabled
            return
        self.enabled = enabled
        if enabled:
            self.recorder.resume()
            hub.add(self.recorder)
        else:
            hub.remove(self.recorder)
            self.recorder.pause()
            self.recorder.writer.end(self.recorder.written, is_needed=not self._is_child)

    def stop(self) -> None:
        """Ends the session.

        Raises:
            ValueError: ``op_range`` names a call that did not come; with the names nearest to it that did.
        """
        if self.ended:
            return
        self.switch(False)
        self.ended = True
        _sessions.remove(self)
        if not _sessions:
            atexit.unregister(_end_all)
        if self.recorder is None:
            return
        self.recorder.writer.end(self.recorder.written, is_needed=not self._is_child)
        missing = self.recorder.selection.missing()
        if missing is not None and not self._is_child:
            raise ValueError(missing)

    def continue_in_fork(self) -> None:
        """In a forked child: an own folder, from the first call on."""
        self._is_child = True
        if self.recorder is None:
            return
        self.recorder.writer.abandon()
        self.recorder.begin_in_child()
        self._start_writing()


_started: Session | None = None  # by start_record


def start_record(
    enabled: bool = True,
    output_dir: str | os.PathLike[str] = "./record_dir",
    record_level: int = 2,
    record_stack: bool = True,
    record_input: bool = True,
    record_output: bool = True,
    op_range: Sequence[str | None] = [],
    op_list: Sequence[str] = [],
    skip: int = 0,
    process_group: ProcessGroup | None = None,
    ranks: Sequence[int] = [],
    *,
    numbering: Numbering = "operator",
) -> Session:
    """Records what PyTorch computes from now on, until :func:`record_switch`, the next ``start_record`` or the end.

    Every call of a Python function, tensor method and module, and every aten operator below, forward and backward,
    in this thread, in threads and processes started meanwhile and on any device, goes to a folder of its own,
    ``<output_dir>/run-NNN/process-RANK-PID``; nothing that is there already is touched.

    Args:
        enabled: False: not before ``record_switch(True)``.
        output_dir: where runs' folders are made.
        record_level: 2 whole tensors; 1 dtype, shape, strides, min, max, mean, L2 norm, NaN and Inf counts and a hash;
            0 structure only.
        record_stack: the Python stack of each call; a backward call has its forward call's.
        record_input: arguments.
        record_output: results.
        op_range: half-open range of call names such as ``["torch.nn.Conv1d.6.fwd", None]``; None is an open end.
        op_list: names (``"torch.nn.Conv1d"``, ``"aten.add.Tensor"``, ``"torch.relu.3.fwd"``) or kinds: ``"relu"`` takes
            torch.relu, Tensor.relu, ``relu_``, nn.ReLU and F.relu, forward and backward, with what runs in them.
        skip: record one operator, then leave out ``skip``: a function or a module without submodules counts as one,
            with all that runs in it and its backward call.
        process_group: record only its members; ``ranks`` are then ranks in it.
        ranks: record only these; all if empty.
        numbering: what a number in ``op_range`` counts: the operator's own calls, as in names of records; or, under
            "execution", all functions and modules in the order in which they run, as mcPyTorch's ``maca_tools`` does.

    Returns:
        The session, whose ``stop()`` ends it and whose ``folder`` is the run's.

    Raises:
        ValueError, TypeError: an argument of another form, or an operator that this PyTorch does not have.
    """
    global _started
    settings = Settings(
        os.fspath(output_dir), record_level, record_stack, record_input, record_output, list(op_range or ()),
        op_list if isinstance(op_list, str) else list(op_list or ()), skip, process_group, list(ranks or ()),
        numbering,
    )  # fmt: skip
    if _started is not None and not _started.ended:
        _started.stop()
    _started = Session(settings, enabled)
    return _started


@contextmanager
def record(
    enabled: bool | str | os.PathLike[str] = True,
    output_dir: str | os.PathLike[str] = "./record_dir",
    record_level: int = 2,
    record_stack: bool = True,
    record_input: bool = True,
    record_output: bool = True,
    op_range: Sequence[str | None] = [],
    op_list: Sequence[str] = [],
    skip: int = 0,
    process_group: ProcessGroup | None = None,
    ranks: Sequence[int] = [],
    *,
    numbering: Numbering = "operator",
) -> Iterator[Session]:
    """:func:`start_record` for a block; blocks may be nested. Yields the session.

    Args:
        enabled: as for start_record; or the folder, so that ``record("folder", record_level=1)`` does.

    Raises:
        ValueError: as start_record; and at the end of the block, ``op_range`` names a call that did not come, or
            no call was of ``op_list``.
        TypeError: two folders.
    """
    if not isinstance(enabled, bool):
        if output_dir != "./record_dir":
            raise TypeError(
                f"accuracy: record got {enabled!r} and {output_dir!r}; expected (enabled, output_dir, record_level, ...), "
                "or the folder and all else by name"
            )
        output_dir = enabled
    settings = Settings(
        os.fspath(output_dir), record_level, record_stack, record_input, record_output, list(op_range or ()),
        op_list if isinstance(op_list, str) else list(op_list or ()), skip, process_group, list(ranks or ()),
        numbering,
    )  # fmt: skip
    session = Session(settings, enabled is not False)
    try:
        yield session
    except BaseException:
        try:
            session.stop()
        except ValueError as error:  # the program's own error says more
            print(error, file=sys.stderr)
        raise
    session.stop()


def record_switch(enabled: bool) -> None:
    """Pauses every session that has not ended, or goes on with it.

    Raises:
        RuntimeError: there is none.
    """
    if not _sessions:
        raise RuntimeError("accuracy: nothing is recorded; call start_record or use record first")
    for session in list(_sessions):
        session.switch(bool(enabled))


def _end_all() -> None:
    for session in list(reversed(_sessions)):
        try:
            session.stop()
        except ValueError as error:
            print(error, file=sys.stderr)


def continue_in_child(settings: Settings, run: Path | None) -> None:
    """In a child with a fresh interpreter: records as its parent does."""
    Session(settings, True, run, is_child=True)
    _finish_with_the_process()


def continue_after_fork() -> None:
    """In a forked child."""
    if not _sessions:
        return
    hub.after_fork()
    for session in _sessions:
        session.continue_in_fork()
    _finish_with_the_process()


class Continuation:
    """Carried to a child that starts with a fresh interpreter: unpickling it resumes the recording there."""

    def __init__(self, sessions: processes.Sessions):
        self.sessions = sessions

    def __reduce__(self) -> tuple[object, ...]:
        return _resume, (self.sessions,)


def _resume(sessions: processes.Sessions) -> Continuation:
    for settings, folder in sessions:
        continue_in_child(settings, folder)
    return Continuation(sessions)


processes.continue_by(Continuation, continue_after_fork)


def _finish_with_the_process() -> None:
    """Children of multiprocessing leave without atexit, and forget their finalizers as they begin."""
    from multiprocessing import util

    def install(_: object) -> None:
        util.Finalize(None, _end_all, exitpriority=100)

    util.register_after_fork(_Marker.one, install)
    install(None)


class _Marker:
    """An object that a weak table may hold."""

    one: _Marker


_Marker.one = _Marker()
Undo = Callable[[], None]
