"""Graphs: launches that are captured once and replayed without Python, with the names of torch.cuda's.

While a graph is captured, launches, fills and copies on the device are recorded by the runtime and not run; their
results are memory that the graph keeps. A replay runs the whole list with the addresses and numbers of the capture, so
new inputs are copied into the tensors that were captured. What cannot be recorded is refused by the operator's name:
copies from and to the host (``item()``, shapes that depend on data, boolean indices) and waits of the host.

Unlike CUDA's, a graph keeps the tensors it found alive, and captures on the current stream.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import torch
from torch._ops import OpOverload
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from macatensor.runtime import capture
from macatensor.runtime.boxed import Arguments, Keywords, Value
from macatensor.runtime.ffi import check, ffi, lib
from macatensor.runtime.streams import Stream, StreamContext
from macatensor.runtime.tensor import MacaTensor
from macatensor.runtime.uncompiled import uncompiled

if TYPE_CHECKING:
    from macatensor.runtime.ffi import CData

_dispatch: Callable[..., Value] = MacaTensor.__dict__["__torch_dispatch__"]
_MODES = ("global", "thread_local", "relaxed")


class GraphPool:
    """Memory that graphs share; an opaque handle. Graphs of one pool must be replayed in the order of their capture."""

    def __init__(self) -> None:
        self._handle = ffi.gc(lib.maca_graph_pools_create(), lib.maca_graph_pools_destroy)


def graph_pool_handle() -> GraphPool:
    """A new pool, for the ``pool`` of several captures that may share memory."""
    return GraphPool()


def is_current_stream_capturing() -> bool:
    """Is a graph being captured?"""
    return capture.current is not None


class MacaGraph:
    """A captured list of launches. ``keep_graph`` is taken for CUDA's sake: nothing is left to instantiate."""

    def __init__(self, keep_graph: bool = False):
        self.keep_graph = keep_graph
        self._handle: CData | None = None
        self._pool: GraphPool | None = None
        self._is_captured = False
        self._debug = False
        self._operators: list[str] = []
        self._optimizers: RemovableHandle | None = None  # the hook that is there during the capture

    def capture_begin(
        self,
        pool: GraphPool | None = None,
        capture_error_mode: str = "global",
        check_input_liveness: bool = False,
    ) -> None:
        """Records from here on what any thread launches.

        ``pool``: of :func:`graph_pool_handle` or another graph's :meth:`pool`. ``capture_error_mode``: one of CUDA's;
        every one refuses alike. ``check_input_liveness`` has nothing to check: inputs are kept alive. Raises
        RuntimeError while a graph is captured, or when this one was.
        """
        if capture_error_mode not in _MODES:
            raise RuntimeError(
                f'Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got "{capture_error_mode}"'
            )
        if self._handle is not None:
            raise RuntimeError("This MacaGraph has captured already; reset() it, or make another")
        _refuse_nested()
        if not (pool is None or isinstance(pool, GraphPool)):
            raise TypeError(
                f"capture_begin got {type(pool).__name__} for pool; expected a graph_pool_handle()"
            )
        self._pool = GraphPool() if pool is None else pool
        self._handle = ffi.gc(lib.maca_graphs_begin(self._pool._handle), lib.maca_graphs_destroy)
        self._operators = []
        capture.begin(self)
        self._optimizers = register_optimizer_step_pre_hook(_check_capturable)
        type.__setattr__(MacaTensor, "__torch_dispatch__", staticmethod(_recorded))

    def capture_end(self) -> None:
        """Ends the capture. Raises RuntimeError when this graph is not being captured."""
        if capture.current is not self:
            raise RuntimeError("capture_end() was called on a graph that is not being captured")
        self._leave()
        lib.maca_graphs_end(self._handle)
        self._is_captured = True

    def _leave(self) -> None:
        capture.end()
        if self._optimizers is not None:
            self._optimizers.remove()
        type.__setattr__(MacaTensor, "__torch_dispatch__", _dispatch)

    def instantiate(self) -> None:
        """Nothing: a captured graph is ready. Raises RuntimeError before the capture."""
        self._captured("instantiate")

    def replay(self) -> None:
        """Runs the graph on the current stream. Raises what a launch of it raises."""
        self._captured("replay")
        capture.refuse("a replay of another graph")
        check(lib.maca_graphs_replay(self._handle), "MacaGraph.replay")

    def reset(self) -> None:
        """Drops what was captured, and an unfinished capture."""
        if capture.current is self:
            self._leave()
        if self._handle is not None:
            ffi.release(self._handle)
        self._handle, self._pool, self._is_captured = None, None, False

    def pool(self) -> GraphPool:
        """The pool of this graph's memory."""
        if self._pool is None:
            raise RuntimeError("Called MacaGraph.pool() without a preceding successful capture.")
        return self._pool

    def launches(self) -> int:
        """Kernels that a replay launches."""
        self._captured("launches")
        return int(lib.maca_graphs_launches(self._handle))

    def enable_debug_mode(self) -> None:
        """Keeps the operators' names from the next capture on, for :meth:`debug_dump`."""
        self._debug = True

    def debug_dump(self, debug_path: str) -> None:
        """Writes the captured operators, in their order, as a graph in DOT."""
        if not self._debug:
            raise RuntimeError("call enable_debug_mode() before the capture to keep the operators' names")
        nodes = "\n".join(f'  {i} [label="{name}"]' for i, name in enumerate(self._operators))
        edges = "\n".join(f"  {i} -> {i + 1}" for i in range(len(self._operators) - 1))
        Path(debug_path).write_text(f"digraph maca {{\n{nodes}\n{edges}\n}}\n")

    def _captured(self, what: str) -> None:
        if not self._is_captured:
            raise RuntimeError(f"Called MacaGraph.{what}() without a preceding successful capture.")

    def raw_cuda_graph(self) -> NoReturn:
        """Refused: there is no object of CUDA's behind a graph."""
        raise NotImplementedError("a MacaGraph has no cudaGraph_t")


