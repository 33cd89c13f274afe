"""torchvision: its operators of boxes on maca, with its own compiled library or without."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch

from macatensor.operators import vision
from macatensor.packages import replace_function

UPSTREAM = ("0.20", "0.29")  # written for 0.28


def extension(module: ModuleType) -> None:
    """The operators, whose schemas torchvision's library has defined, or ``maca_autoload.torchvision``."""
    vision.register()


def roi_align(module: ModuleType) -> None:
    """Without its library torchvision takes a composite of some hundred operators instead."""
    theirs = module.roi_align

    @functools.wraps(theirs)
    def on_device(
        input: torch.Tensor,
        boxes: Any,
        output_size: Any,
        spatial_scale: float = 1.0,
        sampling_ratio: int = -1,
        aligned: bool = False,
    ) -> Any:
        if input.device.type != "maca":
            return theirs(input, boxes, output_size, spatial_scale, sampling_ratio, aligned)
        module.check_roi_boxes_shape(boxes)
        rois = boxes if isinstance(boxes, torch.Tensor) else module.convert_boxes_to_roi_format(boxes)
        height, width = module._pair(output_size)
        return torch.ops.torchvision.roi_align(
            input, rois, spatial_scale, height, width, sampling_ratio, aligned
        )

    replace_function(module, "roi_align", on_device, ["torchvision"])
