"""What every launcher shares: its type, the table of those made by hand, and keys of plans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Launcher = Callable[[tuple[Any, ...], "dict[str, Any] | None"], Any]

_TRUE, _FALSE, _NAN = object(), object(), object()

# Overloads that are handled by hand (transfers, lists, random state), by name.
SPECIAL: dict[str, Callable[[Any], Launcher]] = {}


def special(*names: str) -> Callable[[Callable[[Any], Launcher]], Callable[[Any], Launcher]]:
    """Decorates a function from an OpOverload to its launcher."""

    def register(make: Callable[[Any], Launcher]) -> Callable[[Any], Launcher]:
        for name in names:
            SPECIAL[name] = make
        return make

    return register


def static_key(value: Any) -> Any:
    """A hashable stand-in that tells 1, 1.0 and True apart and finds NaN equal to itself."""
    if value is True:
        return _TRUE
    if value is False:
        return _FALSE
    kind = type(value)
    if kind is float:
        return (float, value) if value == value else _NAN
    if kind is list or kind is tuple:
        return tuple([static_key(v) for v in value])
    return value
