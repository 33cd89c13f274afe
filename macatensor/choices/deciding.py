"""Which way a signature goes: decided once in a process, so that no call's bits change while it runs.

Nothing is measured and no bank is used unless a program asks: ``torch.backends.maca.benchmark = True``,
``torch.maca.tunable.enable()``, ``torch.maca.set_aoe(path)``, or ``TUNE_BANK_PATH``. Where the plan has to give equal
bits in every run (deterministic algorithms) the choice is always the library's own.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch

from macatensor.choices import bank
from macatensor.choices.bank import Measured
from macatensor.runtime import capture, switches
from macatensor.runtime.ffi import ffi, lib
from op_table import Kind, Row, families

if TYPE_CHECKING:
    from torch._ops import OpOverload

    from macatensor.runtime.boxed import Value
    from macatensor.runtime.ffi import CData, Program
    from macatensor.runtime.meta import Meta

_LOG = logging.getLogger(__name__)
OWN = ""  # the library's own choice
_MOST_DECIDED = 1 << 16  # signatures that are remembered; a program of more leaves the rest to the library
_MOST_NAMES = 64  # of one request
_BETWEEN_SAVES = 2.0  # seconds
# The families of rows of which libraries have several algorithms; the library is asked about these alone.
_FAMILIES = ("matmul", "convolution")
KERNELS = frozenset(
    row.kernel_name for name in _FAMILIES for row in families[name] if row.kind is Kind.KERNEL
)


@dataclass(frozen=True)
class Asked:
    """A call of which a plan is about to be made."""

    func: OpOverload
    row: Row
    full: Sequence[Value]  # every argument, in the schema's order
    kernel: str
    flags: int  # of the plan (maca.h)
    operands: Sequence[Meta | None]  # None: absent
    attributes: Sequence[tuple[str, object]]
    scalars: Sequence[complex]  # that a launch brings
    request: Callable[[], CData]  # the maca_plan_request
    make: Callable[[str], Program]  # by a way; raises Declined

    def key(self) -> int:
        """A hash of what :meth:`signature` says, in a tenth of the time: every plan of a product asks. What is remembered
        of a signature that is never seen again is no more than this."""
        operands = tuple(m and (m.size, m.stride, m.dtype) for m in self.operands)
        attributes = [(n, tuple(v) if isinstance(v, list) else v) for n, v in self.attributes]
        # the text of the attributes: -1 and -2 have one hash
        return hash((self.kernel, self.flags, torch.get_num_threads(), operands, repr(attributes)))

    def signature(self) -> str:
        """What the choice depends on, as canonical JSON."""
        operands = [
            None if m is None else [str(m.dtype).removeprefix("torch."), list(m.size), list(m.stride)]
            for m in self.operands
        ]
        facts = {
            "kernel": self.kernel,
            "flags": self.flags,
            "threads": torch.get_num_threads(),
            "operands": operands,
            "attributes": [[name, value] for name, value in self.attributes],
        }
        return json.dumps(facts, separators=(",", ":"), sort_keys=True, default=str)

    def ways(self) -> list[str]:
        """The names that the library lists for the request. Raises what the library's failure is."""
        names, count = ffi.new("char const*[]", _MOST_NAMES), ffi.new("int32_t*")
        status = lib.maca_program_candidates(self.request(), names, _MOST_NAMES, count)
        if status:
            from macatensor.runtime.ffi import launch_error

            raise launch_error(status, "plan_candidates")
        return list(dict.fromkeys(ffi.string(names[i]).decode() for i in range(count[0])))


class Measure(Protocol):
    """Measures the ways of a call. None: there is one way, or nothing can be measured now."""

    def __call__(self, asked: Asked, signature: str) -> Measured | None: ...


@dataclass
class _State:
    benchmark: bool = False  # torch.backends.maca.benchmark
    enabled: bool = False  # torch.maca.tunable.enable
    tuning: bool = True  # torch.maca.tunable.tuning_enable
    record_untuned: bool = False
    saves_at_exit: bool = True
    path: Path | None = None  # None: this machine's file in the folder
    duration: float = 0.2  # seconds that the ways of one signature may take, beyond seven rounds
    iterations: int = 100  # calls of one way in a round, at most
    most_ways: int = 0  # that are measured, after the library's own choice; 0: all
    decided: dict[int, str] = field(default_factory=dict)
    known: dict[str, Measured] = field(default_factory=dict)  # of banks that were read, and measured here
    unsaved: dict[str, Measured] = field(default_factory=dict)
    has_read: bool = False
    saved_at: float = 0.0


_state = _State()
_lock = threading.RLock()
_measure: Measure | None = None
_tune_file: Callable[[Path], None] | None = None
# Told of each call whose way is decided, where somebody collects them (macatensor tune --dump).
watcher: Callable[[Asked, str], None] | None = None
_listeners: list[list[Measured]] = []
_inside = threading.local()  # a thread that measures builds plans by name and asks nobody


