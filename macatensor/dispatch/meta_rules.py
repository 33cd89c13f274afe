"""What the results are of operators for which PyTorch has no meta kernel, one that fails or a slow one: by the name that
rows of the op table give.

A rule takes the operator's arguments in schema order, meta tensors in place of ours, and returns meta tensors.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TypeVar, cast

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, canonicalize_dim, elementwise_dtypes

from macatensor.dispatch.errors import scalar_type
from macatensor.dispatch.request import Scalar
from macatensor.runtime.boxed import Value
from macatensor.runtime.meta import contiguous_strides

_Rule = TypeVar("_Rule", bound=Callable[..., Value])

META_RULES: dict[str, Callable[..., Value]] = {}


def meta_rule(function: _Rule) -> _Rule:
    """Makes a function the rule of rows that name it."""
    META_RULES[function.__name__.removeprefix("_")] = function
    return function


def _promote(tensors: list[Tensor]) -> None:
    """Raises where PyTorch promotes no dtypes like these, as uint8 and uint32: its meta kernels do."""
    if tensors:
        functools.reduce(torch.promote_types, [t.dtype for t in tensors])


# PyTorch's of these three, its own operators, read past the end of lists that are too short.
@meta_rule
def _stack(tensors: list[Tensor], dim: int = 0) -> Tensor:
    _promote(tensors)
    return torch.stack(tensors, dim)


# PyTorch's takes a number's dtype for a tensor's.
@meta_rule
def _block_diag(tensors: list[Tensor]) -> Tensor:
    _promote(tensors)
    made: Tensor = torch.ops.aten.block_diag.default(tensors)
    if not tensors:
        return made
    kind = ELEMENTWISE_TYPE_PROMOTION_KIND.NO_OPMATH
    return made.to(elementwise_dtypes(*tensors, type_promotion_kind=kind)[1])


@meta_rule
def _foreach_copy(self: list[Tensor], src: list[Tensor], non_blocking: bool = False) -> list[Tensor]:
    if len(self) != len(src) or not self:
        raise RuntimeError(
            f"_foreach_copy got lists of {len(self)} and {len(src)} tensors; accepted: as many, and at least one"
        )
    # at::clone_preserve_strides: gaps stay, elements that share memory get their own
    return [
        torch.empty_like(t)
        if torch._debug_has_internal_overlap(t) == 1
        else t.new_empty_strided(t.shape, t.stride())
        for t in self
    ]


# PyTorch's keeps all dimensions where none is named and takes complex numbers; its kernels sum over all and refuse these.
@meta_rule
def _nansum(
    self: Tensor, dim: list[int] | None = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> Tensor:
    if self.is_complex():
        raise RuntimeError("nansum does not support complex inputs")
    result: Tensor = torch.ops.aten.nansum.default(self, dim or None, keepdim, dtype=dtype)
    return result


# PyTorch's has the gradient's dtype; its kernels promote.
@meta_rule
def _threshold_backward(grad: Tensor, self: Tensor, threshold: Scalar) -> Tensor:
    grad = grad.to(torch.result_type(grad, self))
    result: Tensor = torch.ops.aten.threshold_backward.default(grad, self, threshold)
    return result


# PyTorch's looks at no list where there is nothing to step, and at no learning rate.
@meta_rule
def _fused_step(self: list[Tensor], grads: list[Tensor], *rest: Value) -> None:
    """No result: everything is written through the lists."""
    if len(self) != len(grads):
        raise RuntimeError(f"a fused step got {len(self)} parameters and {len(grads)} gradients")
    states = [len(value) for value in rest if isinstance(value, (list, tuple))]
    if any(n not in (0, len(self)) for n in states):
        raise RuntimeError(f"a fused step got {len(self)} parameters and states of {states} tensors")


@meta_rule
def _fused_step_by_tensor(self: list[Tensor], grads: list[Tensor], *rest: Value) -> None:
    _fused_step(self, grads, *rest)
    rate = next(value for value in rest if isinstance(value, Tensor))
    if rate.numel() != 1:
        raise RuntimeError(f"a Tensor with {rate.numel()} elements cannot be converted to Scalar")


# PyTorch's divides by what is left of the step in the result's dtype.
@meta_rule
def _range(
    start: float, end: float, step: float = 1, dtype: torch.dtype | None = None, *options: Value
) -> Tensor:
    is_complex = any(isinstance(x, complex) for x in (start, end, step))  # which PyTorch's refuses
    if dtype is not None and not dtype.is_floating_point and not is_complex:
        if not all(math.isfinite(x) for x in (start, end, step)) or int(step) == 0:
            raise RuntimeError(
                f"range got {start} to {end} by {step} as {dtype}; accepted: a step that is not 0 there"
            )
        if abs(int(end) - int(start)) >= 1 << 63:
            raise RuntimeError(f"range got {start} to {end}; accepted: less than 2**63 from one to the other")
    return torch.range(start, end, step, dtype=dtype, device="meta")


# PyTorch's promotes; its kernels draw in the mean's dtype.
@meta_rule
def _normal_both(mean: Tensor, std: Tensor, generator: torch.Generator | None) -> Tensor:
    made: Tensor = torch.ops.aten.normal.Tensor_Tensor(mean, std)
    return made.to(mean.dtype) if mean.is_floating_point() and std.is_floating_point() else made


@meta_rule
def _binomial(count: Tensor, prob: Tensor, generator: torch.Generator | None) -> Tensor:
    refuse_if(not prob.is_floating_point())
    if count.shape == prob.shape:
        return torch.empty_like(count)
    return row_major(
        count, *torch.broadcast_shapes(count.shape, prob.shape)
    )  # which PyTorch resizes its result to


@meta_rule
def _gradient_of_samples(*operands: Tensor) -> Tensor:
    return functools.reduce(torch.add, operands).contiguous()


def row_major(like: Tensor, *size: int) -> Tensor:
    return torch.empty(size, dtype=like.dtype, device="meta")


# PyTorch 2.11 has none.
@meta_rule
def _standard_gamma(self: Tensor, *options: Value) -> Tensor:
    return row_major(self, *self.shape)


def _transform(func: OpOverload, last: Callable[[int, int], int]) -> Callable[..., Tensor]:
    """PyTorch 2.11's allocate for one order of ``dim`` and take the strides of another."""

    def rule(self: Tensor, dim: list[int], normalization: int, option: int) -> Tensor:
        try:
            result: Tensor = func(self, dim, normalization, option)
        except RuntimeError as error:
            if "setStorage" not in str(error):
                raise
            size = [last(n, option) if d == dim[-1] % self.dim() else n for d, n in enumerate(self.shape)]
            of_reals = func is torch.ops.aten._fft_c2r.default
            result = self.new_empty(size, dtype=self.dtype.to_real() if of_reals else self.dtype.to_complex())
        return result

    return rule


