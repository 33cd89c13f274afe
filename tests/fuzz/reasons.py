"""Why the device may differ from the host: what has a reason here is no defect."""

from __future__ import annotations

import re

from reasons_calls import OF_CALLS
from reasons_numbers import OF_NUMBERS
from reasons_operands import OF_OPERANDS
from reasons_roundings import OF_ROUNDINGS

# operators whose kernels of PyTorch's for the CPU die of what is asked here; the device alone is asked
# or which write past memory, so that it dies later
# (_saturate_weight_to_fp16 calls itself without end)
# (lu_unpack.out of pivots of other sizes writes past a P that it has resized)
# (log_sigmoid_forward.output resizes a buffer whose elements share memory to strides of more than there is)
# (tril.out and triu.out take the strides of an out= for those of a batch of matrices, one behind the other)
HOST_DIES: tuple[str, ...] = (
    "aten::_logcumsumexp.out", "aten::tril.out", "aten::triu.out",
    "aten::_saturate_weight_to_fp16", "aten::lu_unpack.out", "aten::log_sigmoid_forward.output",
)  # fmt: skip

_DTYPE = r"\"?\w+\"? not implemented for '\w+'.*"

# of an operator, and of what was found: patterns, and why; what every operator may differ in
REASONS: tuple[tuple[str, str, str], ...] = (
    *OF_NUMBERS,
    *OF_ROUNDINGS,
    (r".*", r"the host dies: .*|.*, as on the host", "PyTorch's own kernel ends the process"),
    (
        r".*",
        r".*(on the same device|indices should be either on).*",
        "operands of two devices: the host's are all its own",
    ),
    (
        r".*",
        r"NotImplementedError for \w+: " + _DTYPE,
        "both refuse; of several reasons the dtype is told first",
    ),
    (
        r".*",
        r"\w+ for NotImplementedError: .* / " + _DTYPE,
        "both refuse; of several reasons the dtype is told last",
    ),
    (r".*", r"the host raises \w+: " + _DTYPE, "a dtype that PyTorch's kernels for the CPU lack"),
    (
        r".*",
        r".*(NotImplementedError: Could not run 'aten|/ Could not run 'aten).*",
        "the CPU has no kernel of it",
    ),
    (
        r".*",
        r".*(PrivateUseNHooksInterface|CPU tensors can be pinned).*",
        "pinned memory of a factory is the host's alone",
    ),
    (
        r".*",
        r"NotImplementedError for \w+: \S+ has no kernel on maca.*",
        "both refuse; what maca lacks is told first",
    ),
    (
        r".*",
        r"(Runtime|Index|Value|NotImplemented|_LinAlg)Error for (Runtime|Index|Value|NotImplemented|_LinAlg)Error: .*",
        "both refuse; of several faults another is told first",
    ),
    (
        r".*",
        r".*INTERNAL ASSERT FAILED at .*(CompositeViewCopyKernels|LossNcpp|MathBitsFallbackNh|AccumulateTypeNcpp).*|the host raises RuntimeError: out_size == signal_size.*",
        "an assertion of PyTorch's own fails on the host",
    ),
    (
        r".*",
        r"the host raises RuntimeError: derivative for .* is not implemented",
        "a gradient that PyTorch's kernel lacks",
    ),
    (
        r".*",
        r"the host raises RuntimeError: (Expected out tensor to have dtype|output with shape|value cannot be converted).*",
        "an out= of another dtype, or a number that a kernel's dtype does not hold: here it is cast as for other operators",
    ),
    (
        r".*",
        r"the host raises RuntimeError: (expected scalar type|Found dtype|MKL FFT error|itensor_view_from_dense expects|could not (create a primitive|construct a memory descriptor)).*",
        "operands that a library of the CPU's refuses",
    ),
    (
        r".*",
        r"other strides",
        "of a resized out=, or along a side of one: as of the functional operator's result",
    ),
    (
        r".*",
        r"the host raises RuntimeError: unsupported operation: more than one.*",
        "an out= that shares memory with itself until it is resized",
    ),
    (
        r".*",
        r"raises RuntimeError: Expected (out )?tensor to have (maca(:N)? Device(Type)?|(cpu Device(Type)?|device cpu), but got (tensor with )?maca).*",
        "operands of two devices: the host's are all its own",
    ),
    (
        r".*",
        r"OutOfMemoryError for RuntimeError: .* / .*DefaultCPUAllocator: can't allocate memory.*",
        "too large for both; the device's error has a class of its own, which derives from the host's",
    ),
    *OF_CALLS,
    *OF_OPERANDS,
)


def reason(operator: str, found: str) -> str:
    """Why an operator differs in that way; "" where nobody said."""
    for of, text, why in REASONS:
        if re.fullmatch(of, operator) and re.fullmatch(text, found):
            return why
    return ""
