"""Models of torchvision, timm, transformers and diffusers in the sizes that their papers name, against native PyTorch."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import nn

from macatensor.bench.measure import Call
from macatensor.bench.models import inference, judged, training
from macatensor.bench.result import Result

BAR = 0.85
Inputs = Mapping[str, torch.Tensor]


def _package(name: str) -> Any:
    """One that need not be there, nor have types."""
    return import_module(name)


def _images(quick: bool) -> Inputs:
    return {"x": torch.randn(2, 3, *(2 * (64 if quick else 224,)))}


def _torchvision(name: str) -> Callable[[bool], tuple[nn.Module, Inputs]]:
    def make(quick: bool) -> tuple[nn.Module, Inputs]:
        return _First(_package("torchvision").models.get_model(name, num_classes=10)), _images(quick)

    return make


def _timm(name: str) -> Callable[[bool], tuple[nn.Module, Inputs]]:
    def make(quick: bool) -> tuple[nn.Module, Inputs]:
        sizes = {"img_size": 64, "depth": 2} if quick else {}
        return _First(_package("timm").create_model(name, num_classes=10, **sizes)), _images(quick)

    return make


def _bert_layer(quick: bool) -> tuple[nn.Module, Inputs]:
    t = _package("transformers")
    model = t.BertModel(t.BertConfig(num_hidden_layers=1, vocab_size=1000), add_pooling_layer=False)
    return _First(model), {"input_ids": torch.randint(1000, (1 if quick else 4, 128))}


def _t5(quick: bool) -> tuple[nn.Module, Inputs]:
    t = _package("transformers")
    sizes = {"num_layers": 1, "d_ff": 64} if quick else {"num_layers": 6, "d_ff": 2048}
    model = t.T5ForConditionalGeneration(
        t.T5Config(d_model=512, d_kv=64, num_heads=8, vocab_size=1000, **sizes)
    )
    shapes = {"input_ids": (2, 64), "decoder_input_ids": (2, 32)}
    return _First(model), {name: torch.randint(1000, shape) for name, shape in shapes.items()}


def _unet(quick: bool) -> tuple[nn.Module, Inputs]:
    model = _package("diffusers").UNet2DModel(
        sample_size=32, block_out_channels=(32, 64) if quick else (128, 256, 256), layers_per_block=1 if quick else 2,
        down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D")[: 2 if quick else 3],
        up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D")[: 2 if quick else 3],
    )  # fmt: skip
    return _First(model), {"sample": torch.randn(2, 3, 32, 32), "timestep": torch.tensor([3, 7])}


MODELS: dict[str, Callable[[bool], tuple[nn.Module, Inputs]]] = {
    "efficientnet_b0": _torchvision("efficientnet_b0"),
    "mobilenet_v3_large": _torchvision("mobilenet_v3_large"),
    "convnext_tiny": _torchvision("convnext_tiny"),
    "swin_t": _torchvision("swin_t"),
    "vit_small": _timm("vit_small_patch16_224"),
    "bert_base_layer": _bert_layer,
    "t5_small": _t5,
    "unet": _unet,
}


class _First(nn.Module):
    """Calls a model with its inputs by name, of an image's model by place, and gives the first tensor of the result."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Inputs) -> torch.Tensor:
        result = self.model(inputs["x"]) if "x" in inputs else self.model(**inputs)
        first: torch.Tensor = result if isinstance(result, torch.Tensor) else result[0]
        return first


def _forward(model: nn.Module, inputs: Inputs) -> Call:
    return inference(model.eval(), inputs)


def _step(model: nn.Module, inputs: Inputs) -> Call:
    """Forward, backward and SGD with momentum."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    return training(lambda: model(inputs).square().mean(), optimizer)


WAYS = {"inference": _forward, "training": _step}


def benchmark(name: str, way: str) -> Callable[[int, bool], list[Result]]:
    """Measures a model against native PyTorch, of images in either layout. Without its package nothing but a remark."""

    def run(rounds: int, quick: bool) -> list[Result]:
        case = f"others.{name}.{way}"
        torch.manual_seed(0)
        try:
            model, inputs = MODELS[name](quick)
        except ModuleNotFoundError as error:
            print(f"{case}: not measured: {error}", file=sys.stderr)
            return []
        call = WAYS[way]
        contenders = {"maca": call(copy.deepcopy(model).to("maca"), _each(inputs, lambda t: t.to("maca")))}
        if any(t.dim() == 4 for t in inputs.values()):
            channels_last = copy.deepcopy(model)
            channels_last.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            contenders["NHWC"] = call(channels_last, _each(inputs, _in_channels_last))
            contenders["NCHW"] = call(model, inputs)
        else:
            contenders["native"] = call(model, inputs)
        return judged(case, contenders, BAR, rounds, quick)

    return run


def _each(inputs: Inputs, of: Callable[[torch.Tensor], torch.Tensor]) -> Inputs:
    return {name: of(value) for name, value in inputs.items()}


def _in_channels_last(t: torch.Tensor) -> torch.Tensor:
    return t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t


CASES = {f"others.{name}.{way}": benchmark(name, way) for name in MODELS for way in WAYS}
