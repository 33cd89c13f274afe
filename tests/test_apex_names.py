"""``apex`` where it is not installed: mixed precision, optimizers and norms against plain computations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import nn

from macatensor.packages import stand_ins


@pytest.fixture(autouse=True)
def names() -> Iterator[None]:
    stand_ins.provide("apex")
    yield
    import_module("apex.amp.casts").switch_off()
    stand_ins.withdraw()


def apex(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(f"apex.{module}" if module else "apex"), attribute)


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 9, 3)
    return nn.Sequential(*layers).maca()


def trained(
    level: str | None, steps: int = 12, **options: Any
) -> tuple[list[float], nn.Module, torch.optim.Optimizer]:
    """Losses, model and optimizer after ``steps`` of SGD in apex's way; None: without apex."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = None
    if level is not None:
        model, optimizer = apex("amp.initialize")(model, optimizer, opt_level=level, verbosity=0, **options)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 100)
    x, y = drawn(8, 2, 5, 5).maca(), (torch.arange(8) % 3).maca()
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        if level is None:
            loss.backward()
        else:
            with apex("amp.scale_loss")(loss, optimizer) as scaled:
                scaled.backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
        losses.append(loss.item())
    return losses, model, optimizer


@pytest.mark.parametrize("scale", [None, 128.0, "dynamic", "64.0"])
@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
def test_levels_train_as_float32_does(level: str, scale: float | str | None) -> None:
    plain, _, _ = trained(None)
    losses, model, optimizer = trained(level, loss_scale=scale)
    assert plain[-1] < plain[0] / 4
    tolerance = 1e-5 if level == "O0" else 0.05
    assert all(abs(a - b) <= tolerance * max(b, 0.2) for a, b in zip(losses, plain)), (losses, plain)
    dtype = torch.float16 if level == "O2" else torch.float32
    assert model[4].weight.dtype == dtype and model[1].weight.dtype == torch.float32  # type: ignore[index]
    assert all(p.dtype == torch.float32 for p in apex("amp.master_params")(optimizer))
    assert all(v.dtype != torch.float16 for v in model.state_dict().values())
    apex("amp.initialize")(nn.Linear(1, 1), enabled=False)
    assert not torch.is_autocast_enabled("maca")


def test_products_at_o1_are_in_float16() -> None:
    model = apex("amp.initialize")(network(), opt_level="O1", verbosity=0)
    assert model(drawn(1, 2, 5, 5).maca()).dtype == torch.float16
    assert nn.functional.softmax(drawn(2, 2).half().maca(), -1).dtype == torch.float32
    with apex("amp.disable_casts")():
        assert model(drawn(1, 2, 5, 5).maca()).dtype == torch.float32
    assert apex("amp.float_function")(torch.mm)(*[drawn(2, 2).half().maca()] * 2).dtype == torch.float32
    assert apex("amp.half_function")(torch.add)(*[drawn(2, 2).maca()] * 2).dtype == torch.float16
    pair = drawn(2).half().maca(), drawn(2).maca()
    assert apex("amp.promote_function")(lambda a, b: (a.dtype, b.dtype))(*pair) == (torch.float32,) * 2


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_overflow_skips_a_step_and_halves_the_scale(level: str) -> None:
    model = nn.Linear(2, 1).maca()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = apex("amp.initialize")(model, optimizer, opt_level=level, verbosity=0)
    before = [p.detach().clone() for p in apex("amp.master_params")(optimizer)]
    for factor, scale in ((float("inf"), 2.0**15), (1.0, 2.0**15)):
        with apex("amp.scale_loss")(model(torch.ones(1, 2).maca()).sum() * factor, optimizer) as scaled:
            scaled.backward()
        optimizer.step()
        optimizer.zero_grad()
        same = all(torch.equal(a, b) for a, b in zip(before, apex("amp.master_params")(optimizer)))
        assert same == (factor != 1.0)
        assert apex("amp.state_dict")()["loss_scaler0"]["loss_scale"] == scale
    state = apex("amp.state_dict")()
    assert state == {"loss_scaler0": {"loss_scale": 2.0**15, "unskipped": 1}}
    apex("amp.load_state_dict")({"loss_scaler0": {"loss_scale": 8.0, "unskipped": 3}})
    assert apex("amp.state_dict")()["loss_scaler0"] == {"loss_scale": 8.0, "unskipped": 3}


