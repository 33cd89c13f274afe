"""Random numbers: one Philox 4x32-10 stream, {seed, offset}, in the runtime.

The mapping, so that a number can be computed anywhere. The seed (64 bits) is the key. A launch that starts at counter
``offset`` and fills ``n`` elements gives element ``i`` (row-major, whatever the strides)

- one 32-bit word, for results up to 32 bits: word ``i % 4`` of counter ``offset + i // 4``;
- one 64-bit word, for float64 and wide integer ranges: words ``2 * (i % 2)`` (low) and ``2 * (i % 2) + 1`` (high) of
  counter ``offset + i // 2``;

and moves ``offset`` on by the counters it used, ``ceil(n / 4)`` or ``ceil(n / 2)``. A uniform float32 is the word's
upper 24 bits times ``2**-24`` (float16 11 bits, bfloat16 8, float64 the upper 53 of 64); under a logarithm it is
``(word // 2 + 0.5) * 2**-31``, in float32 (float64: the upper 53 bits plus 0.5). Normal numbers come in pairs (Box,
Muller): the first word gives the radius, the second the turn. :mod:`macatensor.parity.random_numbers` has it as code. Laws that draw an unknown
number of times (gamma, Poisson, binomial) give each element a stream of its own: the counter's upper half is ``i + 1``,
draw ``j`` takes counter ``offset + j``, and the launch sets 65536 counters aside. Nothing depends on the number of
threads or the instruction set.

CUDA's generator has the same state, a seed and an offset, but deals its counters to threads of a grid: the same seed
gives other numbers there, as it does on the CPU.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterable, Iterator

import torch
from torch.types import Device

from macatensor.runtime import capture
from macatensor.runtime.ffi import lib
from macatensor.runtime.ordinal import ordinal
from macatensor.runtime.own_names import own_names

_MASK = (1 << 64) - 1


def manual_seed(seed: int) -> None:
    """Seeds the device's generator. The same seed gives the same numbers for any number of threads.

    Raises PyTorch's own error for a seed that 64 bits do not hold, and RuntimeError while a graph is captured, whose
    replays would not seed again.
    """
    number = int(seed)
    if not -(1 << 63) <= number < 1 << 64:
        torch.Generator().manual_seed(number)  # raises
    capture.refuse("seeding the generator")
    lib.maca_random_set(number & _MASK, 0)


def manual_seed_all(seed: int) -> None:
    """As :func:`manual_seed`: one device is visible in a process."""
    manual_seed(seed)


def seed_host_and_device(seed: int) -> None:
    """``torch.manual_seed`` for the CPU and maca alone.

    In a build without CUDA, XPU and MTIA that function notes the caller's stack three times for a later start of these
    devices: 1 to 5 ms a call, and memory that is never freed.
    """
    torch.default_generator.manual_seed(seed)
    manual_seed(seed)


def seed() -> None:
    """Seeds from the system's entropy."""
    manual_seed(secrets.randbits(63))


seed_all = seed


def initial_seed() -> int:
    """The seed in force."""
    return int(lib.maca_random_seed())


def state() -> tuple[int, int]:
    """Seed and offset."""
    return int(lib.maca_random_seed()), int(lib.maca_random_offset())


@contextlib.contextmanager
def drawn_at(seed_and_offset: tuple[int, int]) -> Iterator[None]:
    """Launches inside draw from this seed and offset; afterwards the generator is as it was."""
    before = state()
    lib.maca_random_set(*seed_and_offset)
    try:
        yield
    finally:
        lib.maca_random_set(*before)


def get_rng_state(device: Device = "maca") -> torch.Tensor:
    """uint8[16]: seed and offset, little endian, as CUDA's state. Raises RuntimeError for a device there is not."""
    ordinal(device)
    data = b"".join(word.to_bytes(8, "little") for word in state())
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).clone()


def set_rng_state(new_state: torch.Tensor, device: Device = "maca") -> None:
    """Takes back what :func:`get_rng_state` gave. Raises RuntimeError for another size or dtype, and while a graph is
    captured, whose replays would not set it again."""
    ordinal(device)
    capture.refuse("setting the generator's state (of checkpoint(): preserve_rng_state=False)")
    if not isinstance(new_state, torch.Tensor):
        raise TypeError(f"set_rng_state got {type(new_state).__name__}; expected a torch.ByteTensor")
    if new_state.dtype != torch.uint8 or new_state.numel() != 16:
        raise RuntimeError(
            "RNG state is wrong size: maca takes a uint8 tensor of 16 elements from get_rng_state()"
        )
    data = bytes(new_state.cpu().tolist())
    lib.maca_random_set(int.from_bytes(data[:8], "little"), int.from_bytes(data[8:], "little"))


def get_rng_state_all() -> list[torch.Tensor]:
    """The state of every device, that is of one."""
    return [get_rng_state()]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Takes back what :func:`get_rng_state_all` gave."""
    for state in new_states:
        set_rng_state(state)


@contextlib.contextmanager
def drawn_from(generator: torch.Generator | None) -> Iterator[None]:
    """Launches inside draw from a host generator: it gives their seed, and moves on by one number."""
    if generator is None:
        yield
        return
    capture.refuse("a number from a generator of the host")
    drawn = torch.empty((), dtype=torch.int64, device="cpu").random_(generator=generator).item()
    with drawn_at((int(drawn) & _MASK, 0)):
        yield


__all__ = own_names(globals(), internal=("drawn_at", "drawn_from", "seed_host_and_device", "state"))
