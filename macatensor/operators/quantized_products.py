"""Products of int8, float8 and packed weights of 4 bits: composites over products of int32 and float32, and how weights of
4 bits are packed.

Where a row has a kernel, the composite here serves what the library declines: then a weight becomes float32 at each call.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch._ops import OpOverload

from macatensor.dispatch.attribute_rules import order_of_cpu
from macatensor.dispatch.errors import scalar_type
from macatensor.dispatch.float8_calls import FLOAT8
from macatensor.dispatch.launcher import special
from macatensor.dispatch.resize import write_out
from macatensor.dispatch.signature import read
from macatensor.operators.composites import Contradiction, composite
from macatensor.runtime.boxed import Arguments, Keywords, Launcher, Value


@composite
def int_mm(self: Tensor, mat2: Tensor) -> Tensor:
    """int32 [m, n], exact: the product of int8 or uint8 [m, k] and int8 [k, n]."""
    fits = self.dim() == mat2.dim() == 2 and self.shape[1] == mat2.shape[0]
    if not (fits and self.dtype in (torch.int8, torch.uint8) and mat2.dtype is torch.int8):
        raise Contradiction
    return torch.mm(self.to(torch.int32), mat2.to(torch.int32))


def _are_tensorwise(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> bool:
    return scale_a.dtype is scale_b.dtype is torch.float32 and scale_a.numel() == scale_b.numel() == 1


def _are_rowwise(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> bool:
    if scale_a.dtype is not torch.float32 or scale_b.dtype is not torch.float32:
        return False
    fits = scale_a.shape == (a.shape[0], 1) and scale_b.shape == (1, b.shape[1])
    return fits and scale_a.stride(1) == scale_b.stride(1) == 1


def _scaled_product(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None) -> Tensor:
    """float32. A scale of one element has no dimension, so that it broadcasts."""
    scale_a, scale_b = (s.reshape(()) if s.numel() == 1 else s for s in (scale_a, scale_b))
    product = torch.mm(a.to(torch.float32) * scale_a, b.to(torch.float32) * scale_b)
    return product if bias is None else product.add_(bias)


@composite
def scaled_mm(
    self: Tensor,
    mat2: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Tensor:
    """``(self * scale_a) @ (mat2 * scale_b) + bias`` of float8 matrices: factors, sum and bias in float32, rounded once to
    ``out_dtype`` (None: that of ``self``). Scales of one element, or [m, 1] and [1, n]."""
    fits = self.dim() == mat2.dim() == 2 and self.shape[1] == mat2.shape[0]
    operands = self, mat2, scale_a, scale_b
    if not (fits and self.dtype in FLOAT8 and mat2.dtype in FLOAT8):
        raise Contradiction
    are_dense = scale_a.is_contiguous() and scale_b.t().is_contiguous()
    if not (_are_tensorwise(*operands) or (are_dense and _are_rowwise(*operands))):
        raise Contradiction
    if bias is not None and bias.numel() != mat2.shape[1]:
        raise Contradiction
    if scale_result is not None and (scale_result.numel() != 1 or scale_result.dtype is not torch.float32):
        raise Contradiction
    product = _scaled_product(*operands, bias)
    if scale_result is not None and out_dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        product = product * scale_result.reshape(()).reciprocal()
    return product.to(out_dtype or self.dtype)


_TENSORWISE, _ROWWISE = [0], [1]  # torch.nn.functional.ScalingType
_PLAIN_SWIZZLE: tuple[list[int], ...] = ([], [0])
_PLAIN_CONTRACTION: tuple[list[int], ...] = ([], [1, 0])


@composite
def scaled_mm_of_recipes(
    self: Tensor,
    mat2: Tensor,
    scale_a: list[Tensor],
    recipe_a: list[int],
    swizzle_a: list[int],
    scale_b: list[Tensor],
    recipe_b: list[int],
    swizzle_b: list[int],
    bias: Tensor | None,
    out_dtype: torch.dtype | None,
    contraction_dim: list[int] | tuple[()] = (),
    use_fast_accum: bool = False,
) -> Tensor:
    """:func:`scaled_mm` with scales that say what they are: ``torch.nn.functional.scaled_mm``."""
    if not (self.dim() == mat2.dim() == 2 and self.dtype in FLOAT8 and mat2.dtype in FLOAT8):
        raise Contradiction
    size = self.shape[0], mat2.shape[1]
    if 0 in (*size, self.shape[1]):  # no look at the rest, as the CPU's
        return torch.zeros(size, dtype=torch.float32, device=self.device).to(out_dtype or self.dtype)
    one_each = len(scale_a) == len(scale_b) == 1
    plain = list(swizzle_a) in _PLAIN_SWIZZLE and list(swizzle_b) in _PLAIN_SWIZZLE
    if not (
        one_each and plain and list(contraction_dim) in _PLAIN_CONTRACTION and self.shape[1] == mat2.shape[0]
    ):
        raise Contradiction
    operands = self, mat2, scale_a[0], scale_b[0]
    recipes = list(recipe_a), list(recipe_b)
    if not (
        (recipes == (_TENSORWISE, _TENSORWISE) and _are_tensorwise(*operands))
        or (recipes == (_ROWWISE, _ROWWISE) and _are_rowwise(*operands))
    ):
        raise Contradiction
    floats = torch.float32, torch.bfloat16, torch.float16
    if bias is not None and (bias.numel() != size[1] or bias.dtype not in floats):
        raise Contradiction
    return _scaled_product(*operands, bias).to(out_dtype or self.dtype)


@special("aten._scaled_mm.out", "aten._scaled_mm_v2.out")
def _scaled_mm_into(func: OpOverload) -> Launcher:
    """Without ``out_dtype`` the result has the dtype of ``out``, and is rounded once."""
    into, plain = read(func), func.overloadpacket.default
    at = into.names.index("out_dtype")

    def run(args: Arguments, kwargs: Keywords | None) -> Value:
        *full, out = into.fill(args, kwargs)
        if full[at] not in (None, out.dtype):
            raise ValueError("out_dtype must match output matrix type")
        full[at] = out.dtype
        return write_out([out], read(plain).call(plain, full))

    return run


def _require(holds: bool, name: str, what: str) -> None:
    if not holds:
        raise RuntimeError(f"{name} : {what}")


_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_FLOAT_WANTED = "expect A to be either 32-bit or 16-bit float tensor."


def _require_dtype(t: Tensor, dtype: torch.dtype) -> None:
    """As PyTorch's kernels, which read the memory of scales by a pointer."""
    if t.dtype is not dtype:
        raise RuntimeError(f"expected scalar type {scalar_type(dtype)} but found {scalar_type(t.dtype)}")


