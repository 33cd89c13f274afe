"""``torch.nn.utils`` on maca, against the same on the host."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from running import close
from torch import nn
from torch.nn import utils
from torch.nn.utils import parametrizations, parametrize, prune, rnn

pytestmark = pytest.mark.supports("torch.nn.utils")

X, IMAGE = torch.linspace(-1, 2, 8).reshape(2, 4), torch.linspace(-2, 2, 2 * 3 * 6 * 6).reshape(2, 3, 6, 6)


def pair(make: Callable[[], nn.Module]) -> tuple[nn.Module, nn.Module]:
    """The same module on the device and on the host."""
    torch.manual_seed(0)
    host = make()
    return copy.deepcopy(host).to("maca"), host


def same_parameters(ours: nn.Module, host: nn.Module, **tolerance: float) -> None:
    theirs = dict(host.named_parameters())
    for name, p in ours.named_parameters():
        close(p, theirs[name], **tolerance)
        if theirs[name].grad is not None:
            close(p.grad, theirs[name].grad, **tolerance)


@pytest.mark.parametrize("foreach", [None, True, False])
def test_clipping(foreach: bool | None) -> None:
    ours, host = pair(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(64, 2)))
    for model, x in ((ours, IMAGE.maca()), (host, IMAGE)):
        model(x).square().sum().backward()
    for order in (2.0, float("inf"), 1.0):
        a = utils.clip_grad_norm_(ours.parameters(), 0.5, order, foreach=foreach)
        b = utils.clip_grad_norm_(host.parameters(), 0.5, order, foreach=foreach)
        close(a, b, rtol=1e-5, atol=1e-6)
        same_parameters(ours, host, rtol=1e-4, atol=1e-6)
    for model in (ours, host):
        utils.clip_grad_value_(model.parameters(), 0.01, foreach=foreach)
    same_parameters(ours, host, rtol=1e-4, atol=1e-6)
    grads = [p.grad for p in ours.parameters()]
    total = utils.get_total_norm(grads, foreach=foreach)
    utils.clip_grads_with_norm_(ours.parameters(), 1e-3, total, foreach=foreach)
    assert utils.get_total_norm(grads).item() <= 1.001e-3
    grads[0].fill_(float("nan"))
    with pytest.raises(RuntimeError, match="non-finite"):
        utils.clip_grad_norm_(ours.parameters(), 1.0, error_if_nonfinite=True, foreach=foreach)


def test_parameters_as_one_vector() -> None:
    """Row-major, whatever the layout: a channels_last weight comes out as the host's does."""
    ours, host = pair(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Linear(2, 2)))
    assert (
        ours[0].weight.is_contiguous(memory_format=torch.channels_last) and not ours[0].weight.is_contiguous()
    )
    vector = utils.parameters_to_vector(ours.parameters())
    close(vector, utils.parameters_to_vector(host.parameters()))
    utils.vector_to_parameters(vector * 2, ours.parameters())
    utils.vector_to_parameters(utils.parameters_to_vector(host.parameters()) * 2, host.parameters())
    same_parameters(ours, host)
    vector.sum().backward()
    with pytest.raises(TypeError, match="different devices"):
        utils.parameters_to_vector([ours[1].weight, host[1].weight])


