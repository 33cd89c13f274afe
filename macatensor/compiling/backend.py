"""The backend ``maca`` of ``torch.compile``: AOTAutograd's graphs as tapes.

AOTAutograd gives a graph for the forward and one for the backward, of operators without side effects. Each runs as a
tape (tapes.py), made for the sizes it meets, or, where some of its operators need the host, in parts (segments.py). While
somebody looks at each operator (a recorder, a capture, a dispatch mode) it runs operator by operator.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx

from macatensor.compiling import checked, frozen, joint, segments, tapes
from macatensor.compiling.in_place import in_place
from macatensor.runtime import counters, plan_caches
from macatensor.runtime.boxed import Value
from macatensor.runtime.ffi import native
from macatensor.runtime.plan_caches import PlanCache
from macatensor.runtime.tensor import MacaTensor, is_maca

log = logging.getLogger(__name__)

_MODES = (None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
_LIMIT = 64  # tapes of one graph: of as many sizes
_SEEN = 256  # sizes of a graph that are remembered before they have a tape
_unwatched = native.dispatch


def maca(
    graph: fx.GraphModule,
    inputs: Sequence[Value],
    *,
    mode: str | None = None,
    options: dict[str, object] | None = None,
) -> Callable[..., Value]:
    """``torch.compile(model, backend="maca")``.

    ``mode``: one of PyTorch's; each runs a tape, which has no more Python in it than a captured graph. ``options``:
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

    compiled_graph = partial(CompiledGraph, with_tapes=bool(given["tapes"]), is_checked=bool(given["check"]))

    def compile_graph(module: fx.GraphModule, examples: Sequence[Any]) -> Callable[[list[Value]], Any]:
        return _boxed(compiled_graph(module))

    def compile_inference(module: fx.GraphModule, examples: Sequence[Any]) -> Callable[[list[Value]], Any]:
        static = frozen.static_inputs()
        frozen.fold_normalizations(module, static)
        kept = frozen.freeze(module, static)
        return _boxed(compiled_graph(module), kept)

    compiler = aot_autograd(
        fw_compiler=compile_graph,
        inference_compiler=compile_inference,
        partition_fn=joint.partition,
        keep_inference_input_mutations=True,
    )
    compiled: Callable[..., Value] = compiler(graph, inputs)
    if isinstance(graph, fx.GraphModule):
        # it took over the attributes of ours, which takes a list; PyTorch's minifier believes it
        compiled._boxed_call = False  # type: ignore[attr-defined]
    return compiled


def _boxed(compiled: CompiledGraph, kept: frozen.Frozen | None = None) -> Callable[[list[Value]], Any]:
    def run(arguments: list[Value]) -> Any:  # a function: AOTAutograd wraps it, and keeps its attributes
        if kept is not None:
            arguments += kept.values(arguments)
        return compiled(arguments)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


class CompiledGraph:
    """One of AOTAutograd's graphs, called with a list of inputs, which it empties."""

    def __init__(self, module: fx.GraphModule, with_tapes: bool = True, is_checked: bool = False):
        module.graph.set_codegen(fx.graph._BoxedCodeGen())
        module.recompile()
        self.module, self.is_checked = module, is_checked
        self.run: tapes.Run = module.forward
        self.tapes: PlanCache[tapes.Recorded] = PlanCache()
        self.last: tapes.Recorded | None = None
        self.generation = plan_caches.generation
        self.seen: set[object] = set()
        self.parts: segments.Segments | None = None
        self.why = "" if with_tapes else "the option tapes is False"  # it runs operator by operator
        if with_tapes and (apart := segments.apart(module)):
            self.split(apart)
        elif with_tapes:
            self.run = in_place(module).forward

    def __call__(self, arguments: list[Value]) -> Value:
        if self.why or not _is_unwatched():
            return self.run(arguments)
        if self.parts is not None:
            return self.parts(arguments)
        result: Any = NotImplemented  # as of a tape for other arguments
        if self.last is not None and self.generation == plan_caches.generation:
            result = self.last(arguments)
        if result is NotImplemented and (tape := self.tape_for(arguments)) is not None:
            result = tape(arguments)
        if result is NotImplemented:
            return self.parts(arguments) if self.parts is not None else self.run(arguments)
        arguments.clear()
        return result

    def split(self, apart: dict[fx.Node, str]) -> None:
        """Has it run in parts, between those operators that no tape can have; each with the reason."""
        self.parts = segments.split(self.module, apart, partial(CompiledGraph, is_checked=self.is_checked))
        if self.parts is None:
            self.why = next(iter(apart.values()))
            log.info("a compiled graph runs operator by operator: %s", self.why)
            counters.count("graphs_without_tape")
        else:
            log.info("a compiled graph runs in %d parts: %s", len(self.parts.steps), list(apart.values()))

    def tape_for(self, arguments: list[Value]) -> tapes.Recorded | None:
        """The tape for arguments like these, recorded if they are the first; None where there can be none."""
        key = tapes.key_of(arguments)
        generation = plan_caches.generation
        tape = self.tapes.get(key)
        if tape is None:
            if len(self.tapes) >= _LIMIT or not any(map(is_maca, arguments)):
                return None
            # of sizes that change a tape is made when they come again: those of a growing sequence do not
            if key not in self.seen and not all(isinstance(a, torch.Tensor) for a in arguments):
                if len(self.seen) >= _SEEN:
                    self.seen.clear()
                self.seen.add(key)
                return None
            try:
                tape = tapes.record(self.run, arguments)
                if self.is_checked or checked.is_asked():
                    tape = checked.right(self.module, self.run, arguments, tape)
            except tapes.Busy:
                return None
            except tapes.Unrecordable as error:
                self.split({self._refused(arguments): str(error)})
                return None
            self.tapes.remember(key, tape, generation)
            counters.count("tapes")
        self.last, self.generation = tape, generation
        return tape

    def _refused(self, arguments: list[Value]) -> fx.Node:
        """The operator that no tape can have; the graph's output where it is another reason."""
        noting = _Noting(self.module)
        with contextlib.suppress(tapes.Unrecordable, tapes.Busy):
            tapes.record(noting.noted, arguments)
        return noting.node


class _Noting(fx.Interpreter):
    """Notes which operator of a graph runs."""

    def __init__(self, module: fx.GraphModule):
        super().__init__(module)
        self.node: fx.Node = module.graph.output_node()

    def noted(self, arguments: list[Value]) -> Sequence[Value]:
        results: Sequence[Value] = self.run(*arguments, enable_io_processing=False)
        return results

    def run_node(self, n: fx.Node) -> Any:
        self.node = n
        return super().run_node(n)


def _is_unwatched() -> bool:
    """Does nobody look at each operator?"""
    return (
        MacaTensor.__torch_dispatch__ is _unwatched
        and not native.is_observed()
        and all(
            # AOTAutograd's, of a first call: it looks at operators of users alone
            type(torch._C._get_dispatch_stack_at(i)).__name__ == "_AnalyzeCustomOpInputOutputMode"
            for i in range(torch._C._len_torch_dispatch_stack())
        )
    )
