"""Tiny models compiled whole against the same models in eager mode: ``python compiled.py [GROUP NAME] ...``.

Without names it runs all that `LONG` lists. A line of JSON for each; exit status 1 where one fails. A model passes where

- what is compiled, forward and backward, gives on maca what eager mode gives there, with nothing on the host;
- Dynamo makes as many graphs of it as on the CPU, with as many breaks, and `fullgraph=True` is taken where it is there;
- it warns of nothing more;
- batches and sequences of other sizes make as many graphs as on the CPU, and so does decoding with a static cache.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from catalogue import Model, make
from stages import CLOSE, CLOSE_GRADIENT, _apart, _floats, _loss, _to, _without_dropout

import macatensor

LONG = {
    "transformers, causal": "gpt2 llama gemma2 bloom mixtral mistral opt qwen3",
    "transformers, masked": "bert albert deberta-v2 fnet distilbert",
    "transformers, seq2seq": "t5 bart",
    "transformers, vision": "vit segformer swin convnext",
    "transformers, text with images or sound": "clip wav2vec2",
    "timm": "mobilenetv3_small_050 convnext_atto resnet18 vit_tiny_patch16_224",
    "diffusers": "UNet2DModel AutoencoderKL DiTTransformer2DModel",
    "torch_geometric": "GCN",
}
DECODED = {"llama", "qwen3"}
STEPS = 6
Tensors = list[torch.Tensor]


class Counting:
    """A backend that counts its graphs."""

    def __init__(self, backend: Callable[..., Any]):
        self.backend, self.graphs = backend, 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: Any) -> Any:
        self.graphs += 1
        return self.backend(graph, inputs)


def _as_written(graph: torch.fx.GraphModule, inputs: Any) -> Any:
    return graph.forward


def _forward_and_backward(model: Model, called: Callable[..., Any]) -> tuple[Tensors, Tensors]:
    """Twice each: the second time what was compiled runs again."""
    model.module.eval()
    with torch.no_grad():
        for _ in range(2):
            results = _floats(called(**model.inputs))
    model.module.train()
    for _ in range(2):
        model.module.zero_grad()
        _loss(called(**model.inputs)).backward()
    return results, [p.grad.cpu().float() for p in model.module.parameters() if p.grad is not None]


def _sizes(model: Model) -> Iterator[dict[str, Any]]:
    """The inputs in other sizes: fewer tokens, then a larger batch, as often as there are tokens."""
    for batch, length in ((1, 0), (1, 4), (2, 6), (3, 3)):
        yield {
            name: value[:, length:].repeat(batch, 1) if name.endswith(("_ids", "_mask")) else value.repeat(
                batch, *[1] * (value.dim() - 1)
            )
            for name, value in model.inputs.items()
            if isinstance(value, torch.Tensor) and name != "labels"
        }  # fmt: skip


def _compile(
    model: Model, backend: Callable[..., Any], whole: bool = False
) -> tuple[Callable[..., Any], Counting]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    counting = Counting(backend)
    return torch.compile(model.module, backend=counting, fullgraph=whole), counting


def _made(counting: Counting) -> tuple[int, int]:
    """(graphs, breaks)"""
    return counting.graphs, sum(torch._dynamo.utils.counters["graph_break"].values())


def _compiled(
    model: Model, backend: Callable[..., Any], whole: bool
) -> tuple[Any, tuple[int, int], set[str]]:
    """Results, (graphs, breaks) and warnings."""
    called, counting = _compile(model, backend, whole)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = _forward_and_backward(model, called)
    return found, _made(counting), {str(w.message) for w in caught}


def _resized(model: Model) -> tuple[int, int]:
    called, counting = _compile(model, _as_written)
    model.module.eval()
    with torch.no_grad():
        for inputs in _sizes(model):
            called(**inputs)
    return _made(counting)


def _decoded(model: Model, called: Callable[..., Any]) -> Tensors:
    """The last token's logits of every step; keys and values lie in memory that was taken before."""
    from transformers import StaticCache

    module, ids = model.module.eval(), model.inputs["input_ids"]
    cache = StaticCache(config=module.config, max_cache_len=ids.shape[1] + STEPS)
    found = []
    with torch.no_grad():
        for _ in range(STEPS):
            logits = called(input_ids=ids, past_key_values=cache, use_cache=True).logits[:, -1:]
            ids = logits.argmax(-1)
            found += _floats(logits)
    return found


def _decoding_failures(model: Model) -> Iterator[str]:
    from macatensor.compiling.backend import maca

    made = []
    for device, backend in (("cpu", _as_written), ("maca", maca)):
        called, counting = _compile(_to(device, model), backend, True)
        got = _decoded(_to(device, model), called)
        made.append(_made(counting))
    eager = _to("maca", model)
    if (apart := _apart(got, _decoded(eager, eager.module))) > CLOSE:
        yield f"decoded logits are {apart:.2g} apart, {CLOSE:g} allowed"
    if made[0] != made[1]:
        yield f"of decoding {made[1][0]} graphs, on the CPU {made[0][0]}"


def failures(model: Model) -> list[str]:
    """What differs."""
    from macatensor.compiling.backend import maca

    _, made, warned = _compiled(_to("cpu", model), _as_written, False)
    eager = _to("maca", model)
    want = _forward_and_backward(eager, eager.module)
    before = macatensor.counters()["fallbacks"]
    got, ours, said = _compiled(_to("maca", model), maca, made[1] == 0)
    found = []
    if (fallbacks := macatensor.counters()["fallbacks"] - before) > 0:
        found.append(f"{fallbacks} operators on the host")
    if ours != made:
        found.append(f"{ours[0]} graphs and {ours[1]} breaks, on the CPU {made[0]} and {made[1]}")
    found += [f"a new warning: {text}" for text in sorted(said - warned)]
    for what, mine, theirs, close in zip(("results", "gradients"), got, want, (CLOSE, CLOSE_GRADIENT)):
        if (apart := _apart(mine, theirs)) > close:
            found.append(f"{what} are {apart:.2g} apart, {close:g} allowed")
    if "edge_index" in model.inputs:  # a graph has no batch
        return found
    sizes = [_resized(_to(device, model)) for device in ("cpu", "maca")]
    if sizes[0] != sizes[1]:
        found.append(f"of changing sizes {sizes[1][0]} graphs, on the CPU {sizes[0][0]}")
    return found


def report(group: str, name: str) -> dict[str, Any]:
    start = time.perf_counter()
    macatensor.reset_counters()
    try:
        model = make(group, name)
        if name == "gpt2":  # its loss logs, at which every graph ends
            model.inputs.pop("labels")
        _without_dropout(model.module)
        found = failures(model)
        if name in DECODED:
            found += _decoding_failures(model)
    except Exception as error:
        found = [f"{type(error).__name__}: {error}"[:500]]
    counters = macatensor.counters()
    return {
        "group": group, "name": name, "failures": found, "tapes": counters["tapes"],
        "without": counters["graphs_without_tape"], "seconds": round(time.perf_counter() - start, 1),
    }  # fmt: skip


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    torch.set_num_threads(1)
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what packages print
    asked = list(zip(sys.argv[1::2], sys.argv[2::2]))
    failed = False
    for group, name in asked or [(g, n) for g, names in LONG.items() for n in names.split()]:
        said = report(group, name)
        failed |= bool(said["failures"])
        print(json.dumps(said), file=lines, flush=True)
    sys.exit(failed)
