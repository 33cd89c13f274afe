"""Is a result PyTorch's? Type, sizes and dtype strictly, values within PyTorch's default tolerances."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from macatensor.parity.measure import ulp_at
from macatensor.parity.transport import fetch, tensors
from macatensor.runtime.boxed import Value
from macatensor.runtime.tensor import MacaTensor

if TYPE_CHECKING:
    from torch.testing._internal.opinfo.core import OpInfo

_PARTS = {torch.complex64: torch.float32, torch.complex128: torch.float64}


def tolerances(info: OpInfo, dtype: torch.dtype, test: str) -> dict[str, float]:
    """The entry's own tolerances where PyTorch's tests of every device (``test``) widen them, else the default ones."""
    from torch.testing._internal.common_device_type import toleranceOverride

    for decorator in info.decorators:
        inner = getattr(decorator, "decorators", [])
        if getattr(decorator, "device_type", None) not in (None, "cpu"):
            continue
        name = getattr(decorator, "test_name", None)
        if name is not None and name not in (test, "test_out", "test_noncontiguous_samples"):
            continue
        for d in [decorator, *inner]:
            if isinstance(d, toleranceOverride) and dtype in d.d:
                return {"atol": d.d[dtype].atol, "rtol": d.d[dtype].rtol}
    return {}


def on_host(value: torch.Tensor) -> torch.Tensor:
    """A result's host copy with its strides, or of its layout."""
    held = value.detach()
    if isinstance(held, MacaTensor):
        return fetch(held)
    return held.cpu() if held.device.type == "maca" else held


def _ulps(got: torch.Tensor, want: torch.Tensor) -> float:
    if got.layout is not torch.strided:
        return 0.0  # by their tolerance alone
    if got.is_complex():
        got, want = torch.view_as_real(got.resolve_conj()), torch.view_as_real(want.resolve_conj())
    if not got.is_floating_point() or got.numel() == 0:
        return 0.0
    a, b = got.double(), want.double()
    known = a.isfinite() & b.isfinite() & (a != b)
    if not bool(known.any()):
        return 0.0
    return float(((a - b).abs()[known] / ulp_at(b.abs()[known], got.dtype)).max())


def difference(
    got: Value, want: Value, tolerance: dict[str, float], values: bool = True
) -> tuple[str, float]:
    """What distinguishes a result on the device from the host's (empty: nothing), and the distance in ULP.

    ``values``: False compares sizes and dtypes only.
    """
    ours, theirs = tensors(got), tensors(want)
    if len(ours) != len(theirs):
        return f"{len(ours)} results, PyTorch has {len(theirs)}", 0.0
    if not theirs:
        same = type(got) is type(want) and (got == want or got != got and want != want or not values)
        if not same and isinstance(want, float) and isinstance(got, float):
            same = abs(got - want) <= 1e-5 * abs(want) + 1e-6
        return ("" if same else f"got {got!r}, PyTorch has {want!r}"), 0.0
    furthest = 0.0
    for i, (a, b) in enumerate(zip(ours, theirs)):
        if a is None or b is None:
            if a is not b:
                return f"result {i} is {type(a).__name__}, PyTorch has {type(b).__name__}", 0.0
            continue
        if a.device.type != "maca" and b.device.type == "cpu" and a.numel():
            return f"result {i} is on {a.device}", 0.0
        if a.dtype != b.dtype:
            return f"result {i} is {a.dtype}, PyTorch has {b.dtype}", 0.0
        if a.shape != b.shape:
            return f"result {i} has sizes {tuple(a.shape)}, PyTorch has {tuple(b.shape)}", 0.0
        if not values:
            continue
        host = on_host(a)
        want_host = b.detach()
        try:
            torch.testing.assert_close(
                host,
                want_host,
                rtol=tolerance.get("rtol"),
                atol=tolerance.get("atol"),
                equal_nan=True,
                check_stride=False,
            )
        except AssertionError as error:
            return f"result {i}: " + " ".join(str(error).split())[:300], _ulps(host, want_host)
        furthest = max(furthest, _ulps(host, want_host))
    return "", furthest


def stride_difference(got: Value, want: Value) -> str:
    """The first result whose strides (of dimensions longer than 1) or conjugate and negative bits differ."""
    for i, (a, b) in enumerate(zip(tensors(got), tensors(want))):
        if a is None or b is None or b.numel() == 0 or b.layout is not torch.strided:
            continue
        ours = [s for s, n in zip(a.stride(), a.shape) if n > 1]
        theirs = [s for s, n in zip(b.stride(), b.shape) if n > 1]
        if ours != theirs:
            return f"result {i} of sizes {tuple(b.shape)} has strides {a.stride()}, PyTorch has {b.stride()}"
        if a.is_conj() != b.is_conj() or a.is_neg() != b.is_neg():
            return f"result {i}: lazy conjugate or negative bits differ"
    return ""