META_RULES["fft_c2c"] = _transform(torch.ops.aten._fft_c2c.default, lambda n, forward: n)
META_RULES["fft_r2c"] = _transform(
    torch.ops.aten._fft_r2c.default, lambda n, onesided: n // 2 + 1 if onesided else n
)
META_RULES["fft_c2r"] = _transform(torch.ops.aten._fft_c2r.default, lambda n, last: last)


# PyTorch's goes through Python's reference, 0.5 ms: a growing cache is joined to what is new once a token. Only for the
# plainest operands, whose result is row-major.
@meta_rule
def _cat(tensors: list[Tensor], dim: int = 0) -> Tensor:
    first = tensors[0]
    size, rank = list(first.shape), first.dim()
    at = dim + rank if dim < 0 else dim
    plain = 0 <= at < rank and first.stride() == contiguous_strides(first.shape) and first.numel() > 0
    for t in tensors[1:]:
        other = t.shape
        plain = plain and t.dtype == first.dtype and t.dim() == rank and other[at] > 0
        plain = plain and list(other[:at]) == size[:at] and list(other[at + 1 :]) == size[at + 1 :]
    if not plain:
        _promote(tensors)
        return torch.cat(tensors, dim)
    size[at] = sum(t.shape[at] for t in tensors)
    return row_major(first, *size)


# PyTorch's divide by the number of elements, in Python: an empty input raises ZeroDivisionError.
@meta_rule
def _loss_gradient(grad: Tensor, input: Tensor, target: Tensor, *rest: Value) -> Tensor:
    return input + target


# PyTorch's refuses uint8, which its CPU kernel takes.
@meta_rule
def _int_mm(self: Tensor, mat2: Tensor) -> Tensor:
    refuse_if(self.dim() != 2 or mat2.dim() != 2 or self.shape[1] != mat2.shape[0])
    return torch.empty((self.shape[0], mat2.shape[1]), dtype=torch.int32, device="meta")


