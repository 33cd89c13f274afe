"""Creation functions with a kernel of their own: arange, linspace, logspace, eye, indices of triangles.

PyTorch's composite kernels would make an empty tensor, resize it and fill it; registered on the device's key, these
are one launch.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch._ops import OpOverload

from macatensor.dispatch import rowless
from macatensor.dispatch.float8_calls import FLOAT8
from macatensor.dispatch.kernel_calls import KernelLauncher
from macatensor.dispatch.launcher import Run, special
from macatensor.dispatch.resize import write_out
from macatensor.dispatch.signature import find_row
from macatensor.runtime import plan_caches
from macatensor.runtime.boxed import Arguments, Keywords, Launcher, Value
from macatensor.runtime.plan_caches import PlanCache
from macatensor.runtime.uncompiled import uncompiled
from op_table import Kind, families


def _overload(name: str) -> OpOverload:
    operator, _, overload = name.partition(".")
    result: OpOverload = getattr(getattr(torch.ops.aten, operator), overload or "default")
    return result


def _leading(func: OpOverload) -> list[tuple[str, str]]:
    """The arguments that both an ``out=`` overload and its functional one have; what comes after says where and of what."""
    return [(a.name, str(a.type)) for a in func._schema.arguments if not a.kwarg_only]


_FUNCTIONAL = [row.name for row in families["factory"] if row.kind is Kind.KERNEL]


def _outs() -> dict[str, OpOverload]:
    """``out=`` overload, the functional one with the same leading arguments."""
    found = {}
    for name in _FUNCTIONAL:
        func = _overload(name)
        packet = func.overloadpacket
        for overload in packet.overloads():
            other = getattr(packet, overload)
            if any(a.is_out for a in other._schema.arguments) and _leading(other) == _leading(func):
                found[str(other)] = func
    return found


_OUT = _outs()


def _steps(start: float, end: float, step: float) -> int:
    """Length of ``arange``, or -1 where PyTorch's meta kernel has to say what is wrong."""
    if step == 0 or not all(math.isfinite(x) for x in (start, end, step)) or (step > 0) != (end >= start):
        return 0 if start == end and step != 0 and math.isfinite(start) else -1
    if isinstance(start, int) and isinstance(end, int) and isinstance(step, int):
        return -((start - end) // step)
    steps = (end - start) / step
    return math.ceil(steps) if math.isfinite(steps) else -1


def _kernel(func: OpOverload) -> KernelLauncher:
    """What launches the kernel of an operator's row."""
    found = find_row(func)
    if found is None:
        raise LookupError(f"the op table has no row for {func}")
    return KernelLauncher(func, *found)


@special("aten.arange.default", "aten.arange.start", "aten.arange.start_step")
def _arange(func: OpOverload) -> Launcher:
    kernel = _kernel(torch.ops.aten.arange.start_step)
    # by length, since a decode loop's ranges differ in their start only; with the arguments behind the numbers
    cache: PlanCache[tuple[Run, tuple[Value, ...]]] = PlanCache()

    def run(args: Arguments, kwargs: Keywords | None) -> Value:
        options = dict(kwargs or {})
        start, end, step = options.pop("start", 0), options.pop("end", None), options.pop("step", 1)
        if len(args) == 1:
            end = args[0]
        elif len(args) >= 2:
            start, end = args[:2]
            step = args[2] if len(args) > 2 else step
        numbers = (start, end, step)
        dtype = options.get("dtype")
        if dtype is not None and (dtype.is_complex or dtype is torch.bool):
            torch.arange(1, dtype=dtype, device="cpu")  # raises: the CPU has no such range, nor has CUDA
        kinds = tuple(map(type, numbers))
        if not all(kind in (int, float) for kind in kinds):
            return kernel(numbers, options)
        if dtype is None:
            dtype = torch.get_default_dtype() if float in kinds else torch.int64
        n = _steps(start, end, step)
        if n < 0 or (dtype is torch.int64 and float in kinds):
            return kernel(numbers, options)
        key = (n, dtype, kinds)
        known = cache.get(key)
        if known is None:
            generation = plan_caches.generation
            full = tuple(kernel.signature.fill(numbers, {**options, "dtype": dtype}))
            known = kernel.build(full, len(full)), full[len(numbers) :]
            cache.remember(key, known, generation)
        launch, rest = known
        return launch((*numbers, *rest), [], list(numbers))

    return run


@special("aten.eye.default", "aten.eye.m")
def _eye(func: OpOverload) -> Launcher:
    """The kernel's, which knows no float8: of those, converted."""
    kernel = _kernel(func)

    def run(args: Arguments, kwargs: Keywords | None) -> Value:
        options = kwargs or {}
        dtype = options.get("dtype")
        if dtype in FLOAT8:
            return func(*args, **{**options, "dtype": torch.float32}).to(dtype)
        return kernel(args, options)

    return run


@special(*_OUT)
def _out(func: OpOverload) -> Launcher:
    make = _OUT[str(func)]

    def run(args: Arguments, kwargs: Keywords | None) -> Value:
        options = dict(kwargs or {})
        out = options.pop("out")
        result = make(*args, **options, dtype=out.dtype, device=out.device)
        if out.numel() == result.numel() and result.dim() == 1:
            result = result.view(out.shape)  # PyTorch fills what has as many elements as a range as it is
        return write_out([out], result)

    return run


_COMPOSED = ("kaiser_window", "kaiser_window.periodic", "kaiser_window.beta")


@special(*(str(_overload(name)) for name in _COMPOSED))
def _kaiser_window(func: OpOverload) -> Launcher:
    """PyTorch's is made of a loop that its CPU and CUDA have: here of operators, in float64."""

    def make(
        window_length: int,
        periodic: bool = True,
        beta: float = 12.0,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device,
        **options: Value,
    ) -> Tensor:
        empty = torch.kaiser_window(min(window_length, 1), dtype=dtype, **options)  # or PyTorch's error
        if window_length <= 1:
            return empty.to(device)
        last = window_length if periodic else window_length - 1
        x = torch.arange(window_length, dtype=torch.float64, device=device) * (2 / last) - 1
        ends = torch.special.i0(torch.tensor(beta, dtype=torch.float64, device=device))
        result: Tensor = (torch.special.i0(beta * (1 - x * x).clamp(min=0).sqrt()) / ends).to(empty.dtype)
        return result

    def run(args: Arguments, kwargs: Keywords | None) -> Value:
        return make(*args, **kwargs or {})

    return run


_library: torch.library.Library | None = None


def register() -> None:
    """Registers the creation functions on the device's key."""
    from macatensor.operators.factories import _fallback

    global _library
    _library = torch.library.Library("aten", "IMPL")
    for name in (*_FUNCTIONAL, *_COMPOSED):
        func = _overload(name)
        rowless.OURS.add(f"aten::{name}")
        _library.impl(name, _Kernel(func, _fallback), "PrivateUse1")


@uncompiled
class _Kernel:
    """What the dispatcher calls for one overload."""

    def __init__(self, func: OpOverload, fallback: Callable[..., Value]):
        self.func = func
        self.fallback = fallback

    def __call__(self, *args: Value, **kwargs: Value) -> Value:
        return self.fallback(self.func, *args, **kwargs)