@pytest.mark.parametrize("delay", [False, True])
@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
def test_gradients_of_several_passes_are_added(level: str, delay: bool) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1).maca()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = apex("amp.initialize")(
        model, optimizer, opt_level=level, loss_scale=64.0, combine_grad=True, verbosity=0
    )
    for i, row in enumerate([[1.0, 2, 3, 4], [4.0, 3, 2, 1], [1.0, 0, 0, 0]]):
        loss = model(torch.tensor([row]).maca()).sum()
        with apex("amp.scale_loss")(loss, optimizer, delay_unscale=delay and i < 2) as scaled:
            scaled.backward()
    weight, bias = apex("amp.master_params")(optimizer)
    assert weight.grad.tolist() == [[6.0, 5, 5, 5]] and bias.grad.tolist() == [3.0]
    apex("contrib.clip_grad.clip_grad_norm_")(apex("amp.master_params")(optimizer), 1.0)
    assert abs(torch.cat([weight.grad.flatten(), bias.grad]).norm().item() - 1) < 1e-5


def test_wrong_calls_of_amp_are_refused() -> None:
    with pytest.raises(RuntimeError, match="has not been initialized"):
        with apex("amp.scale_loss")(torch.ones(1), None):
            pass
    with pytest.raises(RuntimeError, match="Unexpected optimization level O7"):
        apex("amp.initialize")(network(), opt_level="O7")
    with pytest.raises(RuntimeError, match="expected torch.float32"):
        apex("amp.initialize")(network().half())


def lamb(
    p: Any, g: Any, state: dict[str, Any], *, lr: float, decay: float, adam_w: bool, clip: float, nv: bool
) -> Any:
    """A step of LAMB in float64, as the paper and apex have it."""
    state["t"] = state.get("t", 0) + 1
    g = g / max(1.0, clip)
    g = g if adam_w else g + decay * p
    state["m"] = 0.9 * state.get("m", 0) + 0.1 * g
    state["v"] = 0.99 * state.get("v", 0) + 0.01 * g * g
    update = state["m"] / (1 - 0.9 ** state["t"]) / ((state["v"] / (1 - 0.99 ** state["t"])).sqrt() + 1e-6)
    update = update + decay * p if adam_w else update
    ratio = p.norm() / update.norm() if (nv or decay) and p.norm() and update.norm() else 1.0
    return p - lr * ratio * update


@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("adam_w", [False, True])
@pytest.mark.parametrize("nv", [False, True])
def test_lamb_is_that_of_the_paper(decay: float, adam_w: bool, nv: bool) -> None:
    shapes = [(5, 7), (3,), (2,)]
    starts = [drawn(*shape, seed=i).double() for i, shape in enumerate(shapes[:2])] + [
        torch.zeros(2).double()
    ]
    ours = [nn.Parameter(t.float().maca()) for t in starts]
    optimizer = apex("optimizers.FusedLAMB")(
        ours, lr=0.1, betas=(0.9, 0.99), weight_decay=decay, adam_w_mode=adam_w, use_nvlamb=nv
    )
    states: list[dict[str, Any]] = [{} for _ in starts]
    for step in range(4):
        grads = [drawn(*shape, seed=10 * step + i + 3) for i, shape in enumerate(shapes)]
        total = torch.cat([g.double().flatten() for g in grads]).norm().item()
        for p, g in zip(ours, grads):
            p.grad = g.maca()
        optimizer.step()
        starts = [
            lamb(p, g.double(), s, lr=0.1, decay=decay, adam_w=adam_w, clip=total, nv=nv)
            for p, g, s in zip(starts, grads, states)
        ]
    for p, expected in zip(ours, starts):
        assert torch.allclose(p.detach().cpu().double(), expected, 1e-5, 1e-6)