def measure_with(measure: Measure, tune_file: Callable[[Path], None]) -> None:
    """Takes the functions that measure a call, and the calls of a file: they know of bounds and so live above."""
    global _measure, _tune_file
    _measure, _tune_file = measure, tune_file


def tune_file(chosen: Path) -> None:
    """Measures the calls in a file. Raises OSError and ValueError for one that holds none."""
    assert _tune_file is not None  # set by the package's import
    _tune_file(chosen)


def settings() -> _State:
    """What is on; the one object, for those that change it."""
    return _state


def uses() -> bool:
    """Are measured choices used?"""
    return _state.benchmark or _state.enabled


def measures() -> bool:
    """Are signatures that no bank knows measured?"""
    return _state.benchmark or (_state.enabled and _state.tuning)


def path() -> Path:
    """The file that is read and written."""
    if _state.path is not None:
        return _state.path
    chosen = switches.TUNE_BANK_PATH.value()
    return bank.file_in(bank.folder() if chosen is None else chosen)


def set_path(chosen: Path | None) -> None:
    """Reads and writes another file from now on. None: this machine's, in ``TUNE_BANK_PATH`` or the user's cache."""
    with _lock:
        save()
        _state.path = chosen
        _state.has_read = False


def read(chosen: Path | None = None) -> int:
    """Adds what a bank holds (default: :func:`path`) and returns how many signatures that is. What is measured in this
    process stays as it is."""
    with _lock:
        found = bank.read(path() if chosen is None else chosen)
        _state.known = {**_state.known, **found, **_state.unsaved}
        _state.has_read = True
        return len(found)


def save(chosen: Path | None = None) -> bool:
    """Adds what was measured to the bank, or all that is known to a ``chosen`` file. False, and logged, where it cannot."""
    with _lock:
        entries = _state.unsaved if chosen is None else _state.known
        if not entries:
            return True
        try:
            bank.save(path() if chosen is None else chosen, entries.values())
        except OSError as error:
            _LOG.warning("the tuning bank cannot be written: %s", error)
            return False
        if chosen is None:
            _state.unsaved = {}
        _state.saved_at = time.monotonic()
        return True


def known() -> list[Measured]:
    """All that is known, of banks and measured here."""
    with _lock:
        if uses() and not _state.has_read:
            read()
        return list(_state.known.values())


def way_of(asked: Asked) -> str:
    """The way that plans of the call's signature go; :data:`OWN`: the library's own choice."""
    if getattr(_inside, "measuring", False):
        return OWN
    key = asked.key()
    if not (uses() or watcher is not None):
        if len(_state.decided) < _MOST_DECIDED:
            return _state.decided.setdefault(key, OWN)  # and it stays so, whoever asks later
        return _state.decided.get(key, OWN)
    with _lock:
        way = _state.decided.get(key)
        if way is None:
            way = _decide(asked)
            if len(_state.decided) < _MOST_DECIDED:
                _state.decided[key] = way
    if watcher is not None:
        watcher(asked, asked.signature())
    return way


def _decide(asked: Asked) -> str:
    if not uses() or asked.flags & lib.MACA_PLAN_DETERMINISTIC:
        return OWN
    signature = asked.signature()
    if not _state.has_read:
        read()
    found = _state.known.get(signature)
    if found is not None:
        return found.way
    # a graph that is being captured would record what is measured
    if not measures() or _measure is None or capture.current is not None:
        return OWN
    _inside.measuring = True
    try:
        result = _measure(asked, signature)
    finally:
        _inside.measuring = False
    if result is None:
        return OWN
    _state.known[signature] = _state.unsaved[signature] = result
    for listener in _listeners:
        listener.append(result)
    if time.monotonic() - _state.saved_at > _BETWEEN_SAVES:
        save()
    return result.way


def _end() -> None:
    if _state.saves_at_exit:
        save()


@contextlib.contextmanager
def measuring() -> Iterator[None]:
    """Measures signatures that no bank knows, and that have not run yet, in the block."""
    before, _state.benchmark = _state.benchmark, True
    try:
        yield
    finally:
        _state.benchmark = before


@contextlib.contextmanager
def measured(found: list[Measured]) -> Iterator[None]:
    """Adds to ``found`` what is measured in the block."""
    _listeners.append(found)
    try:
        yield
    finally:
        _listeners[:] = [other for other in _listeners if other is not found]


def _begin() -> None:
    """What the environment asks for, at import."""
    _state.enabled = switches.TUNE_BANK_PATH.value() is not None
    _state.tuning = not _state.enabled  # a bank that is given is used as it is


_begin()
atexit.register(_end)
os.register_at_fork(after_in_child=lambda: _state.unsaved.clear())  # they are the parent's to save
