"""Operators that take functions, as ``torch.cond``: of tensors on the device they run as on any other."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._C import DispatchKey
from torch._ops import HigherOrderOperator

from macatensor.runtime.after_import import after_import
from macatensor.runtime.tensor import MacaTensor


def register() -> None:
    """PyTorch asks a tensor subclass for a rule for each of them."""
    rules: dict[type, Callable[[HigherOrderOperator], Callable[..., Any]]] = {}
    made = HigherOrderOperator.__init__

    def init(self: HigherOrderOperator, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)  # type: ignore[no-untyped-call]
        for kind, rule in rules.items():
            self.python_key_table[kind] = rule(self)

    def add(kind: type, rule: Callable[[HigherOrderOperator], Callable[..., Any]]) -> None:
        rules[kind] = rule
        for operator in torch._ops._higher_order_ops.values():
            operator.python_key_table[kind] = rule(operator)

    def let_pass() -> None:
        from torch._functorch._aot_autograd import runtime_wrappers

        mode = getattr(runtime_wrappers, "_AnalyzeCustomOpInputOutputMode", None)
        if mode is not None:
            add(mode, _Passed)

    HigherOrderOperator.__init__ = init  # type: ignore[method-assign]
    add(MacaTensor, _Plain)
    after_import("torch._functorch._aot_autograd.runtime_wrappers", let_pass)
    after_import("torch._higher_order_ops.out_dtype", _multiply_int8)
    after_import("torch.nn.attention.flex_attention", _accept_device)
    after_import("torch._higher_order_ops.flex_attention", _cast_for_autocast)
    after_import("torch._prims.rng_prims", _keep_random_states)


class _Plain:
    """The kernel that runs the functions as they are."""

    def __init__(self, operator: HigherOrderOperator):
        self.operator = operator

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        kernel = self.operator.py_kernels.get(DispatchKey.CompositeExplicitAutograd)
        return NotImplemented if kernel is None else kernel(*args, **kwargs)


class _Passed:
    """For the mode in which PyTorch calls a compiled program first: it looks at operators of the user's own, and gives
    NotImplemented as the result of all that has a subclass of tensors among its operands."""

    def __init__(self, operator: HigherOrderOperator):
        self.operator = operator

    def __call__(self, mode: object, *args: Any, **kwargs: Any) -> Any:
        return self.operator(*args, **kwargs)


def _multiply_int8() -> None:
    """Products of int8 with results of int32 are ``_int_mm``, as PyTorch has them on CUDA."""
    module: Any = sys.modules[
        "torch._higher_order_ops.out_dtype"
    ]  # the name in the package is the operator's
    others = module.is_int_mm

    def is_int_mm(op: Any, output_dtype: torch.dtype, args: tuple[Any, ...]) -> bool:
        return bool(others(op, output_dtype, args)) or (
            op is torch.ops.aten.mm.default
            and output_dtype is torch.int32
            and all(a.dtype is torch.int8 and a.device.type == "maca" for a in args)
        )

    module.is_int_mm = is_int_mm


def _keep_random_states() -> None:
    """Checkpointed dropout in a compiled graph: the backward pass draws what the forward pass drew."""
    from torch._prims import rng_prims

    def save(op: Any, *args: Any, **kwargs: Any) -> Any:
        return torch.get_device_module("maca").get_rng_state(), op(*args, **kwargs)

    def restore(state: torch.Tensor, op: Any, *args: Any, **kwargs: Any) -> Any:
        device = torch.get_device_module("maca")
        before = device.get_rng_state()
        device.set_rng_state(state)
        try:
            return op(*args, **kwargs)
        finally:
            device.set_rng_state(before)

    for operator, ours in ((rng_prims.run_and_save_rng_state, save), (rng_prims.run_with_rng_state, restore)):
        operator.python_key_table[MacaTensor] = ours
        key = DispatchKey.BackendSelect  # where no operand is a tensor, and where it is traced
        operator.py_kernels[key] = _on_device(ours, operator.py_kernels[key])
        operator._dispatch_cache.clear()


def _on_device(ours: Callable[..., Any], others: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        given = {torch.device(device).type} if device is not None else set()
        given |= {a.device.type for a in args[1:] if isinstance(a, torch.Tensor)}
        return (ours if "maca" in given else others)(*args, **kwargs)

    return run


def _accept_device() -> None:
    """``flex_attention`` has a list of devices by name."""
    from torch.nn.attention import flex_attention

    others = getattr(flex_attention, "_validate_device", None)
    if others is None:  # another version's
        return

    def validate_device(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        if query.device.type != "maca":
            others(query, key, value)

    flex_attention._validate_device = validate_device


def _cast_for_autocast() -> None:
    """``flex_attention`` has a kernel for the autocast of each of PyTorch's devices."""
    module = sys.modules[
        "torch._higher_order_ops.flex_attention"
    ]  # its package has the operator by this name
    cast = getattr(module, "_flex_attention_autocast_impl", None)
    if cast is None:  # another version's
        return
    autocast: Any = torch._C._dispatch_key_parse("AutocastPrivateUse1")

    def run(query: Any, key: Any, value: Any, score_mod: Any, block_mask: Any, scale: Any, kernel_options: Any,
            score_mod_other_buffers: Any = (), mask_mod_other_buffers: Any = ()) -> Any:  # fmt: skip
        buffers = score_mod_other_buffers, mask_mod_other_buffers
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(autocast)):
            return cast(query, key, value, score_mod, block_mask, scale, kernel_options, *buffers)

    module.flex_attention.py_impl(autocast)(run)
