"""Registers the device with PyTorch: name, guard, hooks, module, creation kernels, conversions."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from macatensor import device, packages
from macatensor.compiling import dynamo, fakes, higher_order
from macatensor.device import accelerator, backends, generators, sanitizer
from macatensor.dispatch import resize, tracing, users_kernels
from macatensor.distributed import backend
from macatensor.integration import (
    autocast,
    display,
    dlpack,
    flattening,
    modules,
    onnx_weights,
    other_layouts,
    pinning,
    references,
    script_modules,
    serialization,
    sharded_modules,
    storage,
    subclasses,
)
from macatensor.operators import (
    activation_slopes,
    attention,
    bind,
    copies,
    ctc,
    dynamic_quantization,
    factories,
    fake_quantization,
    guards,
    histogram,
    indexing,
    inference,
    jagged,
    linear_algebra,
    matmul_out,
    matrix_rank,
    normal,
    one_hot,
    parts,
    quantization_range,
    quantized_products,
    randperm,
    ranges,
    recurrent,
    segments,
    serving,
    synchronized_normalization,
    tangents,
    transformer,
    values_only,
    vision,
    whole,
)
from macatensor.profiling import hooks
from macatensor.runtime import device_guard, plan_flags, switches, tensor
from macatensor.sparse import arithmetic as sparse_arithmetic
from macatensor.sparse import compressed_arithmetic, compressed_products
from macatensor.sparse import invariants as sparse_invariants
from macatensor.sparse import members as sparse_members
from macatensor.sparse import products as sparse_products
from macatensor.sparse import softmax as sparse_softmax
from macatensor.sparse import structure as sparse_structure
from macatensor.sparse import triangular as sparse_triangular

_OWNERS_OF_SPECIAL_LAUNCHERS = (
    bind,
    copies,
    ranges,
    randperm,
    indexing,
    inference,
    jagged,
    linear_algebra,
    normal,
    parts,
    resize,
    segments,
    serving,
    tangents,
    transformer,
    vision,
    sparse_arithmetic,
    sparse_members,
    sparse_invariants,
    sparse_products,
    sparse_softmax,
    sparse_triangular,
    sparse_structure,
    compressed_arithmetic,
    compressed_products,
)
_OWNERS_OF_WHOLE_OPERATORS = (
    activation_slopes,
    attention,
    ctc,
    guards,
    matmul_out,
    matrix_rank,
    one_hot,
    quantization_range,
    recurrent,
    values_only,
)
_OWNERS_OF_COMPOSITES = (
    dynamic_quantization,
    fake_quantization,
    histogram,
    jagged,
    quantized_products,
    synchronized_normalization,
    transformer,
)
_OWNERS_OF_METHODS = (display, dlpack, pinning, serialization, storage, subclasses)
_registered = False


def register() -> None:
    """Makes ``torch.device("maca")`` exist. Called once, by ``import macatensor``."""
    global _registered
    if _registered:
        return
    _registered = True
    waiting = getattr(torch, "maca", None)  # what `import torch` has put in place, macatensor/maca_autoload
    late = waiting is not None and waiting._withdraw()
    _setup_privateuseone_for_python_backend(
        "maca", backend_module=device, device_guard=device_guard.MacaDeviceGuard()
    )
    device_guard.register(late)
    tensor.use_device(torch.device("maca", 0))
    users_kernels.follow()
    bind.configure_launcher()
    factories.register()
    generators.register()
    ranges.register()
    storage.register()
    tracing.register()
    script_modules.register()
    onnx_weights.register()
    hooks.register()
    flattening.register()
    serialization.register()
    dlpack.register()
    pinning.register()
    modules.register()
    sharded_modules.register()
    subclasses.register()
    autocast.register()
    jagged.register()
    whole.register()
    other_layouts.register()
    sparse_structure.register()
    sparse_members.register()
    dynamo.register()
    fakes.register()
    references.register()
    serving.register()
    higher_order.register()
    plan_flags.follow_threads()
    backends.register()
    accelerator.register()
    backend.register()
    if switches.SANITIZE.value():
        sanitizer.enable()
    # optimizers take their foreach path by the type of the parameters
    optimizer = importlib.import_module("torch.optim.optimizer")  # torch.optim deletes the attribute
    clipping = importlib.import_module("torch.utils._foreach_utils")  # and so does clip_grad_norm_
    for module in (optimizer, clipping):
        if tensor.MacaTensor not in module._foreach_supported_types:
            module._foreach_supported_types.append(tensor.MacaTensor)
    _name_as_cuda()
    packages.register()
    if waiting is not None:
        waiting._seed()


def _name_as_cuda() -> None:
    """``x.cuda()`` on a PyTorch without CUDA: its error says what would run it."""
    initialize: Callable[[], None] = torch.cuda._lazy_init

    @functools.wraps(initialize)
    def _lazy_init() -> None:
        try:
            initialize()
        except AssertionError as error:
            raise AssertionError(
                f"{error}. `import macatensor.as_cuda` lets the names of CUDA act on maca; x.to('maca') moves a tensor there"
            ) from None

    torch.cuda._lazy_init = _lazy_init
