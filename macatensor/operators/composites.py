"""Composite rows: operators put together from other rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

import torch
from torch import Tensor
from torch._ops import OpOverload

from macatensor.dispatch.consultation import refuse
from macatensor.dispatch.forms import in_form
from macatensor.dispatch.kernel_calls import KernelLauncher
from macatensor.dispatch.launcher import Run
from macatensor.dispatch.plan import flatten, infer
from macatensor.dispatch.request import Declined, Scalar
from macatensor.dispatch.rowless import with_a_next_way
from macatensor.dispatch.signature import Form, Signature, read
from macatensor.runtime import counters
from macatensor.runtime.boxed import Arguments, Launcher, Value
from macatensor.runtime.tensor import MacaTensor, Payload, payload
from op_table import Row

_Function = TypeVar("_Function", bound=Callable[..., Value])

FUNCTIONS: dict[str, Callable[..., Value]] = {}


class Contradiction(AssertionError):
    """Raised by a composite about operands that PyTorch refuses: in which words, its CPU kernel is asked."""

    def __str__(self) -> str:
        return "operands of sizes or dtypes that it does not take on maca"


def composite(function: _Function) -> _Function:
    """Makes a function available to rows as ``via="<its name>"``."""
    FUNCTIONS[function.__name__] = function
    return function


@composite
def glu_backward_jvp(
    grad_x: Tensor, grad_glu: Tensor, x: Tensor, dgrad_glu: Tensor, dx: Tensor, dim: int
) -> Tensor:
    """How the gradient of ``a * sigmoid(b)`` moves, where ``x`` is a and b along ``dim`` and all of them move."""
    (a, b), (da, db) = x.chunk(2, dim), dx.chunk(2, dim)
    gate = b.sigmoid()
    slope = gate * (1 - gate)
    by_a = dgrad_glu * gate + grad_glu * slope * db
    by_b = (dgrad_glu * a + grad_glu * da + grad_glu * a * (1 - 2 * gate) * db) * slope
    return torch.cat([by_a, by_b], dim)


@composite
def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    """``g * v / norm(v)`` and the norms, in the sizes of ``g``: PyTorch's kernel counts its numbers, its decomposition
    broadcasts them."""
    if not v.dim():
        raise IndexError(f"Dimension specified as {dim} but tensor has no dimensions")
    sizes = [n if d == dim else 1 for d, n in enumerate(v.shape)]
    if g.numel() != math.prod(sizes):
        raise Contradiction
    body = decomposition(torch.ops.aten._weight_norm_interface.default)
    result, norms = body(v, g.reshape(sizes), dim)
    return result, norms.reshape(g.shape)


@composite
def weight_norm_backward(
    grad_w: Tensor, saved_v: Tensor, saved_g: Tensor, saved_norms: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    """Gradients of ``v`` and ``g`` in ``g * v / norm(v)``."""
    result: tuple[Tensor, Tensor] = torch.ops.aten._weight_norm_differentiable_backward.default(
        grad_w, saved_v, saved_g, saved_norms, dim
    )
    return result


@composite
def isin(
    elements: Tensor | Scalar,
    test_elements: Tensor | Scalar,
    *,
    assume_unique: bool = False,
    invert: bool = False,
) -> Tensor:
    """``isin`` after PyTorch's word on the dtypes, which its decomposition does not ask."""
    operands = elements, test_elements
    in_pytorch: Callable[..., Tensor] = torch.isin
    in_pytorch(
        *(torch.empty(0, dtype=t.dtype, device="cpu") if isinstance(t, torch.Tensor) else t for t in operands)
    )
    tensors = [t for t in operands if isinstance(t, torch.Tensor)]
    if not all(t.numel() for t in tensors):  # which its decomposition sorts
        sizes = elements.shape if isinstance(elements, torch.Tensor) else ()
        return torch.full(sizes, invert, dtype=torch.bool, device=tensors[0].device)
    if isinstance(test_elements, torch.Tensor) and test_elements.is_floating_point() and not assume_unique:
        # a NaN is in nothing, but leads the decomposition's binary search past what is infinite
        among = test_elements.flatten()
        test_elements = torch.where(among == among, among, among.sort()[0][:1])
    if not isinstance(elements, torch.Tensor) and isinstance(test_elements, torch.Tensor):
        common = torch.result_type(test_elements, elements)
        if common.is_floating_point:
            rounded = torch.tensor(elements, dtype=torch.float64, device="cpu").to(common).item()
            # PyTorch sorts from ten elements on, in float64; fewer it compares in their own dtype
            if rounded != elements and test_elements.numel() >= 10:
                return torch.full((), invert, dtype=torch.bool, device=test_elements.device)
            # of the wider dtype, which a decomposition would not make of a number
            elements = torch.full((), rounded, dtype=common, device=test_elements.device)
            operands = elements, test_elements
    kinds = ("Tensor" if isinstance(t, torch.Tensor) else "Scalar" for t in operands)
    parts = decomposition(getattr(torch.ops.aten.isin, "_".join(kinds)))
    result: Tensor = parts(elements, test_elements, assume_unique=assume_unique, invert=invert)
    return result


