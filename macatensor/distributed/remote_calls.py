"""``torch.distributed.rpc``: tensors on maca among arguments and results.

TensorPipe carries tensors of the host, which PyTorch puts beside the pickled call. A tensor on maca goes the same way,
through a copy to the host and one back, and distributed autograd goes through both.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable

import torch
from torch.utils._pytree import tree_leaves

from macatensor.runtime.after_import import after_import
from macatensor.runtime.boxed import Value
from macatensor.runtime.tensor import MacaTensor

_API = "torch.distributed.rpc.api"
_PACKAGE = "torch.distributed.rpc"


def register() -> None:
    after_import(_API, _teach_pickler)


def _arrived(host: torch.Tensor) -> torch.Tensor:
    return host.to("maca")


def _sent(tensor: MacaTensor) -> tuple[Callable[[torch.Tensor], torch.Tensor], tuple[torch.Tensor]]:
    return _arrived, (tensor.cpu(),)


def _teach_pickler() -> None:
    api: Value = importlib.import_module(_API)
    api._internal_rpc_pickler._register_reducer(MacaTensor, _sent)
    api._invoke_rpc = _pickling(api._invoke_rpc)
    api.remote = _pickling(api.remote)
    package: Value = sys.modules.get(_PACKAGE)
    if hasattr(package, "remote"):  # else it takes the name from the module soon
        package.remote = api.remote


def _pickling(invoke: Callable[..., Value]) -> Callable[..., Value]:
    """PyTorch's own functions are called by name with tensors of the host alone; a partial function is pickled."""

    @functools.wraps(invoke)
    def invoked(to: Value, func: Value, *rest: Value, **named: Value) -> Value:
        if torch.jit._builtins._find_builtin(func) is not None:
            if any(isinstance(leaf, MacaTensor) for leaf in tree_leaves((rest, named))):
                func = functools.partial(func)
        return invoke(to, func, *rest, **named)

    return invoked
