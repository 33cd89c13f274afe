"""MACA_MEMORY_FENCE: a kernel that leaves its operands faults in its launch, and what nobody wrote is NaN."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from interposer_library import host_library
from running import run_python

# A kernel that reads or writes the element behind its result's last.
PROGRAM = r"""
import sys, torch
from macatensor import cpp_extension

cpp_extension.load_inline("leaving", '''
    MACA_KERNEL("gelu", [](const maca::Request& request) {
      return [numel = NUMEL](const maca::Launch& launch) {
        volatile float* values = launch.pointer<float>(1);
        for (int64_t i = 0; i < numel; ++i) values[i] = 1;
        if (WRITES) values[numel] = values[numel];
        else (void)values[numel];
      };
    });
''', extra_cflags=["-O1", "-DWRITES=" + sys.argv[2], "-DNUMEL=" + sys.argv[3]], build_directory=sys.argv[1])
print(torch.nn.functional.gelu(torch.ones(int(sys.argv[3])).maca()).sum().item())
"""


@pytest.mark.supports("MACA_MEMORY_FENCE")
@pytest.mark.parametrize("writes", [False, True])
def test_access_behind_an_operand_faults(tmp_path: Path, writes: bool) -> None:
    for numel in (16, 100_000):
        arguments = str(tmp_path), str(int(writes)), str(numel)
        unseen = run_python(PROGRAM, *arguments)
        assert float(unseen.stdout) == numel
        fault = run_python(PROGRAM, *arguments, expect=-signal.SIGSEGV, MACA_MEMORY_FENCE="1")
        assert "line 15 in <module>" in fault.stderr  # as Python's fault handler tells it: the call of gelu


def test_released_memory_faults() -> None:
    program = """
        import ctypes, torch, macatensor
        a = torch.ones(64, device="maca")
        address = a.data_ptr() & ~(1 << 62)  # of the host library's device
        assert ctypes.string_at(address, 4) == b"\\0\\0\\x80?"
        KEEP
        ctypes.string_at(address, 4)
    """
    run_python(program.replace("KEEP", ""), MACA_MEMORY_FENCE="1")
    run_python(program.replace("KEEP", "del a"), expect=-signal.SIGSEGV, MACA_MEMORY_FENCE="1")


def test_unwritten_memory_is_nan() -> None:
    run_python(
        """
        import torch, macatensor
        for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
            for numel in (1, 7, 5000):
                assert torch.empty(numel, dtype=dtype, device="maca").isnan().all()
        assert (torch.empty(5, dtype=torch.int16, device="maca") == -1).all()
        """,
        MACA_MEMORY_FENCE="1",
    )


def test_memory_follows_what_lives() -> None:
    run_python(
        """
        import torch, macatensor
        def counts():
            torch.maca.empty_cache()
            stats = torch.maca.memory_stats()
            snapshot = torch.maca.memory_snapshot()
            assert sum(s["total_size"] for s in snapshot) == stats["reserved_bytes.all.current"]
            assert len(snapshot) == stats["segment.all.current"]
            return stats["allocation.all.current"], stats["reserved_bytes.all.current"]
        before = counts()
        live = [torch.full((n,), n, device="maca") for n in (1, 1000, 1024, 5000, 1 << 20)]
        for step in range(300):
            n = (step * 37) % 9000 + 1
            live[step % 5] = torch.full((n,), n, device="maca")
        assert all((t == t.numel()).all() for t in live)
        held = counts()
        assert held[0] == before[0] + 5
        del live
        assert counts() == before
        """,
        MACA_MEMORY_FENCE="1",
    )


def test_limit_and_recovery_with_fences() -> None:
    run_python(
        """
        import torch, macatensor
        a = torch.ones(4 << 20, device="maca")
        try:
            torch.ones(60 << 20, device="maca")
        except torch.OutOfMemoryError:
            pass
        else:
            raise AssertionError("more than there is")
        assert (torch.ones(1 << 20, device="maca") + 1).sum() == 2 << 20
        """,
        MACA_MEMORY_FENCE="1",
        MACA_DEVICE_MEMORY="64M",
    )


def test_library_without_pages_is_refused(interposer: Path) -> None:
    said = run_python(
        "import macatensor",
        expect=1,
        MACA_MEMORY_FENCE="1",
        MACA_LIBRARY=interposer,
        MACA_INTERPOSER_TARGET=host_library(),
        MACA_INTERPOSER_MODE="missing:memory_reserve",
    ).stderr
    assert "MACA_MEMORY_FENCE" in said and "memory_reserve" in said
