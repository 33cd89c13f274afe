"""Device arguments: a torch function mode that reads ``"cuda"`` as ``"maca"`` wherever PyTorch takes a device."""

from __future__ import annotations

import contextlib
import functools
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode_stack,
    _pop_mode,
    _push_mode,
)
from torch.types import Device
from torch.utils._device import DeviceContext

from macatensor.as_cuda.patches import Patches
from macatensor.runtime.boxed import Arguments, Keywords, Value

_NAME = re.compile(r"cuda(:\d+)?\Z")
_TENSOR_TYPE = re.compile(r"torch\.cuda\.(\w+)Tensor\Z")
_EQUATIONS = frozenset({torch.einsum})  # whose strings are no devices
DTYPES = {
    "Float": torch.float32, "Double": torch.float64, "Half": torch.float16, "BFloat16": torch.bfloat16,
    "Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8,
    "Bool": torch.bool,
}  # fmt: skip


_T = TypeVar("_T")


def device_of(value: Value) -> Value:
    """``value`` with CUDA read as maca, where it names a device of CUDA; else ``value`` itself."""
    kind = type(value)
    if kind is str:
        return "maca" + value[4:] if _NAME.match(value) else value
    if kind is torch.device and value.type == "cuda":
        return plain_device("maca") if value.index is None else plain_device("maca", value.index)
    return value


def plain_device(*args: Value) -> torch.device:
    """``torch.device`` outside every mode."""
    with torch._C.DisableTorchFunction():
        return torch.device(*args)


class TensorType:
    """``torch.cuda.FloatTensor`` and its kin: a constructor, an argument of ``Tensor.type`` and of isinstance."""

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        self.__name__ = f"{name}Tensor"
        self.dtype = dtype

    def __call__(self, *args: Value) -> torch.Tensor:
        """Of sizes, or of one sequence of numbers."""
        if all(isinstance(a, int) for a in args):
            return torch.empty(*args, dtype=self.dtype, device="maca")
        return torch.tensor(args[0], dtype=self.dtype, device="maca")

    def __instancecheck__(self, value: object) -> bool:
        return isinstance(value, torch.Tensor) and value.device.type == "maca" and value.dtype == self.dtype

    def __repr__(self) -> str:
        return f"<torch.cuda.{self.__name__} on maca>"


def element_of(kind: object) -> torch.dtype | None:
    """The dtype of a tensor type of CUDA: ``torch.cuda.HalfTensor``, its name, or what serves it."""
    if isinstance(kind, str):
        found = _TENSOR_TYPE.match(kind)
        return DTYPES.get(found[1]) if found else None
    own = isinstance(kind, TensorType) or getattr(kind, "__module__", None) == "torch.maca"
    element = getattr(kind, "dtype", None) if own else None
    return element if isinstance(element, torch.dtype) else None


def _cuda(
    self: torch.Tensor,
    device: Device = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    target = device if device is not None else 0
    index = target if isinstance(target, int) else plain_device(device_of(target)).index or 0
    return self.to(f"maca:{index}", non_blocking=non_blocking, memory_format=memory_format)


def _is_cuda(self: torch.Tensor) -> bool:
    return self.device.type == "maca"


def _type(
    self: torch.Tensor, dtype: Value = None, non_blocking: bool = False, **options: bool
) -> torch.Tensor | str:
    element = element_of(dtype)
    if element is not None:
        return self.to("maca", element, non_blocking=non_blocking)
    return self.type(dtype, non_blocking, **options)


_getter: Any = torch.Tensor.is_cuda
_INSTEAD: dict[Callable[..., Value], Callable[..., Value]] = {
    torch.Tensor.cuda: _cuda,
    torch.Tensor.type: _type,
    _getter.__get__: _is_cuda,
}


class CudaMode(TorchFunctionMode):
    """Reads devices of CUDA as maca in the arguments of every PyTorch function."""

    active = True  # turned off by remove(), for modes that other threads still hold

    def __torch_function__(
        self,
        func: Callable[..., Value],
        types: Sequence[type],
        args: Arguments = (),
        kwargs: Keywords | None = None,
    ) -> Value:
        kwargs = kwargs or {}
        if not self.active:
            return func(*args, **kwargs)
        instead = _INSTEAD.get(func)
        if instead is not None:
            return instead(*args, **kwargs)
        if func not in _EQUATIONS:
            if args:
                args = tuple([device_of(a) for a in args])
            if kwargs:
                kwargs = {name: device_of(value) for name, value in kwargs.items()}
        if kwargs.get("pin_memory"):
            return _pinned(func(*args, **{**kwargs, "pin_memory": False}))
        return func(*args, **kwargs)


def _pinned(made: torch.Tensor) -> torch.Tensor:
    """What a factory with ``pin_memory=True`` gives; PyTorch asks an allocator in C++ for it."""
    with torch._C.DisableTorchFunction():
        return made.detach().pin_memory().requires_grad_(made.requires_grad)


_mode: CudaMode | None = None


def install(patches: Patches) -> None:
    """Puts the mode on this thread's stack, and on that of every thread started from now on."""
    global _mode
    _mode = CudaMode()
    _insert(_mode)
    patches.served += ['device="cuda" -> device="maca"', 'torch.device("cuda") -> torch.device("maca")',
                       'Tensor.cuda -> Tensor.to("maca")', "Tensor.is_cuda -> is the tensor on maca",
                       'Module.cuda -> Module.to("maca")']  # fmt: skip
    start = threading.Thread.start

    @functools.wraps(start)
    def start_under_mode(self: threading.Thread) -> None:
        # modes belong to a thread, and the new one begins without
        self.run = functools.partial(_run_under_mode, _mode, self.run)  # type: ignore[method-assign]
        start(self)

    patches.replace(threading.Thread, "start", start_under_mode)
    run_backward = torch.autograd.graph._engine_run_backward

    @functools.wraps(run_backward)
    def backward_under_mode(*args: Value, **kwargs: Value) -> Value:
        # Tensor.backward is called with the mode off; the hooks and autograd.Functions it runs are a script's own
        with _present():
            return run_backward(*args, **kwargs)

    for module in (torch.autograd.graph, torch.autograd):
        patches.replace(module, "_engine_run_backward", backward_under_mode)


def remove() -> None:
    """Takes the mode off this thread's stack and turns it off in all others."""
    global _mode
    if _mode is not None:
        _mode.active = False
        _take_out(_mode)
        _mode = None


def _run_under_mode(mode: CudaMode | None, run: Callable[[], None]) -> None:
    if mode is not None and mode.active:
        _insert(mode)
    run()


@contextlib.contextmanager
def _present() -> Iterator[None]:
    """Has the mode on the stack inside."""
    mode = _mode
    if mode is None or mode in _get_current_function_mode_stack():
        yield
        return
    _insert(mode)
    try:
        yield
    finally:
        _take_out(mode)


def _take_all() -> list[TorchFunctionMode]:
    """Empties the stack; the topmost mode comes first."""
    return [_pop_mode() for _ in _get_current_function_mode_stack()]


def _insert(mode: CudaMode) -> None:
    # at the bottom, so that a `with` of another mode that is open now still ends what it began; only the context
    # of set_default_device must lie below
    stack = _take_all()[::-1]
    position = 1 if stack and isinstance(stack[0], DeviceContext) else 0
    for each in (*stack[:position], mode, *stack[position:]):
        _push_mode(each)


def _take_out(mode: CudaMode) -> None:
    for each in _take_all()[::-1]:
        if each is not mode:
            _push_mode(each)
