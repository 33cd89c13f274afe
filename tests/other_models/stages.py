"""Tiny models on the CPU and on maca, stage by stage: ``python stages.py [GROUP NAME] ...`` prints a line of JSON for each.

A stage passes where maca gives what the CPU gives; what the CPU cannot do is not asked. Where a network enlarges rounding
(batch normalization over two values, a ReLU at 0) it may be twice as far away as the CPU moves when weights and inputs move
by one unit in the last place. Models that draw random numbers (another seed gives other results on the CPU) must give finite
numbers.
"""

from __future__ import annotations

import copy
import io
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from catalogue import Model, make

import macatensor

Tensors = list[torch.Tensor]
# of the norm: sums in another order, through the layers of a network; bfloat16 has 8 bits
CLOSE, CLOSE_GRADIENT, CLOSE_HALF = 1e-4, 2e-3, 0.1
NUDGES = 4  # of weights and inputs, of which one must move the CPU's results as far
STAGES = ("forward", "backward", "step", "autocast", "save and load", "generate")


def _floats(found: Any) -> Tensors:
    if isinstance(found, torch.Tensor):
        return [found.detach().cpu().float()] if found.is_floating_point() else []
    if hasattr(found, "to_tuple"):
        found = found.to_tuple()
    if isinstance(found, dict):
        found = list(found.values())
    return [t for v in found for t in _floats(v)] if isinstance(found, (list, tuple)) else []


def _apart(got: Tensors, want: Tensors) -> float:
    """The largest relative difference; of small gradients relative to the largest one."""
    assert len(got) == len(want), f"{len(got)} results, the CPU gives {len(want)}"
    scale = max((float(w.norm()) for w in want), default=0.0) * 1e-3
    worst = 0.0
    for g, w in zip(got, want):
        assert g.shape == w.shape, f"sizes {list(g.shape)}, the CPU's {list(w.shape)}"
        known = w.isfinite()
        assert torch.equal(known, g.isfinite()), (
            "NaN or infinity where the CPU has none, or none where it has"
        )
        difference = float((g[known] - w[known]).norm())
        worst = max(worst, difference / max(float(w[known].norm()), scale, 1e-30))
    return worst


def _to(device: str, model: Model) -> Model:
    def moved(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(device)
        return {k: moved(v) for k, v in value.items()} if isinstance(value, dict) else value

    return Model(copy.deepcopy(model.module).to(device), moved(model.inputs), model.generates)


def _nudged(model: Model, seed: int) -> Model:
    """On the CPU, every weight and input moved by one unit in the last place, up, down or not at all."""
    draws = torch.Generator().manual_seed(seed)
    moved = _to("cpu", model)
    inputs = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in moved.inputs.items()}
    with torch.no_grad():
        for tensor in [*moved.module.parameters(), *inputs.values()]:
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                tensor.mul_(1 + 2**-23 * torch.randint(-1, 2, tensor.shape, generator=draws))
    return Model(moved.module, inputs, model.generates)


def _loss(found: Any) -> torch.Tensor:
    loss = getattr(found, "loss", None)
    if loss is not None:
        return loss
    found = found if isinstance(found, torch.Tensor) else found[0]
    return found.float().square().mean()


def forward(model: Model) -> Tensors:
    with torch.no_grad():
        return _floats(model.module.eval()(**model.inputs))


def backward(model: Model) -> Tensors:
    model.module.train()
    _loss(model.module(**model.inputs)).backward()
    return [p.grad.cpu().float() for p in model.module.parameters() if p.grad is not None]


def step(model: Model) -> Tensors:
    optimizer = torch.optim.SGD(model.module.parameters(), lr=1e-2, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        backward(model)
        optimizer.step()
    return [p.detach().cpu().float() for p in model.module.parameters()]


def autocast(model: Model) -> Tensors:
    device = next(model.module.parameters()).device.type
    with torch.no_grad(), torch.autocast(device, torch.bfloat16):
        return _floats(model.module.eval()(**model.inputs))


def save_and_load(model: Model) -> Tensors:
    file = io.BytesIO()
    torch.save(model.module.state_dict(), file)
    file.seek(0)
    other = copy.deepcopy(model.module)
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    other.load_state_dict(torch.load(file, weights_only=True))
    return forward(Model(other, model.inputs))


def generate(model: Model) -> Tensors:
    ids = model.inputs["input_ids"]
    with torch.no_grad():
        found = model.module.eval().generate(ids, max_new_tokens=5, do_sample=False, pad_token_id=0)
    return [found.cpu().float()]


_RUN: dict[str, tuple[Callable[[Model], Tensors], float]] = {
    "forward": (forward, CLOSE), "backward": (backward, CLOSE_GRADIENT), "step": (step, CLOSE),
    "autocast": (autocast, CLOSE_HALF), "save and load": (save_and_load, CLOSE), "generate": (generate, 0.0),
}  # fmt: skip


def _without_dropout(module: torch.nn.Module) -> None:
    for part in module.modules():
        if isinstance(part, torch.nn.modules.dropout._DropoutNd):
            part.p = 0.0
        for name in ("drop_prob", "drop_rate", "dropout_prob"):  # of whole paths, or applied as a function
            if isinstance(getattr(part, name, None), float):
                setattr(part, name, 0.0)


def run(model: Model, stage: str) -> str:
    """``"pass"``, ``"finite"`` of random results, ``"fail: why"`` or ``"cpu: why"`` of one stage."""
    compute, close = _RUN[stage]
    try:
        torch.manual_seed(1)
        want = compute(_to("cpu", model))
        torch.manual_seed(2)
        draws = _apart(compute(_to("cpu", model)), want) > 0
    except Exception as error:
        return f"cpu: {type(error).__name__}: {error}"[:200]
    try:
        torch.manual_seed(1)
        got = compute(_to("maca", model))
        if draws:
            return "finite" if all(bool(t.isfinite().all()) for t in got) else "fail: not finite"
        apart = _apart(got, want)
    except Exception as error:
        return f"fail: {type(error).__name__}: {error}"[:300]
    if apart <= close:
        return "pass"
    for seed in range(NUDGES):
        torch.manual_seed(1)
        if 2 * _apart(compute(_nudged(model, seed)), want) >= apart:  # both devices round
            return "pass"
    return f"fail: {apart:.2g} apart, {close:g} allowed"


def report(group: str, name: str) -> dict[str, Any]:
    """What every stage gave, and how often an operator fell back to the host."""
    start = time.perf_counter()
    try:
        model = make(group, name)
    except Exception as error:
        return {"group": group, "name": name, "stages": {}, "error": f"{type(error).__name__}: {error}"[:200]}
    _without_dropout(model.module)
    macatensor.reset_counters()
    stages = {stage: run(model, stage) for stage in STAGES if stage != "generate" or model.generates}
    return {
        "group": group, "name": name, "stages": stages, "fallbacks": macatensor.counters()["fallbacks"],
        "seconds": round(time.perf_counter() - start, 1),
    }  # fmt: skip


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what packages print
    for group, name in zip(sys.argv[1::2], sys.argv[2::2]):
        print(json.dumps(report(group, name)), file=lines, flush=True)
