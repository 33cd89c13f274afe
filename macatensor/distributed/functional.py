"""The one functional collective that PyTorch's own kernel does not bring to a group in Python.

``all_gather_into_tensor_out`` ends in ``ProcessGroup::_allgather_base``, for which PyTorch's trampoline has no entry: it
asks the group for a backend in C++, and there is none ("No backend type associated with device type maca").
"""

from __future__ import annotations

import torch
from torch._C._distributed_c10d import AllgatherOptions, _register_work, _resolve_process_group

from macatensor.runtime.boxed import Value

_library: list[Value] = []  # its kernels live as long as it does


def _all_gather_into_tensor_out(
    input: torch.Tensor, group_size: int, group_name: str, *, out: torch.Tensor
) -> torch.Tensor:
    group: Value = _resolve_process_group(group_name)  # type: ignore[arg-type]
    options = AllgatherOptions()
    options.asyncOp = True
    _register_work(out, group._allgather_base(out, input, options))
    return out


def register() -> None:
    library = torch.library.Library("_c10d_functional", "IMPL")
    library.impl("all_gather_into_tensor_out", _all_gather_into_tensor_out, "PrivateUse1")
    _library.append(library)
