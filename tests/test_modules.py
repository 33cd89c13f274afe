"""Module.to keeps Parameters themselves: ties, optimizers, hooks, gradients and dtypes stay right."""

from __future__ import annotations

import copy

import pytest
import torch
from running import close, nothing_leaked
from torch import nn

from macatensor import MacaTensor, maca


@pytest.mark.supports("torch.nn.Module.to")
@pytest.mark.parametrize(
    "move", [lambda m: m.to("maca"), lambda m: m.maca(), maca, lambda m: m.to(torch.device("maca", 0))]
)
def test_identity(move: object) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2, bias=False))
    before = dict(model.named_parameters())
    assert move(model) is model
    after = dict(model.named_parameters())
    assert list(before) == list(after)
    for name, p in before.items():
        assert after[name] is p and isinstance(p, MacaTensor) and isinstance(p, nn.Parameter)
        assert p.requires_grad and p.is_leaf
    assert isinstance(model[1].running_mean, MacaTensor) and isinstance(
        model[1].num_batches_tracked, MacaTensor
    )
    assert model[1].num_batches_tracked.dtype == torch.int64


def test_there_and_back() -> None:
    model = nn.Linear(3, 4)
    weight, values = model.weight, model.weight.detach().clone()
    model.to("maca").to("cpu")
    assert model.weight is weight and type(weight) is nn.Parameter and torch.equal(weight, values)
    model.maca().cpu()
    assert model.weight is weight and torch.equal(weight.detach(), values)
    model(torch.ones(1, 3)).sum().backward()
    assert type(weight.grad) is torch.Tensor


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Embedding(5, 4)
        self.middle = nn.Linear(4, 4)
        self.decoder = nn.Linear(4, 5, bias=False)
        self.decoder.weight = self.encoder.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decoder(torch.tanh(self.middle(self.encoder(x))))


@pytest.mark.parametrize(
    "convert", [lambda m: m, lambda m: m.double(), lambda m: m.half(), lambda m: m.bfloat16().float()]
)
def test_tied_weights_stay_tied(convert: object) -> None:
    host = Tied()
    model = convert(maca(copy.deepcopy(host)))
    assert model.decoder.weight is model.encoder.weight
    assert len(list(model.parameters())) == 3
    loss = model(maca([0, 1, 2])).float().sum()
    loss.backward()
    host(torch.tensor([0, 1, 2])).sum().backward()
    close(model.encoder.weight.grad.float(), host.encoder.weight.grad, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}], ids=str)
def test_an_optimizer_from_before_the_move_works(kind: type, options: dict[str, bool]) -> None:
    torch.manual_seed(0)
    host, ours = nn.Linear(3, 2), nn.Linear(3, 2)
    ours.load_state_dict(host.state_dict())
    optimizers = [kind(m.parameters(), lr=0.1, **options) for m in (host, ours)]
    maca(ours)
    x = torch.randn(5, 3)
    for _ in range(3):
        for model, data, optimizer in ((host, x, optimizers[0]), (ours, maca(x), optimizers[1])):
            optimizer.zero_grad()
            model(data).square().sum().backward()
            optimizer.step()
    close(ours.weight, host.weight, rtol=1e-4, atol=1e-5)
    close(ours.bias, host.bias, rtol=1e-4, atol=1e-5)


def test_gradients_and_hooks_move_too() -> None:
    model = nn.Linear(3, 2)
    model(torch.ones(1, 3)).sum().backward()
    gradient = model.weight.grad.clone()
    seen = []
    handle = model.weight.register_hook(lambda g: seen.append(type(g)))
    model.bias.register_post_accumulate_grad_hook(lambda p: seen.append(p is model.bias))
    maca(model)
    assert isinstance(model.weight.grad, MacaTensor) and torch.equal(model.weight.grad.cpu(), gradient)
    model.zero_grad()
    model(maca(torch.ones(1, 3))).sum().backward()
    assert sorted(seen, key=str) == [MacaTensor, True]
    handle.remove()
    model(maca(torch.ones(1, 3))).sum().backward()
    assert len(seen) == 3
    model.zero_grad()
    model(maca(torch.ones(1, 3))).sum().backward()
    assert torch.equal(model.weight.grad.cpu(), gradient)


