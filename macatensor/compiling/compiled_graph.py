"""A graph of AOTAutograd's as it runs: a tape for the sizes it meets, parts, or operator by operator.

A tape (tapes.py) is made for the sizes that come; where some operators need the host, the graph runs in parts
(segments.py). While somebody looks at each operator (a recorder, a capture, a dispatch mode) it runs operator by operator.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import fx

from macatensor.choices import deciding
from macatensor.compiling import checked, explained, numbers, segments, tapes
from macatensor.compiling.in_place import in_place
from macatensor.runtime import counters, plan_caches
from macatensor.runtime.boxed import Value
from macatensor.runtime.ffi import native
from macatensor.runtime.plan_caches import PlanCache
from macatensor.runtime.tensor import MacaTensor, is_maca

log = logging.getLogger(__name__)

_LIMIT = 64  # tapes of one graph: of as many sizes
_SEEN = 256  # sizes of a graph that are remembered before they have a tape
_LAZY = {torch.ops.aten._conj.default, torch.ops.aten._neg_view.default}
_unwatched = native.dispatch


class Choices(NamedTuple):
    """``options=`` of the backend. ``is_checked``: is each fused program judged? ``is_tuned``: are the library's ways of
    products and convolutions measured?"""

    with_tapes: bool = True
    is_checked: bool = False
    is_tuned: bool = False


class CompiledGraph:
    """One of AOTAutograd's graphs, called with a list of inputs, which it empties."""

    def __init__(self, module: fx.GraphModule, choices: Choices):
        self.prelude = numbers.apart(module)
        module.graph.set_codegen(fx.graph._BoxedCodeGen())
        module.recompile()
        self.module, self.choices = module, choices
        self.run: tapes.Run = module.forward
        self.tapes: PlanCache[tapes.Recorded] = PlanCache()
        self.last: tapes.Recorded | None = None
        self.generation = plan_caches.generation
        self.seen: set[object] = set()
        self.judged: set[object] = set()
        self.parts: segments.Segments | None = None
        self.why = "" if choices.with_tapes else "the option tapes is False"  # it runs operator by operator
        if choices.with_tapes and (apart := segments.apart(module)):
            self.split(apart, next(iter(apart.values())))
        elif choices.with_tapes:
            self.run = in_place(module).forward

    def __call__(self, arguments: list[Value]) -> Value:
        if self.prelude is not None:
            arguments = self.prelude(arguments)
        if self.why:
            return self.run(arguments)
        if not _is_unwatched():
            return self.seen_by_tools(arguments)
        if self.parts is not None:
            return self.parts(arguments)
        result: Value = NotImplemented  # as of a tape for other arguments
        if self.last is not None and self.generation == plan_caches.generation:
            result = self.last(arguments)
        if result is NotImplemented and (tape := self.tape_for(arguments)) is not None:
            result = tape(arguments)
        if result is NotImplemented:
            return self.parts(arguments) if self.parts is not None else self.run(arguments)
        arguments.clear()
        return result

    def seen_by_tools(self, arguments: list[Value]) -> Value:
        """Operator by operator; of each size the programs are judged beside, if a tool asks."""
        if not checked.is_judging():
            return self.run(arguments)
        if self.parts is None and (key := (checked.session, tapes.key_of(arguments))) not in self.judged:
            try:
                checked.judge(self.module, self.run, arguments)
                self.judged.add(key)
            except tapes.Busy:
                pass
            except tapes.Unrecordable as error:
                self.split(dict.fromkeys(self._refused(arguments), str(error)), str(error))
        return self.run(arguments) if self.parts is None else self.parts(arguments)

    def split(self, apart: dict[fx.Node, str], why: str) -> None:
        """Has it run in parts, between those operators that no tape can have, each with the reason; operator by operator
        where there are none, because of ``why``."""
        if apart:
            self.parts = segments.split(self.module, apart, partial(CompiledGraph, choices=self.choices))
        if self.parts is None:
            self.why = why
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
                if self.choices.is_tuned:  # what is recorded cannot be measured meanwhile
                    with deciding.measuring():
                        self.run(checked.copied(arguments))
                tape = tapes.record(self.run, arguments)
                if self.choices.is_checked or checked.is_asked():
                    tape = checked.right(self.module, self.run, arguments, tape)
            except tapes.Busy:
                return None
            except tapes.Unrecordable as error:
                self.split(dict.fromkeys(self._refused(arguments), str(error)), str(error))
                return None
            if explained.is_measured():
                explained.measure(self.run, tape, lambda: checked.copied(arguments))
            self.tapes.remember(key, tape, generation)
            counters.count("tapes")
        self.last, self.generation = tape, generation
        return tape

    def _refused(self, arguments: list[Value]) -> list[fx.Node]:
        """The operator that no tape can have, or those whose results it cannot give; none where it is an input."""
        noting = _Noting(self.module)
        with contextlib.suppress(tapes.Unrecordable, tapes.Busy):
            tapes.record(noting.noted, arguments)
        if noting.node.op == "call_function":
            return [noting.node]
        return [n for n in self.module.graph.output_node().all_input_nodes if n.target in _LAZY]


class _Noting(fx.Interpreter):
    """Notes which operator of a graph runs."""

    def __init__(self, module: fx.GraphModule):
        super().__init__(module)
        self.node: fx.Node = module.graph.output_node()

    def noted(self, arguments: list[Value]) -> Sequence[Value]:
        results: Sequence[Value] = self.run(*arguments, enable_io_processing=False)
        return results

    def run_node(self, n: fx.Node) -> Value:
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