# PyTorch's asks the weight for the device of a fake tensor.
@meta_rule
def _weight_int4pack_mm(self: Tensor, mat2: Tensor, qGroupSize: int, qScaleAndZeros: Tensor) -> Tensor:
    refuse_if(self.dim() != 2 or mat2.dim() != 4)
    return row_major(self, self.shape[0], 8 * mat2.shape[0])


# PyTorch's accept what its CPU kernels refuse. The words here are never read: the CPU's take their place.
def refuse_if(refused: bool) -> None:
    if refused:
        raise RuntimeError("refused by the CPU kernel")


@meta_rule
def _complex(real: Tensor, imag: Tensor) -> Value:
    refuse_if(real.dtype != imag.dtype)
    return torch.ops.aten.complex.default(real, imag)


@meta_rule
def _polar(abs: Tensor, angle: Tensor) -> Value:
    refuse_if(abs.dtype != angle.dtype)
    return torch.ops.aten.polar.default(abs, angle)


@meta_rule
def _masked_scatter(self: Tensor, mask: Tensor, source: Tensor) -> Value:
    refuse_if(mask.dtype != torch.bool)
    return torch.ops.aten.masked_scatter.default(self, mask, source)


@meta_rule
def _index_add(self: Tensor, dim: int, index: Tensor, source: Tensor, alpha: Scalar = 1) -> Tensor:
    rest = [n for d, n in enumerate(self.shape) if d != dim % max(self.dim(), 1)]
    given = [n for d, n in enumerate(source.shape) if d != dim % max(source.dim(), 1)]
    refuse_if(rest != given and self.dim() > 0)
    refuse_if(index.dtype not in (torch.int32, torch.int64))
    # the CPU's kernels accept a fraction as alpha of integers, too
    result: Tensor = torch.ops.aten.index_add.default(self, dim, index, source)
    return result


@meta_rule
def _geqrf(a: Tensor) -> tuple[Tensor, Tensor]:
    if a.dim() < 2:
        raise RuntimeError("torch.geqrf: input must have at least 2 dimensions.")
    columns_first = torch.empty((*a.shape[:-2], a.shape[-1], a.shape[-2]), dtype=a.dtype, device="meta")
    return columns_first.mT, row_major(a, *a.shape[:-2], min(a.shape[-2:]))


# PyTorch's have one element of one dimension for a single sample, its CPU kernels none, unless each loss is asked for:
# those have the sizes of the classes.
@meta_rule
def _multi_margin(
    input: Tensor,
    target: Tensor,
    p: Scalar = 1,
    margin: Scalar = 1,
    weight: Tensor | None = None,
    reduction: int = 1,
) -> Tensor:
    loss: Tensor = torch.ops.aten.multi_margin_loss.default(input, target, p, margin, weight, reduction)
    if input.dim() > 1 and target.dim():
        return loss
    return row_major(input, *(target.shape if reduction == 0 else ()))


@meta_rule
def _multilabel(input: Tensor, *rest: Value) -> tuple[Tensor, Tensor]:
    loss, marks = torch.ops.aten.multilabel_margin_loss_forward.default(input, *rest)
    return (loss if input.dim() > 1 else row_major(input)), marks


@meta_rule
def _gradient_of_second(grad: Tensor, input: Tensor, *rest: Value) -> Tensor:
    return row_major(input, *input.shape)


# PyTorch's has other sizes of the last two than its CPU kernel.
@meta_rule
def _embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Tensor, ...]:
    for name, t, wanted in (
        ("input", indices, "1D or 2D"),
        ("offsets", offsets, "1D"),
        ("weight", weight, "2D"),
    ):
        if t.dim() != int(wanted[0]):
            raise RuntimeError(f"{name} has to be a {wanted} Tensor, but got Tensor of dimension {t.dim()}")
    scales = per_sample_weights
    if scales is not None and (mode != 0 or scales.shape != indices.shape):
        raise RuntimeError("embedding_bag: per_sample_weights go with mode='sum', one for each index")
    if scales is not None and scales.dtype != weight.dtype:
        types = f"{scalar_type(weight.dtype)} but found {scalar_type(scales.dtype)}"
        raise RuntimeError(f"per_sample_weights have the same type as weight: expected scalar type {types}")
    kind = torch.promote_types(indices.dtype, offsets.dtype)
    bags = offsets.shape[0] - bool(include_last_offset)
    if bags < 0:
        raise RuntimeError("include_last_offset: number of offset should be at least 1")

    def numbers(*size: int) -> Tensor:
        return torch.empty(size, dtype=kind, device="meta")

    return (
        row_major(weight, bags, weight.shape[1]),
        numbers(indices.shape[0]),
        numbers(bags),
        numbers(bags, weight.shape[1]) if mode == 2 else numbers(bags),
    )