def test_dtype_conversions() -> None:
    model = maca(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)))
    weight = model[0].weight
    for convert, dtype in ((model.half, torch.float16), (model.double, torch.float64), (model.bfloat16, torch.bfloat16),
                           (model.float, torch.float32)):  # fmt: skip
        convert()
        assert model[0].weight is weight and weight.dtype == dtype and (weight + 1).dtype == dtype
        assert isinstance(weight, MacaTensor) and model[1].num_batches_tracked.dtype == torch.int64
    model.to("maca", torch.float64)
    assert weight.dtype == torch.float64
    model.to(memory_format=torch.channels_last)
    assert weight.is_contiguous(memory_format=torch.channels_last)
    host = nn.Linear(2, 2).to("maca", torch.bfloat16)
    assert host.weight.dtype == torch.bfloat16 and isinstance(host.weight, MacaTensor)


def test_x_data_assignment_in_a_module() -> None:
    model = maca(nn.Linear(2, 2))
    weight = model.weight
    weight.data = maca(torch.eye(2))
    close(model(maca([[1.0, 2.0]])) - model.bias, torch.tensor([[1.0, 2.0]]))
    weight.data = weight.data * 2
    with torch.no_grad():
        weight.copy_(torch.eye(2) * 3)
    close(model(maca([[1.0, 2.0]])) - model.bias, torch.tensor([[3.0, 6.0]]))


def test_data_assigned_across_the_boundary() -> None:
    """As programs that keep weights on the host until they are used do, and those that build layers there first."""
    layer = nn.Linear(3, 2)
    p, b = layer.weight, layer.bias
    p.note = "kept"
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    before, held = p.detach().clone(), torch.rand(4, 3).maca()
    p.grad = torch.ones(2, 3)
    p.data = p.data.to("maca")
    assert layer.weight is p and type(p) is MacaTensor and isinstance(p, nn.Parameter) and p.note == "kept"
    assert p.grad.is_maca and p.requires_grad and p.is_leaf
    b.data = b.data.to("maca")
    layer(held).sum().backward()
    optimizer.step()
    assert optimizer.param_groups[0]["params"][0] is p and not torch.equal(p.cpu(), before)
    stepped = p.detach().cpu()
    p.data = p.data.cpu()
    assert type(p) is nn.Parameter and torch.equal(p.detach(), stepped) and p.note == "kept"

    p.data = p.data.half()
    p.data = p.data.maca()
    assert (p.dtype, p.grad.dtype) == (torch.half, torch.float32) and p.is_maca and p.grad.is_maca

    other = torch.ones(2, requires_grad=True)
    other.data = held  # of other sizes, whose memory it shares
    assert other.is_maca and other.requires_grad and other.data_ptr() == held.data_ptr()
    plain = torch.zeros(2)
    plain.data = held
    plain.add_(1)
    assert torch.equal(plain.cpu(), held.cpu()) and not plain.requires_grad
    for target in (other * 2, (torch.ones(2, requires_grad=True) * 2)):
        with pytest.raises(
            RuntimeError, match=r"data of one on .* that a graph computes; assign to its detach\(\)"
        ):
            target.data = torch.ones(2) if target.is_maca else held
    loss = (other * other).sum()
    with pytest.raises(RuntimeError, match="that a graph or a weak reference holds"):
        other.data = torch.ones(2)
    with pytest.raises(TypeError, match="Variable data has to be a tensor"):
        other.data = 2
    loss.backward()
    assert torch.equal(other.grad.cpu(), 2 * other.detach().cpu())
    assert torch.Tensor.data.__get__ is not None and type(torch.Tensor.data).__name__ == "getset_descriptor"


