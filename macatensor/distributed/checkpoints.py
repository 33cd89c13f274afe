"""``torch.distributed.checkpoint``: what its stager for ``async_save`` has to know of tensors on maca."""

from __future__ import annotations

import functools
import importlib

from macatensor.runtime.after_import import after_import
from macatensor.runtime.boxed import Value
from macatensor.runtime.tensor import MacaTensor

_MODULE = "torch.distributed.checkpoint._state_dict_stager"


def register() -> None:
    after_import(_MODULE, _teach_stager)


def _teach_stager() -> None:
    """The stager copies a tensor's attributes too, and ours hold device memory: it gets a copy on the host instead."""
    stager: Value = importlib.import_module(_MODULE).StateDictStager
    of_host = stager._offload_tensor

    @functools.wraps(of_host)
    def offload(self: Value, x: Value, memo: dict[int, Value], non_blocking: bool = False) -> Value:
        if type(x) is not MacaTensor:
            return of_host(self, x, memo, non_blocking=non_blocking)
        host = x.detach().cpu()
        memo.setdefault(id(memo), []).append(
            host
        )  # the memo knows objects by address, so they must live as it does
        staged = memo[id(x)] = of_host(self, host, memo, non_blocking=non_blocking)
        return staged

    stager._offload_tensor = offload
