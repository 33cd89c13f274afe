"""Programs that drive the libraries' threads without Python, compiled with ThreadSanitizer in seconds and run.

    python tests/sanitizers/drivers.py              # all of them
    python tests/sanitizers/drivers.py thread_pool  # one

Each is compiled together with the sources that it drives alone. Exit status 1 where one reports a race or finds a number
wrong.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent / "drivers"
HOST = ROOT / "libmaca_ffi" / "host"
INCLUDES = [
    HERE,
    HOST,
    HOST.parent,
    HOST.parent / "include",
    HOST.parent / "shim",
    HOST / "onednn" / "absent",
    Path(sysconfig.get_path("include")),
]
FLAGS = ["-std=c++20", "-O1", "-g1", "-fno-omit-frame-pointer", "-fsanitize=thread", "-pthread"]
FLAGS += ['-DMACA_LOWEST_ISA="baseline"']
POOL = ("host/threads/thread_pool.cpp", "host/threads/openmp_on_pool.cpp", "host/stream.cpp")
COLLECTIVES = [f"host/collectives/{name}.cpp" for name in ("collectives", "fold", "meeting", "shared_memory")]
DEVICE = [f"host/{name}.cpp" for name in ("device", "device_memory", "request", "onednn/engine")]
RUNTIME = [path.relative_to(HOST.parent).as_posix() for path in sorted((HOST.parent / "shim").glob("*.cpp"))]
# the sources that each drives, and what else the linker is told
DRIVERS: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "thread_pool": (POOL, ()),
    "streams": (POOL, ()),
    "collectives": ((*POOL, *COLLECTIVES), ("-Wl,--wrap=mmap,--wrap=munmap",)),
    "runtime": ((*POOL, *COLLECTIVES, *DEVICE, *RUNTIME), ("-rdynamic", "-Wl,--wrap=dlopen")),
}


def compiled(source: Path, folder: Path) -> Path:
    """Its object file; with ccache, where there is one, which knows what it is made of."""
    made = folder / f"{source.parent.name}_{source.stem}.o"
    command = ["g++", *FLAGS, *(f"-I{path}" for path in INCLUDES), "-c", source, "-o", made]
    subprocess.run(["ccache", *command] if shutil.which("ccache") else command, check=True)
    return made


def build(name: str, folder: Path) -> Path:
    driven, linked = DRIVERS[name]
    own = ["runtime.cpp", "stand_ins.cpp"] if name == "runtime" else [f"{name}.cpp"]
    sources = [*(HERE / source for source in own), *(HOST.parent / source for source in driven)]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        objects = list(threads.map(lambda source: compiled(source, folder), sources))
    program = folder / name
    subprocess.run(["g++", *FLAGS, *objects, *linked, "-o", program], check=True)
    return program


def run(program: Path) -> subprocess.CompletedProcess[str]:
    """Its exit status is not 0 where a race is reported; the report is in its output."""
    # a child of a process with threads starts its own; addresses are where the sanitizer's memory leaves room
    options = {"TSAN_OPTIONS": "die_after_fork=0:report_signal_unsafe=0:history_size=4"}
    return subprocess.run(
        ["setarch", "-R", program],
        env={**os.environ, **options},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def main(names: list[str]) -> int:
    folder = ROOT / "build" / "sanitize" / "drivers"
    folder.mkdir(parents=True, exist_ok=True)
    failed = False
    for name in names or DRIVERS:
        done = run(build(name, folder))
        failed |= done.returncode != 0
        print(f"{name}: exit status {done.returncode}\n{done.stdout}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
