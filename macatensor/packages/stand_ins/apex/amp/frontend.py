"""``initialize`` and what follows from it."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from macatensor.runtime.boxed import Value

from .casts import converted, disable_casts, switch_off, switch_on
from .masters import Stash
from .scaler import LossScaler

__all__ = ["disable_casts", "initialize", "load_state_dict", "master_params", "scale_loss", "state_dict"]
Models = torch.nn.Module | list[torch.nn.Module]
Optimizers = torch.optim.Optimizer | list[torch.optim.Optimizer]


@dataclass
class _State:
    """What the last ``initialize`` has set."""

    is_initialized: bool = False
    enabled: bool = False
    verbosity: int = 1
    scalers: list[LossScaler] = field(default_factory=list)


_state = _State()
# level: dtype of the model, casts around functions, batch norms in float32, master weights, scale of the loss
_LEVELS: dict[str, tuple[torch.dtype | None, bool, bool | None, bool, float | str]] = {
    "O0": (torch.float32, False, None, False, 1.0),
    "O1": (None, True, None, False, "dynamic"),
    "O2": (torch.float16, False, True, True, "dynamic"),
    "O3": (torch.float16, False, False, False, 1.0),
}


def initialize(
    models: Models,
    optimizers: Optimizers | None = None,
    enabled: bool = True,
    opt_level: str = "O1",
    cast_model_type: torch.dtype | None = None,
    patch_torch_functions: bool | None = None,
    keep_batchnorm_fp32: bool | str | None = None,
    master_weights: bool | None = None,
    loss_scale: float | str | None = None,
    cast_model_outputs: torch.dtype | None = None,
    num_losses: int = 1,
    verbosity: int = 1,
    min_loss_scale: float | None = None,
    max_loss_scale: float = 2.0**24,
    combine_grad: bool | None = None,
    combine_ddp: bool | None = None,
) -> Value:
    """Prepares models and optimizers in place, and returns them as they were given: one, or lists.

    O0: float32. O1: autocast in float16 from now on, for the whole program. O2: the model in float16 but for its batch
    norms, inputs and outputs converted, master weights in float32, ``state_dict`` in float32. O3: all in float16.
    ``loss_scale``: a number, or "dynamic" (O1, O2), or None for the level's own. ``combine_grad`` and ``combine_ddp``, of
    Ascend's apex, are accepted: gradients are unscaled as a list, in one launch, with or without. Raises RuntimeError for
    another level, and for a model that is not in float32."""
    global _state
    switch_off()
    scalers: list[LossScaler] = []
    _state = _State(True, enabled, verbosity, scalers)
    if not enabled:
        return models if optimizers is None else (models, optimizers)
    if opt_level not in _LEVELS:
        raise RuntimeError(f"Unexpected optimization level {opt_level}. Options are 'O0', 'O1', 'O2', 'O3'.")
    dtype, casts, norms, masters, scale = _LEVELS[opt_level]
    dtype = dtype if cast_model_type is None else cast_model_type
    casts = casts if patch_torch_functions is None else patch_torch_functions
    if keep_batchnorm_fp32 is not None:
        norms = str(keep_batchnorm_fp32) == "True"
    masters = masters if master_weights is None else master_weights
    scale = scale if loss_scale is None else loss_scale if loss_scale == "dynamic" else float(loss_scale)
    listed = models if isinstance(models, list) else [models]
    for model in listed:
        _check(model)
        if dtype is not None and dtype is not torch.float32:
            _convert(model, dtype, bool(norms))
            _cast_around(model, dtype, cast_model_outputs or torch.float32)
            model._register_state_dict_hook(_in_float32)
        elif cast_model_outputs is not None:
            _cast_around(model, None, cast_model_outputs)
        if casts:
            switch_on(next((p.device.type for p in model.parameters()), "cpu"))
    scalers += [
        LossScaler(scale, min_loss_scale=min_loss_scale, max_loss_scale=max_loss_scale)
        for _ in range(num_losses)
    ]
    if optimizers is None:
        return models
    for optimizer in optimizers if isinstance(optimizers, list) else [optimizers]:
        if getattr(optimizer, "_amp_stash", None) is not None:
            raise RuntimeError("amp.initialize got an optimizer that it was given before")
        optimizer._amp_stash = Stash(optimizer, masters)  # type: ignore[attr-defined]
    return models, optimizers


def _check(model: torch.nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and parameter.dtype is not torch.float32:
            raise RuntimeError(
                f"Found param {name} with type {parameter.dtype}, expected torch.float32. When using amp.initialize, you "
                "do not need to call .half() on your model before passing it, no matter what optimization level you choose."
            )


def _convert(model: torch.nn.Module, dtype: torch.dtype, keep_norms: bool) -> None:
    """Parameters and buffers in ``dtype``, each the tensor that it was."""
    for module in model.modules():
        if keep_norms and isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and module.affine:
            continue
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            if tensor.is_floating_point():
                tensor.data = tensor.data.to(dtype)


def _cast_around(model: torch.nn.Module, inputs: torch.dtype | None, outputs: torch.dtype) -> None:
    forward: Callable[..., Value] = model.forward

    @functools.wraps(forward)
    def cast(*args: Value, **kwargs: Value) -> Value:
        if inputs is not None:
            args, kwargs = converted((args, kwargs), inputs)
        return converted(forward(*args, **kwargs), outputs)

    model.forward = cast


def _in_float32(module: torch.nn.Module, state: dict[str, Value], *_: object) -> None:
    for name, value in state.items():
        if isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16):
            state[name] = value.float()


@contextmanager
def scale_loss(
    loss: Tensor,
    optimizers: Optimizers,
    loss_id: int = 0,
    model: torch.nn.Module | None = None,
    delay_unscale: bool = False,
    delay_overflow_check: bool = False,
) -> Iterator[Tensor]:
    """Gives ``loss.float()`` times the scale, for ``backward()`` to be called on it. At the end gradients are unscaled, where
    not ``delay_unscale``; where one is not finite and the scale is dynamic, the next ``step`` of the optimizers does
    nothing and the scale is halved. Raises RuntimeError before ``initialize``."""
    if not _state.is_initialized:
        raise RuntimeError(
            "Invoked 'with amp.scale_loss`, but internal Amp state has not been initialized.  model, optimizer = "
            "amp.initialize(model, optimizer, opt_level=...) must be called before `with amp.scale_loss`."
        )
    if not _state.enabled:
        yield loss
        return
    listed = optimizers if isinstance(optimizers, list) else [optimizers]
    stashes: list[Stash] = [optimizer._amp_stash for optimizer in listed]  # type: ignore[attr-defined]
    scaler = _state.scalers[loss_id]
    if not scaler.dynamic and scaler.loss_scale() == 1.0 and not any(stash.masters for stash in stashes):
        yield loss.float()
        return
    for stash in stashes:
        stash.before_backward()
    yield loss.float() * scaler.loss_scale()
    if delay_unscale:
        for stash in stashes:
            stash.is_scaled = True
        return
    scaler.clear_overflow_state()
    for stash in stashes:
        stash.after_backward(scaler)
        stash.is_scaled = False
    if not delay_overflow_check and scaler.update_scale():
        for stash in stashes:
            stash.skip = True
        if _state.verbosity:
            print(
                f"Gradient overflow.  Skipping step, loss scaler {loss_id} reducing loss scale to {scaler.loss_scale()}"
            )


def master_params(optimizer: torch.optim.Optimizer) -> Iterable[Tensor]:
    """The parameters that the optimizer changes: the copies in float32 where there are some."""
    for group in optimizer.param_groups:
        yield from group["params"]


def state_dict() -> dict[str, dict[str, float]]:
    """The scales of all losses."""
    return {f"loss_scaler{i}": scaler.state_dict() for i, scaler in enumerate(_state.scalers)}


def load_state_dict(state: dict[str, dict[str, float]]) -> None:
    """Goes on with the scales of :func:`state_dict`; warns where there are more or fewer losses."""
    if len(state) != len(_state.scalers):
        warnings.warn(
            f"state_dict contains {len(state)} entries, while {len(_state.scalers)} loss_scalers are used"
        )
    for i, scaler in enumerate(_state.scalers):
        if f"loss_scaler{i}" in state:
            scaler.load_state_dict(state[f"loss_scaler{i}"])
