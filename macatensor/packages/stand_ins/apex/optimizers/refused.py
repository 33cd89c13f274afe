"""Optimizers that are not served, which say what to take instead."""

from __future__ import annotations

from typing import Any

import torch


def _refused(name: str, instead: str) -> type[torch.optim.Optimizer]:
    text = f"apex.optimizers.{name} is not served on maca; {instead}"

    def refuse(self: object, *_: object, **__: object) -> None:
        raise NotImplementedError(text)

    made: Any = type(name, (torch.optim.Optimizer,), {"__init__": refuse, "__doc__": text})
    return made  # type: ignore[no-any-return]


FusedAdagrad = _refused("FusedAdagrad", "torch.optim.Adagrad(foreach=True) computes the same")
FusedNovoGrad = _refused("FusedNovoGrad", "FusedLAMB and FusedAdam are")
FusedMixedPrecisionLamb = _refused("FusedMixedPrecisionLamb", "use FusedLAMB with apex.amp at O2")
