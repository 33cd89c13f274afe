"""What ``accuracy.record`` does at every call, in C (shim/recorder)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from torch import Tensor
from torch._ops import OpOverload
from torch.autograd.graph import Node

_Found: TypeAlias = list[tuple[str, object]]
Form: TypeAlias = tuple[
    str, str, bool
]  # what entries say, of those with a gradient, and is it all that they say?

class RecordedCall:
    """A call that has begun."""

    def __init__(self, level: int, name: str, op: str, direction: str) -> None: ...
    @property
    def level(self) -> int:
        """0: a function of Python's interface, 1: an aten operator."""
    files: int
    number: int
    serial: int
    parent: int
    forward: int
    stack: int
    owner: int
    random: bool
    matched: bool
    has_modules: bool
    @property
    def op(self) -> str: ...
    @property
    def direction(self) -> str: ...
    module: str | None
    node: str | None
    @property
    def grad_fns(self) -> Sequence[tuple[Node, int, str]] | None:
        """The nodes that made its arguments, which of their results these are, and where they stand."""
    thread: str | None
    unit: bool | None
    @property
    def name(self) -> str: ...
    inputs: str | None
    outputs: str | None
    @property
    def tensors(self) -> list[tuple[str, Tensor]]: ...
    received: set[int] | None
    def line(self, error: str | None = None) -> bytes: ...

class RecordedCalls:
    """The base of the recorder: functions and operators that begin and end."""

    def api_begins(
        self, call: RecordedCall, args: object, kwargs: Mapping[str, object] | None, is_unit: bool
    ) -> None: ...
    def api_ends(
        self, call: RecordedCall, result: object, error: BaseException | None, module: object
    ) -> None: ...
    def operator_begins(
        self, func: OpOverload, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> RecordedCall: ...
    def operator_ends(
        self,
        call: RecordedCall,
        func: OpOverload,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        result: object,
        error: BaseException | None,
    ) -> None: ...
    def forget(self) -> None:
        """Threads that were met are another process's."""

    def name(self, op: str, direction: str) -> str: ...

class RecordedEntries:
    """Tensors as entries of lines. A subclass has ``new_form``, ``entry`` and ``numbers``."""

    has_numbers: bool
    def __init__(self, forms: dict[Any, Form]) -> None: ...
    def arguments(self, found: _Found, level: int, call: int = -1, written: object = ()) -> str: ...
    def wrote(self, tensor: Tensor) -> None: ...
    def strided(self, tensor: Tensor, level: int, call: int, wrote: bool, place: str) -> str | None: ...
    def written_by(self, tensor: Tensor, level: int, call: int) -> None: ...
    def close(self) -> None:
        """Lets go of all memory that was met."""

class RecordedFunctions:
    """The base of a TorchFunctionMode that gives calls to the recorder that is set."""

    __torch_function__: Callable[..., Any]

class RecordedOperators:
    """The base of a TorchDispatchMode that gives calls to the recorder that is set."""

    __torch_dispatch__: Callable[..., Any]

def configure(**facts: object) -> None: ...
def set_recorder(recorder: object) -> None: ...
def stack_key() -> bytes: ...
def flatten_call(args: Sequence[object], kwargs: Mapping[str, object] | None) -> _Found: ...
