"""Cross entropy in float32 with label smoothing, a scale of logits and the square of logsumexp ("z-loss")."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import Tensor


def cross_entropy_loss(
    logits: Tensor,
    labels: Tensor,
    precomputed_lse: Tensor | None = None,
    label_smoothing: float = 0.0,
    logit_scale: float = 1.0,
    lse_square_scale: float = 0.0,
    ignore_index: int = -100,
    inplace_backward: bool = False,
    process_group: object = None,
) -> tuple[Tensor, Tensor]:
    """Losses [N] in float32 (float64 for float64) of logits [N, C] and labels [N], and of these the part
    ``lse_square_scale * logsumexp ** 2``, which has no gradient of its own. A label outside of the classes has no part in its
    row's loss but that and the smoothing; ``ignore_index`` gives 0. ``inplace_backward`` saves nothing here. Raises
    NotImplementedError for classes that are divided among a ``process_group``."""
    if process_group is not None:
        _refuse_groups()
    classes = logits.shape[1]
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32)) * logit_scale
    usable = precomputed_lse is not None and logit_scale == 1.0 and label_smoothing == 0.0
    lse = precomputed_lse if usable and precomputed_lse is not None else torch.logsumexp(scores, -1)
    inside = (labels >= 0) & (labels < classes)
    picked = scores.gather(1, labels.clamp(0, max(classes - 1, 0)).long().unsqueeze(1)).squeeze(1)
    if label_smoothing:
        mean = scores.mean(-1)
        losses = torch.where(
            inside,
            lse - label_smoothing * mean - (1 - label_smoothing) * picked,
            label_smoothing * (lse - mean),
        )
    else:
        losses = torch.where(inside, lse - picked, torch.zeros_like(picked))
    squares = lse_square_scale * lse.square()
    ignored = labels == ignore_index
    losses = (losses + squares).masked_fill(ignored, 0.0)
    return losses, squares.detach().masked_fill(ignored, 0.0)


def _refuse_groups() -> NoReturn:
    raise NotImplementedError(
        "flash_attn's cross entropy of classes divided among ranks is not served on maca; gather the logits, or use "
        "torch.distributed.tensor.parallel.loss_parallel"
    )


class CrossEntropyLoss(torch.nn.Module):
    """The mean over labels that are not ignored, the sum, or the losses themselves."""

    def __init__(
        self,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        logit_scale: float = 1.0,
        lse_square_scale: float = 0.0,
        inplace_backward: bool = False,
        process_group: object = None,
        return_z_loss: bool = False,
    ) -> None:
        super().__init__()
        if reduction not in ("mean", "none", "sum"):
            raise NotImplementedError("Only support reduction = 'mean' or 'none' or 'sum'")
        if process_group is not None:
            _refuse_groups()
        self.ignore_index, self.reduction, self.label_smoothing = ignore_index, reduction, label_smoothing
        self.logit_scale, self.lse_square_scale = logit_scale, lse_square_scale
        self.inplace_backward, self.return_z_loss = inplace_backward, return_z_loss

    def forward(
        self, input: Tensor, target: Tensor, precomputed_lse: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Of input [N, C] and target [N]; with ``return_z_loss`` its part of squares, too."""
        losses, squares = cross_entropy_loss(
            input, target, precomputed_lse, self.label_smoothing, self.logit_scale, self.lse_square_scale,
            self.ignore_index, self.inplace_backward,
        )  # fmt: skip
        loss, square = self._reduced(losses, target), self._reduced(squares, target)
        return (loss, square) if self.return_z_loss else loss

    def _reduced(self, losses: Tensor, target: Tensor) -> Tensor:
        if self.reduction == "mean":
            return losses.sum() / (target != self.ignore_index).sum()
        return losses.sum() if self.reduction == "sum" else losses
