"""Captured graphs: replays compute what the program computes, and what cannot be captured is refused by name."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from macatensor import counters, maca


def captured(function, *args, **options):
    g = torch.maca.MacaGraph()
    with torch.maca.graph(g, **options):
        result = function(*args)
    return g, result


@pytest.mark.supports("torch.maca: MacaGraph graph is_current_stream_capturing")
def test_a_replay_computes_on_new_inputs() -> None:
    x, w = torch.rand(4, 8).maca(), torch.rand(8, 3).maca()
    ran = []
    g, y = captured(
        lambda: ran.append(torch.maca.is_current_stream_capturing()) or ((x @ w).relu() + 1)[1:].sum(0)
    )
    assert ran == [True] and not torch.maca.is_current_stream_capturing()
    for seed in range(3):
        new = torch.rand(4, 8, generator=torch.Generator().manual_seed(seed))
        x.copy_(new)
        before = counters()["launches"]
        g.replay()
        assert counters()["launches"] - before == g.launches() > 0
        torch.testing.assert_close(y.cpu(), ((new @ w.cpu()).relu() + 1)[1:].sum(0))


def test_a_capture_runs_nothing() -> None:
    x = torch.zeros(5).maca()
    g, _ = captured(lambda: x.add_(1))
    assert x.tolist() == [0] * 5
    g.replay()
    g.replay()
    assert x.tolist() == [2] * 5
    g, _ = captured(lambda: (x.zero_(), x[1:3].fill_(7)))
    assert x.tolist() == [2] * 5
    g.replay()
    assert x.tolist() == [0, 7, 7, 0, 0]


def test_a_capture_reuses_memory_that_it_freed() -> None:
    x = torch.rand(1 << 16).maca()
    expected = x.cpu()
    for _ in range(20):
        expected = expected.sin() + 1

    def chain():
        y = x
        for _ in range(20):
            y = y.sin() + 1
        return y

    gc.collect()  # what earlier tests left must not be freed meanwhile
    before = torch.maca.memory_allocated()
    g, y = captured(chain)
    assert torch.maca.memory_allocated() - before <= 5 * x.nbytes  # of 40 results
    others = [torch.full((1 << 16,), -1.0, device="maca") for _ in range(8)]
    g.replay()
    torch.testing.assert_close(y.cpu(), expected)
    assert all(bool((o == -1).all()) for o in others)
    del g, y, others
    gc.collect()
    assert torch.maca.memory_allocated() == before


def test_a_graph_keeps_alive_what_it_found() -> None:
    x = torch.ones(1000).maca()
    g, y = captured(torch.mul, x, 3)
    del x
    gc.collect()
    others = [torch.zeros(1000).maca() for _ in range(4)]
    g.replay()
    assert y.cpu().unique().tolist() == [3] and not any(o.any() for o in others)
    g.reset()
    assert y.cpu().unique().tolist() == [3]
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        g.replay()


def test_random_numbers_differ_from_replay_to_replay() -> None:
    x = torch.zeros(1000).maca()
    g, (y, z) = captured(lambda: (torch.rand_like(x), torch.nn.functional.dropout(x + 1, 0.5)))
    torch.maca.manual_seed(3)
    found = []
    for _ in range(2):
        g.replay()
        found.append((y.cpu(), z.cpu()))
    assert not torch.equal(found[0][0], found[1][0]) and not torch.equal(found[0][1], found[1][1])
    torch.maca.manual_seed(3)
    assert torch.equal(torch.rand_like(x).cpu(), found[0][0])


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW], ids=["SGD", "AdamW"])
def test_a_training_step_is_what_it_is_without(optimizer) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5)
    )
    options = {"capturable": True} if optimizer is torch.optim.AdamW else {"momentum": 0.9}
    eager, graphed = maca(copy.deepcopy(plain)), maca(copy.deepcopy(plain))
    inputs = [torch.rand(4, 3, 8, 8) for _ in range(6)]
    labels = [torch.randint(5, (4,)) for _ in range(6)]

    def step(model, opt, x, y):
        opt.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        return loss

    one, two = (
        optimizer(eager.parameters(), lr=0.01, **options),
        optimizer(graphed.parameters(), lr=0.01, **options),
    )
    x, y = inputs[0].maca(), labels[0].maca()
    expected = [step(eager, one, a.maca(), b.maca()).item() for a, b in zip(inputs, labels)]
    found = [step(graphed, two, x, y).item()]  # makes the optimizer's state
    g, loss = captured(step, graphed, two, x, y)
    for a, b in zip(inputs[1:], labels[1:]):
        x.copy_(a)
        y.copy_(b)
        g.replay()
        found.append(loss.item())
    assert found == pytest.approx(expected, rel=1e-5)
    for p, q in zip(eager.state_dict().values(), graphed.state_dict().values()):
        torch.testing.assert_close(p.cpu(), q.cpu(), rtol=1e-4, atol=1e-6)


def test_weights_are_packed_anew_when_they_change() -> None:
    conv = maca(nn.Conv2d(16, 16, 3)).requires_grad_(False).eval()
    x = torch.rand(2, 16, 12, 12).maca()
    g, y = captured(conv, x)
    for _ in range(3):
        g.replay()
        torch.testing.assert_close(y.cpu(), conv(x).cpu(), rtol=1e-4, atol=1e-5)
        conv.weight.data.mul_(2)


@pytest.mark.supports("torch.maca.graph_pool_handle")
def test_graphs_share_a_pool() -> None:
    pool = torch.maca.graph_pool_handle()
    x = torch.rand(1 << 15).maca()
    first, y = captured(lambda: x * 2, pool=pool)
    second, z = captured(lambda: y + 1, pool=pool)
    assert first.pool() is second.pool() is pool
    first.replay()
    second.replay()
    torch.testing.assert_close(z.cpu(), x.cpu() * 2 + 1)
    del pool, first
    gc.collect()
    second.replay()
    torch.testing.assert_close(z.cpu(), x.cpu() * 2 + 1)


def test_side_streams_and_backward_threads_keep_their_order() -> None:
    side = torch.maca.Stream()
    x = torch.rand(64, 64, device="maca", requires_grad=True)

    def forked():
        y = x * 2
        side.wait_stream(torch.maca.current_stream())
        with torch.maca.stream(side):
            z = y @ y
        torch.maca.current_stream().wait_stream(side)
        return torch.autograd.grad((z + y).sum(), x)[0]

    g, found = captured(forked)
    g.replay()
    torch.testing.assert_close(found.cpu(), forked().cpu())
    with torch.maca.stream(side):
        g.replay()
    side.synchronize()
    torch.testing.assert_close(found.cpu(), forked().cpu())


REFUSED = {
    "a copy to the host": lambda x: x.sum().item(),
    "aten._local_scalar_dense.default": lambda x: bool(x.any()),
    "aten.nonzero.default": lambda x: x.nonzero(),
    "aten.masked_select.default": lambda x: x.masked_select(x > 0),
    "synchronize": lambda x: torch.maca.synchronize(),
    "Stream.synchronize": lambda x: torch.maca.current_stream().synchronize(),
    "Event.synchronize": lambda x: torch.maca.Event().synchronize(),
    "empty_cache": lambda x: torch.maca.empty_cache(),
    "a copy from the host": lambda x: torch.ones(3).maca(),
    "a generator of the host": lambda x: torch.bernoulli(x, generator=torch.Generator()),
}


@pytest.mark.parametrize("named", REFUSED)
def test_unrepeatable_operators_are_refused_by_name(named: str) -> None:
    x = torch.rand(8).maca()
    g = torch.maca.MacaGraph()
    with pytest.raises(RuntimeError, match="while a graph is being captured") as error, torch.maca.graph(g):
        REFUSED[named](x)
    assert named in str(error.value)
    assert not torch.maca.is_current_stream_capturing() and (x + 1).sum().item() > 8
    with torch.maca.graph(g):  # empty again
        y = x + 1
    g.replay()
    assert torch.equal(y.cpu(), x.cpu() + 1)


def test_misuse() -> None:
    g = torch.maca.MacaGraph()
    for call in (g.replay, g.instantiate, g.pool, g.launches, g.capture_end):
        with pytest.raises(RuntimeError):
            call()
    with pytest.raises(TypeError, match="graph_pool_handle"):
        g.capture_begin(pool=3)
    with pytest.raises(RuntimeError, match="capture error mode"):
        g.capture_begin(capture_error_mode="loud")
    with pytest.raises(TypeError, match="MacaGraph"), torch.maca.graph(object()):
        pass
    with pytest.raises(RuntimeError, match="another graph is being captured"), torch.maca.graph(g):
        torch.maca.MacaGraph().capture_begin()
    x = torch.ones(3).maca()
    with torch.maca.graph(g):
        x + 1
    with pytest.raises(RuntimeError, match="captured already"):
        g.capture_begin()


def test_a_failed_launch_in_a_replay_raises() -> None:
    x, index = torch.rand(4, 3).maca(), torch.tensor([0, 3]).maca()
    g, _ = captured(lambda: x.index_select(0, index))
    g.replay()
    index.copy_(torch.tensor([0, 4]))
    with pytest.raises(IndexError):
        g.replay()
    index.copy_(torch.tensor([0, 1]))
    g.replay()


def test_debug_dump(tmp_path) -> None:
    x = torch.ones(3).maca()
    g = torch.maca.MacaGraph()
    with pytest.raises(RuntimeError, match="enable_debug_mode"):
        g.debug_dump(str(tmp_path / "g.dot"))
    g.enable_debug_mode()
    with torch.maca.graph(g):
        (x + 1).exp()
    g.debug_dump(str(tmp_path / "g.dot"))
    text = (tmp_path / "g.dot").read_text()
    assert "aten.add.Tensor" in text and "aten.exp.default" in text and "0 -> 1" in text


@pytest.mark.supports("torch.maca.make_graphed_callables")
def test_graphed_modules_train_as_they_are() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3))
    eager, graphed = maca(copy.deepcopy(plain)), maca(copy.deepcopy(plain))
    head = maca(nn.Linear(3, 2))
    x = torch.rand(5, 6, device="maca", requires_grad=True)
    made = torch.maca.make_graphed_callables(graphed, (torch.rand(5, 6, device="maca", requires_grad=True),))
    assert made is graphed
    for seed in range(3):
        x = torch.rand(5, 6, generator=torch.Generator().manual_seed(seed)).maca().requires_grad_()
        expected = torch.autograd.grad(head(eager(x)).square().sum(), [x, *eager.parameters()])
        found = torch.autograd.grad(head(made(x)).square().sum(), [x, *made.parameters()])
        for a, b in zip(found, expected):
            torch.testing.assert_close(a.cpu(), b.cpu(), rtol=1e-4, atol=1e-6)
    graphed.eval()
    torch.testing.assert_close(graphed(x[:2]).cpu(), eager(x[:2]).cpu(), rtol=1e-4, atol=1e-6)


def test_graphed_functions_and_their_errors() -> None:
    w = torch.rand(3, 3).maca()
    double, total = torch.maca.make_graphed_callables(
        (lambda a: {"y": a * 2, "z": a @ w}, lambda a, b: (a + b).sum()),
        ((torch.rand(2, 3).maca(),), (torch.rand(2, 3).maca(), torch.rand(2, 3).maca())),
    )
    x = torch.rand(2, 3)
    out = double(x.maca())
    torch.testing.assert_close(out["z"].cpu(), x @ w.cpu())
    torch.testing.assert_close(total(out["y"], out["z"]).cpu(), (x * 2 + x @ w.cpu()).sum())
    with pytest.raises(RuntimeError, match="shape"):
        double(torch.rand(4, 3).maca())
    with pytest.raises(TypeError, match="expected 2"):
        total(x.maca())
    with pytest.raises(AssertionError, match="only Tensors"):
        torch.maca.make_graphed_callables(lambda a: a, (3,))
    hooked = maca(nn.Linear(3, 3))
    hooked.register_forward_hook(lambda *a: None)
    with pytest.raises(AssertionError, match="hooks"):
        torch.maca.make_graphed_callables(hooked, (x.maca(),))


def test_what_a_replay_could_not_repeat_is_refused() -> None:
    """Silently captured, a step count stays that of the capture and a checkpoint's masks are not drawn again."""
    model = nn.Linear(3, 3, device="maca")
    model(torch.ones(1, 3, device="maca")).sum().backward()
    plain, capturable = (torch.optim.Adam(model.parameters(), capturable=c) for c in (False, True))
    x = torch.ones(64, device="maca", requires_grad=True)

    def recompute() -> None:
        kept = torch.utils.checkpoint.checkpoint(nn.functional.dropout, x, use_reentrant=False)
        torch.autograd.grad(kept.sum(), x)

    state = torch.maca.get_rng_state()
    for call, words in (
        (
            plain.step,
            "MACA graph capture of step\\(\\) for an instance of Adam but param_groups' capturable is False",
        ),
        (recompute, "preserve_rng_state=False"),
        (lambda: torch.maca.manual_seed(1), "seeding the generator is not permitted"),
        (lambda: torch.maca.set_rng_state(state), "setting the generator's state"),
        (lambda: torch.maca.graph(torch.maca.MacaGraph()).__enter__(), "another graph is being captured"),
    ):
        if "another" not in words:
            call()  # outside of a capture it is right
        with pytest.raises(RuntimeError, match=words), torch.maca.graph(torch.maca.MacaGraph()):
            call()
        assert not torch.maca.is_current_stream_capturing()
    with torch.maca.graph(torch.maca.MacaGraph()):
        capturable.step()
    plain.step()


def test_packed_weights_lie_outside_what_replays_write() -> None:
    """A temporary that is as large as the packed weight, and idle when the capture ends."""
    torch.manual_seed(0)
    x, weight = torch.rand(128, 100), torch.rand(200, 100)
    ours, layer = maca(x), maca(weight)
    with torch.inference_mode():
        F.linear(ours, layer)
        graph = torch.maca.MacaGraph()
        with torch.maca.graph(graph):
            y = F.linear(ours, layer).relu() + 1
            z = F.linear(y[:, :100], layer).relu() + 1
    for value in (1.0, 2.0):
        ours.copy_(x * value)
        graph.replay()
        first = F.linear(x * value, weight).relu() + 1
        torch.testing.assert_close(y.cpu(), first)
        torch.testing.assert_close(z.cpu(), F.linear(first[:, :100], weight).relu() + 1)
