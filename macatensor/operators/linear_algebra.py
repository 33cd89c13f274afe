"""Linear algebra that is no single kernel: results that depend on data, and checks that read a result."""

from __future__ import annotations

import torch
from torch import Tensor

from macatensor.dispatch.consultation import reject
from macatensor.dispatch.errors import check_devices
from macatensor.dispatch.named_kernels import launch
from macatensor.dispatch.plan import meta_tensor
from macatensor.dispatch.signature import read
from macatensor.dispatch.transfer import read_integer
from macatensor.operators.composites import composite
from macatensor.runtime.meta import contiguous_meta, contiguous_strides, meta_of
from macatensor.runtime.tensor import MacaTensor, payload, physical

_DRIVERS = ("gels", "gelsy", "gelsd", "gelss")


@composite
def linalg_check_errors(info: Tensor, api_name: str, *, is_matrix: bool) -> None:
    """Raises PyTorch's LinAlgError when ``info`` tells of a failure."""
    aten = torch.ops.aten
    if info.numel() == 1 and read_integer(info) == 0:
        return  # the common case without a host tensor: 10 us less
    # not .cpu(): inside a dispatch that is taken apart first
    host = aten._to_copy.default(info, device=torch.device("cpu"))
    aten._linalg_check_errors.default(host, api_name, is_matrix=is_matrix)


@composite
def renorm(self: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """Scales each slice along ``dim`` whose p-norm exceeds ``maxnorm`` down to it."""
    try:  # PyTorch's checks, in the words of its CPU kernel
        torch.ops.aten.renorm.default(meta_tensor(payload(self)[2]), p, dim, maxnorm)
    except Exception as error:
        reject(read(torch.ops.aten.renorm.default), [self, p, dim, maxnorm], error)
    dim = dim % self.dim()
    over = [d for d in range(self.dim()) if d != dim]
    wide = torch.float32 if self.dtype in (torch.float16, torch.bfloat16) else None
    norm = torch.linalg.vector_norm(self, float(p), over, keepdim=True, dtype=wide)
    # 1e-7 is PyTorch's; it keeps the scaled norm below the limit
    factor = torch.where(norm > maxnorm, maxnorm / (norm + 1e-7), torch.ones_like(norm))
    return (self * factor).to(self.dtype).contiguous()


@composite
def euclidean_dist(x1: Tensor, x2: Tensor) -> Tensor:
    """Distances of all pairs of rows; of halves, which ``_cdist_forward`` refuses, those of float32."""
    is_half = x1.dtype == x2.dtype and x1.dtype in (torch.float16, torch.bfloat16)
    a, b = (x1.float(), x2.float()) if is_half else (x1, x2)
    result: Tensor = torch.ops.aten._cdist_forward.default(a, b, 2.0, None)
    return result.to(x1.dtype) if is_half else result


def _column_major(batch: tuple[int, ...], rows: int, columns: int, leading: int) -> tuple[int, ...]:
    """Strides of matrices of ``rows`` rows, columns ``leading`` apart, cut from matrices of ``leading`` rows."""
    matrix = max(1, leading) * max(1, columns)
    return (*(s * matrix for s in contiguous_strides(batch)), 1, max(1, leading))


def _check_lstsq(a: Tensor, b: Tensor, driver: str) -> None:
    """What PyTorch refuses, in its words."""
    name = "torch.linalg.lstsq"
    if a.dim() < 2:
        raise RuntimeError(f"{name}: input must have at least 2 dimensions.")
    if b.dim() < 1:
        raise RuntimeError(f"{name}: other must have at least 1 dimension.")
    if a.dtype != b.dtype:
        raise RuntimeError(
            f"{name}: Expected input and other to have the same dtype, but got input's dtype {a.dtype} and other's "
            f"dtype {b.dtype}"
        )
    if a.dtype not in (torch.float32, torch.float64, torch.complex64, torch.complex128):
        raise RuntimeError("This function doesn't handle types other than float and double")
    if not 0 <= a.dim() - b.dim() <= 1:
        raise RuntimeError(
            f"{name}: input.dim() must be greater or equal to other.dim() and (input.dim() - other.dim()) <= 1"
        )
    if driver not in _DRIVERS:
        raise RuntimeError(f"{name}: parameter `driver` should be one of (gels, gelsy, gelsd, gelss)")


@composite
def linalg_lstsq(
    self: Tensor, b: Tensor, rcond: float | None = None, *, driver: str | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Least squares: solution, residuals, rank, singular values; those that a driver does not give are empty."""
    driver = "gelsy" if driver is None else driver
    check_devices("aten.linalg_lstsq.default", [self, b])
    _check_lstsq(self, b, driver)
    assert isinstance(self, MacaTensor) and isinstance(b, MacaTensor)
    a, b = physical(self), physical(b)
    vectors = b.dim() == 1 or (a.dim() - 1 == b.dim() and tuple(b.shape) == (*a.shape[:-2], a.shape[-2]))
    right = b.unsqueeze(-1) if vectors else b
    rows, columns = a.shape[-2:]
    if right.shape[-2] != rows:
        which = "other.size(-1)" if vectors else "other.size(-2)"
        raise RuntimeError(f"torch.linalg.lstsq: input.size(-2) should match {which}")
    # as PyTorch counts, whatever the right side's own dimensions are
    sets = [torch.empty((), device="cpu").expand(t.shape[: a.dim() - 2]) for t in (a, right)]
    batch = tuple(torch.broadcast_tensors(*sets)[0].shape)  # refused in the words of PyTorch's CPU kernel
    sides = right.shape[-1]
    real = _real(a.dtype)
    if rcond is None:
        rcond = torch.finfo(a.dtype).eps * max(rows, columns)
    over = rows > columns and driver != "gelsy"
    least = min(rows, columns)
    deep = max(rows, columns)

    strides = _column_major(batch, columns, sides, deep)
    solution, *others = launch(
        "linalg_lstsq",
        [a, right],
        [
            meta_of((*batch, columns, sides), strides, a.dtype),
            contiguous_meta((*batch, sides), real) if over else None,
            contiguous_meta(batch, torch.int64) if driver != "gels" else None,
            contiguous_meta((*batch, least), real) if driver in ("gelsd", "gelss") else None,
        ],
        {"driver": driver, "rcond": float(rcond)},
    )

    residuals: Tensor | None
    rank: Tensor | None
    values: Tensor | None
    residuals, rank, values = others

    def empty(dtype: torch.dtype) -> Tensor:
        return torch.empty(0, dtype=dtype, device=a.device)

    if rank is not None:
        rank = _once(rank, a)
    if over and rank is not None and not bool((rank == columns).all()):
        residuals = None  # they are sums of squares only where the rank is full
    return (
        solution.squeeze(-1) if vectors else solution,
        residuals if residuals is not None else empty(real),
        rank if rank is not None else empty(torch.int64),
        _once(values, a) if values is not None else empty(real),
    )


def _real(dtype: torch.dtype) -> torch.dtype:
    return {torch.complex64: torch.float32, torch.complex128: torch.float64}.get(dtype, dtype)


def _once(per_solution: Tensor, a: Tensor) -> Tensor:
    """One entry for each matrix, where several right-hand sides broadcast over it."""
    cut = per_solution
    for d, n in enumerate(a.shape[:-2]):
        if n == 1 and cut.shape[d] > 1:
            cut = cut.narrow(d, 0, 1)
    return cut.contiguous()
