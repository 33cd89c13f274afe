"""A training step compiled whole, ``torch.compile(step)``, is one graph and does what eager mode does."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compiled_graphs import graphs, nothing_compiled  # noqa: F401 - a fixture
from torch import nn

import macatensor

Step = Callable[[torch.Tensor], Any]
Made = tuple[nn.Module, torch.optim.Optimizer, Step]

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.05),
    "Adam, amsgrad": lambda p: torch.optim.Adam(p, lr=0.05, amsgrad=True, weight_decay=0.1),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD, momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
}


def model_of(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).to("maca")


def plain(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def made(
    step_of: Callable[[Any, Any], Step] = plain,
    optimizer_of: Callable[[Any], torch.optim.Optimizer] = OPTIMIZERS["AdamW"],
) -> Made:
    model = model_of()
    optimizer = optimizer_of(model.parameters())
    return model, optimizer, step_of(model, optimizer)


def inputs(count: int, rows: int = 3) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(rows, 4, generator=generator).to("maca") for _ in range(count)]


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    found = [p.detach().cpu() for p in model.parameters()]
    found += [p.grad.cpu() for p in model.parameters() if p.grad is not None]
    for state in optimizer.state_dict()["state"].values():
        found += [t.cpu().float() for t in state.values() if isinstance(t, torch.Tensor)]
    return found


def compare(eager: Made, compiled: Made) -> None:
    expected, found = state_of(*eager[:2]), state_of(*compiled[:2])
    assert len(expected) == len(found)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True)


def run_both(
    step_of: Callable[[Any, Any], Step] = plain,
    optimizer_of: Callable[[Any], torch.optim.Optimizer] = OPTIMIZERS["AdamW"],
    between: Callable[[int, Made], None] = lambda i, one: None,
    steps: int = 5,
    **choices: Any,
) -> tuple[Made, Made]:
    """Steps in both modes, in each ``between(i, made)`` before step ``i``; all that can be read is equal after each."""
    eager, compiled = made(step_of, optimizer_of), made(step_of, optimizer_of)
    step = torch.compile(compiled[2], backend="maca", **choices)
    for i, x in enumerate(inputs(steps)):
        for one in (eager, compiled):
            between(i, one)
        torch.manual_seed(i)
        expected = eager[2](x)
        torch.manual_seed(i)
        found = step(x)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
        compare(eager, compiled)
    return eager, compiled


def breaks() -> int:
    return sum(torch._dynamo.utils.counters["graph_break"].values())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_is_one_graph(name: str) -> None:
    before = macatensor.counters()["fallbacks"]
    run_both(optimizer_of=OPTIMIZERS[name])
    assert breaks() == 0 and macatensor.counters()["fallbacks"] == before
    assert graphs() <= 2  # momentum is there from the second step on


def test_a_step_has_no_graph_break() -> None:
    run_both(fullgraph=True)


def test_a_returned_loss_says_its_graph_is_gone() -> None:
    _, _, step = made()
    loss = torch.compile(step, fullgraph=True)(inputs(1)[0])
    assert loss.requires_grad and loss.grad_fn is not None and not loss.is_leaf
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()
    assert not loss.detach().requires_grad


def test_results_on_the_way_can_be_returned() -> None:
    def step_of(model: Any, optimizer: Any) -> Step:
        def step(x: torch.Tensor) -> Any:
            optimizer.zero_grad()
            hidden = model[0](x)
            logits = model[2](model[1](hidden))
            loss = logits.square().mean()
            loss.backward()
            optimizer.step()
            return loss, logits, hidden.detach(), x * 2

        return step

    run_both(step_of)
    assert breaks() == 0


@pytest.mark.parametrize("kind", ["exponential", "one_cycle", "by_hand"])
def test_a_changing_learning_rate_is_used(kind: str) -> None:
    schedulers: dict[int, Any] = {}

    def between(i: int, one: Made) -> None:
        optimizer = one[1]
        if kind == "by_hand":
            optimizer.param_groups[0]["lr"] = 0.05 / (i + 1)
            return
        scheduler = schedulers.get(id(optimizer))
        if scheduler is None:
            schedulers[id(optimizer)] = (
                torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
                if kind == "exponential"
                else torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20)
            )
        else:
            scheduler.step()

    run_both(between=between, steps=6)
    assert breaks() == 0 and graphs() == 2


def test_schedulers_see_that_a_compiled_step_was_taken() -> None:
    _, optimizer, step = made()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    torch.compile(step, fullgraph=True)(inputs(1)[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler.step()


def accumulating(model: Any, optimizer: Any) -> Step:
    def step(x: torch.Tensor) -> torch.Tensor:
        for part in (x[:2], x[2:]):
            (model(part).square().mean() / 2).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return x.sum()

    return step


def zeroing(model: Any, optimizer: Any) -> Step:
    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def by_module(model: Any, optimizer: Any) -> Step:
    def step(x: torch.Tensor) -> torch.Tensor:
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def without_zeroing(model: Any, optimizer: Any) -> Step:
    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def clipping(model: Any, optimizer: Any) -> Step:
    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        return loss

    return step


def dropping(model: Any, optimizer: Any) -> Step:
    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.dropout(model(x), 0.5).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def in_bfloat16(model: Any, optimizer: Any) -> Step:
    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("maca", torch.bfloat16):
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def reading_the_loss(model: Any, optimizer: Any) -> Step:
    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        if loss.item() > 0.05:  # the program asks the device for a number
            optimizer.step()
        return loss

    return step


def twice(model: Any, optimizer: Any) -> Step:
    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward(retain_graph=True)
        loss.backward()
        optimizer.step()
        return loss

    return step


def partly(model: Any, optimizer: Any) -> Step:
    """Its last layer takes no part."""

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model[0](x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


WHOLE = [accumulating, zeroing, by_module, without_zeroing, clipping, dropping, in_bfloat16, partly]


@pytest.mark.parametrize("step_of", [*WHOLE, reading_the_loss, twice], ids=lambda f: str(f.__name__))
def test_programs_of_steps_are_eagers(step_of: Callable[[Any, Any], Step]) -> None:
    run_both(step_of)
    assert (breaks() == 0) == (step_of in WHOLE)


def test_scaled_gradients_are_eagers() -> None:
    scalers: dict[int, Any] = {}

    def step_of(model: Any, optimizer: Any) -> Step:
        scaler = scalers[id(model)] = torch.amp.GradScaler("maca", init_scale=2.0**40, growth_interval=2)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            with torch.autocast("maca", torch.float16):
                loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return loss

        return step

    eager, compiled = run_both(step_of)
    found = [scalers[id(one[0])].state_dict() for one in (eager, compiled)]
    assert found[0] == found[1] and found[0]["scale"] < 2.0**40


def test_loaded_weights_and_states_are_used() -> None:
    kept: dict[int, Any] = {}

    def between(i: int, one: Made) -> None:
        model, optimizer = one[:2]
        if i == 1:
            kept[id(model)] = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        elif i == 3:
            weights, states = kept[id(model)]
            model.load_state_dict(weights)
            optimizer.load_state_dict(states)

    run_both(between=between)


@pytest.mark.parametrize("change", ["data", "write", "dtype", "freeze", "replace", "group", "decay"])
def test_changed_parameters_are_used(change: str) -> None:
    def between(i: int, one: Made) -> None:
        model, optimizer = one[0], one[1]
        layer: Any = model[0]  # type: ignore[index]
        if i != 2:
            return
        with torch.no_grad():
            if change == "data":
                layer.weight.data = layer.weight.data.clone() * 2
            elif change == "write":
                layer.weight.mul_(2)
            elif change == "replace":
                layer.weight = nn.Parameter(layer.weight * 2)  # the optimizer keeps the old one
        if change == "freeze":
            layer.weight.requires_grad_(False)
        elif change == "dtype":
            layer.bias.data = layer.bias.data.double().float()
        elif change == "group":
            optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2, device="maca"))], "lr": 0.5})
        elif change == "decay":
            optimizer.param_groups[0]["weight_decay"] = 0.5

    run_both(between=between)


def test_another_dtype_is_another_program() -> None:
    model, _, step = made(optimizer_of=OPTIMIZERS["SGD"])
    compiled = torch.compile(step)
    compiled(inputs(1)[0])
    model.double()  # in place: each parameter is the tensor that it was
    x = inputs(1)[0].double()
    other = copy.deepcopy(model)
    expected = plain(other, torch.optim.SGD(other.parameters(), lr=0.1))(x)
    torch.testing.assert_close(compiled(x), expected)
    assert expected.dtype == torch.float64


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_of_parameters_are_called(kind: str, when: str) -> None:
    calls: list[Any] = []

    def hook(tensor: torch.Tensor) -> None:
        calls.append(tensor.shape)

    def between(i: int, one: Made) -> None:
        if i == (0 if when == "before" else 2):
            getattr(next(one[0].parameters()), kind)(hook)

    run_both(between=between, steps=4)
    assert len(calls) == 2 * (4 if when == "before" else 2)


def test_step_hooks_of_optimizers_are_called() -> None:
    calls: list[int] = []

    def between(i: int, one: Made) -> None:
        if i == 2:
            one[1].register_step_post_hook(lambda *of: calls.append(i))

    run_both(between=between, steps=4)
    assert len(calls) == 4


def test_changing_batches_are_eagers() -> None:
    eager, compiled = made(), made()
    step = torch.compile(compiled[2])
    for rows in (3, 5, 4, 3, 7):
        x = inputs(1, rows)[0]
        torch.testing.assert_close(step(x), eager[2](x), rtol=1e-4, atol=1e-5)
        compare(eager, compiled)
    assert breaks() == 0 and graphs() == 2


def test_gradients_kept_from_a_step_stay() -> None:
    model, _, step = made()
    compiled = torch.compile(step)
    x, y = inputs(2)
    compiled(x)
    kept = [p.grad for p in model.parameters()]
    copies = [g.clone() for g in kept if g is not None]
    compiled(y)
    for grad, copied, p in zip(kept, copies, model.parameters()):
        assert torch.equal(grad, copied) and p.grad is not grad  # type: ignore[arg-type]


def test_anomalies_are_found() -> None:
    def step_of(model: Any, optimizer: Any) -> Step:
        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = (model(x) * 0).sqrt().sum()
            loss.backward()
            return loss

        return step

    _, _, step = made(step_of)
    compiled = torch.compile(step)
    x = inputs(1)[0]
    compiled(x)
    with pytest.warns(UserWarning, match="Anomaly"), torch.autograd.detect_anomaly():
        with pytest.raises(RuntimeError, match="returned nan values"):
            compiled(x)


def test_other_backends_break_where_the_cpu_breaks() -> None:
    found = []
    for device in ("cpu", "maca"):
        model = model_of().to(device)
        step = plain(model, torch.optim.SGD(model.parameters(), lr=0.1))
        said = torch._dynamo.explain(step)(inputs(1)[0].to(device))
        found.append((said.graph_count, said.graph_break_count))
        torch._dynamo.reset()
    assert found[0] == found[1]
