"""A whole training step as one graph: ``zero_grad``, forward, ``backward`` and the optimizer of ``torch.compile(step)``.

Dynamo ends its graph at each of these. It can trace ``backward`` itself (``trace_autograd_ops``, PyTorch 2.12); added here
is what lets it go on from there, for graphs of this backend alone: the optimizer takes gradients that the graph makes, and
what a program returns of a graph that ``backward`` has used up comes back as eager mode gives it.

A step is not taken whole, but ends its graph as on the CPU, where a gradient would be seen on its way (hooks of parameters)
or is wanted again (``retain_graph``, ``create_graph``, ``inputs``), and where the loss depends on leaves that Dynamo does
not know.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

import torch
from torch import fx

from macatensor.runtime.boxed import Value
from macatensor.runtime.tensor import MacaTensor

log = logging.getLogger(__name__)

_USED_UP = "maca_used_up"  # in the meta of a result's node: a backward inside of the graph has freed what its own needs
_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_TWICE = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been "
    "freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify "
    "retain_graph=True if you need to backward through the graph a second time or if you need to access saved tensors "
    "after calling backward."
)

backends: list[object] = []  # ours, as ``torch.compile(backend=...)`` has them


def _is_ours(tx: Any) -> bool:
    """Does what is traced become a graph of ours, where its tensors are on the device?"""
    compiler = tx.output.compiler_fn
    while compiler is not None:
        if compiler in backends or isinstance(compiler, torch._TorchCompileInductorWrapper):
            return True
        compiler = getattr(compiler, "_torchdynamo_orig_backend", getattr(compiler, "compiler_fn", None))
    return False


def _attribute(variable: type) -> str:
    """The method of Dynamo's variables that gives an attribute: PyTorch 2.14 renamed it."""
    return "var_getattr" if hasattr(variable, "var_getattr") else "tp_getattro_impl"


def _fake(variable: Any) -> torch.Tensor:
    found: torch.Tensor = variable.as_proxy().node.meta["example_value"]
    return found


def _is_on_device(variable: Any) -> bool:
    return _fake(variable).device.type == "maca"


def teach() -> None:
    """Once all of Dynamo is there. Where PyTorch lacks what this needs, as 2.11 does, graphs end as on the CPU."""
    from torch._dynamo import config

    if not hasattr(config, "trace_autograd_ops"):
        return
    try:
        _teach_guards()
        _teach_optimizer()
        _teach_backward()  # the last: without it no step is whole
    except (AttributeError, ImportError, KeyError) as error:
        log.info("training steps are not compiled whole: %s", error)


