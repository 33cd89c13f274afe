"""The way of an operator from ``__torch_dispatch__`` to a kernel and back, in C (shim/launcher)."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

from torch._ops import OpOverload

from macatensor.runtime.boxed import Arguments, Keywords, Launcher, Value
from macatensor.runtime.meta import Meta
from macatensor.runtime.tensor import MacaTensor, Payload

_T = TypeVar("_T")

class Buffer:
    """Device memory that is released with its last reference."""

    @property
    def nbytes(self) -> int: ...
    @property
    def writes(self) -> int:
        """Moves with every launch or copy that writes the buffer."""

    @property
    def address(self) -> int:
        """The opaque device address."""

    @property
    def handle(self) -> int:
        """The address of the runtime's maca_buffer, valid while this object lives."""

class Program:
    """A plan of the library's with what a launch has to do around it."""

    def __new__(
        cls,
        keep: object,
        handle: int,
        operator: str,
        metas: Sequence[Meta | None],
        lists: Sequence[int],
        returned: Sequence[int] | None,
        repeats_first: bool,
        order: Sequence[int],
        room: tuple[float, float, bool, bool] | tuple[()],
    ) -> Program: ...
    def __call__(self, args: Arguments, payloads: Sequence[Payload], scalars: Sequence[complex]) -> Value: ...
    def launch(self, payloads: Sequence[Payload], scalars: Sequence[complex]) -> list[MacaTensor]:
        """The new tensors, in a flat list."""

    def launch_into_buffer(self, payload: Payload) -> Buffer:
        """The first result's memory."""

class KernelCall:
    """Calls that a kernel serves. A subclass has ``fill``, ``odd_operand``, ``miss`` and ``weigh``."""

    def __init__(
        self, letters: bytes, cache: dict[Hashable, Any], tensors_end: int, is_sized_by_numbers: bool
    ) -> None: ...
    def __call__(self, args: Arguments, kwargs: Keywords | None = None) -> Value: ...

class ViewCall:
    """Calls that only make metadata. A subclass has ``general(args, kwargs)`` for what the cache does not know."""

    def __init__(self, cache: dict[Hashable, Any]) -> None: ...
    def __call__(self, args: Arguments, kwargs: Keywords | None = None) -> Value: ...

class BlankCall:
    """Calls that make uninitialized memory in the image of their first argument. A subclass has ``general``."""

    def __init__(self, cache: dict[Hashable, Any]) -> None: ...
    def __call__(self, args: Arguments, kwargs: Keywords | None = None) -> Value: ...

class FixedAttribute(Generic[_T]):
    """``value``, of a type and of its instances."""

    def __init__(self, value: _T) -> None: ...
    def __get__(self, instance: object, owner: type | None = None) -> _T: ...

def allocate(nbytes: int) -> Buffer | None: ...
def configure(**facts: object) -> None: ...

dispatch: Callable[..., Value]  # (func, types, args=(), kwargs=None), as PyTorch calls it

def forget_launchers() -> None: ...
def launcher_of(func: OpOverload) -> Launcher | None: ...
def set_launcher(func: OpOverload, launcher: Callable[[Arguments, Keywords | None], Value]) -> None: ...
