"""The models of demo and benchmark, in plain torch.nn: nothing in here knows the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut (He et al. 2015, "Deep Residual Learning", figure 2)."""

    expansion = 1

    def __init__(self, width_in: int, width: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or width_in != width:
            self.downsample = nn.Sequential(
                nn.Conv2d(width_in, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, width, H / stride, W / stride)."""
        shortcut = x if self.downsample is None else self.downsample(x)
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += shortcut
        return self.relu(y)  # type: ignore[no-any-return]


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions around a shortcut (the same, figure 5); the stride is the 3x3's."""

    expansion = 4

    def __init__(self, width_in: int, width: int, stride: int):
        super().__init__()
        width_out = self.expansion * width
        self.conv1 = nn.Conv2d(width_in, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, width_out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(width_out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or width_in != width_out:
            self.downsample = nn.Sequential(
                nn.Conv2d(width_in, width_out, 1, stride, bias=False), nn.BatchNorm2d(width_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, 4 * width, H / stride, W / stride)."""
        shortcut = x if self.downsample is None else self.downsample(x)
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += shortcut
        return self.relu(y)  # type: ignore[no-any-return]


class ResNet(nn.Module):
    """A residual network of ``block``s; ``imagenet_stem`` is the 7x7 convolution with stride 2 and a max-pool."""

    def __init__(
        self,
        blocks: Sequence[int],
        widths: Sequence[int],
        classes: int,
        channels: int = 3,
        imagenet_stem: bool = True,
        block: type[BasicBlock] | type[Bottleneck] = BasicBlock,
    ):
        super().__init__()
        if imagenet_stem:
            self.stem = nn.Sequential(
                nn.Conv2d(channels, widths[0], 7, 2, 3, bias=False),
                nn.BatchNorm2d(widths[0]),
                nn.ReLU(inplace=True),
                nn.MaxPool2d(3, 2, 1),
            )
        else:
            self.stem = nn.Sequential(
                nn.Conv2d(channels, widths[0], 3, 1, 1, bias=False),
                nn.BatchNorm2d(widths[0]),
                nn.ReLU(inplace=True),
            )
        layers: list[nn.Module] = []
        width_in = widths[0]
        for stage, (count, width) in enumerate(zip(blocks, widths)):
            for i in range(count):
                layers.append(block(width_in, width, 2 if i == 0 and stage > 0 else 1))
                width_in = block.expansion * width
        self.layers = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(width_in, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """(N, channels, H, W) -> logits (N, classes)."""
        return self.head(self.pool(self.layers(self.stem(x))).flatten(1))  # type: ignore[no-any-return]


def resnet18(classes: int = 1000) -> ResNet:
    """ResNet-18 as torchvision defines it: 11.7 million parameters."""
    return ResNet((2, 2, 2, 2), (64, 128, 256, 512), classes)


def resnet50(classes: int = 1000) -> ResNet:
    """ResNet-50 as torchvision defines it: 25.6 million parameters."""
    return ResNet((3, 4, 6, 3), (64, 128, 256, 512), classes, block=Bottleneck)


def digits_resnet() -> ResNet:
    """Three residual blocks for 8x8 images in 10 classes: 78 thousand parameters."""
    return ResNet((1, 1, 1), (16, 32, 64), 10, imagenet_stem=False)


@dataclass(frozen=True)
class GPTConfig:
    """Sizes of a GPT; ``context`` is the number of tokens it sees."""

    vocabulary: int
    layers: int
    width: int
    heads: int
    context: int


class Block(nn.Module):
    """Pre-norm attention and MLP (Radford et al. 2019)."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.heads = config.heads
        self.norm1 = nn.LayerNorm(config.width)
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.project = nn.Linear(config.width, config.width)
        self.norm2 = nn.LayerNorm(config.width)
        self.expand = nn.Linear(config.width, 4 * config.width)
        self.contract = nn.Linear(4 * config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        """(N, T, width) -> (N, T, width); a token sees those before it."""
        n, t, c = x.shape
        q, k, v = (
            self.qkv(self.norm1(x))
            .view(n, t, 3, self.heads, c // self.heads)
            .permute(2, 0, 3, 1, 4)
            .unbind(0)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(y.transpose(1, 2).reshape(n, t, c))
        return x + self.contract(F.gelu(self.expand(self.norm2(x)), approximate="tanh"))  # type: ignore[no-any-return]


class GPT(nn.Module):
    """A decoder-only transformer; the output layer shares the token embedding's weight."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.blocks = nn.Sequential(*[Block(config) for _ in range(config.layers)])
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        self.apply(self._initialize)

    @staticmethod
    def _initialize(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """int64 (N, T) -> logits (N, T, vocabulary)."""
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))  # type: ignore[no-any-return]


class SequenceModel(nn.Module):
    """A two-layer LSTM with a linear head, the recurrent benchmark."""

    def __init__(self, width: int = 128, classes: int = 10):
        super().__init__()
        self.lstm = nn.LSTM(width, width, num_layers=2)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(T, N, width) -> logits (N, classes) of the last time step."""
        states, _ = self.lstm(x)
        return self.head(states[-1])  # type: ignore[no-any-return]