def _teach_backward() -> None:
    """``loss.backward()`` becomes part of the graph, and ``parameter.grad`` is what it gave."""
    from torch._dynamo import config
    from torch._dynamo.output_graph import OutputGraph
    from torch._dynamo.variables.tensor import TensorVariable

    backward, attribute = TensorVariable.method_backward, getattr(TensorVariable, _attribute(TensorVariable))
    validate = OutputGraph._validate_outputs_safe_for_autograd_nodes

    def method_backward(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        leaves = _leaves(self, tx) if _is_ours(tx) and len(args) < 2 and set(kwargs) <= {"gradient"} else None
        if leaves is None:
            return backward(self, tx, *args, **kwargs)
        known = tx.output.leaf_var_creation_order
        count = len(known)
        known += leaves
        try:
            with config.patch(trace_autograd_ops=True):
                return backward(self, tx, *args, **kwargs)
        finally:
            del known[count : count + len(leaves)]

    def get(self: Any, tx: Any, name: str) -> Any:
        if (
            name == "grad"
            and _is_ours(tx)
            and tx.output.side_effects.has_pending_mutation_of_attr(self, name)
        ):
            return tx.output.side_effects.load_attr(
                self, name
            )  # PyTorch's says that it lies where the old one does
        return attribute(self, tx, name)

    def validate_outputs(self: Any, rv: list[Any], tx: Any) -> None:
        if not _is_ours(tx):
            return validate(self, rv, tx)
        for variable in rv:
            if isinstance(variable, TensorVariable) and _reaches(
                variable, self.autograd_grad_consumed_grad_fns
            ):
                variable.as_proxy().node.meta[_USED_UP] = True
        return None

    TensorVariable.method_backward = method_backward  # type: ignore[method-assign]
    methods = getattr(TensorVariable, "tp_methods", {})
    if "backward" in methods:  # where PyTorch 2.14 looks
        methods["backward"] = type(methods["backward"])(method_backward)
    setattr(TensorVariable, _attribute(TensorVariable), get)
    OutputGraph._validate_outputs_safe_for_autograd_nodes = validate_outputs  # type: ignore[method-assign]


def _reaches(variable: Any, nodes: set[Any]) -> bool:
    from torch._dynamo.output_graph import collect_reachable_grad_fns

    return bool(nodes and nodes & collect_reachable_grad_fns([(_fake(variable), None)]))


def _leaves(loss: Any, tx: Any) -> list[Any] | None:
    """The leaves that the graph holds instead of taking them, as it does an optimizer's parameters. None where the loss
    depends on others that Dynamo does not know, or where hooks wait for gradients."""
    from torch._dynamo.guards import install_guard
    from torch._dynamo.output_graph import collect_reachable_grad_fns
    from torch._dynamo.variables.tensor import TensorVariable

    if not _is_on_device(loss):
        return None
    effects = tx.output.side_effects
    tensors = {id(t): t for t in effects.keepalive if isinstance(t, torch.Tensor)}
    existing = {
        v: tensors[i]
        for i, v in effects.id_to_variable.items()
        if i in tensors and isinstance(v, TensorVariable)
    }
    made = [*tx.output.leaf_var_creation_order, *tx.output.input_source_to_var.values()]
    leaves = {id(_fake(v)): v for v in (*existing, *made) if isinstance(v, TensorVariable) and _is_leaf(v)}
    for node in collect_reachable_grad_fns([(_fake(loss), None)]):
        variable = getattr(node, "variable", None)  # of what accumulates a gradient
        if variable is not None:
            leaf = leaves.get(id(variable))
            if leaf is None or (leaf in existing and not _has_no_hooks(existing[leaf])):
                return None
    held = [v for v in existing if v.as_proxy().node.op == "get_attr"]
    for variable in dict.fromkeys([*held, *(v for v in leaves.values() if v in existing)]):
        if variable.source is not None:
            install_guard(variable.source.make_guard(_as_traced))
    return [v for v in held if _is_leaf(v)]


def _is_leaf(variable: Any) -> bool:
    return bool(variable.requires_grad and not variable.has_grad_fn)


def _has_no_hooks(tensor: torch.Tensor) -> bool:
    return all(getattr(tensor, name) is None for name in _HOOKS)


def _as_traced(builder: Any, guard: Any) -> None:
    """A leaf has the sizes, dtype and flags that it had, and nobody waits for its gradient. Of an optimizer's parameters
    Dynamo compares nothing but which tensors they are."""
    tensor = builder.get(guard)
    requires_grad, shape, dtype = tensor.requires_grad, tensor.shape, tensor.dtype

    def is_same(found: Any) -> bool:
        return bool(
            found._backward_hooks is None
            and found._post_accumulate_grad_hooks is None
            and found.requires_grad is requires_grad
            and found.dtype is dtype
            and found.shape == shape
        )

    builder.get_guard_manager(guard).add_lambda_guard(
        is_same, [f"{guard.name}: sizes, dtype, requires_grad, no hooks"], None
    )


def _teach_optimizer() -> None:
    """``optimizer.zero_grad()`` and ``step()`` do not end a graph; the gradients may be made in it."""
    from torch._dynamo.variables import functions
    from torch._dynamo.variables.constant import ConstantVariable
    from torch._dynamo.variables.optimizer import OptimizerVariable

    optimizer = importlib.import_module("torch.optim.optimizer")
    breaking = {
        c for c in optimizer._use_grad_for_differentiable.__code__.co_consts if isinstance(c, CodeType)
    }
    zero_grad = optimizer.Optimizer.zero_grad
    call_method = OptimizerVariable.call_method
    attribute = getattr(OptimizerVariable, _attribute(OptimizerVariable))
    call_skipped = functions.SkipFunctionVariable.call_function

    def get(self: Any, tx: Any, name: str) -> Any:
        if not _is_ours(tx):
            return attribute(self, tx, name)
        if name == "zero_grad" and type(self.value).zero_grad is zero_grad:
            return functions.UserMethodVariable(_zero_grad, self)
        if name == "step" and hasattr(vars(self.value).get("step"), "_wrapped_by_lr_sched"):
            # a learning rate scheduler's wrapper, which notes the call for a warning of the scheduler's
            self.value._opt_called = True
            return functions.UserMethodVariable(type(self.value).step, self)
        return attribute(self, tx, name)

    def call_optimizer(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        theirs = functools.partial(call_method, self, tx, name, args, kwargs)
        return _init_group(self, tx, theirs) if name == "_init_group" and _is_ours(tx) else theirs()

    def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        # it keeps gradients out of the optimizer's graph; so does the whole step's, which has no backward
        if self.value is torch._dynamo.graph_break and tx.f_code in breaking and _is_ours(tx):
            return ConstantVariable.create(None)
        return call_skipped(self, tx, args, kwargs)

    setattr(OptimizerVariable, _attribute(OptimizerVariable), get)
    OptimizerVariable.call_method = call_optimizer  # type: ignore[method-assign]
    functions.SkipFunctionVariable.call_function = call_function  # type: ignore[method-assign]


def _teach_guards() -> None:
    """A parameter of a model's that an optimizer has, too, stays the same tensor in both: PyTorch, which has no graph with
    both, does not compare them. A gradient that the graph makes is not looked at before."""
    from torch._C._dynamo.guards import install_object_aliasing_guard
    from torch._dynamo import guards
    from torch._dynamo.source import is_from_optimizer_source
    from torch._dynamo.variables import optimizer

    duplicate, install = guards.GuardBuilder.DUPLICATE_INPUT, vars(optimizer)["install_guard"]

    def duplicate_input(self: Any, guard: Any, source_b: Any) -> None:
        duplicate(self, guard, source_b)
        of_optimizers = [is_from_optimizer_source(s) for s in (guard.originating_source, source_b)]
        if any(of_optimizers) and type(self.get(guard)) is MacaTensor:
            install_object_aliasing_guard(
                self.get_guard_manager(guard),
                self.get_guard_manager_from_source(source_b),
                [f"{guard.name} is {source_b.name}"],
                None,
            )

    def install_guard(*found: Any, **how: Any) -> None:
        install(*(g for g in found if g.name not in _made_here), **how)

    guards.GuardBuilder.DUPLICATE_INPUT = duplicate_input  # type: ignore[method-assign]
    vars(optimizer)["install_guard"] = install_guard


_made_here: set[str] = set()  # names of gradients, while an optimizer is asked


def _zero_grad(self: torch.optim.Optimizer, set_to_none: bool = True) -> None:
    """``Optimizer.zero_grad``, as Dynamo traces it: a gradient that becomes None is not looked at."""
    for group in self.param_groups:
        for p in group["params"]:
            if set_to_none:
                p.grad = None
            elif p.grad is not None:
                p.grad.zero_()


def _init_group(self: Any, tx: Any, theirs: Callable[[], Any]) -> Any:
    """Dynamo asks the optimizer itself what it has of each parameter with a gradient; for gradients that are made in the
    graph it gets stand-ins."""
    from torch._dynamo.source import GradSource

    _made_here.clear()
    effects = tx.output.side_effects
    made: dict[torch.Tensor, Any] = {}
    for group in self.value.param_groups:
        for p in group["params"]:
            variable = effects.id_to_variable.get(id(p))
            if variable is not None and effects.has_pending_mutation(variable):
                if set(effects.store_attr_mutations[variable]) != {"grad"}:
                    return theirs()
                made[p] = effects.load_attr(variable, "grad")
                _made_here.add(GradSource(variable.source, "grad").name)
    if not made:
        return theirs()
    before = {p: p.grad for p in made}
    stand_ins: dict[int, Any] = {}
    wrap_tensor = self.wrap_tensor

    def wrap(tx: Any, value: torch.Tensor) -> Any:
        return stand_ins[id(value)] if id(value) in stand_ins else wrap_tensor(tx, value)

    self.wrap_tensor, self.graph_break_if_pending_mutation = wrap, lambda tx: None
    try:
        for p, grad in made.items():
            p.grad = None if grad.is_python_constant() else torch.empty_like(p)
            if p.grad is not None:
                stand_ins[id(p.grad)] = grad
        return theirs()
    finally:
        del self.wrap_tensor, self.graph_break_if_pending_mutation
        _made_here.clear()
        for p, grad in before.items():
            p.grad = grad


class _UsedUp(torch.autograd.Function):
    """A result whose graph is gone, as in eager mode after ``backward``."""

    @staticmethod
    def forward(ctx: Any, result: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(result)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(_TWICE)


def detach_used_up(graph: fx.GraphModule) -> list[int]:
    """Takes results whose gradients' graph is gone out of it. Which they are."""
    end = graph.graph.output_node()
    results: Any = end.args[0]
    found = [i for i, n in enumerate(results) if isinstance(n, fx.Node) and n.meta.get(_USED_UP)]
    if found:
        detached = list(results)
        for i in found:
            with graph.graph.inserting_before(end):
                detached[i] = graph.graph.call_method("detach", (results[i],))
            detached[i].meta["example_value"] = results[i].meta["example_value"].detach()
        end.args = (tuple(detached),)
        graph.recompile()
    return found


def is_whole(graph: fx.GraphModule) -> bool:
    """Does it have a backward in it?"""
    return bool(graph.graph.find_nodes(op="call_function", target=torch.autograd.grad))


def giving_used_up(
    compiled: Callable[..., Value], graph: Callable[..., Value], used: Sequence[int]
) -> Callable[..., Value]:
    """``compiled``, whose results ``used`` have a graph that is gone. Under ``detect_anomaly`` the operators run one by one,
    and autograd looks at each."""

    def run(*arguments: Value) -> Value:
        results = list(graph(*arguments) if torch.is_anomaly_enabled() else compiled(*arguments))
        if used:
            with torch.enable_grad():
                leaf = torch.empty(0, requires_grad=True, device="cpu")
                for i in used:
                    results[i] = _UsedUp.apply(results[i], leaf)  # type: ignore[no-untyped-call]
        return results

    return run
