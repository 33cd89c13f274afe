"""Which operator runs, and the Python line that called it: recorded only while someone wants to know.

While it is on, every operator gives the runtime the number of its site, and every block of memory remembers the
number it was allocated under. It costs a walk over the Python stack for each operator (some 10 us); while it is off,
``__torch_dispatch__`` is the plain one and costs nothing more.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple, ParamSpec, Protocol, TypeVar

from torch._ops import OpOverload

from macatensor.runtime.boxed import Arguments, Keywords, Value
from macatensor.runtime.callers import OURS, TORCH
from macatensor.runtime.ffi import lib
from macatensor.runtime.tensor import MacaTensor
from macatensor.runtime.uncompiled import uncompiled

_P = ParamSpec("_P")
_T = TypeVar("_T")
_LIMIT = 1 << 16  # sites kept; later ones are not told apart


class Frame(NamedTuple):
    """One line of a Python stack."""

    filename: str
    line: int
    name: str


class Site(NamedTuple):
    """An operator and the Python stack that called it, innermost first, without this package's own frames."""

    operator: str
    frames: tuple[Frame, ...]

    def line(self) -> str:
        """``file.py:12``, the innermost line outside PyTorch; of the autograd engine's threads there is none."""
        for frame in self.frames:
            if not frame.filename.startswith((TORCH, "<frozen")):
                return f"{frame.filename}:{frame.line}"
        return "a thread of the autograd engine" if not self.frames else str(self.frames[0].filename)

    def __str__(self) -> str:
        return f"{self.operator} at {self.line()}"


_sites: list[Site] = []
_numbers: dict[Site, int] = {}
_users: set[str] = set()
_watcher: Watcher | None = None
_plain_dispatch: Callable[..., Value] = MacaTensor.__dict__["__torch_dispatch__"]


class Watcher(Protocol):
    """Is told of each outermost operator; the sanitizer is one."""

    def opens(self, operator: str) -> None:
        """Before an operator without operands on the device, of which only the result is told."""

    def before(self, operator: OpOverload, args: Arguments, kwargs: Keywords | None) -> set[int]: ...

    def after(self, operator: str, result: Value, held: set[int]) -> None: ...


def watch(watcher: Watcher | None) -> None:
    """Tells ``watcher`` before and after each outermost operator, while sites are recorded; None ends it."""
    global _watcher
    _watcher = watcher


def site(number: int) -> Site | None:
    """The site of a number that a block remembers; None for what was not recorded."""
    return _sites[number - 1] if 0 < number <= len(_sites) else None


def here(operator: str) -> Site:
    """The calling Python stack as a site."""
    frames: list[Frame] = []
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(OURS):
            frames.append(Frame(code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back  # type: ignore[assignment]
    return Site(operator, tuple(frames))


def _number(found: Site) -> int:
    number = _numbers.get(found)
    if number is None:
        if len(_sites) >= _LIMIT:
            return 0
        _sites.append(found)
        number = _numbers[found] = len(_sites)
    return number


class running:
    """What the device is given inside belongs to ``operator``, unless an outer operator is recorded already."""

    __slots__ = ("operator", "is_outermost")

    def __init__(self, operator: str):
        self.operator = operator

    def __enter__(self) -> running:
        self.is_outermost = not lib.maca_memory_get_site()
        if self.is_outermost:
            lib.maca_memory_set_site(_number(here(self.operator)))
        return self

    def __exit__(self, *error: object) -> None:
        if self.is_outermost:
            lib.maca_memory_set_site(0)


def observed(operator: str, function: Callable[_P, _T]) -> Callable[_P, _T]:
    """``function``, recorded as ``operator`` while recording is on."""

    @uncompiled
    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        if not _users:
            return function(*args, **kwargs)
        with running(operator) as outer:
            if _watcher is not None and outer.is_outermost:
                _watcher.opens(operator)
            result = function(*args, **kwargs)
            if _watcher is not None and outer.is_outermost:
                _watcher.after(operator, result, set())
            return result

    return call


@uncompiled
def _recorded_dispatch(
    func: OpOverload, types: Sequence[type], args: Arguments = (), kwargs: Keywords | None = None
) -> Value:
    with running(str(func)) as outer:
        if _watcher is None or not outer.is_outermost:
            return _plain_dispatch(func, types, args, kwargs)
        held = _watcher.before(func, args, kwargs)
        result = _plain_dispatch(func, types, args, kwargs)
        _watcher.after(outer.operator, result, held)
        return result


def is_recorded() -> bool:
    """Is anyone recording?"""
    return bool(_users)


def record(user: str, on: bool) -> None:
    """Switches recording on or off for ``user``; it stays on until every user has switched it off."""
    (_users.add if on else _users.discard)(user)
    MacaTensor.__torch_dispatch__ = staticmethod(_recorded_dispatch) if _users else _plain_dispatch


def forget() -> None:
    """Drops the recorded sites; blocks that remember one are then of an unknown site."""
    if not _users:
        _sites.clear()
        _numbers.clear()
