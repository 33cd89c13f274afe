"""Where calls are seen: one function mode and one dispatch mode in each thread, and the global module hooks.

They are there while a session records and at no other time.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import torch
from torch.nn.modules import module as torch_module
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from macatensor.accuracy.recording.naming import function_name
from macatensor.accuracy.recording.quiet import untraced
from macatensor.accuracy.recording.recorder import Recorder
from macatensor.accuracy.recording.threads import Open
from macatensor.runtime.boxed import Arguments, Keywords, Value
from macatensor.runtime.ffi import native_recorder
from macatensor.runtime.uncompiled import uncompiled

_tracing = torch._C._get_tracing_state

# what computes nothing: questions about a tensor, conversions that only hand it over, and what runs backward
_SILENT = frozenset(
    """device dtype __dir__ __format__ __hash__ __len__ __repr__ __reduce__ __reduce_ex__ __setstate__ __dlpack__
    __dlpack_device__ __array__ __cuda_array_interface__ backward can_cast data_ptr dim dim_order
    element_size get_device has_names ndimension nelement numel numpy refine_names register_hook
    register_post_accumulate_grad_hook requires_grad_ result_type retain_grad size storage storage_offset
    storage_type stride sym_numel type untyped_storage share_memory_ _typed_storage _is_view
    _make_subclass as_subclass _make_wrapper_subclass _set_grad_enabled""".split()
)
_PROPERTIES = frozenset(("T", "mT", "H", "mH", "real", "imag"))


@uncompiled
def _recorded_name(func: object) -> str | None:
    """The name a function is recorded under; None when it computes nothing."""
    name = getattr(func, "__name__", "")
    if name in ("__get__", "__set__", "__delete__"):
        owner = getattr(func, "__self__", None)
        if name == "__get__" and getattr(owner, "__name__", "") in _PROPERTIES:
            return function_name(func)
        return None
    if isinstance(func, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return None  # the aten level has it
    if name in _SILENT or name.startswith(("is_", "_is_", "has_")) or func is torch.autograd.grad:
        return None
    return function_name(func)


class _Functions(native_recorder.RecordedFunctions, TorchFunctionMode):
    """Its method is written in C."""


class _Operators(native_recorder.RecordedOperators, TorchDispatchMode):
    """As the mode of functions."""

    supports_higher_order_operators = True


class TakesFunctions(Protocol):
    """Who is told of functions. What it answers to a call that begins, it is given back when the call ends."""

    @property
    def function_begins(self) -> Callable[..., object]: ...
    @property
    def function_ends(self) -> Callable[..., None]: ...


class TakesCalls(TakesFunctions, Protocol):
    """Of operators, too."""

    @property
    def operator_begins(self) -> Callable[..., object]: ...
    @property
    def operator_ends(self) -> Callable[..., None]: ...


@uncompiled
def _begin_and_end(
    recorder: TakesCalls,
    func: Callable[..., Value],
    name: str | None,
    args: Arguments,
    kwargs: Keywords | None,
) -> Value:
    """Runs and records a call where it is not C that does: sessions within each other, and ``torch.jit.trace``.

    ``name``: a function's; None: an operator is called.
    """
    options = kwargs or {}
    is_tracing = _tracing() is not None
    if name is not None:
        functions = Untraced(recorder) if is_tracing else recorder
        call = functions.function_begins(name, args, options)
        end = functools.partial(functions.function_ends, call)
    elif is_tracing:  # sizes that are read would be nodes of its graph; functions are recorded there
        return func(*args, **options)
    else:
        call = recorder.operator_begins(func, args, options)
        end = functools.partial(recorder.operator_ends, call, func, args, options)
    try:
        result = func(*args, **options)
    except BaseException as error:
        end(None, error)
        raise
    end(result, None)
    return result


class Several:
    """Recorders of sessions within each other, called as one is; a call that has begun is a list of theirs."""

    def __init__(self, recorders: tuple[Recorder, ...]):
        self._recorders = recorders

    def function_begins(self, *given: Value) -> list[Open]:
        return [r.function_begins(*given) for r in self._recorders]

    def function_ends(self, calls: list[Open], *given: Value) -> None:
        for recorder, call in zip(self._recorders, calls):
            recorder.function_ends(call, *given)

    def operator_begins(self, *given: Value) -> list[Open]:
        return [r.operator_begins(*given) for r in self._recorders]

    def operator_ends(self, calls: list[Open], *given: Value) -> None:
        for recorder, call in zip(self._recorders, calls):
            recorder.operator_ends(call, *given)


class Untraced:
    """A recorder while torch.jit.trace runs: the sizes that it reads are no part of the graph."""

    def __init__(self, recorder: TakesFunctions):
        self._recorder = recorder

    def function_begins(self, *given: Value) -> object:
        with untraced():
            return self._recorder.function_begins(*given)

    def function_ends(self, *given: Value) -> None:
        with untraced():
            self._recorder.function_ends(*given)


_NOTHING = nullcontext()


def _aside() -> AbstractContextManager[None]:
    """Sizes that the recorder reads are no part of a graph that is being traced."""
    return _NOTHING if _tracing() is None else untraced()


class Hub:
    """The recorders that are at work in this process, and what is installed for them."""

    def __init__(self) -> None:
        self.recorders: tuple[Recorder, ...] = ()
        self._lock = threading.RLock()
        self._installed: list[Callable[[], None]] = []

    def add(self, recorder: Recorder) -> None:
        """Starts giving calls to a recorder."""
        with self._lock:
            if not self.recorders:
                self._install()
            self._set((*self.recorders, recorder))

    def remove(self, recorder: Recorder) -> None:
        """Stops giving calls to a recorder; with the last one everything is taken away."""
        with self._lock:
            self._set(tuple(r for r in self.recorders if r is not recorder))
            if not self.recorders:
                self._uninstall()

    def _set(self, recorders: tuple[Recorder, ...]) -> None:
        self.recorders = recorders
        native_recorder.set_recorder(
            Several(recorders) if len(recorders) > 1 else recorders[0] if recorders else None
        )

    def after_fork(self) -> None:
        """In a forked child: locks that other threads held are theirs no more."""
        self._lock = threading.RLock()

    def _install(self) -> None:
        from macatensor.accuracy.recording import processes, threads

        self._installed += [_below_others(), _within_backward(), _around_modules()]
        self._installed += [threads.follow(self), processes.follow(self)]

    def _uninstall(self) -> None:
        for undo in reversed(self._installed):
            undo()
        self._installed.clear()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Calls of this thread are seen inside; for threads that the program starts."""
        functions, operators = _Functions(), _Operators()  # type: ignore[no-untyped-call]
        torch._C._push_on_torch_function_stack(functions)
        # without the flags that entering sets: they are the process's, and threads end in any order
        torch._C._push_on_torch_dispatch_stack(operators)
        try:
            yield
        finally:
            _take_dispatch_off(operators)
            _take_function_off(functions)


