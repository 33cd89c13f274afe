"""How a tensor shows itself: PyTorch's own text, and a table in notebooks."""

from __future__ import annotations

import html as _html

import torch

from macatensor.runtime import layout
from macatensor.runtime.tensor import MacaTensor, method

_OBVIOUS = (torch.int64, torch.bool)


def _suffixes(t: MacaTensor) -> list[str]:
    """The parts after the values, in PyTorch's order."""
    parts = [f"device='{t.device}'"]
    if t.numel() == 0 and t.dim() != 1:
        parts.append(f"size={tuple(t.shape)}")
    default = torch.get_default_dtype()
    complex_default = {torch.float64: torch.complex128, torch.float32: torch.complex64}.get(default)
    obvious = t.dtype in _OBVIOUS or t.dtype in (default, complex_default)
    if not obvious or (t.numel() == 0 and t.dtype != default):
        parts.append(f"dtype={t.dtype}")
    if t.grad_fn is not None:
        parts.append(f"grad_fn=<{type(t.grad_fn).__name__}>")
    elif t.requires_grad:
        parts.append("requires_grad=True")
    return parts


@method("__repr__")
def text(t: MacaTensor, *, tensor_contents: str | None = None) -> str:
    """``tensor([1., 1.], device='maca:0')``: PyTorch's representation."""
    return text_of(t, "tensor")


def text_of(t: MacaTensor, kind: str) -> str:
    """The representation of a tensor of class ``kind``."""
    parameter = getattr(t, "_is_param", False)
    if torch._C._functorch.is_functorch_wrapped_tensor(t):
        return str(torch._tensor_str._functorch_wrapper_str_intern(t))
    prefix = f"{kind}("
    indent = len(prefix)
    if t.numel() == 0:
        body = "[]"
    else:
        with torch.no_grad():
            body = torch._tensor_str._tensor_str(t.detach().cpu(), indent)
    shown = torch._tensor_str._add_suffixes(prefix + body, _suffixes(t), indent, force_newline=False)
    return f"Parameter containing:\n{shown}" if parameter else str(shown)


def memory_format(t: torch.Tensor) -> str:
    """``"contiguous"``, ``"channels_last"``, or ``"strided"``."""
    if t.is_contiguous():
        return "contiguous"
    if layout.is_channels_last(t):
        return "channels_last" if t.dim() == 4 else "channels_last_3d"
    return "strided"


def _summary(t: MacaTensor) -> str:
    if t.numel() == 0:
        return "empty"
    host = t.detach().cpu()
    if host.dtype == torch.bool:
        return f"{int(host.sum())} of {host.numel()} true"
    if host.is_complex():
        host = torch.view_as_real(host.resolve_conj())
    values = host.double()
    finite = values[torch.isfinite(values)]
    parts = []
    if finite.numel():
        deviation = finite.std(correction=0).item()
        parts.append(
            f"min {finite.min().item():.6g} · mean {finite.mean().item():.6g} · max {finite.max().item():.6g} · "
            f"std {deviation:.6g}"
        )
    for name, count in (("NaN", int(values.isnan().sum())), ("Inf", int(values.isinf().sum()))):
        if count:
            parts.append(f"{count} {name}")
    return " · ".join(parts)


@method("_repr_html_")
def html(t: MacaTensor) -> str:
    """A table of shape, dtype, strides, memory format, bytes and a summary of the values."""
    rows: list[tuple[str, object]] = [
        ("shape", tuple(t.shape)),
        ("dtype", str(t.dtype).removeprefix("torch.")),
        ("strides", t.stride()),
        ("memory format", memory_format(t)),
        ("bytes", f"{t.numel() * t.element_size():,}"),
        ("values", _summary(t)),
    ]
    if t.requires_grad:
        rows.append(("gradient", type(t.grad_fn).__name__ if t.grad_fn is not None else "leaf"))
    cells = "".join(
        f"<tr><th style='text-align:left'>{name}</th><td style='text-align:left'>{_html.escape(str(value))}</td></tr>"
        for name, value in rows
    )
    return (
        f"<div><table><caption style='text-align:left'><b>MacaTensor</b> on {t.device}</caption>{cells}</table>"
        f"<pre>{_html.escape(text(t))}</pre></div>"
    )