OPTIMIZERS: dict[str, tuple[dict[str, Any], Callable[[Any], torch.optim.Optimizer]]] = {
    "FusedAdam": ({"weight_decay": 0.1}, lambda p: torch.optim.AdamW(p, 0.1, weight_decay=0.1)),
    "FusedAdam plain": (
        {"weight_decay": 0.1, "adam_w_mode": False},
        lambda p: torch.optim.Adam(p, 0.1, weight_decay=0.1),
    ),
    "FusedSGD": (
        {"momentum": 0.9, "nesterov": True},
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    ),
    "NpuFusedAdadelta": ({}, lambda p: torch.optim.Adadelta(p, 0.1)),
    "NpuFusedAdamW": ({}, lambda p: torch.optim.AdamW(p, 0.1)),
    "NpuFusedSGD": ({"momentum": 0.9}, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_agree_with_pytorch(name: str) -> None:
    options, theirs = OPTIMIZERS[name]
    host = [nn.Parameter(drawn(4, 5).double()), nn.Parameter(drawn(3, seed=1).double())]
    ours = [nn.Parameter(p.detach().float().maca()) for p in host]
    reference, optimizer = theirs(host), apex(f"optimizers.{name.split()[0]}")(ours, lr=0.1, **options)
    for step in range(4):
        for i, (p, q) in enumerate(zip(host, ours)):
            g = drawn(*p.shape, seed=step * 7 + i)
            p.grad, q.grad = g.double(), g.maca()
        reference.step()
        optimizer.step()
    for p, q in zip(host, ours):
        assert torch.allclose(q.detach().cpu().double(), p.detach(), 1e-5, 1e-6)
    optimizer.zero_grad()
    assert all(q.grad is None or not q.grad.any() for q in ours)


def test_adam_without_bias_correction() -> None:
    p = nn.Parameter(torch.ones(3).maca())
    optimizer = apex("optimizers.FusedAdam")([p], lr=0.1, bias_correction=False)
    p.grad = torch.full((3,), 2.0).maca()
    optimizer.step()
    expected = 1 - 0.1 * 0.2 / ((0.001 * 4) ** 0.5 + 1e-8)
    assert torch.allclose(p.detach().cpu(), torch.full((3,), expected))


def test_what_is_not_served_says_what_is() -> None:
    parameters = [nn.Parameter(torch.ones(1).maca())]
    for name in ("FusedNovoGrad", "FusedAdagrad", "FusedMixedPrecisionLamb"):
        with pytest.raises(NotImplementedError, match=f"{name} is not served on maca"):
            apex(f"optimizers.{name}")(parameters)
    with pytest.raises(RuntimeError, match="AMSGrad"):
        apex("optimizers.FusedAdam")(parameters, amsgrad=True)
    with pytest.raises(NotImplementedError, match="wd_after_momentum"):
        apex("optimizers.FusedSGD")(parameters, 0.1, wd_after_momentum=True)
    with pytest.raises(TypeError, match="activation"):
        apex("mlp.MLP")([1, 1], activation="gelu")


@pytest.mark.parametrize("kind", ["Fused", "MixedFused"])
@pytest.mark.parametrize("norm", ["LayerNorm", "RMSNorm"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_norms_agree_with_pytorch(kind: str, norm: str, dtype: torch.dtype) -> None:
    module = apex(f"normalization.{kind}{norm}")(6).maca()
    x = drawn(3, 6, dtype=dtype)
    given = x.maca().requires_grad_()
    found = module(given)
    host = x.double().requires_grad_()
    function = nn.functional.layer_norm if norm == "LayerNorm" else nn.functional.rms_norm
    expected = function(host, (6,), eps=1e-5)
    assert found.dtype == (dtype if kind == "Fused" else torch.float32)
    assert torch.allclose(found.cpu().double(), expected, atol=4 * torch.finfo(found.dtype).eps)
    weights = drawn(3, 6, seed=1)
    (found * weights.maca()).sum().backward()
    (expected * weights).sum().backward()
    assert given.grad is not None and host.grad is not None and module.weight.grad is not None
    assert torch.allclose(given.grad.cpu().double(), host.grad, atol=16 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("activation", ["none", "relu", "sigmoid"])
def test_perceptrons_are_layers_in_a_row(activation: str) -> None:
    model = apex("mlp.MLP")([4, 8, 3], activation=activation).maca()
    act: Any = {"none": lambda t: t, "relu": torch.relu, "sigmoid": torch.sigmoid}[activation]
    x = drawn(5, 4).maca()
    hidden = act(nn.functional.linear(x, model.weights[0], model.biases[0]))
    assert torch.equal(model(x), act(nn.functional.linear(hidden, model.weights[1], model.biases[1])))
    assert sorted(model.state_dict()) == ["bias_0", "bias_1", "weight_0", "weight_1"]


def test_functions_on_lists_agree() -> None:
    applier, functions = apex("multi_tensor_apply.multi_tensor_applier"), import_module("amp_C")
    xs, flag = [drawn(4, 3).maca(), drawn(5, seed=1).half().maca()], torch.zeros(1, dtype=torch.int).maca()
    outs = [torch.empty_like(x, dtype=torch.float32) for x in xs]
    applier(functions.multi_tensor_scale, flag, [xs, outs], 0.5)
    assert all(torch.equal(o, x.float() * 0.5) for o, x in zip(outs, xs)) and not flag.item()
    applier(functions.multi_tensor_axpby, flag, [xs, outs, outs], 2.0, 3.0, -1)
    assert all(torch.allclose(o, x.float() * 3.5) for o, x in zip(outs, xs))
    total, each = applier(functions.multi_tensor_l2norm, flag, [outs], True)
    assert torch.allclose(total, torch.cat([o.flatten() for o in outs]).norm()) and each.shape == (2,)
    applier(functions.multi_tensor_scale, flag, [[xs[0] / 0], [outs[0]]], 1.0)
    assert flag.item() == 1