def _refuse_nested() -> None:
    if capture.current is not None:
        raise RuntimeError("another graph is being captured; one at a time can be")


def _check_capturable(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
    """PyTorch asks the same, of CUDA alone: the count of steps would be a number of the capture in every replay."""
    groups = optimizer.param_groups
    if any(isinstance(p, MacaTensor) for group in groups for p in group["params"]):
        if not all(group.get("capturable", True) for group in groups):
            raise RuntimeError(
                f"Attempting MACA graph capture of step() for an instance of {type(optimizer).__name__} but "
                "param_groups' capturable is False."
            )


@uncompiled
def _recorded(
    func: OpOverload, types: Sequence[type], args: Arguments = (), kwargs: Keywords | None = None
) -> Value:
    """``__torch_dispatch__`` during a capture: knows which operator asks for what is refused."""
    if not capture.enter(func):  # a part of another
        return _dispatch(func, types, args, kwargs)
    captured = capture.current
    if isinstance(captured, MacaGraph) and captured._debug:
        captured._operators.append(str(func))
    try:
        return _dispatch(func, types, args, kwargs)
    finally:
        capture.leave()


@contextlib.contextmanager
def graph(
    maca_graph: MacaGraph,
    pool: GraphPool | None = None,
    stream: Stream | None = None,
    capture_error_mode: str = "global",
    enable_annotations: bool = False,
    check_input_liveness: bool = False,
) -> Iterator[None]:
    """Captures what is launched inside into ``maca_graph``. After an exception the graph is empty again.

    ``stream``: the current stream inside; by default it stays what it is. ``enable_annotations`` is CUDA's.
    """
    if not isinstance(maca_graph, MacaGraph):
        raise TypeError(f"graph() got {type(maca_graph).__name__}; expected a torch.maca.MacaGraph")
    _refuse_nested()
    torch.get_device_module("maca").synchronize()
    with StreamContext(stream):
        maca_graph.capture_begin(pool, capture_error_mode, check_input_liveness)
        try:
            yield
        except BaseException:
            maca_graph.reset()
            raise
        maca_graph.capture_end()
