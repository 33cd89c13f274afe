"""torchvision without its library: PyPI's wheel is one for CUDA, whose ``_C.so`` does not load beside a PyTorch without.

``import torchvision`` then ends at "operator torchvision::nms does not exist", and with it every package that imports it.
With the operators' schemas defined the import goes on. On maca they have kernels (``macatensor/operators/vision.py``);
elsewhere what needs the library says so when it is called.
Schemas of torchvision 0.20 to 0.28, ``torchvision/csrc/ops/``.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import NoReturn

import torch
from maca_autoload.after_import import after_import

_POOLED = "float spatial_scale, SymInt pooled_height, SymInt pooled_width"
_SIZE = "SymInt batch_size, SymInt channels, SymInt height, SymInt width"
_BOXES = "Tensor input, Tensor rois"
_DEFORMED = (
    "Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, SymInt stride_w, SymInt pad_h, "
    "SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, SymInt offset_groups, bool use_mask"
)
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    f"roi_align({_BOXES}, {_POOLED}, int sampling_ratio, bool aligned) -> Tensor",
    f"_roi_align_backward(Tensor grad, Tensor rois, {_POOLED}, {_SIZE}, int sampling_ratio, bool aligned) -> Tensor",
    f"roi_pool({_BOXES}, {_POOLED}) -> (Tensor, Tensor)",
    f"_roi_pool_backward(Tensor grad, Tensor rois, Tensor argmax, {_POOLED}, {_SIZE}) -> Tensor",
    f"ps_roi_align({_BOXES}, {_POOLED}, int sampling_ratio) -> (Tensor, Tensor)",
    f"_ps_roi_align_backward(Tensor grad, Tensor rois, Tensor channel_mapping, {_POOLED}, int sampling_ratio, {_SIZE}) -> Tensor",
    f"ps_roi_pool({_BOXES}, {_POOLED}) -> (Tensor, Tensor)",
    f"_ps_roi_pool_backward(Tensor grad, Tensor rois, Tensor channel_mapping, {_POOLED}, {_SIZE}) -> Tensor",
    f"qroi_align({_BOXES}, float input_scale, int input_zero_point, float rois_scale, int rois_zero_point, {_POOLED}, "
    "int sampling_ratio, bool aligned) -> Tensor",
    f"deform_conv2d({_DEFORMED}) -> Tensor",
    f"_deform_conv2d_backward(Tensor grad, {_DEFORMED}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    "box_iou_rotated(Tensor boxes1, Tensor boxes2) -> Tensor",
)
_library: list[torch.library.Library] = []  # a schema goes with the library that defined it


def define(extension: ModuleType) -> None:
    """Defines what the library would have, once ``torchvision.extension`` has failed to load it."""
    if extension._has_ops() or _library:
        return
    _library.append(torch.library.Library("torchvision", "FRAGMENT"))
    for schema in _SCHEMAS:
        name = schema.partition("(")[0]
        if not hasattr(torch.ops.torchvision, name):
            _library[0].define(schema)
            _library[0].impl(name, functools.partial(_refuse, extension._assert_has_ops), "CPU")
    after_import("torchvision._meta_registrations", _describe)
    # whether there is an operator for them, tensors decide: the host's have none
    extension._assert_has_ops = lambda: None  # type: ignore[attr-defined]


def _describe() -> None:
    """Lets compiled and exported programs know what results are like: torchvision has functions for that, and registers
    most of them only where its library is."""
    described = sys.modules["torchvision._meta_registrations"]
    for schema in _SCHEMAS:
        name = schema.partition("(")[0]
        function = getattr(described, f"meta_{name.lstrip('_')}", None)
        if function and not torch._C._dispatch_has_kernel_for_dispatch_key(f"torchvision::{name}", "Meta"):
            _library[0].impl(name, function, "Meta")


def _refuse(theirs: Callable[[], object], *_: object, **__: object) -> NoReturn:
    """Raises RuntimeError in torchvision's words."""
    theirs()
    raise RuntimeError("torchvision's library is not loaded")
