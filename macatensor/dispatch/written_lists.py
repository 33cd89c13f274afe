"""Operators that write lists of tensors: PyTorch does for one tensor, before it calls us, what is done here for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from macatensor.dispatch.launcher import Run
from macatensor.dispatch.request import Scalar
from macatensor.runtime.boxed import Arguments, Value
from macatensor.runtime.ffi import OVERLAPS_IN_PART
from macatensor.runtime.tensor import Payload

_INFERENCE = (
    "Inplace update to inference tensor outside InferenceMode is not allowed.You can make a clone to get a normal tensor "
    "before doing inplace update.See https://github.com/pytorch/rfcs/pull/17 for more details."
)


def count_writes(tensors: Sequence[torch.Tensor]) -> None:
    """Autograd finds by these counts what a backward pass needs and is no more there.

    Raises RuntimeError where PyTorch does after such a write: outside of inference mode, for a tensor made in it.
    """
    if not torch.is_inference_mode_enabled() and any(t.is_inference() for t in tensors):
        raise RuntimeError(_INFERENCE)
    torch.autograd.graph.increment_version(tensors)


def counted(run: Run) -> Run:
    """``run``, whose writes into the tensors of its first argument count."""

    def run_counted(args: Arguments, payloads: Sequence[Payload], scalars: Sequence[Scalar]) -> Value:
        result = run(args, payloads, scalars)
        count_writes(args[0])
        return result

    return run_counted


def one_after_another(call: Callable[[Arguments], Value], run: Run) -> Run:
    """``run``, or ``call`` for each place of the lists where a tensor that is written shares memory with one of another
    place: the kernels compute all at once."""

    def run_apart(args: Arguments, payloads: Sequence[Payload], scalars: Sequence[Scalar]) -> Value:
        try:
            return run(args, payloads, scalars)
        except RuntimeError as error:
            if error.args != (OVERLAPS_IN_PART,) or len(args[0]) == 1:
                raise
        for i in range(len(args[0])):
            call(tuple([a[i : i + 1] if isinstance(a, (list, tuple)) else a for a in args]))
        return None

    return run_apart
