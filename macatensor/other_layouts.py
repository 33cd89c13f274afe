"""Sparse, nested and quantized tensors on the device: PyTorch can make some without asking it, and then no operator of
theirs has a kernel. Each gets one clear error."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from macatensor.errors import not_strided
from macatensor.uncompiled import uncompiled

_KINDS = {
    "SparsePrivateUse1": "sparse",
    "SparseCsrPrivateUse1": "compressed sparse",
    "NestedTensorPrivateUse1": "nested",
    "QuantizedPrivateUse1": "quantized",
}
_library: Any = None


def _refusing(kind: str) -> Any:
    @uncompiled
    def refuse(func: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise not_strided(str(func), kind)

    return refuse


def register() -> None:
    """Registers the refusals for every operator on the keys of such tensors."""
    global _library
    _library = torch.library.Library("_", "IMPL")
    for key, kind in _KINDS.items():
        _library.fallback(_refusing(kind), key)
