"""Whole models against native PyTorch on the same machine and threads."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F

from macatensor.bench.decoding import begin, generate, go_on
from macatensor.bench.measure import counting_fallbacks, interleave
from macatensor.bench.result import Result
from macatensor.demo.models import GPT, Bottleneck, GPTConfig, ResNet, SequenceModel, resnet18, resnet50

RESNET_INFERENCE = 0.77
RESNET_TRAINING = 0.9
GPT_FORWARD = 0.95
GPT_TRAINING = 0.95
DECODING = 1.2
GPT2_DECODING = 0.7
LSTM = 0.85
GRU = 0.9
SHUFFLENET = 0.85
GPT_SIZES = GPTConfig(vocabulary=100, layers=6, width=384, heads=6, context=128)
GPT2_SIZES = GPTConfig(vocabulary=50257, layers=12, width=768, heads=12, context=1024)
TINY_SIZES = GPTConfig(vocabulary=100, layers=1, width=64, heads=2, context=32)

Call = Callable[[], object]


def resnet(depth: int, quick: bool = False) -> ResNet:
    """ResNet-18 or ResNet-50, or where that is quick one of four thin blocks of its kind."""
    torch.manual_seed(0)
    if quick:
        blocks = {18: {}, 50: {"block": Bottleneck}}[depth]
        return ResNet((1, 1, 1, 1), (8, 8, 16, 16), 10, **blocks)  # type: ignore[arg-type]
    return {18: resnet18, 50: resnet50}[depth]()


def gpt(quick: bool = False, context: int = 128) -> GPT:
    """GPT of 6 layers, width 384, 6 heads; a tiny one where that is quick."""
    torch.manual_seed(0)
    sizes = TINY_SIZES if quick else GPT_SIZES
    return GPT(GPTConfig(sizes.vocabulary, sizes.layers, sizes.width, sizes.heads, context))


def resnet_inference(depth: int, batch: int, size: int) -> Callable[[int, bool], list[Result]]:
    """A ResNet on ``batch`` images of 3 x ``size`` x ``size``, ``inference_mode``."""

    def run(rounds: int, quick: bool) -> list[Result]:
        model, x = resnet(depth, quick).eval(), torch.randn(batch, 3, *(2 * (32 if quick else size,)))
        channels_last = copy.deepcopy(model)
        channels_last.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        contenders = {
            "maca": inference(copy.deepcopy(model).to("maca"), x.to("maca")),
            "NCHW": inference(model, x),
            "NHWC": inference(channels_last, x.contiguous(memory_format=torch.channels_last)),
        }
        case = f"models.resnet{depth}.inference.{batch}x{size}"
        return judged(case, contenders, RESNET_INFERENCE, rounds, quick)

    return run


def resnet_training(depth: int) -> Callable[[int, bool], list[Result]]:
    """A ResNet, 8 images of 3x64x64: forward, backward, SGD with momentum."""

    def run(rounds: int, quick: bool) -> list[Result]:
        size = 32 if quick else 64
        return image_training(
            f"models.resnet{depth}.training", resnet(depth, quick), size, RESNET_TRAINING, rounds, quick
        )

    return run


def shufflenet_training(rounds: int, quick: bool) -> list[Result]:
    """torchvision's ShuffleNet V2, 8 images of 3x64x64: forward, backward, SGD with momentum. Without torchvision nothing
    but a remark."""
    case = "models.shufflenet.training"
    try:
        from torchvision.models import shufflenet_v2_x0_5, shufflenet_v2_x1_0
    except ModuleNotFoundError as error:
        print(f"{case}: not measured: {error}", file=sys.stderr)
        return []
    torch.manual_seed(0)
    model = (shufflenet_v2_x0_5 if quick else shufflenet_v2_x1_0)(num_classes=10)
    return image_training(case, model, 32 if quick else 64, SHUFFLENET, rounds, quick)


def image_training(
    case: str, model: torch.nn.Module, size: int, bar: float, rounds: int, quick: bool
) -> list[Result]:
    """A training step of 8 images of 3 x ``size`` x ``size``, against native PyTorch in either layout."""
    x, y = torch.randn(8, 3, size, size), torch.randint(10, (8,))
    channels_last = copy.deepcopy(model)
    channels_last.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    contenders = {
        "maca": resnet_step(copy.deepcopy(model).to("maca"), x.to("maca"), y.to("maca")),
        "NCHW": resnet_step(model, x, y),
        "NHWC": resnet_step(channels_last, x.contiguous(memory_format=torch.channels_last), y),
    }
    return judged(case, contenders, bar, rounds, quick)


def resnet_step(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> Call:
    """A training step with SGD."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return training(lambda: F.cross_entropy(model(x), y), optimizer)


def gpt_forward(rounds: int, quick: bool) -> list[Result]:
    """The GPT on 4 x 128 tokens, ``inference_mode``."""
    model = gpt(quick).eval()
    tokens = torch.randint(model.config.vocabulary, (4, 128))
    contenders = {
        "maca": inference(copy.deepcopy(model).to("maca"), tokens.to("maca")),
        "native": inference(model, tokens),
    }
    return judged("models.gpt.forward", contenders, GPT_FORWARD, rounds, quick)


def gpt_training(rounds: int, quick: bool) -> list[Result]:
    """The same GPT: forward, backward, AdamW as torch.optim chooses it."""
    model = gpt(quick)
    tokens = torch.randint(model.config.vocabulary, (4, 129))
    contenders = {
        "maca": gpt_step(copy.deepcopy(model).to("maca"), tokens.to("maca")),
        "native": gpt_step(model, tokens),
    }
    return judged("models.gpt.training", contenders, GPT_TRAINING, rounds, quick)