hub = Hub()


@uncompiled
def _module_begins(module: torch.nn.Module, args: Arguments) -> None:
    with _aside():
        for recorder in hub.recorders:
            recorder.module_begins(module, args)


@uncompiled
def _module_ends(module: torch.nn.Module, args: Arguments, *rest: Value) -> None:
    result, kwargs = (
        rest[-1],
        rest[0] if len(rest) == 2 else None,
    )  # of a call that raised PyTorch gives no kwargs
    error = sys.exc_info()[1] if result is None else None
    with _aside():
        for recorder in hub.recorders:
            recorder.module_ends(module, args, kwargs, result, error)


def _around_modules() -> Callable[[], None]:
    """Calls of modules are seen."""
    before = torch_module.register_module_forward_pre_hook(_module_begins)
    after = torch_module.register_module_forward_hook(_module_ends, with_kwargs=True, always_call=True)

    def undo() -> None:
        before.remove()
        after.remove()
        # PyTorch keeps that it took arguments by name, and torch.compile warns of a hook then
        by_name = torch_module._global_forward_hooks_with_kwargs
        by_name.pop(after.id, None)

    return undo


def _within_backward() -> Callable[[], None]:
    """What Python runs in backward is seen, as the second forward of a checkpoint: PyTorch gives ``backward`` itself to
    the mode, and takes the mode away while it runs."""
    run = torch.autograd._engine_run_backward  # type: ignore[attr-defined]

    def run_recorded(*args: Value, **kwargs: Value) -> Value:
        held = range(torch._C._len_torch_function_stack())
        if not hub.recorders or any(isinstance(torch._C._get_function_stack_at(i), _Functions) for i in held):
            return run(*args, **kwargs)
        with _Functions():
            return run(*args, **kwargs)

    torch.autograd._engine_run_backward = run_recorded  # type: ignore[attr-defined]

    def undo() -> None:
        if torch.autograd._engine_run_backward is run_recorded:  # type: ignore[attr-defined]
            torch.autograd._engine_run_backward = run  # type: ignore[attr-defined]

    return undo