@composite
def weight_int8pack_mm(self: Tensor, mat2: Tensor, scales: Tensor) -> Tensor:
    """[m, n] of the dtype of ``self`` [m, k]: ``self @ mat2.T * scales`` with int8 [n, k] and a scale for each row of it,
    summed and scaled in float32."""
    name, rows, k = "_weight_int8pack_mm_cpu", mat2.size(0), self.size(1)
    _require(self.dtype in _FLOATS, name, _FLOAT_WANTED)
    _require(self.dim() == 2, name, "expect A to be 2D tensor.")
    _require(mat2.dtype is torch.int8, name, "expect B to be int8 tensor.")
    _require(mat2.dim() == 2 and mat2.shape[1] == k, name, f"expect B.size(1) == {k}")
    _require(scales.shape == (rows,), name, f"expect scales to be 1d tensor with size {rows}")
    _require_dtype(scales, self.dtype)
    product = torch.mm(self.to(torch.float32), mat2.t().to(torch.float32))
    return product.mul_(scales).to(self.dtype)


_Order = tuple[int, bool]  # rows of a block, and whether they lie by halves: attribute_rules.order_of_cpu
_OWN_ORDER: _Order = (32, True)


def _order_of_cpu() -> _Order:
    (_, rows), (_, by_halves) = order_of_cpu()
    return rows, by_halves


def _blocks(rows: int, order: _Order) -> list[tuple[int, int, int, bool]]:
    """From row, up to row, rows of a block and whether they lie by halves: of whole blocks, and of the rest."""
    block, by_halves = order
    whole = rows // block * block
    return [(0, whole, block, by_halves), (whole, rows, rows - whole, False)]


