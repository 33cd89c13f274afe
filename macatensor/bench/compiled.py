"""``torch.compile`` against the device's own eager mode, and against native Inductor where there is a C++ compiler."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from macatensor.bench import models
from macatensor.bench.decoding import StaticDecoder
from macatensor.bench.engines import engines
from macatensor.bench.graphs import SMALL
from macatensor.bench.measure import Call, counting_fallbacks, interleave, interleave_short
from macatensor.bench.result import Result
from macatensor.demo.models import GPT

# over the device's eager mode
INFERENCE = 0.70
TRAINING = 0.90
GPT_FORWARD = 0.95
GPT_TRAINING = 0.93
OTHER = 1.0
CHAIN_OVER_EAGER = 0.45
# over ONNX Runtime and OpenVINO
ENGINES = 0.9
# over native Inductor
CHAIN_OVER_INDUCTOR = 1.4
ROWS_OVER_INDUCTOR = 1.1
CALL_OVER_INDUCTOR = 1.2
TINY_STEP_OVER_NATIVE = 0.3
DECODING = 0.6

Case = Callable[[int, bool], list[Result]]


def _has_compiler() -> bool:
    return shutil.which("g++") is not None


def _compare(
    case: str,
    contenders: dict[str, Call],
    bars: dict[str, float | None],
    rounds: int,
    quick: bool,
    short: bool = False,
) -> list[Result]:
    """``compiled`` against each contender that ``bars`` names."""
    for call in contenders.values():
        for _ in range(3):
            call()
    _, fallbacks = counting_fallbacks(contenders["compiled"])
    if short:
        timing = interleave_short(contenders, rounds, 4 if quick else 40)
    else:
        timing = interleave(contenders, rounds, 0.001 if quick else 0.3, settle=0.0 if quick else 0.03)
    return [
        Result(
            f"{case}.{name}",
            name,
            timing.ratio("compiled", name),
            bar,
            timing.seconds(name),
            timing.seconds("compiled"),
            fallbacks=fallbacks,
            spread=timing.spread("compiled", name),
            middle=timing.middle("compiled", name),
        )
        for name, bar in bars.items()
        if name in contenders
    ]


def _peak(call: Call) -> int:
    """The most bytes that live during a call, those of before it among them."""
    device = torch.get_device_module("maca")
    call()
    device.reset_peak_memory_stats()
    call()
    device.synchronize()
    return int(device.max_memory_allocated())


def _inference(case: str, make: Callable[[bool], tuple[torch.nn.Module, torch.Tensor]], bar: float) -> Case:
    def run(rounds: int, quick: bool) -> list[Result]:
        torch._dynamo.reset()
        model, x = make(quick)
        model.eval()
        ours, given = copy.deepcopy(model).to("maca"), x.to("maca")
        compiled, native = torch.compile(ours), torch.compile(model, backend="inductor")

        def forward(module: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> Call:
            def call() -> torch.Tensor:
                with torch.no_grad():
                    return module(x)

            return call

        contenders = {
            "eager": forward(ours, given),
            "compiled": forward(compiled, given),
            "native": forward(model, x),
        }
        if _has_compiler() and not quick:
            contenders["inductor"] = forward(native, x)
        beside = {} if quick else engines(model, x)
        contenders |= beside
        bars = {"eager": bar, "native": None, "inductor": None, **dict.fromkeys(beside, ENGINES)}
        return _compare(f"compile.{case}", contenders, bars, rounds, quick)

    return run


def _training(
    case: str, make: Callable[[bool], tuple[torch.nn.Module, torch.Tensor, torch.Tensor]], bar: float
) -> Case:
    def run(rounds: int, quick: bool) -> list[Result]:
        torch._dynamo.reset()
        model, x, y = make(quick)
        ours = copy.deepcopy(model).to("maca")

        def step(
            model: torch.nn.Module,
            called: Callable[[torch.Tensor], torch.Tensor],
            x: torch.Tensor,
            y: torch.Tensor,
        ) -> Call:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

            def call() -> None:
                optimizer.zero_grad()
                F.cross_entropy(called(x).flatten(0, -2), y).backward()
                optimizer.step()

            return call

        contenders = {
            "eager": step(ours, ours, x.to("maca"), y.to("maca")),
            "compiled": step(ours, torch.compile(ours), x.to("maca"), y.to("maca")),
            "native": step(model, model, x, y),
        }
        found = _compare(f"compile.{case}", contenders, {"eager": bar, "native": None}, rounds, quick)
        peaks = {name: _peak(contenders[name]) for name in ("eager", "compiled")}
        found.append(
            Result(f"compile.{case}.memory", "eager", peaks["compiled"] / max(peaks["eager"], 1), 1.0)
        )
        return found

    return run


def _images(depth: int, batch: int, size: int) -> Callable[[bool], tuple[torch.nn.Module, torch.Tensor]]:
    def make(quick: bool) -> tuple[torch.nn.Module, torch.Tensor]:
        return models.resnet(depth, quick), torch.randn(batch, 3, *(2 * (32 if quick else size,)))

    return make


def _tokens(quick: bool) -> tuple[torch.nn.Module, torch.Tensor]:
    model = models.gpt(quick)
    return model, torch.randint(model.config.vocabulary, (4, 32 if quick else 128))


class _Bert(torch.nn.Module):
    """BERT's encoder: its embeddings and 12 layers of width 768."""

    def __init__(self, quick: bool):
        super().__init__()
        width, layers = (32, 2) if quick else (768, 12)
        self.words, self.places = torch.nn.Embedding(30522, width), torch.nn.Embedding(512, width)
        self.norm = torch.nn.LayerNorm(width)
        layer = torch.nn.TransformerEncoderLayer(
            width, width // 16 if quick else 12, 4 * width, 0.0, "gelu", batch_first=True
        )
        self.layers = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        found: torch.Tensor = self.layers(self.norm(self.words(ids) + self.places(places)))
        return found


