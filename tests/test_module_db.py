"""Every module of PyTorch's module database: forward and backward against the host in float32, NHWC and NCHW."""

from __future__ import annotations

import copy
import random
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.testing._internal.common_modules import ModuleInfo, module_db

import macatensor
from macatensor.parity.transport import replace
from macatensor.runtime.random import seed_host_and_device

FORWARD_BAR, BACKWARD_BAR = 0.98, 0.97
LAYOUTS = ["nhwc", "nchw"]


class Reason(NamedTuple):
    """Why a module cannot agree. ``stage`` is where it ends: "forward" (backward is not reached) or "backward"."""

    stage: str
    why: str


EXPECTED_FAILURES: dict[str, Reason] = {}


def _seed() -> None:
    seed_host_and_device(0)
    np.random.seed(0)
    random.seed(0)


def _leaves(values: Any) -> Any:
    """Fresh tensors of the same elements, leaves that want gradients where the samples do."""
    return replace(values, lambda t: t.detach().clone().requires_grad_(t.requires_grad))


def _to_device(values: Any) -> Any:
    return replace(values, lambda t: t.detach().to("maca").requires_grad_(t.requires_grad))


def _tensors(values: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    replace(values, lambda t: (found.append(t), t)[1])
    return found


class Outcome(NamedTuple):
    samples: int
    forward: str | None  # the first failure
    backward: str | None


def _compare(ours: list[Any], host: list[Any], what: str) -> None:
    assert len(ours) == len(host), f"{what}: {len(ours)} tensors, the host has {len(host)}"
    for i, (a, b) in enumerate(zip(ours, host)):
        if a is None or b is None:
            assert a is b, f"{what} {i}: one is None"
            continue
        assert a.device.type == "maca", f"{what} {i} lies on {a.device}"
        try:
            torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=1e-4, atol=1e-4, equal_nan=True)
        except AssertionError as e:
            raise AssertionError(f"{what} {i}: {e}") from None


def _line(stage: str, sample: int, training: bool, e: BaseException) -> str:
    words = str(e).strip().replace("\n", " ")
    return f"sample {sample}, training={training}, {stage}: {type(e).__name__}: {words[:600]}"


def examine(info: ModuleInfo, layout: str) -> Outcome:
    """All samples of a module; the host decides which of them are valid."""
    forward = backward = None
    samples = 0
    for training in (True, False) if info.train_and_eval_differ else (False,):
        _seed()
        inputs = info.module_inputs_func(
            info, device="cpu", dtype=torch.float32, requires_grad=True, training=training
        )
        for i, sample in enumerate(inputs):
            _seed()
            host = info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs)
            host.to(torch.float32).train(training)
            if sample.forward_input is None:
                continue
            host_args = _leaves((sample.forward_input.args, sample.forward_input.kwargs))
            lazy = info.is_lazy
            if lazy:  # takes its parameters' sizes from a first call
                with torch.no_grad():
                    host(*_leaves(host_args[0]), **_leaves(host_args[1]))
            with macatensor.layout.policy(layout):
                _seed()
                ours = info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs)
                ours.to(torch.float32).train(training)
                our_args = _to_device((sample.forward_input.args, sample.forward_input.kwargs))
                if lazy:
                    with torch.no_grad():
                        ours(*_leaves(sample.forward_input.args)[0:], **_leaves(sample.forward_input.kwargs))
                ours.load_state_dict(host.state_dict())
                ours.to("maca")
                _seed()
                host_results = _tensors(host(*host_args[0], **host_args[1]))
                samples += 1
                try:
                    _seed()
                    our_results = _tensors(ours(*our_args[0], **our_args[1]))
                    _compare(our_results, host_results, "result")
                    _compare(list(ours.buffers()), list(host.buffers()), "buffer")
                except Exception as e:
                    forward = forward or _line("forward", i, training, e)
                    backward = backward or _line("forward", i, training, e)
                    continue
                try:
                    _check_backward(ours, our_args, our_results, host, host_args, host_results)
                except Exception as e:
                    backward = backward or _line("backward", i, training, e)
    return Outcome(samples, forward, backward)


