"""Records what the library computes here and replays it: here, on an x86-64 without AVX, on 64-bit Arm.

    python tests/replay/run.py [--only here x86-64 aarch64] [--again]

It wants ``qemu-x86_64`` and ``qemu-aarch64`` (qemu-user), ``aarch64-linux-gnu-gcc``, and the wheel that `make aarch64` makes.
The library here must hold the kernels of every instruction set (``make build ISAS=all``). Tables and JSON go to
``build/replay``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "build" / "replay"
REQUESTS = OUT / "requests"
ARM_PACKAGES = ROOT / "build" / "aarch64-packages"
# Nehalem has SSE4.2, the least that oneDNN, OpenBLAS and NumPy run with, and no AVX. Of "max", qemu's own model of an Arm,
# OpenBLAS takes the kernels of SME, whose float64 products are wrong under qemu 7.2, without this library as well.
X86_MODEL, ARM_MODEL = "Nehalem", "cortex-a57"


def compile_driver(compiler: str, name: str) -> Path:
    driver = OUT / name
    subprocess.run(
        [compiler, "-std=c11", "-O1", "-Wall", "-Wextra", "-I", str(ROOT / "libmaca_ffi/include")]
        + [str(ROOT / "tests/replay/replay.c"), "-o", str(driver), "-ldl", "-lm"],
        check=True,
    )
    return driver


def replay(where: str, command: Sequence[str], library: Path, environment: dict[str, str]) -> bool:
    """Does every launch pass that the library does not decline? Prints the kernels of which one does not."""
    done = subprocess.run(
        [*command, str(library), str(REQUESTS), "--json", str(OUT / f"{where}.json")],
        env={**os.environ, **environment}, capture_output=True, text=True,
    )  # fmt: skip
    (OUT / f"{where}.txt").write_text(done.stdout + done.stderr)
    lines = done.stdout.splitlines()
    odd = [line for line in lines[1:-1] if line.split()[2:5] != ["0", "0", "0"]]
    print(f"{where}:", *odd, lines[-1] if lines else done.stderr, sep="\n  ", flush=True)
    return done.returncode == 0


def here() -> tuple[Path, str]:
    """The library that is loaded here, and the folders of what it is linked with."""
    sys.path.insert(0, str(ROOT / "tests"))
    from importlib.metadata import files

    from interposer_library import host_library

    packages = [("onednn-cpu-gomp", "libdnnl.so.3"), ("scipy-openblas32", "libscipy_openblas.so")]
    folders = {
        str(Path(str(f.locate())).resolve().parent)
        for package, name in packages
        for f in files(package) or ()
        if f.name == name
    }
    return host_library(), ":".join(sorted(folders))


def arm_library() -> Path:
    """Out of the wheel, whose library finds its packages beside it once it is installed."""
    wheels = list((ROOT / "dist" / "aarch64").glob("*.whl"))
    if len(wheels) != 1:
        raise SystemExit("dist/aarch64 holds no wheel: make aarch64")
    with zipfile.ZipFile(wheels[0]) as archive:
        return Path(archive.extract("libmaca_ffi/lib/libmaca_host.so", OUT / "aarch64"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--only", nargs="+", choices=["here", "x86-64", "aarch64"], default=["here", "x86-64", "aarch64"]
    )
    parser.add_argument("--again", action="store_true", help="replay what was recorded before")
    arguments = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    if not arguments.again:
        subprocess.run([sys.executable, str(ROOT / "tests/replay/record.py"), str(REQUESTS)], check=True)
    passed = True
    library, folders = here()
    beside = {"LD_LIBRARY_PATH": folders}
    if "here" in arguments.only:
        passed &= replay("here", [str(compile_driver("cc", "replay"))], library, beside)
    if "x86-64" in arguments.only:
        emulated = ["qemu-x86_64", "-cpu", X86_MODEL, str(compile_driver("cc", "replay"))]
        passed &= replay("x86-64", emulated, library, beside)
    if "aarch64" in arguments.only:
        blas = next(ARM_PACKAGES.rglob("libscipy_openblas.so")).parent
        driver = compile_driver("aarch64-linux-gnu-gcc", "replay-aarch64")
        emulated = [
            "qemu-aarch64",
            "-cpu",
            ARM_MODEL,
            "-L",
            "/usr/aarch64-linux-gnu",
            "-E",
            f"LD_LIBRARY_PATH={blas}",
        ]
        passed &= replay("aarch64", [*emulated, str(driver)], arm_library(), {})
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
