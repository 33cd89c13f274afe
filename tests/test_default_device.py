"""``torch.set_default_device``: what a program makes without a device, and what operators make for themselves on the host."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest
from running import run_python
from torch.utils._device import _device_constructors

import macatensor

# what runs below a call of the program, whose default device it would see; the others are programs
_BELOW = "accuracy choices compiling device dispatch distributed integration operators runtime sparse tuning".split()
_FACTORIES = {function.__name__ for function in _device_constructors()}


@pytest.mark.parametrize("package", _BELOW)
def test_what_operators_make_names_its_device(package: str) -> None:
    """PyTorch takes a default device away while a function of Python's runs, not where C++ calls the operator: then
    ``torch.zeros(...)`` inside one is memory of the device, which whoever asked for the host's would read as such."""
    nameless = []
    for path in sorted((Path(macatensor.__file__).parent / package).rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
                continue
            of_torch = isinstance(call.func.value, ast.Name) and call.func.value.id == "torch"
            named = any(k.arg in ("device", None) for k in call.keywords)
            if of_torch and call.func.attr in _FACTORIES and not named:
                nameless.append(f"{path.name}:{call.lineno}: {ast.unparse(call)}")
    assert not nameless


def test_scripts_below_a_default_device(tmp_path: Path) -> None:
    script = tmp_path / "program.py"  # TorchScript reads sources
    script.write_text(
        textwrap.dedent("""
        import torch
        torch.set_default_device("maca")

        @torch.jit.script
        def program(a, b, out, mask, lines):
            torch.mul(a, b, out=out)
            torch.lt(a, b, out=mask)
            torch.sum(out, dim=0, out=lines)
            out.masked_fill_(mask, 0)
            places = torch.bucketize(a, torch.sort(b.flatten())[0])
            return torch.cat([out, a]), torch.where(mask, a, b), places, torch.cumsum(a, 0), torch.std(a)

        a, b = torch.rand(3, 4), torch.rand(3, 4)
        def run(device):
            held = torch.zeros(3, 4, device=device), torch.zeros(3, 4, dtype=torch.bool, device=device)
            lines = torch.zeros(4, dtype=torch.float64, device=device)
            return *program(a.to(device), b.to(device), *held, lines), *held, lines
        for there, here in zip(run("maca"), run("cpu")):
            torch.testing.assert_close(there.cpu(), here)
        """)
    )
    run_python(f"import runpy; runpy.run_path({str(script)!r})")


def test_operators_below_a_mode_of_functions() -> None:
    """The same of operators that are asked below a mode that nothing has taken away."""
    run_python(
        """
        import torch, macatensor
        from macatensor import MacaTensor
        from torch.utils._device import DeviceContext

        plain = MacaTensor.__torch_dispatch__
        def dispatch(cls, func, types, args=(), kwargs=None):
            with DeviceContext(torch.device("maca")):
                return plain(func, types, args, kwargs)
        MacaTensor.__torch_dispatch__ = classmethod(dispatch)

        x = torch.rand(4, 5)
        there = x.maca()
        for ask in (
            lambda x: torch.histc(x, 3), lambda x: torch.linalg.slogdet(x[:, :4])[1], lambda x: x.to_sparse().to_dense(),
            lambda x: torch.bucketize(0.5, x[0].sort()[0]), lambda x: x.fill_(2), lambda x: torch.quantile(x, 0.5),
            lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255), lambda x: x.copy_(torch.ones(5)),
            lambda x: torch.unique(x.round(), return_counts=True)[1], lambda x: x.to(torch.float8_e5m2).float(),
            lambda x: torch.logspace(0, 1, 5, device=x.device), lambda x: torch.polar(x, x).angle(),
        ):
            torch.testing.assert_close(ask(there.clone()).cpu(), ask(x.clone()))
        try:
            torch.add(there, there[:, :3])
        except RuntimeError as error:
            assert "must match the size" in str(error)
        else:
            raise AssertionError
        """
    )
