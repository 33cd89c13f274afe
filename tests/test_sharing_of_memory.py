"""What shares memory on the CPU shares it on maca: copies, views of storages, ``out=`` that grows, lazy bits."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

DEVICES = ("cpu", "maca")
Call = Callable[[str], Any]


def _conjugate(device: str) -> torch.Tensor:
    return torch.ones(2, dtype=torch.complex64, device=device).conj()


def _copied(device: str) -> Any:
    parameter = torch.nn.Parameter(torch.ones(3, device=device))
    parameter.note = "kept"  # type: ignore[attr-defined]
    made = copy.copy(parameter)
    with torch.no_grad():
        made[0] = 5
    is_same = isinstance(made, torch.nn.Parameter), made.is_leaf, made.requires_grad, made.note
    return parameter.tolist(), is_same, made is parameter


def _deeply_copied(device: str) -> Any:
    t = torch.ones(3, device=device)
    found = []
    for parts in ([t, t.storage()], [t.storage(), t], [t, t.untyped_storage()]):
        made = copy.deepcopy(parts)
        tensor, storage = sorted(made, key=lambda part: not isinstance(part, torch.Tensor))
        tensor[0] = 7
        found.append(storage.tolist())
    return found, t.tolist()


def _set(device: str) -> Any:
    t, e = torch.arange(6.0, device=device), torch.empty(0, device=device)
    e.set_(t)
    sets = e.is_set_to(t), t.view(6).is_set_to(t), t[1:].is_set_to(t), t.view(2, 3).is_set_to(t)
    e.set_(t, storage_offset=2, size=(2,), stride=(1,))
    return sets, e.tolist(), e.is_set_to(t)


def _resized(device: str) -> Any:
    three, two = torch.channels_last_3d, torch.channels_last
    sizes, image = (2, 3, 4, 5, 6), torch.ones(2, 3, 4, 5, device=device)
    blank = lambda: torch.ones(0, device=device)  # noqa: E731
    volume = torch.ones(sizes, device=device).to(memory_format=three)
    return [
        blank().resize_(sizes, memory_format=three).stride(),
        blank().resize_as_(volume, memory_format=torch.preserve_format).stride(),
        blank().resize_as_(volume).stride(),
        image.clone().resize_(2, 3, 4, 5, memory_format=two).stride(),
        image.clone().resize_as_(image.to(memory_format=two), memory_format=torch.preserve_format).stride(),
        image.to(memory_format=two).resize_(2, 3, 4, 5, memory_format=torch.contiguous_format).stride(),
    ]


def _filled(device: str) -> Any:
    torch.use_deterministic_algorithms(True)
    try:
        grown = (
            torch.ones(1, device=device).resize_(4),
            torch.ones(1, device=device, dtype=torch.int32).resize_(3),
        )
    finally:
        torch.use_deterministic_algorithms(False)
    return str(grown[0].tolist()), grown[1].tolist()


def _lazy_out(device: str) -> Any:
    a = torch.ones(2, 2, dtype=torch.complex64, device=device) * 1j
    product, total = _conjugate(device), _conjugate(device)
    torch.mm(a, a + 1, out=product)
    torch.add(a, 1j, out=total)
    negative = torch.add(torch.ones(5, device=device), 1, out=torch._neg_view(torch.ones(2, device=device)))
    bits = product.is_conj(), total.is_conj(), negative.is_neg(), _conjugate(device).resize_(5).is_conj()
    return product.tolist(), total.tolist(), negative.tolist(), bits


def _grown_out(device: str) -> Any:
    out = torch.ones(2, device=device)
    views = out[:1], out.view(2)
    torch.add(torch.ones(5, device=device), 1, out=out)
    out.fill_(7)
    return [v.tolist() for v in views]


def _from_storage(device: str) -> Any:
    storage = torch.ones(3, device=device).untyped_storage()
    typed = torch.ones(3, device=device).storage()
    whole = (
        torch.tensor(storage, device=device),
        torch.as_tensor(storage, device=device),
        torch.tensor(storage),
    )
    return [t.tolist() for t in (*whole, torch.tensor(typed, device=device))]


CALLS: dict[str, Call] = {
    "copy": _copied,
    "deepcopy": _deeply_copied,
    "set_": _set,
    "resize_": _resized,
    "resize_, deterministic": _filled,
    "resize_, preserve_format": lambda d: torch.ones(2, device=d).resize_(
        4, memory_format=torch.preserve_format
    ),
    "resize_, another rank": lambda d: torch.ones(2, device=d).resize_(
        2, 3, memory_format=torch.channels_last
    ),
    "lazy out=": _lazy_out,
    "out= that grows": _grown_out,
    "tensor of a storage": _from_storage,
    "storage_type": lambda d: torch.ones(3, device=d).storage_type().__name__,
    "_lazy_clone": lambda d: (
        torch._lazy_clone(torch.ones(3, device=d)).add_(1) + torch.ones(3, device=d)
    ).tolist(),
}


def _outcome(call: Call, device: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return call(device)
        except Exception as error:
            return type(error), str(error)


@pytest.mark.parametrize("name", CALLS)
def test_memory_is_shared_as_on_the_cpu(name: str) -> None:
    theirs, ours = (_outcome(CALLS[name], device) for device in DEVICES)
    assert ours == theirs


@pytest.mark.supports(
    "torch.maca: BFloat16Storage BoolStorage ByteStorage CharStorage ComplexDoubleStorage ComplexFloatStorage "
    "DoubleStorage FloatStorage HalfStorage IntStorage LongStorage ShortStorage"
)
def test_storage_types_are_those_of_the_device() -> None:
    kind = torch.ones(3, device="maca").storage_type()
    assert kind is torch.maca.FloatStorage and isinstance(torch.ones(3, device="maca").storage(), kind)
    assert not isinstance(torch.ones(3).storage(), kind)
    m = torch.maca
    types = [
        m.BFloat16Storage,
        m.BoolStorage,
        m.ByteStorage,
        m.CharStorage,
        m.ComplexDoubleStorage,
        m.ComplexFloatStorage,
        m.DoubleStorage,
        m.FloatStorage,
        m.HalfStorage,
        m.IntStorage,
        m.LongStorage,
        m.ShortStorage,
    ]
    assert all(t.__module__ == "torch.maca" for t in types)
