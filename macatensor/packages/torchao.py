"""torchao: linear layers of which the weight alone is quantized go, on maca, by products that read it as it is stored.

torchao's own make the whole weight floats at each call. Calls that record gradients stay with them.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

UPSTREAM = ("0.16", "0.20")  # written for 0.18

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_NARROW = (torch.int1, torch.int2, torch.int3, torch.int4)
_GROUPS = (32, 64, 128, 256)  # neighbours that share a scale, as the product takes them

# What was prepared of a weight's numbers, and the state of the weight: no part of it, which would be saved with it.
_kept: Any = WeakIdKeyDictionary()

# [rows, k] and a weight [n, k] -> [rows, n]; None where torchao's own shall compute
_Product = Callable[[Tensor, Any], "Tensor | None"]


def int8(module: ModuleType) -> None:
    """``Int8Tensor``: a scale for each row, or one."""
    _prefer(module.Int8Tensor, _of_int8)


def intx(module: ModuleType) -> None:
    """``IntxUnpackedToInt8Tensor``: of up to 4 bits, where neighbours share a scale; a scale for each row."""
    _prefer(module.IntxUnpackedToInt8Tensor, _of_intx)


def _prefer(kind: Any, product: _Product) -> None:
    """Asks ``product`` before the function of torchao's that computes linear layers with weights of ``kind``."""
    tables = (
        (kind._ATEN_OP_TABLE[kind], torch.ops.aten.linear.default),
        (kind._TORCH_FN_TABLE[kind], F.linear),
    )
    for table, name in tables:
        table[name] = _preferring(product, kind, table[name])


def _preferring(product: _Product, kind: type, own: Callable[..., Any]) -> Callable[..., Any]:
    def linear(func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        x, weight = args[:2]
        plain = not kwargs and isinstance(weight, kind) and x.device.type == "maca" and x.dtype in _FLOATS
        if plain and not (x.requires_grad and torch.is_grad_enabled()):
            y = product(x.reshape(-1, x.shape[-1]), weight)
            if y is not None:
                y = y.reshape(*x.shape[:-1], y.shape[-1])
                return y if len(args) < 3 or args[2] is None else y + args[2]
        return own(func, types, args, kwargs)

    return linear


def _of_int8(x: Tensor, weight: Any) -> Tensor | None:
    numbers, scale = weight.qdata, weight.scale
    if weight.act_quant_kwargs is not None or weight.act_pre_scale is not None or numbers.dim() != 2:
        return None
    if weight.block_size[-1] < numbers.shape[-1]:
        return None
    result: Tensor = torch.ops.aten._weight_int8pack_mm.default(x, numbers, _of_rows(scale, numbers, x.dtype))
    return result


def _of_rows(scale: Tensor, numbers: Tensor, dtype: torch.dtype) -> Tensor:
    return scale.to(dtype).flatten().expand(numbers.shape[0])


def _of_intx(x: Tensor, weight: Any) -> Tensor | None:
    if weight.activation_quantization is not None or weight.qdata.dim() != 2 or x.dtype != weight.dtype:
        return None
    if (
        torch.compiler.is_compiling()
    ):  # what is prepared is kept beside the weight, which no program may change
        return None
    prepared = _prepared(weight)
    aten = torch.ops.aten
    result: Tensor | None = None
    if isinstance(prepared, Tensor):
        result = aten._weight_int8pack_mm.default(x, weight.qdata, prepared)
    elif prepared is not None:
        packed, scales_and_zeros = prepared
        result = aten._weight_int4pack_mm.default(x, packed, weight.block_size[1], scales_and_zeros)
    return result


def _prepared(weight: Any) -> Any:
    """Scales of rows; or the numbers as 4 bits, with scales and zeros; None where no product takes the weight. Made anew
    where the weight has been written since."""
    others = [(id(t), 0 if t.is_inference() else t._version) for t in (weight.scale, weight.zero_point)]
    numbers = weight.qdata
    state = 0 if numbers.is_inference() else numbers._version, others
    kept = _kept.get(numbers)
    if kept is None or kept[0] != state:
        with torch.no_grad():
            kept = _kept[numbers] = state, _prepare(weight)
    return kept[1]


def _prepare(weight: Any) -> Tensor | tuple[Tensor, Tensor] | None:
    (n, k), (height, group) = weight.qdata.shape, weight.block_size
    if height != 1:
        return None
    if group == k and not bool((weight.zero_point != 0).any()):
        return _of_rows(weight.scale, weight.qdata, weight.dtype).contiguous()
    if weight.target_dtype not in _NARROW or group not in _GROUPS or n % 8:
        return None
    numbers = (weight.qdata + 8).to(torch.uint8)
    packed = torch.ops.aten._convert_weight_to_int4pack.default(numbers[:, ::2] << 4 | numbers[:, 1::2], 2)
    scale = weight.scale.to(torch.float32)
    pairs = torch.stack([scale, -scale * weight.zero_point.to(torch.float32)], -1)
    return packed, pairs.transpose(0, 1).to(weight.dtype).contiguous()
