"""The layout policy at transfers, and NHWC through a whole ResNet without a conversion."""

from __future__ import annotations

import threading

import pytest
import torch
from running import close, run_python
from torch import nn

import macatensor
from macatensor import maca
from macatensor.runtime import layout

NHWC, NCHW = (60, 1, 15, 3), (60, 20, 5, 1)


def test_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(2, 3, 4, 5)
    assert maca(x).stride() == NHWC
    for value, stride in (("1", NCHW), ("0", NHWC), ("", NHWC)):
        monkeypatch.setenv("PYTORCH_DEFAULT_NCHW", value)  # read at each transfer
        assert maca(x).stride() == stride, value
    monkeypatch.setenv("PYTORCH_DEFAULT_NCHW", "true")
    with pytest.raises(ValueError, match="PYTORCH_DEFAULT_NCHW='true'; accepted: 0, 1"):
        maca(x)
    monkeypatch.setenv("PYTORCH_DEFAULT_NCHW", "1")
    with layout.policy("nhwc"):
        assert maca(x).stride() == NHWC
        with layout.policy("nchw"):
            assert maca(x).stride() == NCHW
        assert maca(x).stride() == NHWC
    assert maca(x).stride() == NCHW
    with pytest.raises(ValueError, match="accepted: 'nchw', 'nhwc'"), layout.policy("nwhc"):
        pass


def test_the_policy_is_seen_by_other_threads() -> None:
    strides = []
    with layout.policy("nchw"):
        thread = threading.Thread(target=lambda: strides.append(maca(torch.rand(2, 3, 4, 5)).stride()))
        thread.start()
        thread.join()
    assert strides == [NCHW]


def test_an_explicit_format_wins_and_only_strides_differ() -> None:
    x = torch.rand(2, 3, 4, 5)
    assert x.to("maca", memory_format=torch.contiguous_format).stride() == NCHW
    with layout.policy("nchw"):
        assert x.to("maca", memory_format=torch.channels_last).stride() == NHWC
        assert x.to("maca", memory_format=torch.preserve_format).stride() == NCHW
    assert torch.equal(maca(x).cpu(), x) and maca(x).shape == x.shape


@pytest.mark.parametrize("size", [(3,), (2, 3), (2, 3, 4), (2, 3, 4, 5, 6)])
def test_other_ranks_keep_their_strides(size: tuple[int, ...]) -> None:
    x = torch.rand(size)
    assert maca(x).stride() == x.stride()


def test_ways_of_transfer_agree() -> None:
    x = torch.rand(2, 3, 4, 5)
    for moved in (x.maca(), x.to("maca"), maca(x), torch.tensor(x.tolist(), device="maca"), maca(x.numpy()),
                  torch.as_tensor(x.numpy(), device="maca")):  # fmt: skip
        assert moved.stride() == NHWC
    assert nn.Conv2d(3, 4, 2).maca().weight.is_contiguous(memory_format=torch.channels_last)
    # factories make what PyTorch makes: nothing is transferred
    assert torch.rand(2, 3, 4, 5, device="maca").stride() == NCHW


def test_transfers_between_tensors_of_the_device_keep_strides() -> None:
    x = maca(torch.rand(2, 3, 4, 5))
    assert x.double().stride() == NHWC and x.clone().stride() == NHWC and (x + 1).stride() == NHWC
    assert x.contiguous().stride() == NCHW
    assert x.contiguous().to("maca").stride() == NCHW
    assert torch.zeros_like(x).stride() == NHWC
    assert x.cpu().stride() == NHWC


def test_an_impossible_view_says_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    x = maca(torch.rand(2, 3, 4, 5))
    with pytest.raises(RuntimeError, match="view size is not compatible") as raised:
        x.view(2, -1)
    assert "reshape" in str(raised.value) and "PYTORCH_DEFAULT_NCHW" in str(raised.value)
    assert torch.equal(x.reshape(2, -1).cpu(), x.cpu().reshape(2, -1))
    assert torch.equal(x.flatten(1).cpu(), x.cpu().flatten(1))
    monkeypatch.setenv("PYTORCH_DEFAULT_NCHW", "1")
    maca(torch.rand(2, 3, 4, 5)).view(2, -1)


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


def resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        Block(8, 8, 1), Block(8, 16, 2), Block(16, 32, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip


def test_nhwc_through_a_whole_resnet_forward_and_backward() -> None:
    torch.manual_seed(0)
    model, images, labels = resnet(), torch.randn(4, 3, 32, 32), torch.tensor([1, 2, 3, 4])
    ours = resnet()
    ours.load_state_dict(model.state_dict())
    maca(ours)
    formats: dict[str, bool] = {}

    def note(name: str) -> object:
        def hook(module: nn.Module, args: object, result: torch.Tensor) -> None:
            if result.dim() == 4:
                formats[name] = result.is_contiguous(memory_format=torch.channels_last)
                result.register_hook(lambda g: formats.__setitem__(
                    name + " gradient", g.is_contiguous(memory_format=torch.channels_last)))  # fmt: skip

        return hook

    for name, module in ours.named_modules():
        if not list(module.children()):
            module.register_forward_hook(note(name))
    x = maca(images)
    assert x.is_contiguous(memory_format=torch.channels_last)
    macatensor.reset_counters()
    with macatensor.fallback("error"):
        loss = nn.functional.cross_entropy(ours(x), maca(labels))
        loss.backward()
    counters = macatensor.counters()
    assert counters["layout_conversions"] == 0, counters
    assert counters["strided_copies"] == 0, counters
    assert counters["fallbacks"] == 0
    assert len(formats) > 30 and all(formats.values()), [n for n, ok in formats.items() if not ok]

    host_loss = nn.functional.cross_entropy(model(images), labels)
    host_loss.backward()
    close(loss, host_loss, rtol=1e-4, atol=1e-5)
    for (name, p), (_, q) in zip(ours.named_parameters(), model.named_parameters()):
        scale = q.grad.abs().max().item()
        close(p.grad, q.grad, rtol=1e-3, atol=1e-3 * scale + 1e-7)
        if p.dim() == 4:
            assert p.grad.is_contiguous(memory_format=torch.channels_last), name
    for (_, a), (_, b) in zip(ours.named_buffers(), model.named_buffers()):
        close(a, b, rtol=1e-4, atol=1e-5)


def test_layout_conversions_are_counted() -> None:
    x = maca(torch.rand(2, 3, 4, 5))
    macatensor.reset_counters()
    x.contiguous()
    assert macatensor.counters()["layout_conversions"] == 1


def test_the_variable_in_a_fresh_process() -> None:
    code = "import torch\nfrom macatensor import maca\nprint(maca(torch.rand(2, 3, 4, 5)).stride())"
    assert run_python(code, PYTORCH_DEFAULT_NCHW="1").stdout.strip() == str(NCHW)