def _words(quick: bool) -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return _Bert(quick), torch.randint(30522, (1, 32 if quick else 128))


def _labelled_images(quick: bool) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    model, x = _images(18, 8, 64)(quick)
    return model, x, torch.randint(10, (8,))


def _labelled_tokens(quick: bool) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    model, tokens = _tokens(quick)
    return model, tokens, tokens.flatten()


CHAINS: dict[str, Callable[..., torch.Tensor]] = {
    "gelu(x * w + b) + r": lambda x, w, b, r: F.gelu(x * w + b) + r,
    "gelu_tanh(x + b)": lambda x, w, b, r: F.gelu(x + b, approximate="tanh"),
    "relu(x * w + b) + r": lambda x, w, b, r: F.relu(x * w + b) + r,
    "silu(x) * r + x": lambda x, w, b, r: F.silu(x) * r + x,
    "8 of mul and add": lambda x, w, b, r: (((x * 1.1 + 0.2) * 1.3 + 0.4) * 1.5 + 0.6) * 1.7 + 0.8,
}
ROWS: dict[str, Callable[..., torch.Tensor]] = {
    "softmax(x + r)": lambda x, w, b, r: (x + r).softmax(-1),
    "layer_norm(x + r)": lambda x, w, b, r: F.layer_norm(x + r, x.shape[-1:], w, b),
    "rms_norm(x)": lambda x, w, b, r: F.rms_norm(x, x.shape[-1:], w),
}


def _pointwise(functions: dict[str, Callable[..., torch.Tensor]], rows: int, over: str, bar: float) -> Case:
    def run(rounds: int, quick: bool) -> list[Result]:
        found = []
        count, columns = (8, 64) if quick else (rows, 1024)
        x, w, b, r = (torch.randn(*s) for s in ((count, columns), (columns,), (columns,), (count, columns)))
        ours = [t.to("maca") for t in (x, w, b, r)]
        for name, function in functions.items():
            torch._dynamo.reset()
            compiled, native = torch.compile(function), torch.compile(function, backend="inductor")
            contenders: dict[str, Call] = {
                "eager": partial(function, *ours),
                "compiled": partial(compiled, *ours),
            }
            if over == "inductor" and _has_compiler() and not quick:
                contenders["inductor"] = partial(native, x, w, b, r)
            with torch.no_grad():
                found += _compare(
                    f"compile.{count * columns}.{name}",
                    contenders,
                    {"eager": bar if over == "eager" else None, "inductor": bar},
                    rounds,
                    quick,
                    short=over == "eager",
                )
        return found

    return run


def call(rounds: int, quick: bool) -> list[Result]:
    """One call of a compiled ``x + 1`` of 16 elements."""
    torch._dynamo.reset()
    x = torch.randn(16)
    given = x.to("maca")
    compiled = torch.compile(lambda t: t + 1)
    native = torch.compile(lambda t: t + 1, backend="inductor" if _has_compiler() else "aot_eager")
    with torch.no_grad():
        return _compare(
            "compile.call",
            {"compiled": lambda: compiled(given), "inductor": lambda: native(x)},
            {"inductor": CALL_OVER_INDUCTOR},
            rounds,
            quick,
            short=True,
        )