@composite
def view_copy(self: Tensor, size: list[int]) -> Tensor:
    """A copy of other sizes. PyTorch's reshapes where a view is impossible; its decomposition would not."""
    if not isinstance(self, MacaTensor):  # with an out= on the device
        in_pytorch: Tensor = torch.ops.aten.view_copy.default(self, size)
        return in_pytorch
    shaped = self.reshape(size)
    return (
        shaped.clone(memory_format=torch.contiguous_format)
        if payload(shaped)[0] is payload(self)[0]
        else shaped
    )


@composite
def as_strided_scatter(
    self: Tensor, src: Tensor, size: list[int], stride: list[int], storage_offset: int | None = None
) -> Tensor:
    """A copy of ``self`` and the memory around it, with ``src`` written where ``as_strided`` looks."""
    if payload(self)[2].overlaps_itself():
        copied = self.clone()
    else:
        held = payload(self)[0].nbytes // self.element_size()
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
def foreach_addcmul_of_tensor(
    self: list[Tensor], tensor1: list[Tensor], tensor2: list[Tensor], scalars: Tensor
) -> list[Tensor]:
    """``_foreach_addcmul`` with its scalars in a tensor of the host."""
    result: list[Tensor] = torch.ops.aten._foreach_addcmul.ScalarList(
        self, tensor1, tensor2, scalars.tolist()
    )
    return result


@composite
def foreach_addcdiv_of_tensor(
    self: list[Tensor], tensor1: list[Tensor], tensor2: list[Tensor], scalars: Tensor
) -> list[Tensor]:
    """``_foreach_addcdiv`` with its scalars in a tensor of the host."""
    result: list[Tensor] = torch.ops.aten._foreach_addcdiv.ScalarList(
        self, tensor1, tensor2, scalars.tolist()
    )
    return result


@composite
def trilinear(
    i1: Tensor,
    i2: Tensor,
    i3: Tensor,
    expand1: list[int],
    expand2: list[int],
    expand3: list[int],
    sumdim: list[int],
    unroll_dim: int = 1,
) -> Tensor:
    """The product of three tensors, each unsqueezed at its ``expand`` dimensions, summed over ``sumdim``."""
    rank = i1.dim() + len(expand1)
    if not 0 <= unroll_dim < rank:
        raise Contradiction
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
def logcumsumexp_of_any(self: Value, dim: int) -> Value:
    """``logcumsumexp``, of complex numbers too: in each step, sums of twice as many neighbours."""
    if not self.is_complex():
        return torch.logcumsumexp(self, dim)
    result = self.transpose(dim, dim).clone()  # a view that looks at the dimension
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
    return _turned_one_by_one(self, result, dim) if length > 1 else result


