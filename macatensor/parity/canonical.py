"""Results that are not unique, brought to one of their forms: the order of eigenvalues, the phases of vectors.

A column of eigenvectors may be multiplied by any number of modulus 1 (by -1 where all is real), a pair of singular
vectors by one and its conjugate. Here the column's product with a fixed vector is made positive. Eigenvalues of a
general matrix come as they converge; here they are sorted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

Tensors = list[torch.Tensor | None]


def _phases(columns: torch.Tensor) -> torch.Tensor:
    """For each column the factor that makes its product with a fixed vector positive."""
    rows = torch.arange(columns.shape[-2], dtype=torch.float64)
    fixed = torch.cos(1.3 * rows + 0.7)
    wide = columns.to(torch.complex128) if columns.is_complex() else columns.double()
    product = (wide * fixed.unsqueeze(-1)).sum(-2, keepdim=True)
    size = product.abs()
    return torch.where(size > 0, product.conj() / size, torch.ones_like(product)).to(columns.dtype)


def _times(t: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """The product, with the strides of ``t``."""
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype).copy_(t * factors)


def _eigenvectors(results: Tensors) -> Tensors:
    values, vectors = results
    if vectors is None or vectors.dim() < 2:
        return results
    return [values, _times(vectors, _phases(vectors))]


def _order(values: torch.Tensor) -> torch.Tensor:
    """By real part; conjugate pairs, whose real parts are the same bits, by the sign of the imaginary part."""
    return (values.real.double() + 1e-3 * values.imag.double().sign()).argsort(-1)


def _sorted(results: Tensors) -> Tensors:
    values = results[0]
    if values is None:
        return results
    order = _order(values)
    found: Tensors = [values.gather(-1, order)]
    for vectors in results[1:]:
        if vectors is not None:
            moved = vectors.gather(-1, order.unsqueeze(-2).expand(vectors.shape))
            moved = torch.empty_strided(vectors.shape, vectors.stride(), dtype=vectors.dtype).copy_(moved)
            found.append(_times(moved, _phases(moved)))
    return found


def _singular_vectors(results: Tensors) -> Tensors:
    u, s, vh = results
    if u is None or s is None or vh is None or u.dim() < 2 or u.numel() * vh.numel() == 0:
        return results
    k = s.shape[-1]
    of_u, of_v = _phases(u), _phases(vh.mH)
    of_v = torch.cat([of_u[..., :k], of_v[..., k:]], -1)
    return [_times(u, of_u), s, _times(vh, of_v.mH)]


_FORMS: dict[str, Callable[[Tensors], Tensors]] = {
    "eigenvectors": _eigenvectors,
    "sorted": _sorted,
    "singular_vectors": _singular_vectors,
}


def canonical(form: str, results: Iterable[torch.Tensor | None]) -> Tensors:
    """Results in the canonical form that their row names; as they are where it names none."""
    return _FORMS[form](list(results)) if form else list(results)
