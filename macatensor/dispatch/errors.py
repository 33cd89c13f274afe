"""Bad input gets PyTorch's own exception and words."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from macatensor.runtime.tensor import MacaTensor


def _tensors(values: Iterable[object]) -> Iterable[torch.Tensor]:
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


def check_devices(name: str, values: Iterable[object], zero_dim: bool = False) -> None:
    """Raises PyTorch's error when tensors of the host are among ours. ``zero_dim``: a 0-dim one is let pass."""
    for t in _tensors(values):
        if t.layout is not torch.strided:
            raise not_strided(name, str(t.layout))
        if not isinstance(t, MacaTensor) and not (zero_dim and t.dim() == 0 and t.device.type == "cpu"):
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, maca:0 and "
                f"{t.device}! ({name}: move it with .to('maca'))"
            )
