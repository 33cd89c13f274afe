"""The way of an operator from ``__torch_dispatch__`` to a kernel and back, in C (shim/launcher)."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

import torch
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

    awaited: int  # work of the host that writes it yet, by its number; 0: none

    @property
    def is_lazy(self) -> bool:
        """Does it get memory of its own before it is written?"""

    def share(self) -> Buffer | None:
        """Another Buffer over the same memory, which the one that is written first copies. None where a graph knows the
        memory by its address."""

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
        room: tuple[float, float, bool, bool],
    ) -> Program: ...
    def __call__(self, args: Arguments, payloads: Sequence[Payload], scalars: Sequence[complex]) -> Value: ...
    def launch(self, payloads: Sequence[Payload], scalars: Sequence[complex]) -> list[MacaTensor]:
        """The new tensors, in a flat list."""

    def launch_into_buffer(self, payload: Payload) -> Buffer:
        """The first result's memory."""

class Tape:
    """Launches that are recorded once and run again in other memory (shim/tape.h)."""

    def __new__(cls) -> Tape: ...
    def input(self, nbytes: int) -> Buffer:
        """The stand-in of the next input's memory: nothing may look into it."""

    def begin(self) -> None:
        """This thread's launches are recorded from here on. RuntimeError where they are captured already."""

    def end(self) -> None: ...
    def owns(self, payload: Payload) -> bool:
        """Is that memory a stand-in?"""

    def give(self, memory: Sequence[Payload]) -> None:
        """Stand-ins whose memory each call makes anew and gives back, in order."""

    def steps(self) -> list[tuple[int, int, list[tuple[int, int, int, bool]]]]:
        """What was recorded: the number of the program (0: a copy or a fill), how many scalars it is given, and the memory
        of each operand: the stand-in (-1: other memory), its first byte and the one after the last, and is it written?"""

    def scalars(self) -> list[bool | int | float | complex]:
        """The numbers that the steps are given, one after another."""

    def vary(self, scalar: int, number: int) -> None:
        """Each call gives the float at ``scalar``: its ``number``-th argument that varies. Before :meth:`fuse`."""

    def is_scratch(self, stand_in: int) -> bool:
        """Is it neither an input nor given back?"""

    def fuse(self, fused: Sequence[tuple[list[int], int, list[tuple[int, int]]]]) -> None:
        """Steps become one launch in the last one's place: their indices, a ``maca_program``, and for each operand of it
        stand-in and offset. Scalars of the steps follow one another."""

    def finish(
        self,
        arguments: list[Meta | object],
        outputs: list[tuple[int, int, int, object, Meta | None]],
        heirs: list[tuple[int, int]],
    ) -> None:
        """``arguments``: the Meta of each tensor, the open range ``(low, high)`` of a float that varies, and what another
        one is; ``outputs``: of
        :class:`macatensor.compiling.tapes.Output`; ``heirs``: stand-ins of which the second may take the first's memory,
        element for element, if that is read for the last time where the second is written."""

    def __call__(self, arguments: list[Value]) -> list[Value]:
        """The results; NotImplemented where the arguments are others than those that were recorded."""

    @property
    def launches(self) -> int: ...
    @property
    def scratch_bytes(self) -> int: ...

def plan_memory(
    values: list[tuple[int, int, int, bool]], heirs: list[tuple[int, int]]
) -> tuple[list[tuple[int, int]], list[tuple[int, int, int, int]], int]:
    """Where a tape's values lie (shim/memory_plan.h). ``values``: bytes, the first step that touches each and the one after
    the last, and is it a result? The piece of memory and the offset of each; for each piece its bytes, the steps between
    which it is there, and the result that it stays as, or -1; and the most that pieces without a result take at once."""

class KernelCall:
    """Calls that a kernel serves. A subclass has ``general``, ``odd_operand``, ``miss`` and ``weigh``."""

    def __init__(
        self,
        letters: bytes,
        cache: dict[Hashable, Any],
        tensors_end: int,
        is_sized_by_numbers: bool,
        names: tuple[str | None, ...],
        defaults: tuple[Value, ...],
        only: dict[str, Value],
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

class CastCall:
    """``func`` of ``cast(value, dtype)`` of its arguments, between ``rest(True)`` and ``rest(False)``. Numbers, and tensors
    of ours that have the dtype, stay as they are. ``dtype`` may be what returns it."""

    def __init__(
        self,
        func: Callable[..., Value],
        rest: Callable[[bool], object],
        dtype: torch.dtype | Callable[[], torch.dtype],
        cast: Callable[[Value, torch.dtype], Value],
    ) -> None: ...
    def __call__(self, *args: Value, **kwargs: Value) -> Value: ...

class KeptError(Generic[_T]):
    """``value``, to be had by a call while an exception is pending, which is appended to ``taken``."""

    def __init__(self, value: _T, taken: list[BaseException]) -> None: ...
    def __call__(self, *args: object) -> _T: ...

class FixedAttribute(Generic[_T]):
    """``value``, of a type and of its instances."""

    def __init__(self, value: _T) -> None: ...
    def __get__(self, instance: object, owner: type | None = None) -> _T: ...

class AssignedAttribute:
    """The descriptor ``plain``, but for ``assign(instance, value)`` where one of the two is a ``type``."""

    def __init__(self, plain: object, type: type, assign: Callable[[Any, Any], None]) -> None: ...
    def __get__(self, instance: object, owner: type | None = None) -> Any: ...
    def __set__(self, instance: object, value: object) -> None: ...

def allocate(nbytes: int) -> Buffer | None: ...
def configure(**facts: object) -> None: ...
def observe(watcher: Callable[[str, str, str], None] | None) -> object:
    """``watcher(operator, kernel, implementation)`` is called before each launch; None: nothing is."""

def is_observed() -> bool:
    """Is somebody told of each launch?"""

def set_finisher(finish: Callable[[int], None]) -> None:
    """``finish(number)`` is called before anything uses a Buffer that has that number as ``awaited``."""

def pin(nbytes: int) -> object: ...
def lend(
    tensor: object, address: int, code: int, bits: int, sizes: tuple[int, ...], strides: tuple[int, ...], /
) -> object: ...
def lender(capsule: object, /) -> MacaTensor | None: ...

dispatch: Callable[..., Value]  # (func, types, args=(), kwargs=None), as PyTorch calls it

def forget_launchers() -> None: ...
def launcher_of(func: OpOverload) -> Launcher | None: ...
def set_launcher(func: OpOverload, launcher: Callable[[Arguments, Keywords | None], Value]) -> None: ...
