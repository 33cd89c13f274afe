"""``torch.choose_qparams_optimized``: PyTorch's own, for every device, reads the memory of the host."""

from __future__ import annotations

from torch import Tensor

from macatensor.dispatch.host_fallback import on_cpu
from macatensor.operators.whole import overload, whole
from macatensor.runtime.boxed import Value


@whole("choose_qparams_optimized.default")
def choose_qparams_optimized(input: Tensor, numel: int, n_bins: int, ratio: float, bit_width: int) -> Value:
    """The range to quantize the first ``numel`` numbers of a contiguous ``input`` to ``bit_width`` bits: the highest and
    the lowest, [1] each.

    PyTorch's kernel of the host searches it in steps of a part of ``n_bins`` of the numbers' range, down to ``1 - ratio``
    of it; counted as any operator there. Raises RuntimeError for a ``numel`` that the input has not, of which that would
    read beyond, and for steps that lead nowhere.
    """
    if not 0 < numel <= input.numel():
        raise RuntimeError(
            f"choose_qparams_optimized got numel={numel} of a tensor of {input.numel()} elements; accepted: 1 to "
            f"{input.numel()}"
        )
    if n_bins < 1 or not 0 <= ratio <= 1:
        raise RuntimeError(
            f"choose_qparams_optimized got n_bins={n_bins} and ratio={ratio}, of which the search would not end; accepted: "
            "1 or more, and 0 to 1"
        )
    args = (input.detach().contiguous(), numel, n_bins, ratio, bit_width)
    return on_cpu(overload("choose_qparams_optimized.default"), args, {}, "it searches numbers one by one")