def test_packed_weights_follow_every_kind_of_write() -> None:
    layer, x = maca(nn.Conv2d(3, 8, 3)), maca(torch.rand(2, 3, 16, 16))
    host = nn.Conv2d(3, 8, 3)
    with torch.inference_mode():
        layer(x)

    def check() -> None:
        host.load_state_dict({k: v.cpu() for k, v in layer.state_dict().items()})
        with torch.inference_mode():
            close(layer(x), host(x.cpu().contiguous()), rtol=1e-4, atol=1e-5)

    with torch.no_grad():
        layer.weight.mul_(2)
    check()
    layer.weight.data.add_(1)
    check()
    layer.weight.data = maca(torch.rand(8, 3, 3, 3))
    check()
    layer.load_state_dict(nn.Conv2d(3, 8, 3).state_dict())
    check()
    with torch.no_grad():
        layer.weight[0].fill_(0.5)
        layer.weight.copy_(layer.weight.cpu() * 3)
    check()
    layer.weight.detach()[1:3] = 0.0
    check()


def test_load_state_dict_assign_and_strictness() -> None:
    model = maca(nn.Linear(3, 2))
    host = nn.Linear(3, 2)
    model.load_state_dict(host.state_dict())
    assert torch.equal(model.weight.cpu(), host.weight)
    model.load_state_dict({k: maca(v) for k, v in host.state_dict().items()}, assign=True)
    assert isinstance(model.weight, MacaTensor)
    with pytest.raises(RuntimeError, match="size mismatch"):
        model.load_state_dict(nn.Linear(4, 2).state_dict())


def test_to_empty_and_meta() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    with pytest.raises(NotImplementedError, match="to_empty"):
        model.to("maca")
    model.to_empty(device="maca")
    assert isinstance(model[0].weight, MacaTensor) and isinstance(model[1].running_mean, MacaTensor)
    model[0].reset_parameters()
    model[1].reset_parameters()
    assert torch.isfinite(model(maca(torch.rand(4, 3)))).all().item()


def test_modules_built_on_the_device() -> None:
    model = nn.Sequential(nn.Linear(3, 2, device="maca"), nn.Conv1d(2, 2, 1, device="maca"))
    assert all(isinstance(p, MacaTensor) for p in model.parameters())
    with torch.device("maca"):
        other = nn.Linear(3, 2)
    assert isinstance(other.weight, MacaTensor) and isinstance(other.weight, nn.Parameter)
    assert other.weight.abs().max().item() <= 3**-0.5


def test_parametrizations() -> None:
    model = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    host = copy.deepcopy(model)
    maca(model)
    x = torch.rand(4, 3)
    close(model(maca(x)), host(x), rtol=1e-5, atol=1e-6)
    model(maca(x)).square().sum().backward()
    host(x).square().sum().backward()
    for ours, theirs in zip(model.parameters(), host.parameters()):
        close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)


def test_a_host_module_is_converted_as_ever() -> None:
    model = nn.Linear(3, 2).to(torch.float64)
    weight = model.weight
    model.float()
    assert model.weight is weight and not torch.__future__.get_swap_module_params_on_conversion()
    state = {"calls": 0}

    def count(t: torch.Tensor) -> torch.Tensor:
        state["calls"] += 1
        return t

    model._apply(count)
    assert state["calls"] == 2
    nn.Sequential(model, nn.Linear(2, 2))._apply(count)
    assert state["calls"] == 6


def test_overwritten_parameters_are_new_ones() -> None:
    model = nn.Linear(3, 2)
    weight, view = model.weight, model.weight[:]
    weight.grad = torch.ones(2, 3)
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        model.to("maca")
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
    assert weight.device.type == view.device.type == "cpu" and model.weight is not weight
    assert isinstance(model.weight, nn.Parameter) and model.weight.device.type == "maca"
    assert torch.equal(model.weight.grad.cpu(), torch.ones(2, 3))


