"""What tests of several files share: programs run in a process of their own, and comparisons with the host."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import macatensor
from macatensor.choices import deciding
from macatensor.choices.deciding import Asked
from macatensor.dispatch.named_kernels import launch
from macatensor.runtime import plan_caches

ROOT = Path(__file__).resolve().parents[1]


def child_environment(**more: str) -> dict[str, str]:
    """What a program that a test starts sees: these files before whatever else there is, and this process's library."""
    paths = [str(ROOT), str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
    found = {"MACA_LIBRARY": str(macatensor.device.library_info()["path"]), **os.environ}
    return {**found, "PYTHONPATH": os.pathsep.join(paths), **more}


def run_python(
    code: str, *arguments: str, expect: int = 0, timeout: float = 300, **environment: str | Path | None
) -> subprocess.CompletedProcess[str]:
    """Runs a program in a fresh interpreter; None unsets a variable. Fails with its output when the exit status is
    not ``expect``."""
    env = child_environment(PYTHONFAULTHANDLER="1", OMP_NUM_THREADS="2")
    for name, value in environment.items():
        env.pop(name, None)
        if value is not None:
            env[name] = str(value)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        env=env,
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=env.get("TMPDIR", "/tmp"),
    )
    assert done.returncode == expect, (
        f"exit {done.returncode}, expected {expect}\n{done.stdout}\n{done.stderr}"
    )
    return done


class Gate:
    """Work of the current stream that ends when :meth:`open` is called, and with an error after ``seconds``.

    So a test decides what happens before it ends, on a machine of any speed. Opened at the end of a ``with`` block too.
    """

    def __init__(self, seconds: float = 60):
        reader, writer = os.pipe()  # the launch reads until it ends, so nobody closes the reader
        self.writers = [writer]  # whoever opens the gate takes it out, of several threads one
        launch("gate", [], [], {"descriptor": reader, "milliseconds": int(seconds * 1000)})

    def open(self) -> None:
        try:
            writer = self.writers.pop()
        except IndexError:
            return
        os.write(writer, b".")  # not just closed: a forked child may hold it too
        os.close(writer)

    def open_soon(self) -> None:
        """Another thread opens it, while the caller waits for it as a rule."""
        threading.Timer(0.01, self.open).start()

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *error: object) -> None:
        self.open()


def allocated() -> int:
    """Bytes of live blocks after a collection."""
    gc.collect()
    return torch.maca.memory_allocated()


LEVELS = ("baseline", "avx2", "avx512", "amx")  # of MACA_SIMD, lowest first


def level_is_at_least(level: str) -> bool:
    """Does the library compute with this level or a better one, as the processor and ``MACA_SIMD`` let it?"""
    in_use = macatensor.device.library_info()["simd"]
    return in_use in LEVELS and LEVELS.index(in_use) >= LEVELS.index(level)


def multiplies_zeros_below(level: str, request: pytest.FixtureRequest) -> None:
    """The test fails below a level: oneDNN's convolutions there multiply the zeros that stand for what lies beside an
    image, and zero times NaN or Inf is NaN. PyTorch's do so, too, on a processor of that level. Not strict: which of its
    kernels oneDNN takes for a shape is a matter of the processor, too, and on an EPYC that ends at AVX2 some do not."""
    if not level_is_at_least(level):
        reason = f"oneDNN below {level} multiplies zeros beside the image, in PyTorch there too"
        request.applymarker(pytest.mark.xfail(reason=reason, strict=False))


@contextmanager
def threads_restored(count: int | None = None) -> Iterator[None]:
    """PyTorch computes on ``count`` threads in the block, and on as many as before after it."""
    before = torch.get_num_threads()
    try:
        if count is not None:
            torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def nothing_leaked() -> Iterator[None]:
    """Device memory after the block is no more than before. Collects only when it is: a collection takes 0.1 s."""
    before = torch.maca.memory_allocated()
    yield
    if torch.maca.memory_allocated() > before:
        after = allocated()
        assert after <= before, f"{after - before} bytes of device memory leaked"


def same(ours: torch.Tensor, host: torch.Tensor) -> None:
    """Sizes, strides, dtype and elements equal the host's; NaN equals NaN."""
    assert isinstance(ours, macatensor.MacaTensor), type(ours)
    assert ours.dtype == host.dtype
    assert ours.shape == host.shape
    assert ours.stride() == host.stride(), f"strides {ours.stride()}, the host has {host.stride()}"
    torch.testing.assert_close(ours.detach().cpu(), host.detach(), rtol=0, atol=0, equal_nan=True)


def close(ours: torch.Tensor, host: torch.Tensor, **tolerance: float) -> None:
    """Elements near the host's."""
    assert isinstance(ours, macatensor.MacaTensor), type(ours)
    torch.testing.assert_close(
        ours.detach().cpu(), host.detach(), equal_nan=True, check_stride=False, **tolerance
    )


def asked_of(call: Callable[[], object]) -> list[Asked]:
    """What a call asks of the library when its plans are made."""
    found: list[Asked] = []
    before, deciding.watcher = deciding.watcher, lambda asked, signature: found.append(asked)
    try:
        plan_caches.drop_plans()
        call()
    finally:
        deciding.watcher = before
    assert found
    return found
