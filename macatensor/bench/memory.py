"""How much device memory the allocator takes for what lives in it."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from macatensor.bench.models import gpt, gpt_step, resnet, resnet_step
from macatensor.bench.result import Result

RESERVED_OVER_LIVE = 1.05
TWICE_THE_LENGTH = 2.2
_GRANULE = 512  # what CUDA's allocator rounds to
_STEPS = 1000


def training(model: str) -> Callable[[int, bool], list[Result]]:
    """Peak of reserved bytes over peak of live bytes of three training steps, in a process of its own.

    Live bytes are rounded up to 512 an allocation. The statistics count requested bytes and allocations, each with its
    peak, so that quotient lies between two bounds; the value is the upper one, the note has the lower.
    """

    def run(rounds: int, quick: bool) -> list[Result]:
        peaks = _in_fresh_process("probe_training", model, quick)
        reserved, requested = peaks["reserved"], peaks["requested"]
        least = reserved / (requested + (_GRANULE - 1) * peaks["allocations"])
        return [
            Result(f"memory.{model}", "live bytes", reserved / requested, RESERVED_OVER_LIVE,
                   note=f"{reserved / 2**20:.1f} of {requested / 2**20:.1f} MiB, {peaks['allocations']} allocations; "
                   f"{least:.3f} at least with live bytes rounded to 512")
        ]  # fmt: skip

    return run


def flat(rounds: int, quick: bool) -> list[Result]:
    """Growth of reserved bytes from the tenth step of a tiny GPT to the thousandth."""
    steps = 20 if quick else _STEPS
    peaks = _in_fresh_process("probe_flat", str(steps), quick)
    return [
        Result("memory.flat", f"{steps:,} training steps", peaks["last"] - peaks["tenth"], 0, unit="B",
               note=f"{peaks['last'] / 2**20:.1f} MiB reserved")
    ]  # fmt: skip


def attention(rounds: int, quick: bool) -> list[Result]:
    """Peak of allocated bytes of attention, forward and backward, at twice the length over that at once it."""
    module = torch.get_device_module("maca")
    gc.collect()

    def peak(length: int) -> int:
        q, k, v = (torch.rand(1, length, 512, device="maca", requires_grad=True) for _ in range(3))

        def call() -> None:
            a, b, c = (t.view(1, length, 8, 64).transpose(1, 2) for t in (q, k, v))
            result = F.scaled_dot_product_attention(a, b, c, is_causal=True)
            torch.autograd.grad(result.sum(), (q, k, v))

        before = module.memory_allocated()
        peaks = []
        for _ in range(6):  # the first makes plans; in some calls autograd's thread lets go of a result early
            module.reset_peak_memory_stats()
            call()
            peaks.append(int(module.max_memory_allocated() - before))
            deadline = time.monotonic() + 2
            while module.memory_allocated() > before and time.monotonic() < deadline:
                time.sleep(0.001)  # and of the gradients a little later than the call returns
        return max(peaks[1:])

    length = 128 if quick else 2048
    once, twice = peak(length), peak(2 * length)
    return [
        Result("attention.memory", f"T {length}, at T {2 * length}", twice / once, TWICE_THE_LENGTH,
               note=f"{once / 2**20:.1f} and {twice / 2**20:.1f} MiB; scores of all heads would be "
               f"{8 * 4 * length**2 / 2**20:.0f} and {8 * 4 * (2 * length) ** 2 / 2**20:.0f}")
    ]  # fmt: skip


CASES: dict[str, Callable[[int, bool], list[Result]]] = {
    "memory.resnet18": training("resnet18"),
    "memory.gpt": training("gpt"),
    "memory.flat": flat,
}


def probe_training(model: str, quick: bool) -> dict[str, int]:
    """Peaks of the allocator's statistics over three training steps."""
    step = _step(model, quick)
    for _ in range(3):
        step()
    module = torch.get_device_module("maca")
    module.synchronize()
    stats = module.memory_stats()
    return {
        "reserved": stats["reserved_bytes.all.peak"],
        "requested": stats["requested_bytes.all.peak"],
        "allocations": stats["allocation.all.peak"],
    }


def probe_flat(steps: str, quick: bool) -> dict[str, int]:
    """Peaks of reserved bytes after ten training steps of a tiny GPT and after all."""
    step = _step("gpt", quick=True)
    module = torch.get_device_module("maca")
    found = {}
    for i in range(int(steps)):
        step()
        if i == 9:
            found["tenth"] = module.max_memory_reserved()
    return {**found, "last": module.max_memory_reserved()}


def _step(model: str, quick: bool) -> Callable[[], object]:
    if model == "gpt":
        network = gpt(quick)
        tokens = torch.randint(network.config.vocabulary, (4, 129))
        return gpt_step(network.to("maca"), tokens.to("maca"))
    x, y = torch.randn(8, 3, 64, 64), torch.randint(10, (8,))
    return resnet_step(resnet(18, quick).to("maca"), x.to("maca"), y.to("maca"))


def _in_fresh_process(probe: str, argument: str, quick: bool) -> dict[str, int]:
    """What another process finds, whose peaks nothing else has touched."""
    script = (
        f"import json, torch, macatensor; torch.set_num_threads({torch.get_num_threads()}); "
        f"from macatensor.bench import memory; print(json.dumps(memory.{probe}({argument!r}, {quick})))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{probe}({argument!r}) failed in its own process:\n{done.stderr[-2000:]}")
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found
