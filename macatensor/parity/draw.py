"""Draws operands from a seed: values of a dtype, laid out in memory in one of several ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from macatensor.runtime.boxed import Arguments, Keywords
from op_table import Row

LAYOUTS = ("contiguous", "channels_last", "transposed", "expanded", "sliced")

_UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)


@dataclass
class Call:
    """Arguments of one call of an overload, on the host."""

    args: Arguments
    kwargs: Keywords = field(default_factory=dict)
    on_host: tuple[torch.Tensor, ...] = ()  # arguments that PyTorch wants on the host whatever the device


class Draw:
    """A source of operands of one dtype and layout. The same seed draws the same operands on every machine.

    ``moved`` tells whether any operand really took the layout: a matrix has no channels_last form.
    """

    def __init__(self, row: Row, dtype: torch.dtype, layout: str, seed: int):
        self.row = row
        self.dtype = dtype
        self.layout = layout
        self.generator = torch.Generator().manual_seed(seed)
        self.moved = layout == "contiguous"

    @property
    def floating(self) -> bool:
        return self.dtype.is_floating_point or self.dtype.is_complex

    @property
    def plain(self) -> bool:
        """Contiguous: the layout that large and special samples are drawn in, once."""
        return self.layout == "contiguous"

    def uniform(self, shape: tuple[int, ...], low: float, high: float) -> torch.Tensor:
        return torch.rand(shape, generator=self.generator, dtype=torch.float64) * (high - low) + low

    def integers(self, shape: tuple[int, ...], low: int, high: int) -> torch.Tensor:
        """int64 in [low, high)."""
        return torch.randint(low, max(high, low + 1), shape, generator=self.generator)

    def values(
        self, shape: tuple[int, ...], dtype: torch.dtype, low: float | None, high: float | None
    ) -> torch.Tensor:
        """Row-major values; without limits, over 15 binary orders of magnitude and both signs."""
        if dtype is torch.bool:
            return self.integers(shape, 0, 2).bool()
        if dtype.is_complex:
            real, imaginary = (self.values(shape, torch.float64, low, high) for _ in range(2))
            return torch.complex(real, imaginary).to(dtype)
        if dtype.is_floating_point:
            if low is not None or high is not None:
                low, high = -4.0 if low is None else low, 4.0 if high is None else high
                values = self.uniform(shape, low, high)
                if high - low > 200:  # most of a wide domain's interest is near its lower end
                    near = self.uniform(shape, low, min(high, low + 20))
                    values = torch.where(self.integers(shape, 0, 4) > 0, near, values)
                rounded = values.to(dtype)
                inside = (rounded.double() >= low) & (rounded.double() <= high)
                return torch.where(inside, rounded, torch.tensor((low + high) / 2, dtype=dtype))
            even = self.uniform(shape, -4, 4)
            scaled = torch.exp2(self.uniform(shape, -10, 5)) * (self.integers(shape, 0, 2) * 2 - 1)
            return torch.where(self.integers(shape, 0, 2) == 0, even, scaled).to(dtype)
        first = int(-20 if low is None else low)
        if dtype in _UNSIGNED:
            first = max(first, 0)
        last = 20 if high is None else int(min(high, 100))
        return self.integers(shape, first, last + 1).to(dtype)

    def tensor(
        self,
        *shape: int,
        low: float | None = None,
        high: float | None = None,
        dtype: torch.dtype | None = None,
        nonzero: bool = False,
        written: bool = False,
    ) -> torch.Tensor:
        """An operand in the row's dtype and the layout. ``written``: never expanded, for operands that are written."""
        dtype = dtype or self.dtype
        if low is None and high is None and self.row.domain is not None and not dtype.is_complex:
            low, high = self.row.domain
        values = self.values(shape, dtype, low, high)
        if nonzero:
            values = torch.where(values == 0, torch.ones((), dtype=dtype), values)
        return self.lay(values, written=written)

    def distinct(self, *shape: int) -> torch.Tensor:
        """Values without ties where the dtype has enough of them, in the layout."""
        count = 1
        for n in shape:
            count *= n
        order = torch.randperm(count, generator=self.generator).reshape(shape)
        if self.dtype is torch.bool:
            return self.lay(order % 2 == 0)
        if self.dtype in _UNSIGNED or self.dtype is torch.int8:
            return self.lay((order % 120).to(self.dtype))
        return self.lay((order - count // 2).to(self.dtype))

    def index(
        self, *shape: int, below: int, dtype: torch.dtype = torch.int64, plain: bool = False
    ) -> torch.Tensor:
        """Positions in [0, below)."""
        values = self.integers(shape, 0, below).to(dtype)
        return values if plain else self.lay(values)

    def mask(self, *shape: int) -> torch.Tensor:
        return self.lay(self.integers(shape, 0, 2).bool())

    def number(self, real: float, whole: int) -> float | int:
        """A number that the dtype takes: ``real`` is exact in every floating dtype."""
        return real if self.floating else whole

    def lay(self, values: torch.Tensor, *, written: bool = False) -> torch.Tensor:
        """``values`` in the layout; expanded operands repeat their first slice."""
        layout = self.layout
        rank = values.dim()
        if layout == "channels_last" and rank in (4, 5):
            self.moved = True
            return values.contiguous(
                memory_format=torch.channels_last if rank == 4 else torch.channels_last_3d
            )
        if layout == "transposed" and rank >= 2:
            self.moved = True
            order = list(range(rank))[::-1]
            return _with_odd_bytes(values.permute(order).contiguous().permute(order))
        if layout == "expanded" and rank >= 1 and not written:
            dim = int(self.integers((), 0, rank))
            if values.shape[dim] > 1:
                self.moved = True
                return (
                    values.narrow(dim, 0, 1).clone(memory_format=torch.contiguous_format).expand(values.shape)
                )
        if layout == "sliced":
            self.moved = True
            if rank == 0:
                return torch.stack([values, values])[1]
            shape = list(values.shape)
            shape[-1] = 2 * shape[-1] + 1
            # what lies between the elements must never show
            between = float("nan") if values.dtype.is_floating_point or values.dtype.is_complex else 1
            view = torch.full(shape, between, dtype=values.dtype)[..., 1::2]
            return _with_odd_bytes(view.copy_(values))
        return values


def _with_odd_bytes(laid: torch.Tensor) -> torch.Tensor:
    """``laid``, where true is another byte than 1, as in a mask of uint8 viewed as bool."""
    if laid.dtype is torch.bool:
        laid.view(torch.uint8).mul_(254)
    return laid


Generator = Callable[[Draw], Iterator[Call]]
CALLS: dict[str, Generator] = {}


def calls(*names: str) -> Callable[[Generator], Generator]:
    """Decorates the generator of calls for rows (``"sum.dim_IntList"``) or operators (``"sum"``)."""

    def register(generator: Generator) -> Generator:
        for name in names:
            if name in CALLS:
                raise ValueError(f"two generators of calls for {name}")
            CALLS[name] = generator
        return generator

    return register
