"""Bad input gets PyTorch's own exception and words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import torch

from macatensor import layout
from macatensor.signature import Signature
from macatensor.tensor import MacaTensor


def _tensors(values: Iterable[Any]) -> Iterable[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from (v for v in value if isinstance(v, torch.Tensor))


def not_strided(name: str, kind: str) -> NotImplementedError:
    """The error for a tensor that is no plain one: ``kind`` says what it is."""
    return NotImplementedError(
        f"{name} got a {kind} tensor; maca accepts: torch.strided. Use to_dense(), dequantize() or, for nested ones, "
        "to_padded_tensor() first."
    )


def check_devices(name: str, values: Iterable[Any], zero_dim: bool = False) -> None:
    """Raises PyTorch's error when tensors of the host are among ours. ``zero_dim``: a 0-dim one is let pass."""
    for t in _tensors(values):
        if t.layout is not torch.strided:
            raise not_strided(name, str(t.layout))
        if not isinstance(t, MacaTensor) and not (zero_dim and t.dim() == 0 and t.device.type == "cpu"):
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, maca:0 and "
                f"{t.device}! ({name}: move it with .to('maca'))"
            )


def _view_hint(signature: Signature, full: list[Any], error: Exception) -> str:
    """For a view of a 4-D tensor that its strides forbid; other faults of a view have nothing to do with layout."""
    if signature.name not in ("aten.view.default", "aten._unsafe_view.default"):
        return ""
    if full[0].dim() != 4 or "stride" not in str(error) or layout.default_is_nchw():
        return ""
    return (
        "\nOn maca 4-D tensors are channels_last after a transfer: use reshape(), or set PYTORCH_DEFAULT_NCHW=1 "
        "to keep them contiguous."
    )


def reject(signature: Signature, full: list[Any], error: Exception) -> NoReturn:
    """Raises what PyTorch's CPU kernel says of operands like these, or ``error`` when it finds nothing wrong."""
    from macatensor.host_fallback import replay_on_host

    try:
        replay_on_host(signature, full)
    except Exception as authority:
        raise type(authority)(str(authority) + _view_hint(signature, full, authority)) from None
    raise error
