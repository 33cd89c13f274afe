"""What ``accuracy.record`` does at every call, in C (shim/recorder)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from torch import Tensor, UntypedStorage
from torch._ops import OpOverload
from torch.autograd.graph import Node

from libmaca_ffi._launcher import Buffer

_Found: TypeAlias = list[tuple[str, object]]

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
    in_backward: bool
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
    received: set[int]
    def line(self, error: str | None = None) -> bytes: ...

class RecordedCalls:
    """The base of the recorder: functions and operators that begin and end."""

    def function_begins(
        self, name: str, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> RecordedCall: ...
    def function_ends(self, call: RecordedCall, result: object, error: BaseException | None) -> None: ...
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

class RecordedForm:
    """What entries say of tensors of one form."""

    def __init__(self, text: str, grad_text: str, is_plain: bool) -> None: ...
    @property
    def text(self) -> str: ...
    @property
    def grad_text(self) -> str: ...

class RecordedValue:
    """A view of an allocation as it is now."""

    @property
    def form(self) -> RecordedForm: ...
    numbers: str | None
    text: str | None
    grad_text: str | None

class RecordedMemory:
    """An allocation that tensors share."""

    is_written: bool
    is_blank: bool
    def forget(self) -> None: ...
    def written_by(self, level: int, call: int) -> None: ...

class RecordedMemories:
    """The allocations that were met and are still there."""

    def get(self, owner: Buffer | UntypedStorage) -> RecordedMemory | None: ...
    def clear(self) -> None: ...

class RecordedEntries:
    """Tensors as entries of lines. A subclass has ``new_form``, ``entry`` and ``numbers``."""

    has_numbers: bool
    has_files: bool
    def __init__(self, memories: RecordedMemories, forms: dict[Any, RecordedForm]) -> None: ...
    def arguments(self, found: _Found, level: int, call: int = -1, written: object = ()) -> str: ...
    def wrote(self, tensor: Tensor) -> None: ...
    def credit(self, tensor: Tensor, level: int, call: int, wrote: bool) -> int: ...
    def value_of(self, tensor: Tensor) -> RecordedValue | None: ...

class RecordedLines:
    """Lines of a file that is mapped. A subclass has ``further(data)``, which writes a line that does not fit."""

    @property
    def used(self) -> int: ...
    is_ended: bool
    def line(self, data: bytes) -> None: ...
    def show(self, address: int, size: int, used: int) -> None: ...

class RecordedNodes:
    """Which forward call made an autograd node."""

    @property
    def size(self) -> int: ...

class RecordedStacks:
    """Numbers of Python stacks. A subclass has ``is_shown`` and ``is_new``."""

    def here(self) -> int: ...

class RecordedFunctions:
    """The base of a TorchFunctionMode that gives calls to the recorder that is set."""

    __torch_function__: Callable[..., Any]

class RecordedOperators:
    """The base of a TorchDispatchMode that gives calls to the recorder that is set."""

    __torch_dispatch__: Callable[..., Any]

def configure(**facts: object) -> None: ...
def set_recorder(recorder: object) -> None: ...
def flatten_call(args: Sequence[object], kwargs: Mapping[str, object] | None) -> _Found: ...
