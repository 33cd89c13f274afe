"""Seeds, states and host generators: the same numbers for the same seed, whatever the number of threads."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from running import run_python
from torch import nn

from macatensor import maca


def draw() -> list[torch.Tensor]:
    return [
        torch.rand(1000, device="maca").cpu(),
        torch.randn(1001, device="maca").cpu(),
        torch.randint(0, 100, (50,), device="maca").cpu(),
        torch.randperm(50, device="maca").cpu(),
        nn.functional.dropout(torch.ones(500, device="maca"), 0.3).cpu(),
        torch.bernoulli(torch.full((100,), 0.5, device="maca")).cpu(),
    ]


def equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b))


@pytest.mark.supports("torch.maca: initial_seed manual_seed manual_seed_all seed")
def test_seeds() -> None:
    torch.maca.manual_seed(5)
    first, second = draw(), draw()
    assert not equal(first, second)
    torch.maca.manual_seed(5)
    assert equal(draw(), first) and equal(draw(), second)
    torch.maca.manual_seed(6)
    assert not torch.equal(draw()[0], first[0])
    assert torch.maca.initial_seed() == 6
    torch.maca.seed()
    assert torch.maca.initial_seed() != 6
    torch.maca.manual_seed_all(7)
    assert torch.maca.initial_seed() == 7


@pytest.mark.supports("torch.manual_seed")
def test_torch_manual_seed_seeds_the_device() -> None:
    torch.manual_seed(11)
    first = draw()
    torch.manual_seed(11)
    assert equal(draw(), first)
    torch.random.manual_seed(-3)
    first = draw()
    torch.manual_seed(-3)
    assert equal(draw(), first)


@pytest.mark.supports("torch.maca: get_rng_state set_rng_state")
def test_states() -> None:
    torch.maca.manual_seed(1)
    draw()
    state = torch.maca.get_rng_state()
    assert state.dtype == torch.uint8 and state.device.type == "cpu"
    first = draw()
    torch.maca.set_rng_state(state)
    assert equal(draw(), first)
    torch.maca.set_rng_state_all(torch.maca.get_rng_state_all())
    for bad in (torch.zeros(3, dtype=torch.uint8), torch.zeros(16)):
        with pytest.raises((RuntimeError, TypeError)):
            torch.maca.set_rng_state(bad)


@pytest.mark.supports("torch.random.fork_rng")
def test_fork_rng() -> None:
    torch.maca.manual_seed(2)
    first = draw()
    torch.maca.manual_seed(2)
    with torch.random.fork_rng(devices=[0], device_type="maca"):
        draw()
        torch.maca.manual_seed(99)
    assert equal(draw(), first)


def test_host_generators() -> None:
    makers = (
        lambda g: torch.rand(20, device="maca", generator=g),
        lambda g: torch.randn(20, device="maca", generator=g),
        lambda g: torch.randint(0, 1000, (20,), device="maca", generator=g),
        lambda g: torch.empty(20, device="maca").uniform_(generator=g),
        lambda g: torch.empty(20, device="maca").normal_(generator=g),
        lambda g: torch.bernoulli(torch.full((64,), 0.5, device="maca"), generator=g),
        lambda g: torch.randperm(30, device="maca", generator=g),
        lambda g: torch.multinomial(torch.ones(50, device="maca"), 20, generator=g),
    )
    for make in makers:
        a = make(torch.Generator().manual_seed(3)).cpu()
        g = torch.Generator().manual_seed(3)
        assert torch.equal(make(g).cpu(), a)
        assert not torch.equal(make(g).cpu(), a)  # the generator moved on
    torch.maca.manual_seed(4)
    expected = torch.rand(5, device="maca").cpu()
    torch.maca.manual_seed(4)
    torch.rand(5, device="maca", generator=torch.Generator().manual_seed(1))
    assert torch.equal(torch.rand(5, device="maca").cpu(), expected)  # the device's own stream did not move


@pytest.mark.supports("torch.maca: Generator")
def test_generators_of_the_device() -> None:
    for made in (
        torch.Generator(device="maca"),
        torch.Generator(0),
        torch.Generator("maca:0"),
        torch.maca.Generator(),
        torch.maca.Generator(0),
    ):
        assert type(made) is torch.maca.Generator and isinstance(made, torch.Generator)
        assert made.device == torch.device("maca:0") and made.manual_seed(3) is made
        first = torch.rand(5, device="maca", generator=made)
        assert not torch.equal(torch.rand(5, device="maca", generator=made), first)  # it moved on
        state = made.get_state()
        others = (made.clone_state(), copy.deepcopy(made), pickle.loads(pickle.dumps(made)))
        after = torch.randn(4, device="maca", generator=made)
        for other in others:
            assert type(other) is torch.maca.Generator
            assert torch.equal(torch.randn(4, device="maca", generator=other), after)
        made.set_state(state)
        assert torch.equal(torch.empty(4, device="maca").normal_(generator=made), after)
        assert made.initial_seed() == 3
        assert torch.equal(torch.rand(5, device="maca", generator=torch.Generator().manual_seed(3)), first)


@pytest.mark.parametrize("draw", [
    lambda g: torch.randperm(9, device="maca", generator=g),
    lambda g: torch.randint(9, (9,), device="maca", generator=g),
    lambda g: torch.rand_like(torch.ones(9, device="maca"), generator=g),
    lambda g: torch.bernoulli(torch.full((9,), 0.5, device="maca"), generator=g),
    lambda g: torch.multinomial(torch.ones(9, device="maca"), 4, generator=g),
    lambda g: torch.normal(0.0, torch.ones(9, device="maca"), generator=g),
    lambda g: torch.poisson(torch.ones(9, device="maca"), generator=g),
    lambda g: torch.empty(9, device="maca").exponential_(generator=g),
    lambda g: torch.nn.init.trunc_normal_(torch.empty(9, device="maca"), generator=g),
])  # fmt: skip
def test_draws_follow_a_generator(draw: Callable[[torch.Generator], torch.Tensor]) -> None:
    first, again = (draw(torch.Generator("maca").manual_seed(7)) for _ in range(2))
    assert first.device.type == "maca" and torch.equal(first, again)


@pytest.mark.parametrize(
    "count, prob", [((1,), (0,)), ((1,), (2,)), ((), (3,)), ((2, 1), (1, 3)), ((3,), ())]
)
def test_binomial_broadcasts_both_ways(count: tuple[int, ...], prob: tuple[int, ...]) -> None:
    want = torch.binomial(torch.full(count, 5.0), torch.ones(prob))  # of a sure thing: 5 each
    assert torch.equal(torch.binomial(torch.full(count, 5.0).maca(), torch.ones(prob).maca()).cpu(), want)


def test_compiled_programs_draw_from_generators() -> None:
    def program(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        made = torch.Generator("maca").manual_seed(3)  # which breaks the graph, as on the host
        return x + torch.rand(4, device="maca", generator=generator) * torch.rand(
            4, device="maca", generator=made
        )

    x = torch.ones(4, device="maca")
    want, got = (f(x, torch.Generator("maca").manual_seed(7)) for f in (program, torch.compile(program)))
    assert torch.equal(want, got)


def test_generators_of_the_host_are_pytorchs() -> None:
    for made in (torch.Generator(), torch.Generator("cpu"), torch.Generator(device=torch.device("cpu"))):
        assert type(made) is torch._C.Generator and isinstance(made, torch.Generator)
        assert made.device == torch.device("cpu")
    assert not isinstance(3, torch.Generator) and issubclass(torch.maca.Generator, torch.Generator)
    assert torch.Generator.manual_seed is torch._C.Generator.manual_seed
    for wrong, error in (("nowhere", RuntimeError), (3.5, TypeError)):
        with pytest.raises(error):
            torch.Generator(wrong)
    with pytest.raises(ValueError, match="Expected a maca device, but got: cpu"):
        torch.maca.Generator("cpu")
    scripted = torch.jit.script(torch.nn.init.uniform_)  # annotated with PyTorch's own type, before maca
    assert scripted(torch.empty(3), 1.0, 2.0).min() >= 1


def test_the_same_numbers_for_any_number_of_threads() -> None:
    code = """
    import torch, macatensor
    torch.maca.manual_seed(0)
    x = torch.randn(300_001, device="maca")
    y = torch.nn.functional.dropout(torch.rand(100_003, device="maca"), 0.2)
    print(x.cpu().view(torch.int32).sum().item(), y.cpu().view(torch.int32).sum().item(), x.cpu()[-3:].tolist())
    """
    assert run_python(code, OMP_NUM_THREADS="1").stdout == run_python(code, OMP_NUM_THREADS="2").stdout


def test_dropout_backward_uses_the_forwards_mask() -> None:
    x = torch.ones(1000, device="maca", requires_grad=True)
    y = nn.functional.dropout(x, 0.5)
    y.sum().backward()
    assert torch.equal(x.grad.cpu(), y.detach().cpu())
    assert 300 < (y == 0).sum().item() < 700
    assert torch.equal(nn.functional.dropout(x, 0.5, training=False).cpu(), x.detach().cpu())


def test_checkpoint_repeats_dropout() -> None:
    from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

    x = torch.rand(200, device="maca", requires_grad=True)
    kept = []

    def block(t: torch.Tensor) -> torch.Tensor:
        dropped = nn.functional.dropout(t, 0.5)
        kept.append((dropped == 0).cpu())
        return dropped * 2

    for reentrant in (False, True):
        kept.clear()
        with set_checkpoint_early_stop(False):
            checkpoint(block, x, use_reentrant=reentrant).sum().backward()
        assert len(kept) == 2 and torch.equal(kept[0], kept[1])


@pytest.mark.supports("torch.nn.init")
def test_initializers() -> None:
    w = torch.empty(64, 64, device="maca")
    for fill in (nn.init.xavier_uniform_, nn.init.kaiming_normal_, nn.init.normal_, nn.init.uniform_, nn.init.zeros_,
                 nn.init.ones_, nn.init.trunc_normal_, nn.init.eye_):  # fmt: skip
        fill(w)
        assert torch.isfinite(w).all().item()
    assert maca(torch.zeros(3)).uniform_(2, 3).ge(2).all().item()


@pytest.mark.supports("torch.maca: device_count get_rng_state_all seed_all set_rng_state_all")
def test_seed_all_and_states_of_all_devices() -> None:
    torch.maca.manual_seed_all(3)
    states = torch.maca.get_rng_state_all()
    assert len(states) == torch.maca.device_count() == 1 and states[0].shape == (16,)
    first = draw()
    torch.maca.set_rng_state_all(states)
    assert equal(draw(), first)
    torch.maca.seed_all()
    seeds = {torch.maca.initial_seed()}
    torch.maca.seed_all()
    assert torch.maca.initial_seed() not in seeds


def test_the_state_is_seed_and_offset() -> None:
    torch.maca.manual_seed(0x1234)
    state = torch.maca.get_rng_state()
    assert state.tolist() == [0x34, 0x12] + [0] * 14
    torch.rand(8, device="maca")
    moved = torch.maca.get_rng_state()
    assert torch.equal(moved[:8], state[:8]) and not torch.equal(moved[8:], state[8:])
    torch.maca.manual_seed(-1)
    assert torch.maca.get_rng_state()[:8].tolist() == [255] * 8


def test_bad_arguments() -> None:
    state = torch.maca.get_rng_state("maca:0")
    for device, error in (("cpu", ValueError), (1, RuntimeError), ("maca:2", RuntimeError)):
        with pytest.raises(error):
            torch.maca.get_rng_state(device)
        with pytest.raises(error):
            torch.maca.set_rng_state(state, device)
    with pytest.raises(TypeError):
        torch.maca.set_rng_state([1, 2, 3])
    with pytest.raises((TypeError, ValueError)):
        torch.maca.manual_seed("five")


def test_fork_rng_of_all_devices_and_of_none() -> None:
    torch.manual_seed(2)
    first, host = draw(), torch.rand(3)
    torch.manual_seed(2)
    with torch.random.fork_rng(device_type="maca"):
        draw()
        torch.rand(3)
    assert equal(draw(), first) and torch.equal(torch.rand(3), host)
    torch.manual_seed(2)
    with torch.random.fork_rng(devices=[], device_type="maca"):
        torch.maca.manual_seed(77)
    assert torch.maca.initial_seed() == 77  # no device was to be kept


def test_checkpoint_keeps_random_state_only_when_asked() -> None:
    from torch.utils.checkpoint import checkpoint

    x = torch.rand(400, device="maca", requires_grad=True)
    masks = []

    def block(t: torch.Tensor) -> torch.Tensor:
        dropped = nn.functional.dropout(t, 0.5)
        masks.append((dropped == 0).cpu())
        return dropped.square()

    for preserve in (True, False):
        masks.clear()
        torch.maca.manual_seed(1)
        checkpoint(block, x, use_reentrant=True, preserve_rng_state=preserve).sum().backward()
        assert torch.equal(masks[0], masks[1]) == preserve


def philox(seed: int, counter: int) -> list[int]:
    """The four words of a counter, as the paper has them."""
    c = [counter & 0xFFFFFFFF, counter >> 32, 0, 0]
    k = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def test_the_documented_mapping() -> None:
    seed = 0x0123456789ABCDEF
    torch.maca.manual_seed(seed)
    singles, doubles = torch.rand(3, 3, device="maca"), torch.rand(5, device="maca", dtype=torch.float64)
    words = [philox(seed, i // 4)[i % 4] for i in range(9)]
    assert singles.flatten().tolist() == [(w >> 8) * 2.0**-24 for w in words]
    offset = 3  # counters of the first launch: 9 / 4, rounded up
    pairs = [philox(seed, offset + i // 2)[2 * (i % 2) :][:2] for i in range(5)]
    assert doubles.tolist() == [((high << 32 | low) >> 11) * 2.0**-53 for low, high in pairs]
    assert torch.maca.get_rng_state()[8:].tolist() == [6] + [0] * 7


def test_seeds_that_64_bits_do_not_hold() -> None:
    for seed in (1 << 64, -(1 << 63) - 1):
        for call in (torch.maca.manual_seed, torch.maca.manual_seed_all, torch.Generator().manual_seed):
            with pytest.raises(
                (ValueError, RuntimeError), match="Overflow when unpacking long"
            ):  # the class: 2.13, 2.11
                call(seed)
    torch.maca.manual_seed(-1)
    assert torch.maca.initial_seed() == (1 << 64) - 1


def test_laws_of_whole_numbers_into_out() -> None:
    means, out = torch.tensor([1, 2, 3], device="maca"), torch.zeros(3, device="maca")
    for std in (0.0, torch.zeros(3, dtype=torch.int64, device="maca")):
        assert torch.normal(means, std, out=out).tolist() == [1, 2, 3]
    with pytest.raises(NotImplementedError, match="not implemented for 'Long'"):
        torch.normal(means, 0.0)
