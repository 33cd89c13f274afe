"""The backend ``maca`` of ``torch.compile``: AOTAutograd's graphs as tapes.

AOTAutograd gives a graph for the forward and one for the backward, of operators without side effects. How they run is
said in compiled_graph.py; what a later process need not do again, in stored.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import fx

from macatensor.compiling import frozen, joint, numbers, steps, stored
from macatensor.compiling.compiled_graph import Choices
from macatensor.runtime.boxed import Value

_MODES = (None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def maca(
    graph: fx.GraphModule,
    inputs: Sequence[Value],
    *,
    mode: str | None = None,
    options: dict[str, object] | None = None,
) -> Callable[..., Value]:
    """``torch.compile(model, backend="maca")``.

    ``mode``: one of PyTorch's; each runs a tape, which has no more Python in it than a captured graph. "max-autotune"
    measures the library's ways of products and convolutions that no bank knows (docs/tuning.md). ``options``:
    ``{"tapes": False}`` runs operator by operator; ``{"check": True}`` judges each fused program (checked.py). Raises
    ValueError for others.
    """
    if mode not in _MODES:
        raise ValueError(f"backend maca got mode={mode!r}; accepted: {', '.join(map(repr, _MODES))}")
    given = {"tapes": True, "check": False, **(options or {})}
    unknown = set(given) - {"tapes", "check"}
    if unknown:
        raise ValueError(f"backend maca got the option {sorted(unknown)[0]!r}; accepted: 'tapes', 'check'")
    from torch._dynamo.backends.common import aot_autograd

    used = steps.detach_used_up(graph) if isinstance(graph, fx.GraphModule) else []
    is_tuned = mode is not None and mode.startswith("max-autotune")
    choices = Choices(bool(given["tapes"]), bool(given["check"]), is_tuned)
    with numbers.staying(), stored.storing(choices, graph, inputs) as as_compiler:
        compiler = aot_autograd(
            fw_compiler=as_compiler(partial(_compile, choices)),
            bw_compiler=as_compiler(partial(_compile, choices)),
            inference_compiler=as_compiler(partial(_compile_inference, choices)),
            partition_fn=joint.partition,
            keep_inference_input_mutations=True,
        )
        compiled: Callable[..., Value] = compiler(graph, inputs)
    if isinstance(graph, fx.GraphModule):
        # it took over the attributes of ours, which takes a list; PyTorch's minifier believes it
        compiled._boxed_call = False  # type: ignore[attr-defined]
        if steps.is_whole(graph):
            return steps.giving_used_up(compiled, graph.forward, used)
    return compiled


steps.backends.append(maca)


def _compile(choices: Choices, module: fx.GraphModule, examples: Sequence[Any]) -> stored.Program:
    return stored.Program(module, choices, None)


def _compile_inference(choices: Choices, module: fx.GraphModule, examples: Sequence[Any]) -> stored.Program:
    return stored.Program(module, choices, frozen.static_inputs())
