"""What every launcher shares: its type, the table of those made by hand, and keys of plans."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from torch._ops import OpOverload

from macatensor.runtime.boxed import Arguments, Launcher, Value

if TYPE_CHECKING:
    from macatensor.dispatch.request import Scalar
    from macatensor.runtime.tensor import Payload

# What runs calls of one signature: every argument, the payloads and the launch scalars among them.
Run: TypeAlias = "Callable[[Arguments, Sequence[Payload], Sequence[Scalar]], Value]"

_TRUE, _FALSE, _NAN = object(), object(), object()

Maker: TypeAlias = Callable[[OpOverload], Launcher]
_Maker = TypeVar("_Maker", bound=Maker)

# Overloads that are handled by hand (transfers, lists, random state), by name.
SPECIAL: dict[str, Maker] = {}


def special(*names: str) -> Callable[[_Maker], _Maker]:
    """Decorates a function from an OpOverload to its launcher."""

    def register(make: _Maker) -> _Maker:
        for name in names:
            SPECIAL[name] = make
        return make

    return register


def static_key(value: Value) -> Hashable:
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
    key: Hashable = value
    return key