def _turned_one_by_one(x: Tensor, sums: Tensor, dim: int) -> Tensor:
    """``sums``, logarithms of running sums of ``exp(x)``, which have an imaginary part for each whole turn: with those of
    PyTorch, which adds one by one. Each such sum is at most a quarter of a turn from the larger of its two terms."""

    def shortest(angle: Tensor) -> Tensor:
        return angle - 2 * torch.pi * torch.round(angle / (2 * torch.pi))

    length = x.shape[dim]
    phase, later = sums.imag, (dim, 1, length - 1)
    leads = torch.ones_like(phase, dtype=torch.bool)  # the new term is the larger
    leads.narrow(*later).copy_(x.real.narrow(*later) >= sums.real.narrow(dim, 0, length - 1))
    of_term = x.imag + shortest(phase - x.imag)
    turned = torch.zeros_like(phase)
    turned.narrow(*later).copy_(shortest(phase.diff(dim=dim)))
    turned = turned.cumsum(dim)
    place = [1] * x.dim()
    place[dim] = length
    numbers = torch.arange(length, device=x.device).reshape(place)
    last = torch.where(leads, numbers, 0).cummax(dim).values
    angle = (of_term - turned).gather(dim, last) + turned
    angle = phase + 2 * torch.pi * torch.round((angle - phase) / (2 * torch.pi))
    return torch.complex(sums.real, torch.where(angle.isfinite(), angle, phase))


def _numbers(lengths: Value) -> list[int]:
    return [int(n) for n in lengths.reshape(-1).tolist()]


@composite
def ctc_loss_of_lengths(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Tensor, Tensor]:
    """``_ctc_loss`` with its lengths in tensors."""
    result: tuple[Tensor, Tensor] = torch.ops.aten._ctc_loss.default(
        log_probs, targets, _numbers(input_lengths), _numbers(target_lengths), blank, zero_infinity
    )
    return result


