"""Operands in the memory that an operator writes: refused where PyTorch refuses them, before anything is written."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

Call = Callable[[torch.Tensor], torch.Tensor]

CALLS: dict[str, Call] = {
    "scatter_, index": lambda i: i.scatter_(0, i, i.clone()),
    "scatter_, number": lambda i: i.scatter_(0, i, 5),
    "scatter_, source": lambda i: i.scatter_(0, i.clone(), i),
    "scatter_add_, index": lambda i: i.scatter_add_(0, i, i.clone()),
    "scatter_reduce_, index": lambda i: i.scatter_reduce_(0, i, i.clone(), "sum"),
    "index_add_, index": lambda i: i.index_add_(0, i, i.clone()),
    "index_add_, source": lambda i: i.index_add_(0, i.clone(), i),
    "index_copy_, index": lambda i: i.index_copy_(0, i, i.clone()),
    "index_copy_, source": lambda i: i.index_copy_(0, i.clone(), i),
    "index_fill_": lambda i: i.index_fill_(0, i, 3),
    "index_reduce_": lambda i: i.index_reduce_(0, i, i.clone(), "prod"),
    "put_, index": lambda i: i.put_(i, i.clone()),
    "put_, source": lambda i: i.put_(i.clone(), i),
    "index_put_, index": lambda i: i.index_put_((i,), i.clone()),
    "index_put_, values": lambda i: i.index_put_((i.clone(),), i),
    "a part": lambda i: i[1:].index_fill_(0, i[:2] * 0, 3).index_copy_(0, i[:2], i[:2].clone()),
}


@pytest.mark.parametrize("name", CALLS)
def test_overlaps_are_refused_as_the_cpu_does(name: str) -> None:
    for device in ("cpu", "maca", "maca"):
        index = torch.tensor([1, 0, 2], device=device)
        held = index.clone()
        if name == "a part":
            held[1:] = torch.tensor([3, 2], device=device)
        with pytest.raises(RuntimeError, match="refer to a single memory location"):
            CALLS[name](index)
        assert name == "a part" or torch.equal(index, held)


def test_columns_between_each_other_are_apart() -> None:
    results = []
    for device in ("cpu", "maca"):
        x = torch.arange(6, device=device).view(3, 2) % 3
        results.append(x[:, 0].index_copy_(0, x[:, 1], x[:, 1]).cpu())
    assert torch.equal(*results)


EMPTY: dict[str, Call] = {
    "add_": lambda t: t.add_(1),
    "exp_": lambda t: t.exp_(),
    "copy_": lambda t: t.copy_(torch.ones(3, 0, device=t.device)),
    "uniform_": lambda t: t.uniform_(),
    "cumsum_": lambda t: t.cumsum_(0),
}


@pytest.mark.parametrize("name", EMPTY)
def test_empty_expanded_tensors_are_written(name: str) -> None:
    assert EMPTY[name](torch.ones(1, 0, device="maca").expand(3, 0)).shape == (3, 0)


def _indexed(t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([1, 0, 1], device=t.device), torch.tensor([4, 3, 0], device=t.device)


def _mask(t: torch.Tensor) -> torch.Tensor:
    return (torch.arange(60, device=t.device) % 7 == 2).view(3, 5, 4)


def _numbers(t: torch.Tensor, *size: int) -> torch.Tensor:
    return torch.arange(60.0, device=t.device)[: math.prod(size)].view(size)


EXPANDED: dict[str, Call] = {
    "masked_fill_": lambda t: t.masked_fill_(_mask(t), 7.0),
    "masked_fill_, 0-dim": lambda t: t.masked_fill_(_mask(t), torch.tensor(7.0, device=t.device)),
    "index_fill_, that dimension": lambda t: t.index_fill_(1, _indexed(t)[0], 7.0),
    "index_fill_, another": lambda t: t.index_fill_(2, _indexed(t)[0], 7.0),
    "index_put_, rows": lambda t: t.index_put_(_indexed(t)[:1], _numbers(t, 3, 5, 4)),
    "index_put_, two": lambda t: t.index_put_(_indexed(t), _numbers(t, 3, 4)),
    "index_put_, summed": lambda t: t.index_put_(_indexed(t)[:1], _numbers(t, 3, 5, 4), accumulate=True),
}


@pytest.mark.parametrize("name", EXPANDED)
def test_expanded_tensors_are_written_with_a_warning(name: str) -> None:
    results = []
    for device in ("cpu", "maca", "maca"):
        target = _numbers(torch.empty(0, device=device), 3, 1, 4).expand(3, 5, 4)
        with pytest.warns(UserWarning, match=rf"{name.partition(',')[0]} on expanded tensors"):
            assert EXPANDED[name](target) is target
        results.append(target.cpu())
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_an_overlap_is_refused_before_the_dtype() -> None:
    x = torch.rand(3, device="maca")
    with pytest.raises(RuntimeError, match="unsupported operation"):
        x[:-1] <<= x[1:]
    with pytest.raises(NotImplementedError, match="lshift"):
        x <<= 1


def test_a_threshold_writes_expanded_tensors() -> None:
    """What it has written it leaves, so PyTorch lets it."""
    for start in (1.0, 5.0):
        results = [
            torch.nn.functional.threshold_(torch.full((1,), start, device=d).expand(4), 2, 3)
            for d in ("cpu", "maca")
        ]
        assert torch.equal(results[0], results[1].cpu())