def test_a_move_leaks_nothing() -> None:
    with nothing_leaked():
        model = maca(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)))
        model(maca(torch.rand(2, 64))).sum().backward()
        model.cpu()
        del model


def test_a_module_names_the_graph_holding_it() -> None:
    model = nn.Linear(2, 2)
    kept = model(model(torch.ones(1, 2)))
    with pytest.raises(RuntimeError, match="graph of an earlier forward holds it"):
        model.to("maca")
    del kept
    assert model.to("maca").weight.device.type == "maca"


@pytest.mark.parametrize(
    "convert",
    [
        lambda m: m.to("maca"),
        lambda m: m.half(),
        lambda m: m.to(memory_format=torch.channels_last),
        lambda m: m.to_empty(device="maca"),
    ],
)
def test_a_live_graph_lets_modules_be_converted(convert: object) -> None:
    model = maca(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Linear(4, 4)))
    weight = model[0].weight
    kept = model[0](maca(torch.ones(1, 3, 4, 4)))
    assert convert(model)[0].weight is weight and isinstance(weight, MacaTensor)
    assert kept.shape == (1, 4, 2, 2)


def test_each_parameter_of_a_module_moves_for_itself() -> None:
    for there, back in (("maca", "cpu"), ("cpu", "maca")):
        layer = nn.Linear(4, 4)
        layer.bias = nn.Parameter(layer.bias.detach().to(there))
        bias, weight = layer.bias, layer.weight
        layer.to(back)
        assert layer.bias is bias and layer.weight is weight
        assert {p.device.type for p in layer.parameters()} == {back}


def test_tied_weights_go_to_the_host() -> None:
    model = Tied()
    before = dict(model.named_parameters())
    model.to("maca").cpu()
    assert model.decoder.weight is model.encoder.weight
    assert all(before[name] is p for name, p in model.named_parameters())


def test_the_type_of_a_parameter_makes_another() -> None:
    parameter = maca(nn.Linear(2, 2)).weight
    for data in (torch.ones(2), torch.ones(2, device="maca")):
        made = type(parameter)(data, requires_grad=False)
        assert isinstance(made, nn.Parameter) and made.device == data.device and not made.requires_grad


def test_script_modules_move_train_and_are_saved(tmp_path) -> None:
    host = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 2))
    x = torch.rand(2, 3, 6, 6)
    expected = host(x).detach()
    for make in (torch.jit.script, lambda m: torch.jit.trace(m, x)):
        module = make(host).to("maca")
        for p in module.parameters():
            assert p.device.type == "maca" and isinstance(p, nn.Parameter) and p.requires_grad
        torch.testing.assert_close(module(maca(x)).cpu(), expected, rtol=1e-4, atol=1e-5)
        module(maca(x)).square().sum().backward()
        assert all(p.grad is not None and p.grad.device.type == "maca" for p in module.parameters())
        torch.jit.save(module, str(tmp_path / "module.pt"))
        for place in ("cpu", "maca", torch.device("maca", 0)):
            loaded = torch.jit.load(str(tmp_path / "module.pt"), map_location=place)
            given = maca(x) if torch.device(place).type == "maca" else x
            assert all(t.device.type == torch.device(place).type for t in loaded.state_dict().values())
            torch.testing.assert_close(loaded(given).cpu(), expected, rtol=1e-4, atol=1e-5)
        assert next(module.parameters()).device.type == "maca"


def test_data_parallel_calls_the_module_as_it_is() -> None:
    model = torch.nn.Linear(3, 2).to("maca")
    x = torch.rand(4, 3, device="maca")
    for made in (torch.nn.DataParallel(model), torch.nn.DataParallel(model, device_ids=[0])):
        out = made(x)
        out.sum().backward()
        assert torch.equal(out, model(x)) and next(iter(made.state_dict())) == "module.weight"
