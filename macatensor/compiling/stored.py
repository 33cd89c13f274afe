"""Compiled graphs stay on disk: a second process reads what AOTAutograd made of a graph, instead of making it again.

PyTorch's own ``AOTAutogradCache`` keeps them, in its own folder (``TORCHINDUCTOR_CACHE_DIR``), and takes part in all that it
has for this: ``torch.compiler.save_cache_artifacts``, ``force_disable_caches``, ``TORCH_CACHING_PRECOMPILE``. Its key is
Dynamo's graph, its inputs, PyTorch's version and settings; ours adds the device's: this package's sources, the library and
the switches. Files are written beside and renamed; one that cannot be read is made anew.

An inference graph is made about as quickly as its file is read, so only graphs of training are kept. With PyTorch's
``TORCH_CACHING_PRECOMPILE=1`` all are, and what Dynamo made of the program, too: a second process traces nothing then.

Its files are pickles, which run what they say. So they are read where nobody but the user can have written them, and
nowhere else: a folder of another user's, or that others may write, is not used, with a warning.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import functools
import hashlib
import logging
import os
import stat
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import fx
from torch._inductor.output_code import OutputCode

import macatensor
import op_table
from macatensor.compiling import frozen, quantized
from macatensor.compiling.compiled_graph import Choices, CompiledGraph
from macatensor.runtime import counters, layout, switches
from macatensor.runtime.boxed import Value
from macatensor.runtime.ffi import LIBRARY

log = logging.getLogger(__name__)

# Settings of PyTorch's own that another version may not have.
_NEEDED = (("functorch", "bundled_autograd_cache"), ("functorch", "force_non_lazy_backward_lowering"),
           ("compiler", "cache_key_tag"))  # fmt: skip

_Compile = Callable[[fx.GraphModule, Sequence[Value]], "Program"]


class Program(OutputCode):
    """A compiled graph as PyTorch's caches know it: called with a list of inputs, which it empties.

    ``static``: which inputs of an inference graph are weights, None of a graph of training."""

    def __init__(self, module: fx.GraphModule, choices: Choices, static: set[int] | None):
        super().__init__()
        self.choices, self.static = choices, static
        self.bytes = _bytes(module) if _storing else None
        self._make(module)

    def _make(self, module: fx.GraphModule) -> None:
        self._boxed_call = True  # of the object: what wraps it takes it over
        kept = None
        quantized.multiply_int8(module)
        if self.static is not None:
            frozen.fold_normalizations(module, self.static)
            quantized.read_weights_as_stored(module)
            kept = frozen.freeze(module, self.static)
        run = CompiledGraph(module, self.choices)

        def with_kept(arguments: list[Value]) -> Value:
            arguments += kept.values(arguments)  # type: ignore[union-attr]
            return run(arguments)

        self.run: Callable[[list[Value]], Value] = run if kept is None else with_kept

    def __call__(self, inputs: Value) -> Value:
        return self.run(inputs)

    def __getstate__(self) -> dict[str, Value]:
        return {"choices": self.choices, "static": self.static, "bytes": self.bytes}

    def prepare_for_serialization(self) -> None:
        """Raises PyTorch's ``BypassAOTAutogradCache`` where the graph has something that no file can have."""
        if self.bytes is None:
            from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache

            raise BypassAOTAutogradCache("a graph for maca holds what cannot be stored")

    def post_compile(self, example_inputs: Sequence[Value], constants: Value, graph_kwargs: Value) -> None:
        """Of one that was read."""
        if "run" in self.__dict__:
            return
        from torch._guards import detect_fake_mode
        from torch.fx._graph_pickler import GraphPickler

        assert self.bytes is not None
        mode = detect_fake_mode(example_inputs) or torch._subclasses.FakeTensorMode()
        module = GraphPickler.loads(self.bytes, mode)
        assert isinstance(module, fx.GraphModule)
        counters.count("graphs_from_disk")
        self._make(module)

    def set_triton_bundle(self, triton_bundle: Value) -> None:
        """There is none."""


def _bytes(module: fx.GraphModule) -> bytes | None:
    """The graph with what its values are; None where it holds tensors, or something that cannot be written."""
    from torch.fx._graph_pickler import GraphPickler, Options

    graph = copy.deepcopy(module.graph)
    for node in graph.nodes:
        if node.op == "get_attr" and not isinstance(getattr(module, str(node.target), None), fx.GraphModule):
            return None
        node.meta = {"val": node.meta["val"]} if "val" in node.meta else {}
    try:
        return bytes(GraphPickler.dumps(fx.GraphModule(module, graph), Options(ops_filter=None)))
    except Exception as error:  # whatever the pickler says of whatever a graph may hold
        log.info("a compiled graph stays in memory: %s", error)
        return None


_storing = False


