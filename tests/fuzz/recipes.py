"""What a call is made of, as JSON: a failing one is kept, made smaller and printed as a program.

A tensor's recipe holds its size, strides and offset over a memory of its own, its dtype and what fills it; the host and
the device make the same numbers of it. Other arguments are literals, or ``{"kind": value}`` where JSON has no word.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

Recipe = Any  # JSON: None, bool, int, str, list of recipes, {kind: value}

FILLS = ("normal", "small integers", "ones", "zeros", "specials", "indices")
SPECIALS = (0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e-40, 65504.0, 3e38)


def tensor(
    size: list[int], stride: list[int], dtype: str, fill: str = "normal", offset: int = 0, **more: Any
) -> Recipe:
    """A tensor's recipe; ``more`` may hold ``grad``, ``host``, ``lazy`` ("conj" or "neg": the bit that PyTorch sets) and
    ``limit`` (of indices, exclusive)."""
    return {
        "tensor": {"size": size, "stride": stride, "offset": offset, "dtype": dtype, "fill": fill, **more}
    }


def is_tensor(recipe: Recipe) -> bool:
    return isinstance(recipe, dict) and "tensor" in recipe


def dense(size: list[int]) -> list[int]:
    """The strides of a contiguous tensor."""
    strides, step = [], 1
    for n in reversed(size):
        strides.append(step)
        step *= max(n, 1)
    return strides[::-1]


def extent(made: dict[str, Any]) -> int:
    """Elements of the memory that a tensor lies in."""
    reach = sum((n - 1) * s for n, s in zip(made["size"], made["stride"]) if n > 0)
    return int(made["offset"] + (0 if 0 in made["size"] else reach + 1))


def shares_memory(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two elements of a tensor lie at one place."""
    places = torch.zeros((), dtype=torch.long)
    for size, stride in zip(sizes, strides):
        places = places[..., None] + torch.arange(size) * stride
    return places.numel() != places.unique().numel()


def _numbers(fill: str, dtype: torch.dtype, count: int, limit: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count * 31 + limit)
    if fill == "ones":
        return torch.ones(count).to(dtype)
    if fill == "zeros":
        return torch.zeros(count).to(dtype)
    if fill == "indices":
        return torch.randint(-limit, max(limit, 1), (count,), generator=generator).to(dtype)
    if fill == "small integers" or not (dtype.is_floating_point or dtype.is_complex):
        low = 0 if dtype in (torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool) else -3
        return torch.randint(low, 4, (count,), generator=generator).to(dtype)
    numbers = torch.randn(count, generator=generator, dtype=torch.float64)
    if dtype.is_complex:
        numbers = torch.complex(numbers, numbers.roll(1))
    if fill == "specials":
        at = torch.randint(0, 3 * len(SPECIALS), (count,), generator=generator)
        for i, value in enumerate(SPECIALS):
            numbers[at == i] = value
    return numbers.to(dtype)


def make(recipe: Recipe, device: str) -> Any:
    """The argument on that device."""
    if isinstance(recipe, list):
        return [make(r, device) for r in recipe]
    if not isinstance(recipe, dict):
        return recipe
    ((kind, value),) = recipe.items()
    if kind == "tensor":
        dtype = getattr(torch, value["dtype"])
        memory = _numbers(value["fill"], dtype, max(extent(value), 0), value.get("limit", 3))
        memory = memory.to("cpu" if value.get("host") else device)
        found = torch.as_strided(memory, value["size"], value["stride"], value["offset"])
        if lazy := value.get("lazy"):
            found = found.conj() if lazy == "conj" else torch._neg_view(found)
        return found.requires_grad_() if value.get("grad") else found
    if kind == "float":
        return float(value)
    if kind == "complex":
        return complex(*map(float, value))
    if kind == "device":
        return torch.device(device)
    if kind == "generator":
        return torch.Generator(device).manual_seed(value)
    return getattr(torch, value)  # a dtype, layout or memory format


def source(recipe: Recipe) -> str:
    """The argument as a line of Python, with ``device`` a variable."""
    if isinstance(recipe, list):
        return f"[{', '.join(map(source, recipe))}]"
    if not isinstance(recipe, dict):
        return repr(recipe)
    ((kind, value),) = recipe.items()
    if kind == "tensor":
        return f"make({recipe!r}, device)"
    if kind == "float":
        return f"float({value!r})"
    if kind == "complex":
        return f"complex(*map(float, {value!r}))"
    if kind == "device":
        return "torch.device(device)"
    if kind == "generator":
        return f"torch.Generator(device).manual_seed({value})"
    return f"torch.{value}"


def smaller(recipe: Recipe) -> Iterator[Recipe]:
    """Simpler arguments that might show the same, the simplest first."""
    if isinstance(recipe, list):
        for i in range(len(recipe)):
            yield recipe[:i] + recipe[i + 1 :]
        for i, r in enumerate(recipe):
            for s in smaller(r):
                yield [*recipe[:i], s, *recipe[i + 1 :]]
    elif is_tensor(recipe):
        yield from _smaller_tensor(recipe["tensor"])
    elif isinstance(recipe, dict) and "float" in recipe and recipe["float"] != "1.0":
        yield {"float": "1.0"}
    elif isinstance(recipe, int) and not isinstance(recipe, bool):
        yield from (n for n in (0, 1, 2) if abs(n) < abs(recipe))


def _smaller_tensor(made: dict[str, Any]) -> Iterator[Recipe]:
    def change(**what: Any) -> Recipe:
        return {"tensor": {**made, **what}}

    size, stride = made["size"], made["stride"]
    if stride != dense(size):
        yield change(stride=dense(size), offset=0)
    if made["offset"]:
        yield change(offset=0)
    for name in ("grad", "host", "lazy"):
        if made.get(name):
            yield {"tensor": {k: v for k, v in made.items() if k != name}}
    if made["dtype"] != "float32":
        yield change(dtype="float32")
    if made["fill"] not in ("ones", "indices"):
        yield change(fill="ones")
    for d in range(len(size)):
        yield change(size=size[:d] + size[d + 1 :], stride=stride[:d] + stride[d + 1 :])
        for n in {1, 2, size[d] // 2} - {size[d]}:
            if n < size[d]:
                shorter = [*size[:d], n, *size[d + 1 :]]
                yield change(size=shorter, stride=dense(shorter) if stride == dense(size) else stride)
