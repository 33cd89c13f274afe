"""Entries of PyTorch's operator databases, their dtypes and samples."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

import torch

from macatensor.runtime.boxed import Arguments, Keywords, Value
from macatensor.runtime.random import seed_host_and_device

if TYPE_CHECKING:
    from torch.testing._internal.opinfo.core import OpInfo, SampleInput

# What an entry is called with: the input, further arguments, keywords.
Sample: TypeAlias = tuple[Value, Arguments, Keywords]

DTYPES = (
    "float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "bool", "complex64",
    "complex128",
)  # fmt: skip
DATABASES = ("operators", "references", "foreach")


def name_of(info: OpInfo) -> str:
    """``"div.floor_rounding"``: an entry's name with its variant."""
    return f"{info.name}.{info.variant_test_name}" if info.variant_test_name else str(info.name)


def seek_no_unittest() -> None:
    """Ends the search of the whole stack for a unittest, which PyTorch makes at each sample: longer than all else takes."""
    for name in ("common_utils", "opinfo.core"):
        if module := sys.modules.get(f"torch.testing._internal.{name}"):
            module.extract_test_fn = lambda: None  # type: ignore[attr-defined]


@functools.cache
def database(name: str) -> dict[str, OpInfo]:
    """Entries by name. ``"operators"``, ``"references"`` (PyTorch's operators written in Python) or ``"foreach"``."""
    try:
        from torch.testing._internal import common_methods_invocations as invocations
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"PyTorch's operator database needs the package {error.name}: pip install 'macatensor[test]'"
        ) from error
    seek_no_unittest()
    if name == "operators":
        infos = invocations.op_db
    elif name == "references":
        infos = invocations.python_ref_db
    else:
        infos = list(
            itertools.chain(
                invocations.foreach_unary_op_db,
                invocations.foreach_binary_op_db,
                invocations.foreach_pointwise_op_db,
                invocations.foreach_reduce_op_db,
                invocations.foreach_other_op_db,
            )
        )
    return {name_of(info): info for info in infos if info.dtypes}


def dtypes_of(info: OpInfo) -> tuple[str, ...]:
    """The dtypes of :data:`DTYPES` that PyTorch's CPU kernels support."""
    supported = info.supported_dtypes("cpu")
    return tuple(d for d in DTYPES if getattr(torch, d) in supported)


def typical_dtype(info: OpInfo) -> str:
    """float32, int64 where that is not supported, else the first that is."""
    supported = dtypes_of(info)
    return next((d for d in ("float32", "int64") if d in supported), supported[0] if supported else "float32")


def samples_of(
    info: OpInfo, dtype: torch.dtype, requires_grad: bool, limit: int | None
) -> Iterator[SampleInput]:
    """OpInfo's samples on the host, the same at each call.

    Operands that OpInfo makes on the CPU for every device are marked ``stays_on_host``: the indices of tensor_split.
    """
    seed_host_and_device(0)
    for sample in itertools.islice(info.sample_inputs("cpu", dtype, requires_grad=requires_grad), limit):
        if info.name.endswith("tensor_split"):
            indices: Value
            for indices in sample.args:
                if isinstance(indices, torch.Tensor):
                    indices.stays_on_host = True  # type: ignore[attr-defined]
        yield sample
