"""``out=`` tensors that PyTorch may refuse: of another dtype, or in memory that an operand lies in.

Its meta kernels do not look at memory, and which dtypes an operator casts to is known to its CPU kernel alone: such a
call is first run on CPU operands that share memory as ours do.
"""

from __future__ import annotations

import torch
from torch._ops import OpOverload

from macatensor.dispatch.consultation import consult_cpu
from macatensor.dispatch.errors import two_devices
from macatensor.dispatch.kernel_calls import KernelLauncher
from macatensor.dispatch.launcher import static_key
from macatensor.dispatch.plan import flatten
from macatensor.dispatch.signature import Role, read
from macatensor.dispatch.written_lists import count_writes
from macatensor.runtime import plan_caches
from macatensor.runtime.boxed import Arguments, Keywords, Launcher, Value
from macatensor.runtime.plan_caches import PlanCache
from macatensor.runtime.tensor import MacaTensor


def _is_plain(outs: list[Value], rest: list[Value]) -> bool:
    """Can PyTorch find nothing wrong? Floating ``out=`` of the operands' dtype, in memory of its own."""
    buffers = [t._payload[0] for t in rest if isinstance(t, MacaTensor)]
    for out in outs:
        if not isinstance(out, MacaTensor):
            return False
        buffer, _, meta = out._payload
        if not (meta.dtype.is_floating_point or meta.dtype.is_complex) or meta.overlaps_itself():
            return False
        if any(buffer is b for b in buffers):
            return False
        buffers.append(buffer)
        for value in rest:
            if isinstance(value, torch.Tensor):
                if value.dtype != meta.dtype:
                    return False
            elif type(value) is complex and not meta.dtype.is_complex:
                return False
    return True


def checked(func: OpOverload, launcher: Launcher) -> Launcher:
    """``launcher`` behind PyTorch's word on the ``out=`` tensors, asked once per signature."""
    signature = read(func)
    positions = signature.outs
    lists = [i for i in positions if signature.arguments[i].role is Role.TENSORS]
    accepted: PlanCache[bool] = PlanCache()
    # only a kernel's plan compares dtypes itself: nonzero() of floats gives integers
    compares = isinstance(launcher, KernelLauncher)

    def call(args: Arguments, kwargs: Keywords | None) -> Value:
        full = signature.fill(args, kwargs)
        outs = flatten([full[i] for i in positions])
        rest = flatten([v for i, v in enumerate(full) if i not in positions])
        for out in outs:
            if isinstance(out, torch.Tensor) and not isinstance(out, MacaTensor):
                raise two_devices(signature.name, out)
        if not (compares and _is_plain(outs, rest)):
            seen: dict[int, int] = {}  # which operands share memory, whatever memory it is
            key = tuple(
                (v._payload[2], v._payload[1], seen.setdefault(id(v._payload[0]), len(seen)))
                if isinstance(v, MacaTensor)
                else (v.dtype, v.device)
                if isinstance(v, torch.Tensor)
                else torch.Generator
                if isinstance(v, torch.Generator)
                else static_key(v)
                for v in flatten(full)
            )
            if key not in accepted:
                generation = plan_caches.generation
                try:
                    consult_cpu(signature, full, with_values=True)
                except NotImplementedError:  # the row may state a dtype that the CPU lacks
                    given = {t.dtype for t in rest if isinstance(t, torch.Tensor)}
                    stated = isinstance(launcher, KernelLauncher) and launcher.row.states(outs[0].dtype)
                    if not stated or outs[0].dtype not in given:
                        raise
                accepted.remember(key, True, generation)
        result = launcher(args, kwargs)
        for i in lists:  # PyTorch counts the writes of single tensors before it calls us
            count_writes(full[i])
        return result

    return call
