"""Why the device may differ from the host: what has a reason here is no defect."""

from __future__ import annotations

import re

# operators whose kernels of PyTorch's for the CPU die of what is asked here; the device alone is asked
HOST_DIES: tuple[str, ...] = ()

_DTYPE = r"\"?\w+\"? not implemented for '\w+'.*"

# of an operator, and of what was found: patterns, and why
REASONS: tuple[tuple[str, str, str], ...] = (
    (r".*", r"the host dies: .*", "PyTorch's own kernel ends the process"),
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
        r"aten::(_foobar|_dyn_quant\w*|_weight_int\w*|_convert_weight_to_int\w*|_fused_(adagrad|sgd|adamw?)_?|glu_\w*jvp|"
        r"_transform_bias_rescale_qkv|_nnpack_\w*|_flash\w*|_scaled_dot_product_flash_attention_for_cpu\w*)",
        r"(raises NotImplementedError|NotImplementedError for \w+): .*",
        "an operator of one back end, that no function of torch calls on maca",
    ),
    (
        r".*",
        r"NotImplementedError for \w+: \S+ has no kernel on maca.*",
        "both refuse; what maca lacks is told first",
    ),
    (r"aten::(get_device|is_cpu|is_cuda)", r"other (int|bool)", "it tells the device"),
    (
        r".*",
        r".*INTERNAL ASSERT FAILED at .*CompositeViewCopyKernels.*",
        "an assertion of PyTorch's own fails on the host",
    ),
    (
        r".*",
        r"the host raises RuntimeError: derivative for .* is not implemented",
        "a gradient that PyTorch's kernel lacks",
    ),
    (
        r"aten::_?fft_\w+",
        r"(NaN|infinite) at other places",
        "infinite numbers meet in another order in a transform",
    ),
    (
        r"aten::_?linalg_(svd|eigh?|qr|eigvalsh)|aten::(geqrf|svd|qr)",
        r"other numbers .*",
        "vectors that are unique up to a phase",
    ),
    (
        r"aten::(histc|bincount)",
        r"other numbers of torch.b?float16",
        "counts are exact here, on the host sums of 16 bits",
    ),
    (
        r"aten::(\w*norm|dist|linalg_\w*norm|linalg__powsum)",
        r"infinite at other places",
        "squares are summed in float64 here",
    ),
    (r"aten::cum(prod|max|min)\w*_backward", r"other numbers .*", "results that are not of these operands"),
)


def reason(operator: str, found: str) -> str:
    """Why an operator differs in that way; "" where nobody said."""
    for of, text, why in REASONS:
        if re.fullmatch(of, operator) and re.fullmatch(text, found):
            return why
    return ""