def _packed(numbers: Tensor, order: _Order) -> Tensor:
    """uint8 [n, k / 2] of uint8 [n, k] with numbers of 0 to 15: blocks of rows, [k][half of the rows] each."""
    n, k = numbers.shape
    parts = [numbers.new_empty(0)]
    for start, end, block, by_halves in _blocks(n, order):
        if end > start:
            pairs = (2, block // 2) if by_halves else (block // 2, 2)
            blocks = numbers[start:end].reshape((end - start) // block, *pairs, k)
            low, high = blocks.unbind(1 if by_halves else 2)
            parts.append((low | high << 4).transpose(1, 2).reshape(-1))
    return torch.cat(parts).reshape(n, k // 2)


def _unpacked(packed: Tensor, order: _Order) -> Tensor:
    """uint8 [n, k] of what :func:`_packed` makes."""
    n, k = packed.shape[0], 2 * packed.shape[1]
    parts = [packed.new_empty((0, k))]
    for start, end, block, by_halves in _blocks(n, order):
        if end > start:
            both = packed[start:end].reshape((end - start) // block, k, block // 2).transpose(1, 2)
            numbers = torch.stack([both & 15, both >> 4], 1 if by_halves else 2)
            parts.append(numbers.reshape(end - start, k))
    return torch.cat(parts)


@composite
def pack_int4_as_cpu(self: Tensor, innerKTiles: int) -> Tensor:
    """uint8 [n, k / 2] of int32 [n, k] with numbers of 0 to 15, in the order of this machine's CPU."""
    name = "_convert_weight_to_int4pack_cpu"
    _require(self.dim() == 2, name, "expect weight to be 2D tensor.")
    _require(self.dtype is torch.int32, name, "expect weight to be kInt.")
    n, k = self.shape
    _require(n % 16 == 0, name, "expect N to be dividable by 16")
    if k % 2:
        raise RuntimeError("_convert_weight_to_int4pack: expect K to be dividable by 2")
    return _packed(self.to(torch.uint8), _order_of_cpu())


def _int4_product(x: Tensor, numbers: Tensor, group: int, scale_and_zero: Tensor) -> Tensor:
    """``x`` [m, k] times the transposed weight of ``numbers`` [n, k], of 0 to 15: ``(number - 8) * scale + zero``, where
    ``group`` neighbours along k share a scale and a zero."""
    n, k = numbers.shape
    scale, zero = (
        scale_and_zero.to(torch.float32).permute(2, 1, 0).unsqueeze(-1).unbind(0)
    )  # [n, k / group, 1]
    signed = numbers.reshape(n, k // group, group).to(torch.float32) - 8
    weight = (signed * scale + zero).reshape(n, k)
    return torch.mm(x.to(torch.float32), weight.t()).to(x.dtype)


@composite
def int4_mm_as_cpu(self: Tensor, mat2: Tensor, qGroupSize: int, qScaleAndZeros: Tensor) -> Tensor:
    """[m, n] of the dtype of ``self`` [m, k]; ``mat2`` by :func:`pack_int4_as_cpu`, ``qScaleAndZeros`` [k / group, n, 2]."""
    name, k = "_weight_int4pack_mm_cpu", self.size(1)
    _require(self.dtype in _FLOATS, name, _FLOAT_WANTED)
    _require(self.dim() == 2, name, "expect A to be 2D tensor.")
    _require(mat2.dtype is torch.uint8, name, "expect B to be uint8 tensor.")
    if mat2.dim() != 2 or mat2.shape[1] != k // 2:
        got = mat2.shape[1] if mat2.dim() > 1 else list(mat2.shape)
        raise RuntimeError(f"{name} : expect B.size(1) to be K/2, got {got}")
    return _checked_int4_product(self, _unpacked(mat2, _order_of_cpu()), qGroupSize, qScaleAndZeros, name)


def _checked_int4_product(
    x: Tensor, numbers: Tensor, group: int, scale_and_zero: Tensor, name: str
) -> Tensor:
    n, k = numbers.shape[0], x.shape[1]
    if group not in (32, 64, 128, 256):
        raise RuntimeError(f"{name}: expect qGroupSize to be 32, 64, 128 or 256, got {group}")
    if k % group:
        raise RuntimeError(f"{name}: expect K to be divisible by qGroupSize, got K:{k}, qGroupSize:{group}")
    if scale_and_zero.shape != (k // group, n, 2):
        raise RuntimeError(f"{name}: expect qScaleAndZeros to be 3d tensor with sizes [:, {n}, 2]")
    _require_dtype(scale_and_zero, x.dtype)
    return _int4_product(x, numbers, group, scale_and_zero)


@composite
def pack_int4(self: Tensor, innerKTiles: int) -> Tensor:
    """int32 [n / 8, k / (16 * tiles), 32, tiles / 2] of uint8 [n, k / 2], in which the high nibble comes first along k.

    Sizes are those of CUDA, whose order is its matrix units'; here it is that of a CPU with vectors of eight numbers.
    """
    name = "_convert_weight_to_int4pack"
    _require(self.dim() == 2 and self.dtype is torch.uint8, name, "expect a matrix of uint8")
    n, k = self.shape[0], 2 * self.shape[1]
    _require(innerKTiles in (2, 4, 8), name, f"expect innerKTiles to be 2, 4 or 8, got {innerKTiles}")
    _require(
        n % 8 == 0 and k % (16 * innerKTiles) == 0,
        name,
        f"expect N to be divisible by 8 and K by {16 * innerKTiles}, got N:{n}, K:{k}",
    )
    numbers = torch.stack([self >> 4, self & 15], -1).reshape(n, k)
    words = _packed(numbers, _OWN_ORDER).view(torch.int32)
    return words.view(n // 8, k // (16 * innerKTiles), 32, innerKTiles // 2)


@composite
def int4_mm(self: Tensor, mat2: Tensor, qGroupSize: int, qScaleAndZeros: Tensor) -> Tensor:
    """[m, n] of the dtype of ``self`` [m, k]; ``mat2`` by :func:`pack_int4`, ``qScaleAndZeros`` [k / group, n, 2]."""
    name = "_weight_int4pack_mm"
    _require(self.dtype in _FLOATS, name, _FLOAT_WANTED)
    _require(self.dim() == 2, name, "expect A to be 2D tensor.")
    _require(mat2.dim() == 4 and mat2.dtype is torch.int32, name, "expect B to be 4D tensor of int32.")
    n, k = 8 * mat2.shape[0], self.shape[1]
    if mat2.numel() * 8 != n * k:
        raise RuntimeError(
            f"{name} : expect B to have N * K / 8 elements, got {mat2.numel()} for N:{n}, K:{k}"
        )
    numbers = _unpacked(mat2.contiguous().reshape(-1).view(torch.uint8).view(n, k // 2), _OWN_ORDER)
    return _checked_int4_product(self, numbers, qGroupSize, qScaleAndZeros, name)