def _check_backward(
    ours: Any, our_args: Any, our_results: list[Any], host: Any, host_args: Any, host_results: list[Any]
) -> None:
    pairs = [(a, b) for a, b in zip(our_results, host_results) if b.requires_grad]
    if not pairs:
        return
    _seed()
    grads = [torch.randn_like(b) for _, b in pairs]
    torch.autograd.backward([b for _, b in pairs], grads)
    torch.autograd.backward([a for a, _ in pairs], [g.to("maca") for g in grads])
    for a, b in zip(_tensors(our_args), _tensors(host_args)):
        _compare([a.grad], [b.grad], "gradient of an input")
    for (name, a), (_, b) in zip(ours.named_parameters(), host.named_parameters()):
        _compare([a.grad], [b.grad], f"gradient of {name}")


def _second_derivatives(module: Any, args: Any) -> list[torch.Tensor | None]:
    """Gradients of the results' sum, and of their squares' sum again; None where there is none."""
    leaves = [t for t in _tensors(args) if t.requires_grad] + list(module.parameters())
    results = [t for t in _tensors(module(*args[0], **args[1])) if t.requires_grad]
    ones = [torch.ones_like(t) for t in results]
    first = torch.autograd.grad(results, leaves, ones, create_graph=True, allow_unused=True)
    again = [g for g in first if g is not None and g.requires_grad]
    ones = [torch.ones_like(g) for g in again]
    squares = [g.square() for g in again]
    second = torch.autograd.grad(squares, leaves, ones, allow_unused=True) if again else ()
    # a graph that was dropped shows as a gradient that needs none
    return [*(g if g is None or g.requires_grad else g.detach() for g in first), *second]


@pytest.mark.parametrize("info", module_db, ids=lambda info: info.name)
def test_second_derivatives(info: ModuleInfo) -> None:
    """In float64 with cotangents that have no history, against the host; where the host has none, ours may raise."""
    for training in (True, False) if info.train_and_eval_differ else (False,):
        _seed()
        inputs = info.module_inputs_func(
            info, device="cpu", dtype=torch.float64, requires_grad=True, training=training
        )
        for sample in inputs:
            if sample.forward_input is None:
                continue
            given = (sample.forward_input.args, sample.forward_input.kwargs)
            _seed()
            module = info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs)
            module.to(torch.float64).train(training)
            if info.is_lazy:
                with torch.no_grad():
                    module(*_leaves(given[0]), **_leaves(given[1]))
            ours = copy.deepcopy(module).to("maca")
            try:
                _seed()
                host = _second_derivatives(module, _leaves(given))
            except RuntimeError:
                continue
            _seed()
            found = _second_derivatives(ours, _to_device(given))
            assert [g is not None and g.requires_grad for g in found] == [
                g is not None and g.requires_grad for g in host
            ]
            for a, b in zip(found, host, strict=True):
                if a is None or b is None:
                    assert a is b
                else:
                    torch.testing.assert_close(
                        a.detach().cpu(), b.detach(), rtol=1e-6, atol=1e-8, equal_nan=True
                    )


@pytest.fixture(scope="module")
def outcomes() -> dict[tuple[str, str], Outcome]:
    """What the tests below found, for the bars."""
    return {}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("info", module_db, ids=lambda info: info.name)
def test_module(info: ModuleInfo, layout: str, outcomes: dict[tuple[str, str], Outcome]) -> None:
    outcome = outcomes[info.name, layout] = examine(info, layout)
    assert outcome.samples, "no sample has an input"
    expected = EXPECTED_FAILURES.get(info.name)
    if expected is None:
        assert outcome.forward is None, outcome.forward
        assert outcome.backward is None, outcome.backward
        return
    if expected.stage == "forward":
        assert outcome.forward is not None, f"{info.name} passes: take it out of EXPECTED_FAILURES"
    else:
        assert outcome.forward is None, outcome.forward
        assert outcome.backward is not None, f"{info.name} passes: take it out of EXPECTED_FAILURES"
    pytest.xfail(expected.why)


def test_bars(outcomes: dict[tuple[str, str], Outcome]) -> None:
    """Over all modules, when all ran."""
    if len(outcomes) != len(module_db) * len(LAYOUTS):
        pytest.xfail("a selection of the modules ran")
    for layout in LAYOUTS:
        found = [outcome for (_, ran), outcome in outcomes.items() if ran == layout]
        forward = sum(o.forward is None for o in found) / len(found)
        backward = sum(o.backward is None for o in found) / len(found)
        assert forward >= FORWARD_BAR and backward >= BACKWARD_BAR, (layout, forward, backward)
