"""Pinned memory for the reducer of DistributedDataParallel, which asks C++ for it.

With ``find_unused_parameters`` or ``static_graph`` it copies which parameters were used by way of a pinned host tensor,
and PyTorch has no allocator of such memory for a backend in Python. So ``empty_strided`` of host tensors is ours from a
forward of such a model until its reducer has asked: then a call takes 4 us longer, at all other times nothing.
"""

from __future__ import annotations

import functools
import importlib
import warnings
import weakref

import torch
from torch.nn.parallel import DistributedDataParallel

from macatensor.runtime.after_import import after_import
from macatensor.runtime.boxed import Value
from macatensor.runtime.tensor import MacaTensor

_STAGES = "torch.distributed.pipelining.stage"
_DDP: Value = DistributedDataParallel
_after_forward = _DDP._post_forward
_library: torch.library.Library | None = None
_was_asked = False
_waiting: weakref.WeakSet[Value] = weakref.WeakSet()


def _empty_strided(
    size: list[int],
    stride: list[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    global _was_asked
    extent = 1 + sum((n - 1) * step for n, step in zip(size, stride)) if all(size) else 0
    memory: Value = torch.ops.aten.empty.memory_format([extent], dtype=dtype, device=torch.device("cpu"))
    if pin_memory:
        _was_asked = True
        memory = memory.pin_memory()
    result: torch.Tensor = memory.as_strided(size, stride)
    return result


def _post_forward(self: Value, output: Value) -> Value:
    if _asks(self) and torch.is_grad_enabled() and self.require_backward_grad_sync and _is_on_maca(self):
        _serve(self)
    return _after_forward(self, output)


def _asks(model: Value) -> bool:
    if model.static_graph:  # whose reducer asks once
        return not model._static_graph_delay_allreduce_enqueued
    return bool(model.find_unused_parameters)


def _is_on_maca(model: Value) -> bool:
    return isinstance(next(iter(model._module_parameters), None), MacaTensor)


def _serve(model: Value) -> None:
    global _library, _was_asked
    _was_asked = False
    if model not in _waiting:
        _waiting.add(model)
        weakref.finalize(model, _stop_unless_waiting)
    if _library is None:
        _library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Warning only once for all operators")
            _library.impl("empty_strided", _empty_strided, "CPU", allow_override=True)


def _stop_unless_waiting() -> None:
    if not _waiting:
        stop()


def stop_when_asked() -> None:
    """The reducer calls the group next after it has asked."""
    if _was_asked:
        stop()


def stop() -> None:
    """Host tensors are PyTorch's again."""
    global _library, _was_asked
    library, _library, _was_asked = _library, None, False
    _waiting.clear()
    if library is not None:
        library._destroy()


def _teach_stages() -> None:
    """A pipeline's stage goes forward without synchronization, and prepares the reducer itself for its last backward."""
    stage: Value = importlib.import_module(_STAGES)._PipelineStageBase
    backward = stage.backward_maybe_with_nosync

    @functools.wraps(backward)
    def backward_maybe_with_nosync(self: Value, *args: Value, **named: Value) -> Value:
        model = self.submod
        is_last = named["last_backward"] if "last_backward" in named else args[2:] == (True,)
        if is_last and isinstance(model, DistributedDataParallel) and _asks(model) and _is_on_maca(model):
            _serve(model)
        return backward(self, *args, **named)

    stage.backward_maybe_with_nosync = backward_maybe_with_nosync


def register() -> None:
    _DDP._post_forward = _post_forward
    after_import(_STAGES, _teach_stages)
