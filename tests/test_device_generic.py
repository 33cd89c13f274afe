"""PyTorch's own machinery for tests of every device runs on this one: ``instantiate_device_type_tests``."""

from __future__ import annotations

import macatensor  # isort: skip - PyTorch lists its devices when its test module is imported

import pytest
import torch
from torch.testing import make_tensor
from torch.testing._internal.common_device_type import (
    deviceCountAtLeast,
    dtypes,
    instantiate_device_type_tests,
    onlyPRIVATEUSE1,
    ops,
)
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import TestCase

_OPS = [
    info for info in op_db if info.name in ("add", "nn.functional.conv2d", "cumsum", "index_put", "linalg.qr")
]


class TestEveryDevice(TestCase):
    """Written as PyTorch's tests are: ``device`` is a string, the base class compares."""

    def test_make_tensor(self, device: str) -> None:
        t = make_tensor((3, 4), device=device, dtype=torch.float32)
        self.assertIsInstance(t, macatensor.MacaTensor)
        self.assertEqual(t, t.cpu(), exact_device=False)
        self.assertEqual(t + 1, t.cpu() + 1, exact_device=False)
        with self.assertRaises(AssertionError):
            self.assertEqual(t, t + 1)

    @dtypes(torch.float32, torch.int64, torch.bool, torch.complex64)
    def test_dtypes(self, device: str, dtype: torch.dtype) -> None:
        t = make_tensor((5,), device=device, dtype=dtype, requires_grad=dtype.is_floating_point)
        self.assertEqual(t.detach().clone(), t.detach())
        self.assertEqual(t.dtype, dtype)

    @ops(_OPS, allowed_dtypes=(torch.float32,))
    def test_ops(self, device: str, dtype: torch.dtype, op: object) -> None:
        for sample in list(op.sample_inputs(device, dtype))[:3]:  # type: ignore[attr-defined]
            got = op(sample.input, *sample.args, **sample.kwargs)  # type: ignore[operator]
            host = sample.transform(lambda x: x.cpu() if isinstance(x, torch.Tensor) else x)
            want = op(host.input, *host.args, **host.kwargs)  # type: ignore[operator]
            # sums of up to a hundred products below 81, in another order
            self.assertEqual(got, want, atol=100 * 81 * 2**-24, rtol=1.3e-6, exact_device=False)

    @ops(_OPS, allowed_dtypes=(torch.float64,))
    def test_gradients(self, device: str, dtype: torch.dtype, op: object) -> None:
        sample = next(iter(op.sample_inputs(device, dtype, requires_grad=True)))  # type: ignore[attr-defined]
        result = op(sample.input, *sample.args, **sample.kwargs)  # type: ignore[operator]
        first = result[0] if isinstance(result, tuple) else result
        first.sum().backward()
        leaf = sample.input if isinstance(sample.input, torch.Tensor) else sample.input[0]
        host = sample.transform(
            lambda x: x.detach().cpu().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x
        )
        host_result = op(host.input, *host.args, **host.kwargs)  # type: ignore[operator]
        (host_result[0] if isinstance(host_result, tuple) else host_result).sum().backward()
        host_leaf = host.input if isinstance(host.input, torch.Tensor) else host.input[0]
        self.assertEqual(leaf.grad, host_leaf.grad, exact_device=False)

    @onlyPRIVATEUSE1
    def test_only_here(self, device: str) -> None:
        self.assertEqual(torch.device(device).type, "maca")

    @deviceCountAtLeast(1)
    def test_device_list(self, devices: list[str]) -> None:
        self.assertEqual(devices, ["maca:0"])


instantiate_device_type_tests(TestEveryDevice, globals(), only_for=("maca",))


def test_the_class_for_this_device_was_made() -> None:
    made = [name for name in globals() if name.startswith("TestEveryDevice") and name != "TestEveryDevice"]
    assert made, "PyTorch made no class for the device"
    cases = [name for name in dir(globals()[made[0]]) if name.startswith("test_")]
    assert len(cases) >= 12, cases


def test_no_other_device_is_tested() -> None:
    with pytest.raises(KeyError):
        globals()["TestEveryDeviceCPU"]