def _pop_functions(until: TorchFunctionMode | None = None) -> list[TorchFunctionMode]:
    taken = []
    while torch._C._len_torch_function_stack():
        mode = torch._C._pop_torch_function_stack()
        if mode is until:
            break
        taken.append(mode)
    return taken


def _pop_operators(until: TorchDispatchMode | None = None) -> list[TorchDispatchMode]:
    taken: list[TorchDispatchMode] = []
    while _user_dispatch_modes():
        if _top_dispatch_mode() is until:
            break
        taken.append(torch._C._pop_torch_dispatch_stack(None))
    return taken


def _user_dispatch_modes() -> int:
    return torch._C._len_torch_dispatch_stack() - sum(
        torch._C._get_dispatch_mode(key) is not None
        for key in (
            torch._C._TorchDispatchModeKey.FAKE,
            torch._C._TorchDispatchModeKey.PROXY,
            torch._C._TorchDispatchModeKey.FUNCTIONAL,
        )
    )


def _top_dispatch_mode() -> TorchDispatchMode:
    result: TorchDispatchMode = torch._C._get_dispatch_stack_at(torch._C._len_torch_dispatch_stack() - 1)
    return result


def _take_function_off(mode: TorchFunctionMode) -> None:
    held = [torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack())]
    if not any(m is mode for m in held):
        return
    for other in reversed(_pop_functions(until=mode)):
        torch._C._push_on_torch_function_stack(other)


def _take_dispatch_off(mode: TorchDispatchMode, leave: Callable[[], None] | None = None) -> None:
    held = [torch._C._get_dispatch_stack_at(i) for i in range(torch._C._len_torch_dispatch_stack())]
    if not any(m is mode for m in held):
        return
    others = _pop_operators(until=mode)
    if leave is not None:
        leave()
    else:
        torch._C._pop_torch_dispatch_stack(None)
    for other in reversed(others):
        torch._C._push_on_torch_dispatch_stack(other)


def _below_others() -> Callable[[], None]:
    """Puts the modes below those that the program has entered, which it leaves in the order it entered them."""
    functions, operators = _Functions(), _Operators()  # type: ignore[no-untyped-call]
    others = _pop_functions()
    torch._C._push_on_torch_function_stack(functions)
    for other in reversed(others):
        torch._C._push_on_torch_function_stack(other)
    dispatch = _pop_operators()
    operators.__enter__()  # type: ignore[no-untyped-call]
    for mode in reversed(dispatch):
        torch._C._push_on_torch_dispatch_stack(mode)

    def undo() -> None:
        _take_dispatch_off(operators, lambda: operators.__exit__(None, None, None))  # type: ignore[no-untyped-call]
        _take_function_off(functions)

    return undo


native_recorder.configure(
    is_tracing=_tracing,
    names={},
    read_name=_recorded_name,
    begin_and_end=_begin_and_end,
    pop_mode=torch._C._pop_torch_function_stack,
    push_mode=torch._C._push_on_torch_function_stack,
)
