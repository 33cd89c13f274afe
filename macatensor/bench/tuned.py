"""Products and convolutions by the library's own choice and by the tuned one, over the benchmark's shapes and random ones."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from macatensor.bench.convolutions import of_resnets
from macatensor.bench.kernels import gemm
from macatensor.bench.result import Result
from macatensor.choices import deciding
from macatensor.choices.deciding import OWN, Asked
from macatensor.files.untrusted import Json
from macatensor.runtime import plan_caches
from macatensor.tuning import calls, measuring

BAR = 1.05  # of the best way's time


@dataclass(frozen=True)
class Compared:
    """One call: what was chosen in a first measurement, and the times of a second one. Seconds."""

    name: str
    way: str  # OWN: the library's own choice
    seconds: dict[str, float]
    wrong: tuple[str, ...]
    judging: float
    timing: float

    @property
    def of_best(self) -> float:
        """The chosen way's time over that of the quickest."""
        return self.seconds[self.way] / min(self.seconds.values())

    @property
    def of_own(self) -> float:
        """The chosen way's time over that of the library's own choice."""
        return self.seconds[self.way] / self.seconds[OWN]

    @property
    def best(self) -> str:
        return min(self.seconds, key=self.seconds.__getitem__)


def _tensor(size: list[int], stride: list[int] | None = None, dtype: str = "float32") -> Json:
    if stride is None:
        stride = list(torch.empty(size, device="meta").stride())
    return {"dtype": dtype, "size": list(size), "stride": list(stride)}


def _image(size: list[int]) -> Json:
    last = torch.empty(size, device="meta").contiguous(memory_format=torch.channels_last)
    return _tensor(size, list(last.stride()))


def _call(operator: str, *arguments: Json) -> Json:
    return {"operator": operator, "arguments": list(arguments)}


def benchmark_calls(quick: bool = False) -> Iterator[tuple[str, Json]]:
    """Of the groups gemm and conv: products, and convolutions with their gradients."""
    for case in gemm(quick):
        a, b = case.make()
        dtype = str(a.dtype).removeprefix("torch.")
        operator = "mm" if a.dim() == 2 else "bmm"
        yield (
            case.name,
            _call(operator, _tensor(list(a.shape), dtype=dtype), _tensor(list(b.shape), dtype=dtype)),
        )
    for case in of_resnets(quick):
        image, weight = case.make()
        padding = weight.shape[2] // 2
        window: list[Json] = [[1, 1], [padding, padding], [1, 1], False, [0, 0], 1]
        x, w = _image(list(image.shape)), _image(list(weight.shape))
        yield case.name, _call("convolution", x, w, None, *window)
        result = [image.shape[0], weight.shape[0], *image.shape[2:]]
        yield (
            f"{case.name}.backward",
            _call("convolution_backward", _image(result), x, w, None, *window, [True, True, False]),
        )


def random_calls(count: int, seed: int = 1) -> Iterator[tuple[str, Json]]:
    """Float32 and bfloat16 products of any layout, and convolutions of any window, forward and backward."""
    draw = random.Random(seed)
    sizes = [1, 2, 3, 5, 8, 13, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1000]
    channels = [1, 3, 8, 16, 24, 32, 48, 64, 96, 128, 256]
    for number in range(count):
        if draw.random() < 0.5:
            m, k, n = (draw.choice(sizes) for _ in range(3))
            dtype = "bfloat16" if draw.random() < 0.15 else "float32"
            weight = _tensor([k, n], [1, k] if draw.random() < 0.5 else None, dtype)
            if draw.random() < 0.4:
                bias = _tensor([n], dtype=dtype)
                call = _call("addmm", bias, _tensor([m, k], dtype=dtype), weight, 1, 1)
                name = "addmm"
            else:
                call, name = _call("mm", _tensor([m, k], dtype=dtype), weight), "mm"
            yield f"random{number}.{name}.{dtype}.{m}x{k}x{n}", call
            continue
        kernel, stride = draw.choice([1, 1, 3, 3, 3, 5, 7]), draw.choice([1, 1, 1, 2])
        padding = kernel // 2
        inner, outer = draw.choice(channels), draw.choice(channels)
        side, batch = draw.choice([4, 7, 8, 14, 16, 28, 32]), draw.choice([1, 2, 4, 8])
        x, w = _image([batch, inner, side, side]), _image([outer, inner, kernel, kernel])
        window: list[Json] = [[stride, stride], [padding, padding], [1, 1], False, [0, 0], 1]
        name = f"{batch}x{inner}x{side}.{outer}x{kernel}s{stride}"
        if draw.random() < 0.5:
            yield f"random{number}.conv.{name}", _call("convolution", x, w, None, *window)
            continue
        out = (side + 2 * padding - kernel) // stride + 1
        yield (
            f"random{number}.conv_backward.{name}",
            _call(
                "convolution_backward",
                _image([batch, outer, out, out]),
                x,
                w,
                None,
                *window,
                [True, True, False],
            ),
        )


def compare(name: str, call: Json) -> Compared | None:
    """Measures a call twice; None where the library has one way, or its own is wrong."""
    asked: list[Asked] = []
    before, deciding.watcher = deciding.watcher, lambda call, signature: asked.append(call)
    plan_caches.drop_plans()
    try:
        calls.run(call)
    finally:
        deciding.watcher = before
    if not asked:
        return None
    ready = measuring.trial(asked[0])
    if ready is None or OWN in ready.wrong or not ready.contenders:
        return None
    start = time.perf_counter()
    ready.time()
    way = ready.chosen()
    timing = time.perf_counter() - start
    return Compared(name, way, ready.time(), tuple(ready.wrong), ready.judging, timing)


def _results(case: str, calls_here: Iterable[tuple[str, Json]]) -> list[Result]:
    """Each call's tuned choice over the best way, and the sum of all over that of the library's own choices."""
    found = [c for name, call in calls_here if (c := compare(name, call)) is not None]
    results = [
        Result(
            f"{case}.{c.name}", f"the best of {len(c.seconds)} ways", c.of_best, BAR, c.seconds[c.best], c.seconds[c.way],
            note=f"{c.way or 'the own choice'}; {c.of_own:.2f} of the own choice's time",
        )
        for c in found
    ]  # fmt: skip
    own, chosen = sum(c.seconds[OWN] for c in found), sum(c.seconds[c.way] for c in found)
    if found:
        note = f"of {len(found)} calls"
        results.append(
            Result(f"{case}.sum", "the library's own choices", chosen / own, 1.0, own, chosen, note=note)
        )
    return results


def tuned(rounds: int, quick: bool) -> list[Result]:
    """The benchmark's products and convolutions: the tuned choice beside all ways, in a measurement of its own."""
    return _results("tuned", [*benchmark_calls(quick)][: 4 if quick else None])


def tuned_random(rounds: int, quick: bool) -> list[Result]:
    """A hundred random ones."""
    return _results("tuned.random", random_calls(2 if quick else 100))