NORMS: dict[str, tuple[Callable[[nn.Module], nn.Module], bool]] = {  # and whether it is for matrices only
    "parametrizations.weight_norm": (parametrizations.weight_norm, False),
    "parametrizations.spectral_norm": (parametrizations.spectral_norm, False),
    "parametrizations.orthogonal, matrix_exp": (parametrizations.orthogonal, True),
    "parametrizations.orthogonal, cayley": (
        lambda m: parametrizations.orthogonal(m, orthogonal_map="cayley"),
        True,
    ),
    "parametrizations.orthogonal, householder": (
        lambda m: parametrizations.orthogonal(m, orthogonal_map="householder"),
        True,
    ),
    "weight_norm": (utils.weight_norm, False),
    "spectral_norm": (utils.spectral_norm, False),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("when", ["before the move", "after a forward", "on the device"])
@pytest.mark.parametrize("name", NORMS)
def test_normalized_weights(name: str, when: str) -> None:
    normalize, matrices = NORMS[name]
    cases: list[tuple[Callable[[], nn.Module], torch.Tensor]] = [(lambda: nn.Linear(4, 4), X)]
    cases += [] if matrices else [(lambda: nn.Conv2d(3, 4, 3), IMAGE)]
    for make, x in cases:
        torch.manual_seed(0)
        host = make()
        ours: Any = copy.deepcopy(host)
        if when == "on the device":
            ours.to("maca")
        torch.manual_seed(5)
        normalize(host)
        torch.manual_seed(5)
        normalize(ours)
        if when == "after a forward":
            host(x), ours(x)
        ours.to("maca")
        ours.load_state_dict(host.state_dict())
        for _ in range(2):
            a, b = ours(x.maca()), host(x)
            close(a, b, rtol=1e-4, atol=1e-5)
        a.square().sum().backward()
        b.square().sum().backward()
        same_parameters(ours, host, rtol=1e-3, atol=1e-4)


def test_weights_of_a_row_of_norms() -> None:
    """PyTorch's kernel counts the norms' numbers, whatever their sizes."""
    v, g = torch.arange(1.0, 13).view(3, 4), torch.tensor([1.0, 2.0, 3.0])
    close(torch._weight_norm(v.maca(), g.maca(), 0), torch._weight_norm(v, g, 0))
    with pytest.raises(RuntimeError):
        torch._weight_norm(v.maca(), g[:2].maca(), 0)


def test_norms_are_removed() -> None:
    ours, host = pair(lambda: nn.Linear(4, 4))
    for model in (ours, host):  # copies of one parametrized module would share a class
        torch.manual_seed(3)
        parametrizations.orthogonal(model)
        parametrize.remove_parametrizations(model, "weight")
        assert not parametrize.is_parametrized(model)
    same_parameters(ours, host, rtol=1e-5, atol=1e-6)
    for add, remove in (
        (utils.weight_norm, utils.remove_weight_norm),
        (utils.spectral_norm, utils.remove_spectral_norm),
    ):
        layer: Any = add(nn.Linear(4, 4).to("maca"))
        layer(X.maca())
        assert isinstance(remove(layer).weight, nn.Parameter) and layer.weight.device.type == "maca"


def test_packed_sequences() -> None:
    sequences = [torch.rand(n, 3) for n in (4, 2, 3)]
    ours, host = pair(lambda: nn.LSTM(3, 5, 2, bidirectional=True))
    results = []
    for model, xs in ((ours, [s.maca() for s in sequences]), (host, sequences)):
        packed = rnn.pack_sequence(xs, enforce_sorted=False)
        assert packed.batch_sizes.device.type == "cpu"  # as for CUDA
        output, (h, c) = model(packed)
        padded, lengths = rnn.pad_packed_sequence(output, batch_first=True, padding_value=-1.0)
        assert lengths.tolist() == [4, 2, 3]
        padded.sum().backward()
        results.append((padded, h, c))
    for a, b in zip(*results):
        close(a, b, rtol=1e-5, atol=1e-6)
    same_parameters(ours, host, rtol=1e-4, atol=1e-5)
    moved = rnn.pack_sequence(sequences, enforce_sorted=False).to("maca")
    assert moved.data.device.type == "maca" and moved.cpu().data.device.type == "cpu"
    padded = rnn.pad_sequence([s.maca() for s in sequences], batch_first=True, padding_value=7.0)
    close(padded, rnn.pad_sequence(sequences, batch_first=True, padding_value=7.0))
    assert [len(s) for s in rnn.unpad_sequence(padded, torch.tensor([4, 2, 3]), batch_first=True)] == [
        4,
        2,
        3,
    ]
    with pytest.raises(RuntimeError, match="1D CPU int64 tensor"):
        rnn.pack_padded_sequence(
            padded, torch.tensor([4, 2, 3]).maca(), batch_first=True, enforce_sorted=False
        )


def test_pruning() -> None:
    """The tutorial of pruning: local, structured, global, iterated, made permanent."""
    ours, host = pair(lambda: nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(96, 5)))
    for model, x in ((ours, IMAGE.maca()), (host, IMAGE)):
        prune.l1_unstructured(model[0], "weight", amount=0.3)
        prune.l1_unstructured(model[0], "weight", amount=0.2)
        prune.ln_structured(model[3], "weight", amount=0.4, n=2, dim=0)
        parts = [(model[0], "bias"), (model[3], "bias"), (model[3], "weight"), (model[0], "weight")]
        prune.global_unstructured(parts, pruning_method=prune.L1Unstructured, amount=0.5)
        model(x).square().sum().backward()
    close(ours(IMAGE.maca()), host(IMAGE), rtol=1e-4, atol=1e-5)
    same_parameters(ours, host, rtol=1e-3, atol=1e-4)
    theirs = dict(host.named_buffers())
    for name, mask in ours.named_buffers():
        assert torch.equal(mask.cpu(), theirs[name])
    prune.remove(ours[0], "weight")
    assert isinstance(ours[0].weight, nn.Parameter) and (ours[0].weight == 0).sum().item() > 60
    for random in (
        prune.random_unstructured,
        lambda m, n, amount: prune.random_structured(m, n, amount, dim=0),
    ):
        layer = nn.Conv2d(3, 6, 3).to("maca")
        random(layer, "weight", 0.5)
        assert (layer.weight == 0).float().mean().item() == pytest.approx(0.5, abs=0.01)
    mask = torch.zeros(6, 3, 3, 3, device="maca")
    assert (
        prune.custom_from_mask(nn.Conv2d(3, 6, 3).to("maca"), "weight", mask).weight.abs().sum().item() == 0
    )


def test_fusion_for_inference() -> None:
    torch.manual_seed(0)
    convolution, norm = nn.Conv2d(3, 4, 3).to("maca"), nn.BatchNorm2d(4).to("maca")
    norm(convolution(IMAGE.maca()))
    convolution.eval(), norm.eval()
    expected = norm(convolution(IMAGE.maca()))
    torch.testing.assert_close(
        utils.fuse_conv_bn_eval(convolution, norm)(IMAGE.maca()), expected, rtol=1e-4, atol=1e-5
    )
    linear, norm1 = nn.Linear(4, 3).to("maca").eval(), nn.BatchNorm1d(3).to("maca").eval()
    torch.testing.assert_close(utils.fuse_linear_bn_eval(linear, norm1)(X.maca()), norm1(linear(X.maca())))


def test_the_rest() -> None:
    assert utils.skip_init(nn.Linear, 3, 4, device="maca").weight.device.type == "maca"
    layer = nn.Conv2d(3, 4, 3).to("maca")
    for form in (torch.contiguous_format, torch.channels_last):
        utils.convert_conv2d_weight_memory_format(layer, form)
        assert layer.weight.is_contiguous(memory_format=form)