def decoding(rounds: int, quick: bool) -> list[Result]:
    """One token of the GPT with caches of 512 positions."""
    torch._dynamo.reset()
    length = 32 if quick else 512
    model = StaticDecoder(models.gpt(quick, context=length).eval(), length)
    ours = copy.deepcopy(model).to("maca")
    token, position = torch.tensor([[7]]), torch.tensor([length // 4])
    contenders: dict[str, Call] = {
        "eager": partial(ours, token.to("maca"), position.to("maca")),
        "compiled": partial(torch.compile(ours), token.to("maca"), position.to("maca")),
        "native": partial(model, token, position),
    }
    with torch.no_grad():
        return _compare("compile.decoding", contenders, {"eager": DECODING, "native": None}, rounds, quick)


# As a program's own: of functions of this package Dynamo makes no programs after a graph break.
_STEP = """
def step():
    optimizer.zero_grad()
    loss = cross_entropy(model(x).flatten(0, 1), y)
    loss.backward()
    optimizer.step()
    return loss
"""


def step(rounds: int, quick: bool) -> list[Result]:
    """A whole training step of a small GPT, compiled as the program has it: forward, backward and AdamW."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = GPT(SMALL)
    tokens = torch.randint(SMALL.vocabulary, (1, SMALL.context + 1))

    def step_of(model: GPT, tokens: torch.Tensor) -> Call:
        program: dict[str, Any] = {
            "model": model,
            "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-3),
            "cross_entropy": F.cross_entropy,
            "x": tokens[:, :-1],
            "y": tokens[:, 1:].flatten(),
        }
        exec(_STEP, program)
        found: Call = program["step"]
        return found

    on_device = [copy.deepcopy(model).to("maca") for _ in range(2)]
    contenders: dict[str, Call] = {
        "eager": step_of(on_device[0], tokens.to("maca")),
        "compiled": torch.compile(step_of(on_device[1], tokens.to("maca"))),
        "native": step_of(model, tokens),
    }
    bars: dict[str, float | None] = {"eager": OTHER, "native": TINY_STEP_OVER_NATIVE}
    return _compare("compile.step", contenders, bars, rounds, quick)


def cross_entropy(rounds: int, quick: bool) -> list[Result]:
    """Of 4096 x 1024 logits, without a gradient."""
    torch._dynamo.reset()
    rows, classes = (8, 64) if quick else (4096, 1024)
    x, y = torch.randn(rows, classes), torch.randint(classes, (rows,))
    compiled, native = torch.compile(F.cross_entropy), torch.compile(F.cross_entropy, backend="inductor")
    contenders: dict[str, Call] = {
        "eager": partial(F.cross_entropy, x.to("maca"), y.to("maca")),
        "compiled": partial(compiled, x.to("maca"), y.to("maca")),
    }
    if _has_compiler() and not quick:
        contenders["inductor"] = partial(native, x, y)
    with torch.no_grad():
        return _compare(
            "compile.cross_entropy",
            contenders,
            {"eager": None, "inductor": ROWS_OVER_INDUCTOR},
            rounds,
            quick,
        )


CASES: dict[str, Case] = {
    "compile.call": call,
    "compile.chains.16k": _pointwise(CHAINS, 16, "eager", CHAIN_OVER_EAGER),
    "compile.chains.4M": _pointwise(CHAINS, 4096, "inductor", CHAIN_OVER_INDUCTOR),
    "compile.rows.4M": _pointwise(ROWS, 4096, "inductor", ROWS_OVER_INDUCTOR),
    "compile.resnet18.1x224": _inference("resnet18.1x224", _images(18, 1, 224), INFERENCE),
    "compile.resnet18.8x64": _inference("resnet18.8x64", _images(18, 8, 64), INFERENCE),
    "compile.resnet50.1x224": _inference("resnet50.1x224", _images(50, 1, 224), OTHER),
    "compile.bert": _inference("bert", _words, OTHER),
    "compile.gpt.forward": _inference("gpt.forward", _tokens, GPT_FORWARD),
    "compile.resnet18.training": _training("resnet18.training", _labelled_images, TRAINING),
    "compile.cross_entropy": cross_entropy,
    "compile.decoding": decoding,
    "compile.step": step,
    "compile.gpt.training": _training("gpt.training", _labelled_tokens, GPT_TRAINING),
}
