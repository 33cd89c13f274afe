"""Judges a library that cannot run here by the tests that run here: its kernels compute in another process, under qemu.

    .venv/bin/python tests/elsewhere/run.py arm                 # cross-compiles the host library for aarch64
    .venv/bin/python tests/elsewhere/run.py old                 # the library of this environment, on x86-64 without AVX2
    .venv/bin/python tests/elsewhere/run.py arm mm 'special_*'  # some rows

Every row of the op table that is a kernel runs its samples in float32 (or its first dtype), contiguous, and is judged by its own
bound against float64, as `macatensor parity` does. It needs Debian's qemu-user-static, and g++-aarch64-linux-gnu for `arm`.
Results stay in `results.json` beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from datetime import datetime, timezone
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RESULTS = HERE / "results.json"
BUILD = ROOT / "build" / "elsewhere"
INCLUDE = ROOT / "libmaca_ffi" / "include"
ARM_ROOT = "/usr/aarch64-linux-gnu"


def call(*command: str | Path, **environment: str) -> None:
    subprocess.run([str(word) for word in command], env={**os.environ, **environment}, check=True)


def compiled(compiler: str, source: str, *flags: str) -> Path:
    target = BUILD / compiler / source.removesuffix(".cpp")
    target.parent.mkdir(parents=True, exist_ok=True)
    call(
        compiler,
        "-std=c++20",
        "-O1",
        "-Wall",
        "-Wextra",
        f"-I{INCLUDE}",
        HERE / source,
        "-o",
        target,
        "-ldl",
        *flags,
    )
    return target


def arm_library() -> Path:
    """The host library for aarch64, with OpenBLAS from its package for that processor and without oneDNN."""
    packages, folder = BUILD / "arm-packages", BUILD / "arm"
    if not packages.exists():
        call(
            sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", "--target", packages,
            *(f"--platform=manylinux_{glibc}_aarch64" for glibc in ("2_17", "2_28")), "scipy-openblas32",
        )  # fmt: skip
    binaries = Path(sys.executable).parent
    if not (folder / "build.ninja").exists():
        call(
            binaries / "cmake", "-G", "Ninja", "-S", ROOT / "libmaca_ffi", "-B", folder,
            f"-DCMAKE_MAKE_PROGRAM={binaries / 'ninja'}", f"-DCMAKE_TOOLCHAIN_FILE={ROOT}/libmaca_ffi/aarch64.cmake",
            f"-DPython_EXECUTABLE={sys.executable}", f"-DPython_INCLUDE_DIR={sysconfig.get_path('include')}",
            f"-DMACA_PACKAGES={packages}",
        )  # fmt: skip
    call(binaries / "ninja", "-C", folder, "host/libmaca_host.so")
    return folder / "host" / "libmaca_host.so"


def server_command(target: str) -> str:
    """What runs the library that is judged."""
    if target == "arm":
        library = arm_library()
        return (
            f"qemu-aarch64-static -L {ARM_ROOT} {compiled('aarch64-linux-gnu-g++', 'server.cpp')} {library}"
        )
    from macatensor.runtime.ffi import host_library_path

    return f"qemu-x86_64-static -cpu Nehalem {compiled('g++', 'server.cpp')} {host_library_path()}"


def judge(patterns: list[str]) -> dict[str, object]:
    """Runs in the process that has loaded the library: rows that pass, fail, decline."""
    from macatensor.device import library_info
    from macatensor.parity.runner import dtypes_of, run_row, select
    from op_table import Kind

    passed, failed, declined, samples = 0, [], [], 0
    for row in select(patterns):
        if row.kind is not Kind.KERNEL:
            continue
        dtypes = dtypes_of(row)
        result = run_row(row, ["float32" if "float32" in dtypes else dtypes[0]], ["contiguous"])
        samples += result.samples
        print(
            f"{result.verdict:8} {row.name} {result.samples} {result.seconds:.1f} s",
            file=sys.stderr,
            flush=True,
        )
        if result.failed:
            failed.append([row.name, *result.failures[:1]])
        elif result.declined:
            declined.append([row.name, *result.declines[:1]])
        else:
            passed += 1
    info = library_info()
    return {
        "library": f"{info['library']}; {info['simd']}; {info['libraries']}",
        "passed": passed,
        "samples": samples,
        "failed": failed,
        "declined": declined,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", choices=["arm", "old", "judge"], help=argparse.SUPPRESS)
    parser.add_argument("patterns", nargs="*")
    arguments = parser.parse_args()
    if arguments.target == "judge":
        print(json.dumps(judge(arguments.patterns)))
        return 0
    if not shutil.which(f"qemu-{'aarch64' if arguments.target == 'arm' else 'x86_64'}-static"):
        raise SystemExit("qemu is not there: apt-get install qemu-user-static g++-aarch64-linux-gnu")
    command = server_command(arguments.target)
    library = compiled("g++", "library.cpp", "-shared", "-fPIC", "-fvisibility=hidden")
    done = subprocess.run(
        [sys.executable, __file__, "judge", *arguments.patterns],
        env={**os.environ, "MACA_LIBRARY": str(library), "MACA_ELSEWHERE": command, "MACA_FALLBACK": "error"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    outcome = json.loads(done.stdout.splitlines()[-1])
    outcome["date"] = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    print(json.dumps(outcome, indent=1))
    if not arguments.patterns:
        results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        results[arguments.target] = outcome
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    return 1 if outcome["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
