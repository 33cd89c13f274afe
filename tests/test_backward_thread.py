"""Backward passes of the device's results run on the thread that calls them, whatever calls them, and leave no trace."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from running import run_python
from torch.autograd.graph import get_gradient_edge
from torch.utils.checkpoint import checkpoint

Where = list[
    tuple[int, bool]
]  # the thread of each call, and whether the engine would use threads of its own there


class Watched(torch.autograd.Function):
    """The identity, whose backward notes where it runs."""

    where: Where = []

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        Watched.where.append((threading.get_ident(), _may_use_threads()))
        return grad.clone()


watched: Any = Watched.apply


def _may_use_threads() -> bool:
    return bool(torch._C._is_multithreading_enabled())


def _leaf(device: str = "maca") -> torch.Tensor:
    return torch.arange(1.0, 5.0).to(device).requires_grad_()


def _run(backward: Callable[[], object]) -> Where:
    """Where ``backward`` ran. Fails unless the flag is as it was."""
    Watched.where = []
    before = _may_use_threads()
    backward()
    assert _may_use_threads() is before
    assert Watched.where
    return Watched.where


HERE = threading.get_ident()
PASSES: dict[str, Callable[[torch.Tensor], object]] = {
    "backward": lambda v: watched(v * v).sum().backward(),
    "torch.autograd.backward": lambda v: torch.autograd.backward(
        [watched(v).sum(), watched(v * 2)], [None, torch.ones(4).to(v.device)]
    ),
    "grad": lambda v: torch.autograd.grad(watched(v * v).sum(), v),
    "second derivative": lambda v: torch.autograd.grad(
        torch.autograd.grad(watched(v * v * v).sum(), v, create_graph=True)[0].sum(), v
    ),
    "jacobian": lambda v: torch.autograd.functional.jacobian(lambda x: watched(x * x), v),
    "torch.func.grad": lambda v: torch.func.grad(lambda x: watched(x * x).sum())(v.detach()),
    "checkpoint": lambda v: checkpoint(lambda x: watched(x * x), v, use_reentrant=False).sum().backward(),
    "reentrant checkpoint": lambda v: checkpoint(lambda x: watched(x * x), v, use_reentrant=True).sum().backward(),
    "retained graph": lambda v: watched(v * v).sum().backward(retain_graph=True, inputs=[v]),
}  # fmt: skip


@pytest.mark.supports("MACA_BACKWARD_THREAD")
@pytest.mark.parametrize("name", PASSES)
def test_passes_run_here(name: str) -> None:
    leaf, host = _leaf(), _leaf("cpu")
    assert set(_run(lambda: PASSES[name](leaf))) == {(HERE, False)}
    assert {thread for thread, _ in _run(lambda: PASSES[name](host))} == {HERE}
    assert (leaf.grad is None) == (host.grad is None)
    if leaf.grad is not None:
        assert torch.equal(leaf.grad.cpu(), host.grad)


def test_host_passes_see_the_flag_unchanged() -> None:
    v = _leaf("cpu")
    assert _run(lambda: watched(v * v).sum().backward()) == [(HERE, True)]
    with torch.autograd.set_multithreading_enabled(False):
        assert _run(lambda: watched(v * v).sum().backward()) == [(HERE, False)]


def test_a_program_that_forbids_threads_is_left_alone() -> None:
    v = _leaf()
    with torch.autograd.set_multithreading_enabled(False):
        assert _run(lambda: watched(v * v).sum().backward()) == [(HERE, False)]
        assert not _may_use_threads()


def test_roots_on_several_devices() -> None:
    v, host = _leaf(), _leaf("cpu")
    where = _run(lambda: torch.autograd.backward([watched(v * v).sum(), watched(host * host).sum()]))
    assert [enabled for _, enabled in where] == [True, True]
    assert torch.equal(v.grad.cpu(), host.grad) and host.grad.tolist() == [2.0, 4.0, 6.0, 8.0]  # type: ignore[union-attr]


def test_a_graph_on_both_devices() -> None:
    v, host = _leaf(), _leaf("cpu")
    assert set(_run(lambda: watched(watched(host * host).maca() * v).sum().backward())) == {(HERE, False)}
    assert host.grad.tolist() == [2.0, 8.0, 18.0, 32.0]  # type: ignore[union-attr]
    assert v.grad.tolist() == [1.0, 4.0, 9.0, 16.0]  # type: ignore[union-attr]


def test_a_gradient_edge_as_root() -> None:
    v = _leaf()
    found = torch.autograd.grad([get_gradient_edge(watched(v * v))], [v], torch.ones(4, device="maca"))
    assert found[0].tolist() == [2.0, 4.0, 6.0, 8.0] and _may_use_threads()


def test_errors_restore_the_flag() -> None:
    def refuse(grad: torch.Tensor) -> None:
        raise KeyError("a hook's own")

    v = _leaf()
    v.register_hook(refuse)
    for _ in range(2):
        with pytest.raises(KeyError, match="a hook's own"):
            (v * v).sum().backward()
        assert _may_use_threads()

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad + torch.ones(7, device="maca")

    wrong: Any = Wrong.apply
    with pytest.raises(RuntimeError, match="must match the size of tensor b"):
        wrong(_leaf()).sum().backward()
    assert _may_use_threads()
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.ones((), device="maca").backward()
    assert _may_use_threads()


@pytest.mark.parametrize("depth", [3, 90])  # PyTorch goes on with another thread beyond 60 passes
def test_passes_within_passes(depth: int) -> None:
    class Nested(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, left: int) -> torch.Tensor:
            ctx.left = left
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            if ctx.left:
                with torch.enable_grad():
                    inner = torch.ones(4, device="maca", requires_grad=True)
                    nested(inner, ctx.left - 1).sum().backward()
                grad = grad + inner.grad
            return grad, None

    nested: Any = Nested.apply
    v = _leaf()
    nested(v, depth).sum().backward()
    assert v.grad.tolist() == [depth + 1.0] * 4 and _may_use_threads()  # type: ignore[union-attr]


def test_threads_that_share_a_leaf() -> None:
    v = torch.ones(4, device="maca", requires_grad=True)
    failed: list[BaseException] = []

    def passes() -> None:
        try:
            for _ in range(25):
                watched(v * 2).sum().backward()
            assert _may_use_threads()
        except BaseException as error:
            failed.append(error)

    Watched.where = []
    threads = [threading.Thread(target=passes) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(100)
    assert not failed and len({thread for thread, _ in Watched.where}) >= 1
    assert HERE not in {thread for thread, _ in Watched.where}
    assert v.grad.tolist() == [200.0] * 4  # type: ignore[union-attr]


def test_streams() -> None:
    v, stream = _leaf(), torch.maca.Stream()
    with torch.maca.stream(stream):
        y = watched(v * v).sum()
    assert set(_run(y.backward)) == {(HERE, False)}
    assert torch.maca.current_stream() == torch.maca.default_stream()
    assert v.grad.tolist() == [2.0, 4.0, 6.0, 8.0]  # type: ignore[union-attr]


def test_anomaly_mode() -> None:
    v = torch.zeros(3, device="maca", requires_grad=True)
    with (
        pytest.warns(UserWarning, match="Error detected in SqrtBackward0"),
        torch.autograd.detect_anomaly(check_nan=True),
        pytest.raises(RuntimeError, match="SqrtBackward0.*nan"),
    ):
        (v.sqrt() * 0).sum().backward()
    assert _may_use_threads()


def test_the_switch_keeps_the_engines_thread() -> None:
    code = """
        import threading, torch, macatensor
        v = torch.ones(3, device="maca", requires_grad=True)
        seen = []
        v.register_hook(lambda grad: seen.append(threading.get_ident() == threading.main_thread().ident))
        (v + v).sum().backward()
        print(seen, v.grad.tolist())
    """
    assert run_python(code).stdout == "[True] [2.0, 2.0, 2.0]\n"
    assert run_python(code, MACA_BACKWARD_THREAD="1").stdout == "[False] [2.0, 2.0, 2.0]\n"
