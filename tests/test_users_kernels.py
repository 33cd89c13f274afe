"""Kernels that users register for the device come before the table's rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from running import run_python

import macatensor
from macatensor.runtime import counters


@pytest.fixture
def library() -> Iterator[torch.library.Library]:
    with torch.library._scoped_library("aten", "IMPL") as made:
        yield made


def counted() -> int:
    return macatensor.counters()["users_kernels"]


def test_it_comes_before_the_row_and_is_counted(library: torch.library.Library) -> None:
    x = torch.tensor([0.5, 1.0], device="maca")
    before, row = counted(), torch.erfc(x)  # the row's launcher is there by now
    torch.library.impl(library, "erfc", "PrivateUse1")(lambda t: t * 0 + 42)
    assert torch.erfc(x).tolist() == [42.0, 42.0] and counted() == before + 1
    assert counters.users_kernels["aten.erfc.default"] >= 1
    # as on any device: the other overloads are not its, and gradients are PyTorch's formula
    torch.testing.assert_close(x.clone().erfc_(), row)
    leaf = x.clone().requires_grad_()
    torch.erfc(leaf).sum().backward()
    host = x.cpu().requires_grad_()
    torch.erfc(host).sum().backward()
    torch.testing.assert_close(leaf.grad.cpu(), host.grad)
    with torch.inference_mode():
        assert torch.erfc(x).tolist() == [42.0, 42.0]


def test_it_ends_with_its_library() -> None:
    x = torch.tensor([0.5], device="maca")
    row = torch.erfc(x).tolist()
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("erfc", lambda t: t + 42, "PrivateUse1")
        assert torch.erfc(x).tolist() == [42.5]
    assert torch.erfc(x).tolist() == row
    dropped = torch.library.Library("aten", "IMPL", "PrivateUse1")
    dropped.impl("erfc", lambda t: t + 1)
    assert torch.erfc(x).tolist() == [1.5]
    del dropped
    assert torch.erfc(x).tolist() == row


def test_the_one_before_comes_again() -> None:
    x = torch.tensor([0.5], device="maca")
    with torch.library._scoped_library("aten", "IMPL") as first:
        first.impl("erfc", lambda t: t + 1, "PrivateUse1")
        with torch.library._scoped_library("aten", "IMPL") as second:
            second.impl("erfc", lambda t: t + 2, "PrivateUse1", allow_override=True)
            assert torch.erfc(x).tolist() == [2.5]
        assert torch.erfc(x).tolist() == [1.5]


OVERLOADS: dict[str, Any] = {
    "add.Tensor": lambda x: x + x,
    "add_.Tensor": lambda x: x.clone().add_(x),
    "sum.dim_IntList": lambda x: x.sum(0),
    "mm": lambda x: x @ x,
    "abs.out": lambda x: torch.abs(x, out=torch.empty_like(x)),
    "masked_select": lambda x: torch.masked_select(x, x > 0),
    "zeros_like": torch.zeros_like,
    "linear": lambda x: torch.nn.functional.linear(x, x),
    "nonzero": torch.nonzero,
}


@pytest.mark.parametrize("overload", OVERLOADS)
def test_any_kind_of_row_gives_way(library: torch.library.Library, overload: str) -> None:
    x = torch.ones(2, 2, device="maca")
    mark, before = torch.full((2, 2), 3.0, device="maca"), counted()
    OVERLOADS[overload](x)

    def kernel(*args: Any, **kwargs: Any) -> torch.Tensor:
        target = kwargs.get("out", args[0] if overload == "add_.Tensor" else None)
        return mark if target is None else target.fill_(3)

    library.impl(overload, kernel, "PrivateUse1")
    assert OVERLOADS[overload](x).tolist() == mark.tolist()
    assert counted() > before


def test_factories_of_users_are_called(library: torch.library.Library) -> None:
    seen = []

    def kernel(size: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        seen.append(list(size))
        return torch.empty_strided(size, [1] * len(size), device="maca")

    library.impl("empty.memory_format", kernel, "PrivateUse1")
    torch.empty(3, device="maca")
    assert seen == [[3]]


def test_custom_operators_for_maca_alone() -> None:
    @torch.library.custom_op("usersmaca::tripled", mutates_args=(), device_types="maca")
    def tripled(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    before = counted()
    with macatensor.fallback("error"):
        assert tripled(torch.ones(2, device="maca")).tolist() == [3.0, 3.0]
    assert counted() == before + 1
    from macatensor.dispatch.users_kernels import registrations

    found = {r.operator: r.origin for r in registrations()}
    assert found["usersmaca::tripled"].endswith("tripled")
    with pytest.raises(NotImplementedError):
        tripled(torch.ones(2))


def test_kernels_from_before_are_known() -> None:
    done = run_python(
        """
        import torch
        from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
        library = torch.library.Library("aten", "IMPL")
        library.impl("erfc", lambda t: t + 42, "PrivateUse1")
        import macatensor
        print(torch.erfc(torch.zeros(1, device="maca")).tolist(), macatensor.counters()["users_kernels"])
        """
    )
    assert done.stdout == "[42.0] 1\n"


def test_the_command_shows_them(tmp_path: Path) -> None:
    (tmp_path / "my_kernels.py").write_text(
        "import torch\n\nlibrary = torch.library.Library('aten', 'IMPL')\n\n\n"
        "@torch.library.impl(library, 'erfc', 'PrivateUse1')\ndef erfc(x):\n    return x\n"
    )
    program = """
import os, sys
os.chdir(sys.argv[1])
from macatensor.cli import main
sys.argv = ["macatensor", *sys.argv[2:]]
main()
"""
    shown = run_python(program, str(tmp_path), "ops", "erfc", "--import", "my_kernels").stdout
    assert "my_kernels.erfc" in shown and "user" in shown
    listed = json.loads(
        run_python(program, str(tmp_path), "ops", "erfc", "--import", "my_kernels", "--json").stdout
    )
    assert {"operator": "aten::erfc", "kind": "user", "kernel": "my_kernels.erfc"} in listed
    assert "user" not in run_python(program, str(tmp_path), "ops", "erfc").stdout


def test_compiled_programs_use_them(library: torch.library.Library) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.erfc(x) * 2

    compiled, x = torch.compile(program, backend="maca"), torch.zeros(3, device="maca")
    assert compiled(x).tolist() == [2.0] * 3
    library.impl("erfc", lambda t: t + 42, "PrivateUse1")
    torch.compiler.reset()
    for _ in range(3):
        assert compiled(x).tolist() == [84.0] * 3
