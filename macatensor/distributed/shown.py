"""Collectives of a group as dispatch modes see them: the operators of c10d that a group in C++ runs.

``dist.all_reduce`` calls a method of its group. In C++ that method runs an operator, so ``CommDebugMode`` counts it; one
in Python is seen by nobody. Where there are modes the call therefore goes to a stand-in in C++ first, whose operator
comes to a kernel here, which calls the group's own method.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work

from macatensor.runtime.boxed import Value
from macatensor.runtime.tensor import MacaTensor

_Method = TypeVar("_Method", bound=Callable[..., Work])
_IN_CPP: Value = dist.ProcessGroup
_library: torch.library.Library | None = None
_OPERATORS = (
    "_allgather_base_", "_reduce_scatter_base_", "allgather_", "allgather_coalesced_", "allgather_into_tensor_coalesced_",
    "allreduce_", "allreduce_coalesced_", "alltoall_", "alltoall_base_", "broadcast_", "gather_", "reduce_",
    "reduce_scatter_", "reduce_scatter_tensor_coalesced_", "scatter_",
)  # fmt: skip


class _Call:
    """A collective that the modes are being told of."""

    def __init__(self, run: Callable[[], Work]):
        self._run = run
        self.work: Work | None = None

    def run(self) -> Work:
        if self.work is None:
            self.work = self._run()
        return self.work


class _Thread(threading.local):
    call: _Call | None = None


_thread = _Thread()


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def shown_as(name: str) -> Callable[[_Method], _Method]:
    """Of a method of a group: dispatch modes see the operator that ``ProcessGroup``'s method ``name`` runs."""

    def decorate(method: _Method) -> _Method:
        @functools.wraps(method)
        def call(self: Value, *args: Value, **named: Value) -> Work:
            if (
                not torch._C._len_torch_dispatch_stack()
                or _thread.call is not None
                or not any(isinstance(t, MacaTensor) for t in _tensors(args))
            ):
                return method(self, *args, **named)
            _serve()
            shown = _thread.call = _Call(functools.partial(method, self, *args, **named))
            try:
                result: Work = getattr(_stand_in(self), name)(*args, **named)
            finally:
                _thread.call = None
            return shown.work or result  # or what a mode made of it

        return call  # type: ignore[return-value]

    return decorate


def _stand_in(group: Value) -> Value:
    """A group in C++ of the same name and ranks."""
    if "_stand_in" not in group.__dict__:
        group._stand_in = _IN_CPP(group.rank(), group.size())
        group._stand_in._set_group_name(group.group_name)
    return group._stand_in


def _kernel(name: str) -> Callable[..., Value]:
    has_tensors = len(getattr(torch.ops.c10d, name).default._schema.returns) == 2

    def run(*args: Value) -> Value:
        if _thread.call is None:
            raise NotImplementedError(
                f"c10d::{name}: got tensors on maca, whose groups are in Python; accepted is a call of torch.distributed's "
                f"function (remedy: torch.distributed.{name.strip('_')} or its like)"
            )
        work: Value = _thread.call.run().boxed()
        return (args[0], work) if has_tensors else work

    return run


def _serve() -> None:
    """Its kernels take the place of PyTorch's, which ask for a backend in C++."""
    global _library
    if _library is None:
        _library = torch.library.Library("c10d", "IMPL")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Warning only once for all operators")
            for name in _OPERATORS:
                _library.impl(name, _kernel(name), "PrivateUse1", allow_override=True)
