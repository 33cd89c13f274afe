"""Training steps and the host's time of a launch on one device, as JSON: ``python steps.py maca`` or ``python steps.py cuda``.

A process for each device, since PyTorch's backward of CUDA tensors does not run in one where another accelerator is
registered. For CUDA this file is run by its path, with nothing of the package imported but the models' file.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch
import torch.nn.functional as F

Step = Callable[[], None]
_WARM, _ROUNDS = 3, 5


def _models() -> ModuleType:
    spec = importlib.util.spec_from_file_location("models", Path(__file__).parents[2] / "demo" / "models.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["models"] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def _training(
    forward: Callable[[], torch.Tensor], optimizer: torch.optim.Optimizer, dtype: torch.dtype, device: str
) -> Step:
    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
            loss = forward()
        loss.backward()
        optimizer.step()

    return step


def resnet50(device: str, dtype: torch.dtype, quick: bool, is_captured: bool = False) -> Step:
    """32 images of 3 x 224 x 224 in channels_last, SGD with momentum; under autocast for bfloat16."""
    torch.manual_seed(0)
    models = _models()
    model = models.ResNet((1, 1), (4, 6), 10, channels=3) if quick else models.resnet50(1000)
    model.to(device).to(memory_format=torch.channels_last)
    batch, size = (2, 16) if quick else (32, 224)
    x = torch.randn(batch, 3, size, size).to(device).contiguous(memory_format=torch.channels_last)
    y = torch.randint(10, (batch,)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return _training(lambda: F.cross_entropy(model(x), y), optimizer, dtype, device)


def gpt(device: str, dtype: torch.dtype, quick: bool, is_captured: bool = False) -> Step:
    """12 layers of 768, 12 heads, 8 x 512 tokens of 50,257, AdamW fused; under autocast for bfloat16."""
    torch.manual_seed(0)
    models = _models()
    sizes = (11, 1, 8, 2, 6) if quick else (50257, 12, 768, 12, 512)
    model = models.GPT(models.GPTConfig(*sizes)).to(device)
    tokens = torch.randint(sizes[0], (2 if quick else 8, sizes[4] + 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True, capturable=is_captured)
    x, y = tokens[:, :-1], tokens[:, 1:].flatten()
    return _training(lambda: F.cross_entropy(model(x).flatten(0, 1), y), optimizer, dtype, device)


def lstm(device: str, dtype: torch.dtype, quick: bool, is_captured: bool = False) -> Step:
    """Two layers of 512 on 64 x 32 x 256, Adam."""
    torch.manual_seed(0)
    steps, batch, width, hidden = (3, 2, 4, 5) if quick else (64, 32, 256, 512)
    model = torch.nn.LSTM(width, hidden, 2).to(device)
    x = torch.randn(steps, batch, width).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=is_captured)
    return _training(lambda: model(x)[0].square().mean(), optimizer, dtype, device)


CASES: dict[str, tuple[Callable[[str, torch.dtype, bool, bool], Step], torch.dtype]] = {
    "ResNet-50, bfloat16": (resnet50, torch.bfloat16),
    "ResNet-50, float32": (resnet50, torch.float32),
    "GPT, bfloat16": (gpt, torch.bfloat16),
    "GPT, float32": (gpt, torch.float32),
    "LSTM, float32": (lstm, torch.float32),
}


def _seconds(step: Step, wait: Callable[[], None], quick: bool) -> float:
    """The median of five rounds of as many steps as take a fifth of a second."""
    for _ in range(_WARM):
        step()
    wait()
    begin = time.perf_counter()
    step()
    wait()
    count = 1 if quick else max(1, round(0.2 / (time.perf_counter() - begin)))
    rounds = []
    for _ in range(_ROUNDS):
        begin = time.perf_counter()
        for _ in range(count):
            step()
        wait()
        rounds.append((time.perf_counter() - begin) / count)
    return statistics.median(rounds)


def _launch_seconds(device: str, wait: Callable[[], None]) -> float:
    """What ``a + b`` of 16 floats costs the host: the median of rounds that no queue slows down."""
    a, b = torch.ones(16).to(device), torch.ones(16).to(device)
    for _ in range(1000):
        a + b
    wait()
    rounds = []
    for _ in range(30):
        begin = time.perf_counter()
        for _ in range(100):
            a + b
        rounds.append((time.perf_counter() - begin) / 100)
        wait()
    return statistics.median(rounds)


def _replay(step: Step) -> Step:
    """The step captured in a graph, once it has made its state."""
    module = torch.get_device_module("maca")
    for _ in range(_WARM):
        step()
    graph = module.MacaGraph()
    with module.graph(graph):
        step()
    replay: Step = graph.replay
    return replay


def measured(device: str, quick: bool) -> dict[str, object]:
    """Seconds of each case, or what it raised; on maca also of its replays, and how many operators ran on the host."""
    if device == "maca":
        import macatensor  # noqa: F401  (the device)
    torch.backends.cudnn.allow_tf32 = False  # float32 is IEEE's on both sides
    wait = torch.get_device_module(device).synchronize
    found: dict[str, object] = {"launch": _launch_seconds(device, wait)}
    for name, (make, dtype) in CASES.items():
        try:
            step = make(device, dtype, quick, False)
            found[name] = _seconds(step, wait, quick)
            if device == "maca":
                found[f"{name}, replayed"] = _seconds(_replay(make(device, dtype, quick, True)), wait, quick)
        except Exception as error:  # a figure less, and why
            said = f"{type(error).__name__}: {error}"[:400]
            found.setdefault(name, said)
            found[f"{name}, error"] = said
    if device == "maca":
        from macatensor.runtime import counters

        found["on the host"] = dict(counters.fallbacks)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("device")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    print(json.dumps(measured(options.device, options.quick)))


if __name__ == "__main__":
    main()
