"""The number that a loss is multiplied by: fixed, or halved at each overflow and doubled after 2000 steps without."""

from __future__ import annotations

import torch
from torch import Tensor


class LossScaler:
    """``loss_scale``: "dynamic" or a number."""

    def __init__(
        self,
        loss_scale: float | str = "dynamic",
        init_scale: float = 2.0**16,
        scale_factor: float = 2.0,
        scale_window: int = 2000,
        min_loss_scale: float | None = None,
        max_loss_scale: float = 2.0**24,
    ) -> None:
        self.dynamic = loss_scale == "dynamic"
        self._loss_scale = min(max_loss_scale, init_scale) if self.dynamic else float(loss_scale)
        self._factor, self._window = scale_factor, scale_window
        self._least, self._most = min_loss_scale, max_loss_scale
        self._unskipped = 0
        self._found: dict[torch.device, Tensor] = {}

    def loss_scale(self) -> float:
        return self._loss_scale

    def clear_overflow_state(self) -> None:
        self._found.clear()

    def unscale(self, gradients: list[Tensor], scale: float | None = None) -> None:
        """Divides the gradients by the scale, in place, and notes whether all are finite."""
        by_device: dict[torch.device, list[Tensor]] = {}
        for gradient in gradients:
            by_device.setdefault(gradient.device, []).append(gradient)
        for device, some in by_device.items():
            if device not in self._found:
                self._found[device] = torch.zeros((), device=device)
            inverse = torch.full((), 1.0 / (self._loss_scale if scale is None else scale), device=device)
            for dtype in {g.dtype for g in some}:
                torch._amp_foreach_non_finite_check_and_unscale_(
                    [g for g in some if g.dtype == dtype], self._found[device], inverse
                )

    def update_scale(self) -> bool:
        """The next scale. True: the step is to be left out. A fixed scale never leaves one out."""
        overflow = self.dynamic and any(bool(found.item()) for found in self._found.values())
        if overflow:
            smaller = self._loss_scale / self._factor
            self._loss_scale = smaller if self._least is None else max(self._least, smaller)
            self._unskipped = 0
            return True
        self._unskipped += 1
        if self.dynamic and self._unskipped == self._window:
            self._loss_scale = min(self._most, self._loss_scale * self._factor)
            self._unskipped = 0
        return False

    def state_dict(self) -> dict[str, float]:
        return {"loss_scale": self._loss_scale, "unskipped": self._unskipped}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self._loss_scale, self._unskipped = state["loss_scale"], int(state["unskipped"])
