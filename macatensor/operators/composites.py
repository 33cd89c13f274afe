"""Composite rows: operators put together from other rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from macatensor.dispatch.forms import in_form
from macatensor.dispatch.launcher import Launcher
from macatensor.dispatch.signature import Form
from macatensor.runtime import counters
from op_table import Row

FUNCTIONS: dict[str, Callable[..., Any]] = {}


def composite(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a function available to rows as ``via="<its name>"``."""
    FUNCTIONS[function.__name__] = function
    return function


@composite
def weight_norm_backward(grad_w: Any, saved_v: Any, saved_g: Any, saved_norms: Any, dim: int) -> Any:
    """Gradients of ``v`` and ``g`` in ``g * v / norm(v)``."""
    return torch.ops.aten._weight_norm_differentiable_backward.default(
        grad_w, saved_v, saved_g, saved_norms, dim
    )


@composite
def isin(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Any:
    """``isin`` after PyTorch's word on the dtypes, which its decomposition does not ask."""
    operands = elements, test_elements
    torch.isin(*(torch.empty(0, dtype=t.dtype) if isinstance(t, torch.Tensor) else t for t in operands))
    kinds = ("Tensor" if isinstance(t, torch.Tensor) else "Scalar" for t in operands)
    parts = decomposition(getattr(torch.ops.aten.isin, "_".join(kinds)))
    return parts(elements, test_elements, assume_unique=assume_unique, invert=invert)


@composite
def view_copy(self: Any, size: list[int]) -> Any:
    """A copy of other sizes. PyTorch's reshapes where a view is impossible; its decomposition would not."""
    shaped = self.reshape(size)
    return (
        shaped.clone(memory_format=torch.contiguous_format)
        if shaped._payload[0] is self._payload[0]
        else shaped
    )


@composite
def as_strided_scatter(
    self: Any, src: Any, size: list[int], stride: list[int], storage_offset: int | None = None
) -> Any:
    """A copy of ``self`` and the memory around it, with ``src`` written where ``as_strided`` looks."""
    if self._payload[2].overlaps_itself():
        copied = self.clone()
    else:
        held = self._payload[0].nbytes // self.element_size()
        memory = self.as_strided((held,), (1,), 0).clone()
        copied = memory.as_strided(self.size(), self.stride(), self.storage_offset())
    target = copied.as_strided(size, stride, storage_offset)
    if target.shape != src.shape:
        raise RuntimeError(
            "expected src to have a size equal to the slice of self. src size = "
            f"{list(src.shape)}, slice size = {list(target.shape)}"
        )
    target.copy_(src)
    return copied


@composite
def foreach_addcmul_of_tensor(self: Any, tensor1: Any, tensor2: Any, scalars: Any) -> Any:
    """``_foreach_addcmul`` with its scalars in a tensor of the host."""
    return torch.ops.aten._foreach_addcmul.ScalarList(self, tensor1, tensor2, scalars.tolist())


@composite
def foreach_addcdiv_of_tensor(self: Any, tensor1: Any, tensor2: Any, scalars: Any) -> Any:
    """``_foreach_addcdiv`` with its scalars in a tensor of the host."""
    return torch.ops.aten._foreach_addcdiv.ScalarList(self, tensor1, tensor2, scalars.tolist())


@composite
def trilinear(
    i1: Any,
    i2: Any,
    i3: Any,
    expand1: list[int],
    expand2: list[int],
    expand3: list[int],
    sumdim: list[int],
    unroll_dim: int = 1,
) -> Any:
    """The product of three tensors, each unsqueezed at its ``expand`` dimensions, summed over ``sumdim``."""
    rank = i1.dim() + len(expand1)
    terms, names = [], [chr(ord("a") + d) for d in range(rank)]
    known: set[int] = set()
    for expand in (expand1, expand2, expand3):
        own = [d for d in range(rank) if d not in expand]
        known.update(own)
        terms.append("".join(names[d] for d in own))
    kept = [d for d in range(rank) if d not in sumdim]
    result = torch.einsum(
        f"{','.join(terms)}->{''.join(names[d] for d in kept if d in known)}", i1, i2, i3
    ).contiguous()
    for position, d in enumerate(kept):
        if d not in known:
            result = result.unsqueeze(position)
    return result


@composite
def logcumsumexp_of_any(self: Any, dim: int) -> Any:
    """``logcumsumexp``, of complex numbers too: in each step, sums of twice as many neighbours."""
    if not self.is_complex():
        return torch.logcumsumexp(self, dim)
    result = self.clone()
    length = self.shape[dim] if self.dim() else 1
    step = 1
    while step < length:
        a, b = result.narrow(dim, step, length - step), result.narrow(dim, 0, length - step)
        is_greater = a.real >= b.real
        high, low = torch.where(is_greater, a, b), torch.where(is_greater, b, a)
        # nothing is added to -inf, and infinity minus itself would be NaN
        summed = torch.where(low.real == -torch.inf, high, high + torch.log1p(torch.exp(low - high)))
        result = torch.cat([result.narrow(dim, 0, step), summed], dim)
        step *= 2
    return result


def _numbers(lengths: Any) -> list[int]:
    return [int(n) for n in lengths.reshape(-1).tolist()]


@composite
def ctc_loss_of_lengths(
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    zero_infinity: bool = False,
) -> Any:
    """``_ctc_loss`` with its lengths in tensors."""
    return torch.ops.aten._ctc_loss.default(
        log_probs, targets, _numbers(input_lengths), _numbers(target_lengths), blank, zero_infinity
    )


@composite
def ctc_loss_backward_of_lengths(
    grad: Any,
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    neg_log_likelihood: Any,
    log_alpha: Any,
    blank: int,
    zero_infinity: bool = False,
) -> Any:
    """``_ctc_loss_backward`` with its lengths in tensors."""
    inputs, labels = _numbers(input_lengths), _numbers(target_lengths)
    return torch.ops.aten._ctc_loss_backward.default(
        grad, log_probs, targets, inputs, labels, neg_log_likelihood, log_alpha, blank, zero_infinity
    )


@composite
def embedding_bag_backward(
    grad: Any,
    indices: Any,
    offsets: Any,
    offset2bag: Any,
    bag_size: Any,
    maximum_indices: Any,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Any,
    padding_idx: int = -1,
) -> Any:
    """The gradient of the table; PyTorch's CPU leaves ``offset2bag`` empty for plain sums."""
    if sparse:
        raise NotImplementedError("embedding_bag: sparse gradients do not exist on maca; use sparse=False")
    if offset2bag.numel() != indices.numel():
        places = torch.arange(indices.numel(), device=indices.device, dtype=offsets.dtype)
        offset2bag = (torch.searchsorted(offsets, places, right=True) - 1).to(indices.dtype)
    return torch.ops.aten._embedding_bag_dense_backward.default(
        grad, indices, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode,
        per_sample_weights, padding_idx,
    )  # fmt: skip


@composite
def sample_dirichlet(self: Any, generator: Any = None) -> Any:
    """Points of the simplex: gamma samples over their sum, kept inside as CUDA keeps them."""
    drawn = torch.ops.aten._standard_gamma.default(self, generator)
    return (drawn / drawn.sum(-1, keepdim=True)).clamp(torch.finfo(self.dtype).tiny, 1)


def _spread_mask(self: Any, mask: Any, mask_type: int | None) -> Any:
    if mask.dtype is not torch.bool:
        raise RuntimeError(f"Mask should be a boolean tensor, got {mask.dtype}")
    if mask_type == 0:
        if mask.dim() != 2 or self.dim() < 3 or mask.shape != (self.shape[2],) * 2:
            raise RuntimeError("For mask_type == 0 mask shape should be (L, L)")
    elif mask_type == 1:
        if mask.dim() != 2 or self.dim() < 3 or mask.shape != (self.shape[0], self.shape[2]):
            raise RuntimeError("For mask_type == 1 mask shape should be (B, L)")
        mask = mask.reshape(mask.shape[0], *[1] * (self.dim() - 2), mask.shape[1])
    return mask.expand(self.shape)


@composite
def masked_softmax(self: Any, mask: Any, dim: int | None = None, mask_type: int | None = None) -> Any:
    """Softmax over what the mask leaves; it is 0 under the mask."""
    hidden = self.masked_fill(_spread_mask(self, mask, mask_type), -torch.inf)
    return torch.softmax(hidden, -1 if dim is None else dim)


@composite
def masked_softmax_backward(grad_output: Any, output: Any, mask: Any, dim: int | None = None) -> Any:
    """The gradient of :func:`masked_softmax`, 0 under the mask."""
    mask = _spread_mask(grad_output, mask, None)
    return torch.ops.aten._softmax_backward_data.default(
        grad_output.masked_fill(mask, 0),
        output.masked_fill(mask, 0),
        -1 if dim is None else dim,
        output.dtype,
    )


@composite
def efficient_zeros(
    size: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> Any:
    """What derivatives that are zero everywhere (of sign, in the second derivative of abs) are made of."""
    return torch.zeros(size, dtype=dtype, device=device)


def decomposition(func: Any) -> Callable[..., Any]:
    """PyTorch's own decomposition of an overload: its composite kernel, else its table."""
    name = func.name()
    if torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"):
        return lambda *args, **kwargs: func.decompose(*args, **kwargs)
    from torch._decomp import core_aten_decompositions, decomposition_table

    found = decomposition_table.get(func) or core_aten_decompositions().get(func)
    if found is not None:
        return found
    for key in ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional"):
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, key):
            chosen = getattr(torch._C.DispatchKey, key)
            return lambda *args, **kwargs: func._op_dk(chosen, *args, **kwargs)
    raise NotImplementedError(
        f"{func} has a composite row, but PyTorch {torch.__version__} has no decomposition of it"
    )


def launcher(func: Any, row: Row, form: Form, twin: Any) -> Launcher:
    """Calls of an overload that a composite row serves, whatever its form."""
    body = decomposition(twin) if row.via == "decomposition" else FUNCTIONS[row.via]
    name = str(func)

    def counted(*args: Any, **kwargs: Any) -> Any:
        counters.composites[name] += 1
        return body(*args, **kwargs)

    return in_form(func, form, twin, counted)
