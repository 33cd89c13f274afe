"""The emulator of the CUDA library finds each planted defect and names it, and finds none in what is right."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CUDA = ROOT / "libmaca_ffi" / "cuda"
PROGRAMS = ROOT / "tests" / "cuda_programs"


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("emulator")
    subprocess.run(["make", "-C", CUDA, "emulator", f"BUILD={folder}"], check=True, capture_output=True)
    made = {}
    for source in sorted(PROGRAMS.glob("*.cu")):
        made[source.stem] = folder / source.stem
        command = [
            "g++",
            "-std=c++17",
            "-O1",
            "-g1",
            "-fsanitize=thread,bounds",
            "-x",
            "c++",
            "-I",
            CUDA / "emulator",
        ]
        compiled = folder / f"{source.stem}.o"
        subprocess.run([*command, "-c", source, "-o", compiled], check=True)
        subprocess.run(
            ["g++", compiled, folder / "libemulator.a", "-pthread", "-o", made[source.stem]], check=True
        )
    return made


def run(program: Path, *arguments: str, warp: int = 32) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CUDA_EMULATOR_WARP": str(warp)}
    return subprocess.run([program, *arguments], env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("warp", [32, 64])
def test_what_is_right_is_left_alone(programs: dict[str, Path], warp: int) -> None:
    done = run(programs["blocks"], warp=warp)
    vote = "5555555555555555"[: warp // 4]
    # sums of i % 7 over 0..127, 128..255, 256..383, by shared memory and by warps; 379 counted; even lanes
    sums = [str(sum(i % 7 for i in range(start, start + 128))) for start in (0, 128, 256)]
    assert done.stdout.split() == [*sums, *sums, "379", vote, "done"] and not done.stderr
    done = run(programs["memory"], warp=warp)
    assert done.stdout.split() == ["2", "done"] and not done.stderr and done.returncode == 0


@pytest.mark.parametrize(
    ("program", "defect", "kind", "words"),
    [
        ("blocks", "missing barrier", "race", "shared memory"),
        ("blocks", "some leave", "barrier", "waits in __syncthreads, thread (121, 0, 0) has left the kernel"),
        ("blocks", "beyond the array", "bounds", "thread (127, 0, 0): index 128 leaves an array at"),
        ("blocks", "total without atomics", "race", "a thread of another block"),
        ("blocks", "never written", "uninitialized", "which no thread of the block has written"),
        (
            "blocks",
            "half a mask",
            "warp",
            "lane 16 calls a warp function with the mask 0xffff, which leaves it out",
        ),
        ("blocks", "shuffle in a branch", "warp", "waits in a warp function for lane 16, which has left"),
        ("blocks", "barrier in a branch", "barrier", "thread (64, 0, 0) has left the kernel"),
        ("memory", "wrong stride", "bounds", "0 bytes behind an allocation of 2000 bytes"),
        ("memory", "freed", "bounds", "writes 4 bytes"),
        ("memory", "event too early", "missing wait", "no event and no wait orders them"),
        ("memory", "grid too large", "bounds", "0 bytes behind an allocation of 4000 bytes"),
        (
            "memory",
            "one too many",
            "bounds",
            "block (3, 0, 0), thread (232, 0, 0) reads 4 bytes 0 bytes behind",
        ),
        (
            "memory",
            "copy too long",
            "bounds",
            "a fill of 4001 bytes begins at byte 0 of an allocation of 4000",
        ),
        ("memory", "missing wait", "missing wait", "no event and no wait orders them"),
        ("memory", "missing synchronize", "missing wait", "a copy to the host on stream"),
    ],
)
def test_a_planted_defect_is_named(
    programs: dict[str, Path], program: str, defect: str, kind: str, words: str
) -> None:
    done = run(programs[program], defect)
    assert done.returncode != 0 and "done" not in done.stdout, done
    assert done.stderr.startswith(f"emulator: {kind}: ") and words in done.stderr, done.stderr
    assert done.stderr.count("emulator:") == 1


def test_what_no_thread_writes_shows(programs: dict[str, Path]) -> None:
    assert run(programs["memory"], "missing tail").stdout.split() == ["-nan", "done"]


def test_warps_of_32_are_no_given(programs: dict[str, Path]) -> None:
    assert run(programs["blocks"], "warp of 32").returncode == 0
    done = run(programs["blocks"], "warp of 32", warp=64)
    assert done.returncode != 0 and done.stderr.startswith("emulator: warp: kernel ")
    assert "lane 32 calls a warp function with the mask 0xffffffff, which leaves it out" in done.stderr


@pytest.mark.parametrize(
    ("defect", "words"),
    [
        ("host reads", "host code reads 4 bytes of device memory, byte 0 of an allocation of 4000 bytes"),
        ("host copies", "host code touches device memory"),
    ],
)
def test_host_code_faults_on_device_memory(programs: dict[str, Path], defect: str, words: str) -> None:
    done = run(programs["memory"], defect)
    assert done.returncode == -signal.SIGSEGV and f"emulator: host access: {words}" in done.stderr


@pytest.mark.parametrize(
    ("defect", "error"),
    [("wrong direction", "cudaErrorInvalidValue"), ("block too large", "cudaErrorInvalidConfiguration")],
)
def test_wrong_calls_are_refused(programs: dict[str, Path], defect: str, error: str) -> None:
    done = run(programs["memory"], defect)
    assert done.returncode == 3 and done.stdout.startswith(error)