def gpt_step(model: GPT, tokens: torch.Tensor) -> Call:
    """A training step with AdamW on tokens (N, T + 1)."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = tokens[:, :-1], tokens[:, 1:].flatten()
    return training(lambda: F.cross_entropy(model(x).flatten(0, 1), y), optimizer)


def gpt_decoding(rounds: int, quick: bool) -> list[Result]:
    """The GPT writes from 16 tokens to 512, one at a time, keys and values kept; the time of the whole text."""
    length = 24 if quick else 512
    model = gpt(quick, context=length).eval()
    prompt = torch.randint(model.config.vocabulary, (1, 16))

    def write(model: GPT, prompt: torch.Tensor) -> Call:
        return lambda: generate(model, prompt, length)

    contenders = {
        "maca": write(copy.deepcopy(model).to("maca"), prompt.to("maca")),
        "native": write(model, prompt),
    }
    return judged("models.gpt.decoding", contenders, DECODING, rounds, quick)


def gpt2_decoding(dtype: torch.dtype, past: int) -> Callable[[int, bool], list[Result]]:
    """A GPT of 124 million parameters has read ``past`` tokens and writes 16 more."""

    def run(rounds: int, quick: bool) -> list[Result]:
        torch.manual_seed(0)
        model = GPT(TINY_SIZES if quick else GPT2_SIZES).eval().to(dtype)
        read = torch.randint(model.config.vocabulary, (1, 8 if quick else past))

        def write(model: GPT, read: torch.Tensor) -> Call:
            begun = begin(model, read)
            return lambda: go_on(model, begun, read.shape[1] + 16)

        contenders = {
            "maca": write(copy.deepcopy(model).to("maca"), read.to("maca")),
            "native": write(model, read),
        }
        name = str(dtype).removeprefix("torch.")
        return judged(f"models.gpt2.decoding.{name}.{past}", contenders, GPT2_DECODING, rounds, quick)

    return run


def recurrent(name: str, bar: float) -> Callable[[int, bool], list[Result]]:
    """``torch.nn``'s module of that name, two layers, hidden 128, 32 time steps, batch 16: forward and backward."""

    def run(rounds: int, quick: bool) -> list[Result]:
        torch.manual_seed(0)
        model: torch.nn.Module = SequenceModel()
        if name != "LSTM":
            model = _Last(getattr(torch.nn, name)(128, 128, 2))
        x, y = torch.randn(4 if quick else 32, 16, 128), torch.randint(10, (16,))
        contenders = {
            "maca": _gradients(copy.deepcopy(model).to("maca"), x.to("maca"), y.to("maca")),
            "native": _gradients(model, x, y),
        }
        return judged(f"models.{name.lower()}", contenders, bar, rounds, quick)

    return run


class _Last(torch.nn.Module):
    """What a recurrent module gives for the last time step."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.module(x)[0][-1]
        return result


def _gradients(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> Call:
    def run() -> torch.Tensor:
        model.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return run


CASES: dict[str, Callable[[int, bool], list[Result]]] = {
    "models.resnet18.inference.1x224": resnet_inference(18, 1, 224),
    "models.resnet18.inference.8x64": resnet_inference(18, 8, 64),
    "models.resnet50.inference.1x224": resnet_inference(50, 1, 224),
    "models.resnet50.inference.8x64": resnet_inference(50, 8, 64),
    "models.resnet18.training": resnet_training(18),
    "models.resnet50.training": resnet_training(50),
    "models.gpt.forward": gpt_forward,
    "models.gpt.training": gpt_training,
    "models.gpt.decoding": gpt_decoding,
    **{
        f"models.gpt2.decoding.{name}.{past}": gpt2_decoding(dtype, past)
        for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16))
        for past in (16, 500, 1000)
    },
    "models.lstm": recurrent("LSTM", LSTM),
    "models.gru": recurrent("GRU", GRU),
    "models.rnn": recurrent("RNN", GRU),
    "models.shufflenet.training": shufflenet_training,
}


def inference(model: torch.nn.Module, x: object) -> Call:
    """The forward pass in ``inference_mode``."""

    def run() -> torch.Tensor:
        with torch.inference_mode():
            result: torch.Tensor = model(x)
            return result

    return run


def training(loss_of: Callable[[], torch.Tensor], optimizer: torch.optim.Optimizer) -> Call:
    """A step: gradients of the loss and the optimizer."""

    def run() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return loss

    return run


def judged(
    case: str, contenders: dict[str, Call], bar: float | None, rounds: int, quick: bool
) -> list[Result]:
    """maca against the quickest of the others, with the fallbacks of its first two calls counted."""
    maca = contenders["maca"]
    _, fallbacks = counting_fallbacks(lambda: (maca(), maca()))
    timing = interleave(contenders, rounds, 0.001 if quick else 0.3, settle=0.0 if quick else 0.03)
    better = min((name for name in contenders if name != "maca"), key=timing.seconds)
    baseline = f"native {better}" if better != "native" else "native"
    return [
        Result(
            case, baseline, timing.ratio("maca", better), bar, timing.seconds(better), timing.seconds("maca"),
            fallbacks=fallbacks, spread=timing.spread("maca", better), middle=timing.middle("maca", better),
        )
    ]  # fmt: skip
