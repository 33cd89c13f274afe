"""Operators that write lists of tensors, where tensors of a list share memory or may not be written."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

Lists = list[list[torch.Tensor]]

IN_PLACE: dict[str, Callable[[Lists], object]] = {
    "add number": lambda a: torch._foreach_add_(a[0], 1.5),
    "add numbers": lambda a: torch._foreach_add_(a[0], [float(i) for i in range(len(a[0]))]),
    "add lists": lambda a: torch._foreach_add_(a[0], a[1], alpha=2),
    "add tensor": lambda a: torch._foreach_add_(a[0], a[1][0].flatten()[0]),
    "multiply lists": lambda a: torch._foreach_mul_(a[0], a[1]),
    "addcmul": lambda a: torch._foreach_addcmul_(a[0], a[1], a[2], value=0.5),
    "copy": lambda a: torch._foreach_copy_(a[0], a[1]),
    "sqrt": lambda a: torch._foreach_sqrt_(a[0]),
    "zero": lambda a: torch._foreach_zero_(a[0]),
}


def _both(run: Callable[[Lists], object], views: Callable[[torch.Tensor], Lists], base: torch.Tensor) -> None:
    """The same program on the host and on maca: the same numbers, or an error of the same class with the same words."""
    told = []
    for device in ("cpu", "maca"):
        memory = base.clone().to(device)
        try:
            run(views(memory))
        except RuntimeError as error:
            told.append((str(error), None))
        else:
            told.append(("", memory.cpu()))
    (said, want), (heard, got) = told
    assert heard == said
    if want is not None and got is not None:
        torch.testing.assert_close(got, want, rtol=5e-7, atol=0)  # a few roundings


@pytest.mark.parametrize("name", IN_PLACE)
@pytest.mark.parametrize("count", [5, 400_000])  # the kernels share long lists among threads
def test_tensor_twice_in_a_list(name: str, count: int) -> None:
    base = torch.rand(3, count, generator=torch.Generator().manual_seed(1)) + 0.5
    _both(IN_PLACE[name], lambda m: [[m[0], m[1], m[0]], [m[1], m[0], m[2]], [m[2], m[2], m[2]]], base)


@pytest.mark.parametrize("name", IN_PLACE)
def test_columns_lie_between_each_other(name: str) -> None:
    base = torch.rand(64, 4, generator=torch.Generator().manual_seed(1)) + 0.5
    _both(IN_PLACE[name], lambda m: [[m[:, 0], m[:, 1]], [m[:, 1], m[:, 2]], [m[:, 3], m[:, 0]]], base)


def test_fused_optimizer_meets_a_parameter_twice() -> None:
    def step(lists: Lists) -> None:
        torch._fused_sgd_(
            *lists, weight_decay=0.0, momentum=0.5, lr=0.25, dampening=0.0, nesterov=False, maximize=False,
            is_first_step=False,
        )  # fmt: skip

    base = torch.arange(3.0 * 400_000).view(3, -1).remainder(64)
    _both(step, lambda m: [[m[0], m[0], m[0]], [m[1]] * 3, [m[2], m[2], m[2]]], base)


@given(
    st.sampled_from(sorted(IN_PLACE)),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=4),
    st.integers(1, 9),
)
def test_lists_of_views_of_one_memory(name: str, starts: list[tuple[int, int, int]], count: int) -> None:
    base = torch.rand(80, generator=torch.Generator().manual_seed(2)) + 0.5
    _both(IN_PLACE[name], lambda m: [[m[start : start + count] for start in at] for at in zip(*starts)], base)


def test_inference_tensors_are_refused_outside() -> None:
    for write in (
        lambda a: torch._foreach_add_(a, 1.0),
        lambda a: torch._foreach_copy_(a, [torch.ones(3, device=t.device) for t in a]),
        lambda a: torch.split_copy(torch.ones(6, device=a[0].device), 3, out=a),
    ):
        said = []
        for device in ("cpu", "maca"):
            with torch.inference_mode():
                tensors = [torch.ones(3, device=device) for _ in range(2)]
                write(tensors)
            with pytest.raises(RuntimeError, match="Inplace update to inference tensor") as error:
                write(tensors)
            said.append(str(error.value))
        assert said[0] == said[1]
