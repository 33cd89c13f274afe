"""Compiled programs with weights of few bits: the numbers of eager, without a larger copy that stays."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest
import torch
from torch._higher_order_ops import out_dtype
from torch.nn import functional

from macatensor.runtime.plan_caches import count_plans, drop_plans


class Int8Linear(torch.nn.Module):
    """As torchao's layer: the weight is made floats for each product, which is scaled after it."""

    weight: torch.Tensor
    scales: torch.Tensor

    def __init__(self, k: int, n: int, dtype: torch.dtype):
        super().__init__()
        generator = torch.Generator().manual_seed(n)
        self.register_buffer("weight", torch.randint(-127, 128, (n, k), generator=generator).to(torch.int8))
        self.register_buffer("scales", torch.rand(n, generator=generator).to(dtype) / 100)
        self.bias = torch.nn.Parameter(torch.rand(n, generator=generator).to(dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product = x.reshape(-1, x.shape[-1]) @ self.weight.t().to(x.dtype)
        return (product * self.scales).reshape(*x.shape[:-1], self.bias.numel()) + self.bias


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 96), (2, 3, 96), (40, 96), (0, 96)], ids=str)
def test_products_read_what_is_stored(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    model = torch.nn.Sequential(Int8Linear(96, 64, dtype), torch.nn.ReLU(), Int8Linear(64, 5, dtype)).maca()
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to(dtype).maca()
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True)
        drop_plans()
        found = compiled(x)
        assert count_plans("_weight_int8pack_mm") == 2 and not count_plans("mm")
        expected = model(x)
    # two products of 96 and 64 terms, which float32 sums in another order: a sum errs by the size of its terms, which the
    # largest result has; a result rounded once more to its dtype
    largest = max(expected.double().abs().flatten().tolist(), default=0.0)
    bound = 4 * torch.finfo(dtype).eps
    assert torch.allclose(found.double(), expected.double(), bound, bound * max(largest, 1.0))
    assert found.dtype is dtype and found.shape == expected.shape


def test_no_larger_copy_of_a_weight_stays() -> None:
    model = torch.nn.Sequential(*[Int8Linear(512, 512, torch.float32) for _ in range(4)]).maca()
    x = torch.randn(2, 512).maca()
    gc.collect()
    before = torch.maca.memory_allocated()
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True)
        for _ in range(3):
            compiled(x)
    gc.collect()
    assert torch.maca.memory_allocated() - before < 512 * 512  # of int8 and at most one layer


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn])
def test_other_numbers_are_made_floats_at_each_call(dtype: torch.dtype) -> None:
    stored = torch.nn.Buffer(torch.randint(0, 100, (256, 512)).to(dtype))
    layer = torch.nn.Module()
    layer.stored = stored
    layer.maca()

    def program(x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, layer.stored.float() * 0.5)

    x = torch.randn(3, 512).maca()
    gc.collect()
    before = torch.maca.memory_allocated()
    with torch.no_grad():
        found = torch.compile(program, fullgraph=True)(x)
        assert torch.allclose(found, program(x), 1e-4, 1e-3)
    del found
    gc.collect()
    assert torch.maca.memory_allocated() - before < 256 * 512


def test_a_weight_that_changes_is_seen() -> None:
    layer = Int8Linear(32, 16, torch.float32).maca()
    x = torch.randn(2, 32).maca()
    with torch.no_grad():
        compiled = torch.compile(layer, fullgraph=True)
        compiled(x)
        layer.weight.copy_(layer.weight.neg())
        assert torch.allclose(compiled(x), layer(x), 1e-5, 1e-5)


class RoundedLinear(torch.nn.Module):
    """As torchao's layer that rounds its rows, too."""

    def __init__(self, k: int, n: int):
        super().__init__()
        self.register_buffer("weight", torch.randint(-127, 128, (n, k)).to(torch.int8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = x.abs().amax(1, True) / 127
        numbers = (x / scale).round().to(torch.int8)
        return out_dtype(torch.ops.aten.mm.default, torch.int32, numbers, self.weight.t()) * scale


def test_products_of_int8_are_of_the_kernel() -> None:
    model = torch.nn.Sequential(RoundedLinear(64, 48), torch.nn.ReLU(), RoundedLinear(48, 8))
    x = torch.randn(16, 64)
    with torch.no_grad():
        expected = model(x)
        model.maca()
        for program in (model, torch.compile(model, fullgraph=True)):
            drop_plans()
            assert torch.allclose(program(x.maca()).cpu(), expected, 1e-6)
            assert count_plans("_int_mm") == 2 and not count_plans("mm")


def test_other_products_of_higher_order_run_compiled() -> None:
    def program(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return out_dtype(torch.ops.aten.mm.default, torch.int64, a, b) + 1

    a, b = torch.randint(-9, 9, (3, 4)).maca(), torch.randint(-9, 9, (4, 5)).maca()
    assert torch.equal(torch.compile(program, fullgraph=True)(a, b), program(a, b))


@pytest.mark.parametrize("name", ["tensor", "channel", "learnable"])
def test_fake_quantization_compiles(name: str) -> None:
    """Its operators have no kernel for fake tensors: PyTorch asks the device's own of zeros, which of ours it cannot."""

    def quantized(x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
        if name == "tensor":
            return torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 5)
        if name == "channel":
            return torch.fake_quantize_per_channel_affine(x, scale.detach(), zero.detach().int(), 0, 0, 5)
        return torch._fake_quantize_learnable_per_channel_affine(x, scale, zero, 0, 0, 5)

    def asked(function: Callable[..., torch.Tensor]) -> list[torch.Tensor | None]:
        x = torch.linspace(-1, 1, 8).view(2, 4).to("maca").requires_grad_()
        scale, zero = (torch.tensor(v, device="maca", requires_grad=True) for v in ([0.1, 0.2], [0.0, 1.0]))
        result = function(x, scale, zero)
        result.square().sum().backward()
        return [result.detach(), x.grad, scale.grad, zero.grad]

    found, expected = asked(torch.compile(quantized, fullgraph=True)), asked(quantized)
    for one, other in zip(found, expected):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(one, other)
