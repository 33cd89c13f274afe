"""Registers the device with PyTorch: name, guard, hooks, module, creation kernels, conversions."""

from __future__ import annotations

import importlib

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from macatensor import (
    accelerator,
    activation_slopes,
    attention,
    autocast,
    backends,
    creation,
    device,
    device_guard,
    dispatch,
    drawing,
    factories,
    flags,
    flattening,
    guards,
    histogram,
    indexing,
    inference,
    linear_algebra,
    modules,
    one_hot,
    other_layouts,
    pinning,
    recurrent,
    resize,
    sanitizer,
    script_modules,
    serialization,
    storage,
    switches,
    tensor,
    tracing,
    transfer,
    transformer,
)

_OWNERS_OF_SPECIAL_LAUNCHERS = (
    dispatch,
    creation,
    drawing,
    guards,
    indexing,
    inference,
    linear_algebra,
    resize,
    transfer,
    transformer,
)
_OWNERS_OF_COMPOSITES = (histogram, transformer)
_registered = False


def register() -> None:
    """Makes ``torch.device("maca")`` exist. Called once, by ``import macatensor``."""
    global _registered
    if _registered:
        return
    _registered = True
    _setup_privateuseone_for_python_backend(
        "maca", backend_module=device, device_guard=device_guard.MacaDeviceGuard()
    )
    device_guard.register()
    tensor.DEVICE = torch.device("maca", 0)
    dispatch.configure_launcher()
    factories.register()
    creation.register()
    storage.register()
    tracing.register()
    script_modules.register()
    flattening.register()
    serialization.register()
    pinning.register()
    modules.register()
    autocast.register()
    attention.register()
    one_hot.register()
    other_layouts.register()
    guards.register()
    recurrent.register()
    activation_slopes.register()
    flags.follow_threads()
    backends.register()
    accelerator.register()
    if switches.SANITIZE.value():
        sanitizer.enable()
    # optimizers take their foreach path by the type of the parameters
    optimizer = importlib.import_module("torch.optim.optimizer")  # torch.optim deletes the attribute
    clipping = importlib.import_module("torch.utils._foreach_utils")  # and so does clip_grad_norm_
    for module in (optimizer, clipping):
        if tensor.MacaTensor not in module._foreach_supported_types:
            module._foreach_supported_types.append(tensor.MacaTensor)