@composite
def ctc_loss_backward_of_lengths(
    grad: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    neg_log_likelihood: Tensor,
    log_alpha: Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> Tensor:
    """``_ctc_loss_backward`` with its lengths in tensors."""
    inputs, labels = _numbers(input_lengths), _numbers(target_lengths)
    result: Tensor = torch.ops.aten._ctc_loss_backward.default(
        grad, log_probs, targets, inputs, labels, neg_log_likelihood, log_alpha, blank, zero_infinity
    )
    return result


@composite
def embedding_bag_backward(
    grad: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor:
    """The gradient of the table; PyTorch's CPU leaves ``offset2bag`` empty for plain sums."""
    if offset2bag.numel() != indices.numel():
        places = torch.arange(indices.numel(), device=indices.device, dtype=offsets.dtype)
        offset2bag = (torch.searchsorted(offsets, places, right=True) - 1).to(indices.dtype)
    if sparse:
        of_rows: Tensor = torch.ops.aten._embedding_bag_sparse_backward.default(
            grad, indices, offsets, offset2bag, bag_size, num_weights, scale_grad_by_freq, mode, per_sample_weights,
            padding_idx,
        )  # fmt: skip
        return of_rows
    result: Tensor = torch.ops.aten._embedding_bag_dense_backward.default(
        grad, indices, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode,
        per_sample_weights, padding_idx,
    )  # fmt: skip
    return result


@composite
def sample_dirichlet(self: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Points of the simplex: gamma samples over their sum, kept inside as CUDA keeps them."""
    drawn = torch.ops.aten._standard_gamma.default(self, generator)
    result: Tensor = (drawn / drawn.sum(-1, keepdim=True)).clamp(torch.finfo(self.dtype).tiny, 1)
    return result


def _spread_mask(self: Tensor, mask: Tensor, mask_type: int | None) -> Tensor:
    if mask.dtype is not torch.bool:
        raise RuntimeError(f"Mask should be a boolean tensor, got {mask.dtype}")
    if mask_type == 0:
        if mask.dim() != 2 or self.dim() < 3 or mask.shape != (self.shape[2],) * 2:
            raise RuntimeError("For mask_type == 0 mask shape should be (L, L)")
    elif mask_type == 1:
        if mask.dim() != 2 or self.dim() < 3 or mask.shape != (self.shape[0], self.shape[2]):
            raise RuntimeError("For mask_type == 1 mask shape should be (B, L)")
        mask = mask.reshape(mask.shape[0], *[1] * (self.dim() - 2), mask.shape[1])
    elif mask.shape != self.shape:
        raise RuntimeError("For mask_type == 2 mask shape should match input shape")
    return mask.expand(self.shape)


@composite
def masked_softmax(
    self: Tensor, mask: Tensor, dim: int | None = None, mask_type: int | None = None
) -> Tensor:
    """Softmax over what the mask leaves; it is 0 under the mask."""
    hidden = self.masked_fill(_spread_mask(self, mask, mask_type), -torch.inf)
    return torch.softmax(hidden, -1 if dim is None else dim)


@composite
def masked_softmax_backward(
    grad_output: Tensor, output: Tensor, mask: Tensor, dim: int | None = None
) -> Tensor:
    """The gradient of :func:`masked_softmax`, 0 under the mask."""
    if mask.shape != grad_output.shape:
        raise RuntimeError("Mask shape should match grad shape")
    mask = _spread_mask(grad_output, mask, None)
    result: Tensor = torch.ops.aten._softmax_backward_data.default(
        grad_output.masked_fill(mask, 0),
        output.masked_fill(mask, 0),
        -1 if dim is None else dim,
        output.dtype,
    )
    return result


@composite
def efficient_zeros(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> Tensor:
    """What derivatives that are zero everywhere (of sign, in the second derivative of abs) are made of."""
    return torch.zeros(size, dtype=dtype, device=device)


@composite
def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool) -> Tensor:
    """A grid moved by one matrix for each of a batch, of which PyTorch's decomposition looks at no dimension."""
    if theta.dim() != 3 or theta.shape[0] != size[0] or theta.shape[2] != len(size) - 1:
        raise Contradiction
    body = decomposition(torch.ops.aten.affine_grid_generator.default)
    grid: Tensor = body(theta, size, align_corners)
    return grid


def decomposition(func: OpOverload) -> Callable[..., Value]:
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


_STUMBLES = (AssertionError, AttributeError, LookupError, TypeError, ValueError, ArithmeticError)


def launcher(func: OpOverload, row: Row, form: Form, twin: OpOverload) -> Launcher:
    """Calls of an overload that a composite row serves, whatever its form."""
    via = row.via or row.otherwise
    body = decomposition(twin) if via == "decomposition" else FUNCTIONS[via]
    name, signature = str(func), read(twin)

    def counted(*args: Value, **kwargs: Value) -> Value:
        counters.composites[name] += 1
        try:
            return body(*args, **kwargs)
        except _STUMBLES as error:  # over operands that it took for granted
            refuse(signature, signature.fill(args, kwargs), error)

    return in_form(func, form, twin, with_a_next_way(twin, counted))


class _KernelOrComposite(KernelLauncher):
    """Calls that a kernel serves where the library has one for them, else the row's composite, which also says what is wrong
    with operands."""

    def __init__(self, func: OpOverload, row: Row):
        super().__init__(func, row, Form.DIRECT, func)
        self.composite = launcher(func, row, Form.DIRECT, func)

    def check_dtype(self, full: list[Value]) -> None:
        """The composite says which it refuses."""
        first = next((t for t in flatten(full[:1]) if isinstance(t, torch.Tensor)), None)
        if first is None or not self.row.states(first.dtype):
            raise Declined("an operand of another dtype")

    def infer(self, signature: Signature, full: list[Value]) -> Value:
        """The meta kernel's results; what it refuses, the composite words."""
        try:
            return infer(signature, full, self.row)
        except Exception as error:
            raise Declined(str(error)) from error

    def refuse(self, full: list[Value], reason: str) -> NoReturn:
        self.composite(tuple(full), None)
        raise RuntimeError(f"{self.signature.name}: {reason}")

    def declined(self, full: list[Value], reason: str) -> Run:
        """The composite, which serves the call or refuses it."""

        def run(args: Arguments, payloads: Sequence[Payload], scalars: Sequence[Scalar]) -> Value:
            return self.composite(tuple(self.signature.fill(args, None)), None)

        return run


def kernel_or_composite(func: OpOverload, row: Row, form: Form, twin: OpOverload) -> Launcher:
    """Calls of an overload whose row has a kernel, and a composite for what the library declines."""
    if form is Form.DIRECT:
        return _KernelOrComposite(func, row)
    return in_form(func, form, twin, twin)
