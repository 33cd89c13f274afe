"""``torch.jit.trace`` and ``make_fx``: what an operator does inside is not part of the trace.

While PyTorch traces, the sizes of a tensor are tensors and every operator is recorded, those too that a launcher calls
to make a plan or to put a composite together. So while a trace is being made the device's operators run with the
tracer set aside. PyTorch starts a trace in four functions of C++; only inside them ``__torch_dispatch__`` is one that
looks for a tracer, which would cost every operator 2 %. Convolutions are the one operator that PyTorch does not record
itself: its kernel calls another, ``_convolution``, and that is recorded.

``make_fx`` hands operators on constants of a tensor subclass to the subclass, unless it is one that it knows.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import torch
from torch._ops import OpOverload
from torch._subclasses import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental import proxy_tensor

from macatensor.dispatch.launcher import special
from macatensor.runtime.boxed import Arguments, Keywords, Launcher, Value
from macatensor.runtime.dispatch_keys import not_excluded
from macatensor.runtime.tensor import MacaTensor

_C: Any = torch._C
_dispatch: Callable[..., Value] = MacaTensor.__dict__["__torch_dispatch__"]
_TRACER = _C._dispatch_key_parse("Tracer")
_convolution = torch.ops.aten.convolution.default
_OF_CUDNN = (
    False,
    False,
    True,
    True,
)  # benchmark, deterministic, cudnn_enabled, allow_tf32, as a CPU trace has them
_P = ParamSpec("_P")
_T = TypeVar("_T")
_lock = threading.Lock()
_traces = 0  # being made, by any thread


def are_traced(tensors: Sequence[torch.Tensor]) -> bool:
    """Do they stand for tensors of ours in a program that PyTorch is making a graph of?"""
    return all(isinstance(t, (FakeTensor, FunctionalTensor)) for t in tensors)


def _set_tracer(state: torch._C.TracingState | None) -> None:
    with not_excluded(_TRACER):  # PyTorch asserts that it is not
        _C._set_tracing_state(state)


def _untraced(
    func: OpOverload, types: Sequence[type], args: Arguments = (), kwargs: Keywords | None = None
) -> Value:
    state = _C._get_tracing_state()
    if state is None:
        return _dispatch(func, types, args, kwargs)
    if func is _convolution:
        return _recorded_convolution(*args)
    _set_tracer(None)
    try:
        return _dispatch(func, types, args, kwargs)
    finally:
        _set_tracer(state)


def _recorded_convolution(*args: Value) -> Value:
    """Puts into the trace what PyTorch's own kernel of ``convolution`` would: a call of ``_convolution``."""
    with not_excluded(_TRACER):
        return torch.ops.aten._convolution.default(*args, *_OF_CUDNN)


@special("aten._convolution.default")
def _convolution_of_a_trace(func: OpOverload) -> Launcher:
    return lambda args, kwargs: _convolution(*args[:9])


def _count(change: int) -> None:
    global _traces
    with _lock:
        _traces += change
        MacaTensor.__torch_dispatch__ = staticmethod(_untraced) if _traces else _dispatch


def _starting(trace: Callable[_P, _T]) -> Callable[_P, _T]:
    @functools.wraps(trace)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        _count(1)
        try:
            return trace(*args, **kwargs)
        finally:
            _count(-1)

    return call


def register() -> None:
    """Wraps the functions with which PyTorch starts a trace, and makes our tensors known to ``make_fx``."""
    proxy_tensor.HANDLED_TYPES = (*proxy_tensor.HANDLED_TYPES, MacaTensor)  # type: ignore[assignment]
    for owner, names in (
        (
            _C,
            (
                "_create_function_from_trace",
                "_create_function_from_trace_with_dict",
                "_create_graph_by_tracing",
            ),
        ),
        (_C.ScriptModule, ("_create_method_from_trace", "_create_method_from_trace_with_dict")),
    ):
        for name in names:
            setattr(owner, name, _starting(getattr(owner, name)))
