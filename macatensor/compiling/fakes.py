"""Fake tensors on maca are what the device's operators give, where PyTorch's meta kernels say other sizes or strides.

The table says where: its rows name the rules by which a launch, too, knows its results.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses import fake_impls, fake_tensor, functional_tensor
from torch.utils import _pytree as pytree

from macatensor.dispatch.launcher import special
from macatensor.dispatch.meta_rules import META_RULES
from macatensor.dispatch.signature import read
from macatensor.dispatch.stride_rules import STRIDE_RULES
from macatensor.dispatch.view_calls import ViewLauncher
from macatensor.runtime.boxed import Arguments, Keywords, Launcher, Value
from macatensor.runtime.tensor import MacaTensor
from op_table import TABLE, Row

aten = torch.ops.aten


def register() -> None:
    """Asks the table before PyTorch's own fake kernels."""
    fake_impls.op_implementations_checks.insert(0, (lambda func: _row_of(func) is not None, _by_row))
    fake_impls.op_implementations_checks.append((_lacks_meta, _by_host))
    fake_tensor.FakeTensor.__torch_dispatch__ = classmethod(_beside_ours)  # type: ignore[assignment]


_of_fakes: Any = vars(fake_tensor.FakeTensor)["__torch_dispatch__"].__func__


@functools.wraps(_of_fakes)
def _beside_ours(
    cls: type, func: OpOverload, types: Sequence[type], args: Arguments = (), kwargs: Keywords | None = None
) -> Value:
    """A fake tensor that meets one of ours where its mode is not on, as ``flex_attention`` looks for its gradient, takes it for
    a real one, as it takes CUDA's, and not for a class with operators of its own."""
    if MacaTensor not in types:
        return _of_fakes(cls, func, types, args, kwargs or {})
    flat, shape = pytree.tree_flatten((args, kwargs or {}))
    mode = next(t.fake_mode for t in flat if isinstance(t, fake_tensor.FakeTensor))
    if not mode.allow_non_fake_inputs:
        return NotImplemented
    make = mode.fake_tensor_converter.from_real_tensor
    args, kwargs = pytree.tree_unflatten([make(mode, t) if type(t) is MacaTensor else t for t in flat], shape)
    return func(*args, **kwargs)


@functools.cache
def _row_of(func: OpOverload) -> Row | None:
    """The row of a functional overload, if it has a rule of its own."""
    namespace, _, name = func._schema.name.partition("::")
    overload = func._overloadname
    row = TABLE.get(name if overload == "default" else f"{name}.{overload}") if namespace == "aten" else None
    return row if row is not None and (row.strides in STRIDE_RULES or row.meta) else None


def _by_row(mode: fake_tensor.FakeTensorMode, func: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """What the row's rules say of fake operands; NotImplemented where none is on the device."""
    row = _row_of(func)
    flat = pytree.arg_tree_leaves(*args, **kwargs)
    fakes = [t for t in flat if isinstance(t, fake_tensor.FakeTensor)]
    if row is None or not any(t.fake_device.type == "maca" for t in fakes):
        return NotImplemented
    own = fake_impls.op_implementations_dict.get(func)
    full = read(func).fill(args, kwargs)
    result = NotImplemented
    if own is not None and not row.meta:
        result = own(mode, func, *args, **kwargs)
    if result is NotImplemented:
        with fake_tensor.in_kernel_invocation_manager(mode):
            result = META_RULES[row.meta](*full) if row.meta else func(*args, **kwargs)
        result = mode.wrap_meta_outputs_with_default_device_logic(
            result,
            func,
            flat,
            device=kwargs.get("device"),  # type: ignore[arg-type]  # None, too
        )
    rule = STRIDE_RULES.get(row.strides)
    if rule is None:
        return result
    leaves, shape = pytree.tree_flatten(result)
    tensors = [t for t in leaves if isinstance(t, torch.Tensor)]
    with mode:
        strides = iter(rule(full, tensors))
        return pytree.tree_unflatten(
            [_in_strides(t, next(strides)) if isinstance(t, torch.Tensor) else t for t in leaves], shape
        )


@functools.cache
def _lacks_meta(func: OpOverload) -> bool:
    """Has PyTorch no kernel by which fake tensors know the results, and does it run the operator itself for these, on zeros?"""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    if func.namespace != "aten" or torch.Tag.inplace_view in func.tags or func in torch._decomp.meta_table:
        return False
    return not any(has(func.name(), key) for key in _WITHOUT_A_DEVICE)


# Kernels that fake tensors can run.
_WITHOUT_A_DEVICE = (
    "Meta", "CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional",
)  # fmt: skip


def _by_host(mode: fake_tensor.FakeTensorMode, func: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """What the CPU kernel gives of zeros, as PyTorch asks it for fake tensors of the CPU; of the device it cannot. Symbolic
    sizes are left to it; results in other layouts, whose sizes are those of their elements, end a graph."""
    flat, shape = pytree.tree_flatten((args, kwargs))
    fakes = [t for t in flat if isinstance(t, fake_tensor.FakeTensor)]
    if not any(t.fake_device.type == "maca" for t in fakes) or any(_is_symbolic(t) for t in flat):
        return NotImplemented

    def on_host(value: Any) -> Any:
        if isinstance(value, fake_tensor.FakeTensor):
            made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")
            return made.zero_()
        is_ours = isinstance(value, torch.device) and value.type == "maca"
        return torch.device("cpu") if is_ours else value

    with torch.utils._mode_utils.no_dispatch():
        host_args, host_kwargs = pytree.tree_unflatten([on_host(value) for value in flat], shape)
        results, of = pytree.tree_flatten(func(*host_args, **host_kwargs))
        if any(isinstance(t, torch.Tensor) and t.layout is not torch.strided for t in results):
            raise fake_tensor.UnsupportedOperatorException(func)
        metas = [t.to("meta") if isinstance(t, torch.Tensor) else t for t in results]
    device = torch.device("maca", 0)
    made = [fake_tensor.FakeTensor(mode, t, device) if isinstance(t, torch.Tensor) else t for t in metas]
    return pytree.tree_unflatten(made, of)


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return any(isinstance(n, torch.SymInt) for n in (*value.shape, *value.stride()))
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


@special("aten.lift_fresh.default", "aten.lift_fresh_copy.default")
def _lift(func: OpOverload) -> Launcher:
    """A constant that a program makes, where it is traced. PyTorch's modes leave it alone, since its type is ours: what
    they would do is done here, for functional tensors first, then for fake ones."""
    real = ViewLauncher(func) if func is aten.lift_fresh.default else _clone

    def run(args: Arguments, kwargs: Keywords | None) -> Value:
        keys = torch._C._TorchDispatchModeKey
        if torch._C._get_dispatch_mode(keys.FUNCTIONAL) is not None:
            with functional_tensor.disable_functional_mode():
                lifted = aten.lift_fresh_copy.default(*args)
            return functional_tensor.FunctionalTensor.to_functional(lifted)
        fake = torch._C._get_dispatch_mode(keys.FAKE)
        if fake is not None:
            return fake.fake_tensor_converter.from_real_tensor(fake, args[0])
        return real(args, kwargs)

    return run


def _clone(args: Arguments, kwargs: Keywords | None) -> Value:
    return aten.clone.default(*args, memory_format=torch.contiguous_format)


def _in_strides(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    if tuple(tensor.stride()) == tuple(strides):
        return tensor
    return tensor.new_empty_strided(tensor.shape, strides)