@contextlib.contextmanager
def storing(
    choices: Choices, graph: fx.GraphModule, inputs: Sequence[Value]
) -> Iterator[Callable[[_Compile], Value]]:
    """What is compiled inside for such inputs is read from disk, or stays there; it makes AOTAutograd's compilers of
    ours.

    Not of graphs with floats that vary: what was found out about one (is it 1?) is not compared when the file is read.
    """
    global _storing
    if _storing or not (_is_training(inputs) or _keeps_all()) or _has_floats(graph) or not _may_store():
        yield lambda compile: compile
        return
    from torch._functorch import config
    from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler

    settings = torch.compiler.config
    tag = f"{settings.cache_key_tag} maca {choices} {_identity()} {_settings()}"
    if _keeps_all():
        _save_at_exit()
    _storing = True
    try:
        # forward and backward are one file, so the backward is made now, which is little work here
        with (
            config.patch(bundled_autograd_cache=True, force_non_lazy_backward_lowering=True),
            settings.patch(cache_key_tag=tag),  # type: ignore[attr-defined]
        ):
            yield lambda compile: SerializableAOTDispatchCompiler(Program, compile)
    finally:
        _storing = False


def _has_floats(graph: fx.GraphModule) -> bool:
    """Of Dynamo's; others, as the lambdas that PyTorch's own tests give, have none."""
    nodes = graph.graph.nodes if isinstance(graph, fx.GraphModule) else ()
    return any(isinstance(node.meta.get("example_value"), torch.SymFloat) for node in nodes)


def _is_training(inputs: Sequence[Value]) -> bool:
    return torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in inputs)


def _keeps_all() -> bool:
    return bool(getattr(torch._dynamo.config, "caching_precompile", False))


@functools.cache
def _save_at_exit() -> None:
    """PyTorch leaves this to ``torch.compiler.save_cache_artifacts()``, in each process."""
    from torch._dynamo.precompile_context import PrecompileContext

    def save() -> None:
        with contextlib.suppress(RuntimeError):  # a folder that is gone, or full: the next process compiles
            PrecompileContext.save_to_dynamo_cache()

    atexit.register(save)


def packages_folder(folder: str) -> str:
    """Where what Dynamo made of programs lies, instead of PyTorch's ``folder``: by what the device is, and where nobody
    else writes; else nowhere, with a warning."""
    if why := _who_else_writes(os.path.dirname(folder)):
        _warn(why)
        return os.path.join(os.devnull, "none")
    return os.path.join(folder, "maca-" + hashlib.sha256(_identity().encode()).hexdigest()[:16])


def _may_store() -> bool:
    if torch.compiler.config.force_disable_caches:
        return False
    try:
        from torch._functorch import config
        from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache
        from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler  # noqa: F401
        from torch.fx._graph_pickler import GraphPickler  # noqa: F401

        for names, name in _NEEDED:
            if not hasattr(config if names == "functorch" else torch.compiler.config, name):
                raise AttributeError(f"torch.compile's settings have no {name}")
        if not config.enable_autograd_cache:
            return False
        folder = AOTAutogradCache._get_tmp_dir()
        why = _who_else_writes(os.path.dirname(folder)) or _who_else_writes(folder)
    except (AttributeError, ImportError, OSError) as error:
        log.info("compiled graphs stay in memory: %s", error)
        return False
    if why:
        _warn(why)
    return not why


@functools.cache
def _warn(why: str) -> None:
    warnings.warn(
        f"compiled graphs are not kept on disk: {why}. Set TORCHINDUCTOR_CACHE_DIR to a folder that you alone may write",
        RuntimeWarning,
        stacklevel=2,
    )


def _who_else_writes(folder: str) -> str:
    """Why files there may be another's; empty where they are not. The folder is made where it is not there."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    found = os.lstat(folder)
    if stat.S_ISLNK(found.st_mode):
        return f"{folder} is a link"
    if found.st_uid != os.geteuid():
        return f"{folder} belongs to another user"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{folder} may be written by others"
    return ""


@functools.cache
def _sources() -> str:
    """What this package is: whoever edits it makes the graphs anew."""
    found = hashlib.sha256()
    for package in (macatensor, op_table):
        root = Path(package.__file__ or "").parent
        for path in sorted(root.rglob("*.py")):
            found.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def _identity() -> str:
    """What the device is: these sources, the library, the switches."""
    state = os.stat(LIBRARY)
    said = [f"{s.name}={s.text()}" for s in switches.ALL.values() if s is not switches.LIBRARY]
    return " ".join([_sources(), str(LIBRARY), str(state.st_size), str(state.st_mtime_ns), *said])


def _settings() -> str:
    """What a program may set that decides which operators a graph has, and is not in PyTorch's key."""
    attention = (
        torch._C._get_flash_sdp_enabled,
        torch._C._get_mem_efficient_sdp_enabled,
        torch._C._get_math_sdp_enabled,
    )
    return " ".join(str(said()) for said in (layout.default_is_nchw, *attention))