@meta_rule
def _embedding_bag_forward_only(*args: Value) -> tuple[Tensor, ...]:
    """The same, but without a gradient a sum has a size for each offset."""
    result, bag_of, size, chosen = _embedding_bag(*args)
    if len(args) < 5 or args[4] == 0:
        size = chosen = size.new_empty(args[2].shape)
    return result, bag_of, size, chosen


@meta_rule
def _glu_jvp(glu: Tensor, x: Tensor, dx: Tensor, dim: int) -> Tensor:
    half = x.shape[dim] // 2
    return glu + x.narrow(dim, half, half) + dx.narrow(dim, 0, half)


@meta_rule
def _binary_cross_entropy(self: Tensor, target: Tensor, weight: Value, reduction: int) -> Value:
    refuse_if(self.dtype != target.dtype or (weight is not None and weight.dtype != self.dtype))
    return torch.ops.aten.binary_cross_entropy.default(self, target, weight, reduction)


# PyTorch's promotes to the weight's dtype.
@meta_rule
def _binary_cross_entropy_backward(
    grad_output: Tensor, self: Tensor, target: Tensor, weight: Value, reduction: int
) -> Tensor:
    backward = torch.ops.aten.binary_cross_entropy_backward.default
    result: Tensor = backward(grad_output, self, target, weight, reduction).to(self.dtype)
    return result


@meta_rule
def _smooth_l1_loss(self: Tensor, target: Tensor, reduction: int, beta: float) -> Value:
    refuse_if(not beta >= 0)
    return torch.ops.aten.smooth_l1_loss.default(self, target, reduction, beta)


# PyTorch's refuse the targets of bytes that its kernels take.
def _of_bytes(target: Tensor) -> Tensor:
    return target.long() if target.dtype is torch.uint8 else target


@meta_rule
def _nll_loss_forward(input: Tensor, target: Tensor, *rest: Value) -> Value:
    refuse_if(rest[0] is not None and rest[0].dtype != input.dtype)
    return torch.ops.aten.nll_loss_forward.default(input, _of_bytes(target), *rest)


@meta_rule
def _ctc_loss(log_probs: Tensor, *rest: Value) -> Value:
    if log_probs.numel() == 0:
        raise RuntimeError("log_probs tensor must not be empty")
    return torch.ops.aten._ctc_loss.default(log_probs, *rest)


@meta_rule
def _nll_loss_backward(grad: Tensor, input: Tensor, target: Tensor, *rest: Value) -> Value:
    return torch.ops.aten.nll_loss_backward.default(grad, input, _of_bytes(target), *rest)


# PyTorch's own takes any dimension of a tensor that has none.
@meta_rule
def _softmax(self: Tensor, dim: int, half_to_float: bool) -> Tensor:
    canonicalize_dim(self.dim(), dim)
    result: Tensor = torch.ops.aten._softmax.default(self, dim, half_to_float)
    return result


# PyTorch's meta kernels of these do not see that an end in a tensor is complex.
def _spaced(func: OpOverload) -> Callable[..., Value]:
    schema = func._schema.arguments
    at = next(i for i, argument in enumerate(schema) if argument.name == "dtype")

    def rule(*full: Value) -> Value:
        is_complex = any(isinstance(end, Tensor) and end.is_complex() for end in full[:2])
        given = cast(torch.dtype | None, full[at])
        refuse_if(is_complex and given is not None and not given.is_complex)
        if given is None and is_complex:
            full = (*full[:at], torch.get_default_dtype().to_complex(), *full[at + 1 :])
        positional = sum(not argument.kwarg_only for argument in schema)
        named = {argument.name: value for argument, value in zip(schema[positional:], full[positional:])}
        return func(*full[:positional], **named)

    return rule


for _of in (torch.ops.aten.linspace, torch.ops.aten.logspace):
    for _ends in ("Scalar_Tensor", "Tensor_Scalar", "Tensor_Tensor"):
        META_RULES[f"{_of.__name__}_{_ends.lower()}"] = _spaced(getattr(_of, _ends))
