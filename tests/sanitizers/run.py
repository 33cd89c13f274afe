"""Builds both libraries with a sanitizer of GCC's and runs tests in it: ``make sanitize``.

    python tests/sanitizers/run.py address                              # the suite, with address and undefined behaviour
    python tests/sanitizers/run.py thread --pytest tests/test_stream.py  # some tests
    python tests/sanitizers/run.py address --calls 100000               # random calls
    python tests/sanitizers/run.py address --runtime --pytest tests      # of the runtime alone, in two minutes

The build and a copy of the checkout, in which the tests run, lie in ``build/sanitize``; the checkout's own libraries
stay as they are. Each place that a report names is shown once, with how often it was named and the first report's file.
Exit status 1 where one names a library of ours, or a test fails.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
FLAGS = {"address": "address,undefined", "thread": "thread"}
PRELOADED = {"address": ("libasan.so", "libubsan.so"), "thread": ("libtsan.so",)}
# what pip names for the packages in folders of ours, as links in the copy
NAMES = {name: f"macatensor/{name}" for name in ("maca_autoload", "maca_fusion", "maca_tools")}


def run(*command: str | os.PathLike[str], **keywords: object) -> str:
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **keywords)  # type: ignore[call-overload]
    return str(done.stdout)


def build(kind: str, folder: Path, runtime: bool) -> None:
    """Both libraries, of the best instruction set here, in a copy of what git tracks or would.

    ``runtime``: the runtime between Python and a device library only, which runs this environment's host library.
    """
    objects, tree = folder / "objects", folder / "tree"
    binaries = Path(sys.executable).parent
    cmake = [binaries / "cmake", "-G", "Ninja", "-S", ROOT / "libmaca_ffi", "-B", objects]
    cmake += [f"-DMACA_SANITIZE={FLAGS[kind]}", "-DMACA_ISAS=native", f"-DPython_EXECUTABLE={sys.executable}"]
    run(*cmake, f"-DCMAKE_MAKE_PROGRAM={binaries / 'ninja'}")
    target = ["--target", "_binding"] if runtime else []
    subprocess.run([binaries / "cmake", "--build", objects, *target], check=True)
    files = run("git", "ls-files", "-co", "--exclude-standard", "-z", cwd=ROOT).split("\0")
    for name in filter(None, files):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_file():
            shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    for name, target in NAMES.items():
        if not (tree / name).is_symlink():
            (tree / name).symlink_to(target)
    (tree / "libmaca_ffi" / "lib").mkdir(exist_ok=True)
    if not runtime:
        shutil.copy2(objects / "host" / "libmaca_host.so", tree / "libmaca_ffi" / "lib")
    for module in (objects / "shim").glob("_binding*.so"):
        shutil.copy2(module, tree / "libmaca_ffi")
    run("gcc", "-shared", "-fPIC", HERE / "without_deepbind.c", "-o", folder / "without_deepbind.so", "-ldl")


def environment(kind: str, folder: Path, runtime: bool) -> dict[str, str]:
    reports = folder / "reports"
    shutil.rmtree(reports, ignore_errors=True)
    reports.mkdir()
    preloaded = [run("gcc", f"-print-file-name={name}").strip() for name in PRELOADED[kind]]
    common = f"log_path={reports}/report:suppressions={HERE / f'{kind}.txt'}"
    # what Python and PyTorch keep to the end is no leak of ours; to allocate too much is a test
    address = f"{common}:verify_asan_link_order=0:detect_leaks=0:allocator_may_return_null=1:allow_user_segv_handler=1"
    address += ":max_allocation_size_mb=2560"  # what random calls ask beyond it is refused, as by their own limit elsewhere
    program = "import macatensor; print(macatensor.device.library_info()['path'])"
    own = {"MACA_LIBRARY": run(sys.executable, "-c", program).strip()} if runtime else {}
    return {
        **os.environ,
        **own,
        "LD_PRELOAD": ":".join([str(folder / "without_deepbind.so"), *preloaded]),
        # in front of an installed macatensor; a folder of packages that is named here adds no others, as those of a
        # checkout that is installed editable would be
        "PYTHONPATH": f"{folder / 'tree'}:{sysconfig.get_path('purelib')}",
        "PYTHONMALLOC": "malloc",  # each object is a block of its own
        "ASAN_OPTIONS": address,
        "UBSAN_OPTIONS": f"log_path={reports}/report:print_stacktrace=1",
        # a child of a process with threads, as the tests' have many, starts its own
        "TSAN_OPTIONS": f"{common}:report_signal_unsafe=0:history_size=4:ignore_noninstrumented_modules=1:die_after_fork=0",
    }


class Places(NamedTuple):
    """Of each place that reports name, their files, once for each time it is named."""

    ours: dict[str, list[Path]]
    # of reports without a frame of ours, as of random calls that end PyTorch's kernels
    others: dict[str, list[Path]]


def places(reports: Path) -> Places:
    found = Places(defaultdict(list), defaultdict(list))
    for report in sorted(reports.iterdir()):
        text = report.read_text(errors="replace")
        to = found.ours if re.search(r"libmaca_host|_binding\.|libmaca_ffi/\w+/", text) else found.others
        for line in text.splitlines():
            said = re.match(r"SUMMARY: \w+: (.*)", line) or re.match(r"(.*: runtime error: .*)", line)
            if said:
                to[said[1].replace(f"{ROOT}/", "")].append(report)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=list(FLAGS))
    parser.add_argument(
        "--runtime", action="store_true", help="sanitize the runtime alone, not the host library"
    )
    parser.add_argument("--calls", type=int, help="random calls in the place of tests")
    parser.add_argument("--first", type=int, default=0, help="the first of the random calls")
    parser.add_argument("--pytest", nargs=argparse.REMAINDER, default=["-n2", "tests"], help="for pytest")
    arguments = parser.parse_args()
    folder = ROOT / "build" / "sanitize" / (arguments.kind + "-runtime" * arguments.runtime)
    build(arguments.kind, folder, arguments.runtime)
    program = [str(Path(sysconfig.get_path("purelib")) / "pytest" / "__main__.py"), "-o", "timeout=1800"]
    program += ["-p", "no:cacheprovider", *arguments.pytest]
    if arguments.calls:
        program = ["tests/fuzz/run.py", "--calls", str(arguments.calls), "--first", str(arguments.first)]
    # not the environment's interpreter, which would find the checkout's libraries first
    command = ["setarch", "-R", sys._base_executable, *program]  # type: ignore[attr-defined]
    status = subprocess.run(
        command, cwd=folder / "tree", env=environment(arguments.kind, folder, arguments.runtime)
    ).returncode
    found = places(folder / "reports")
    for kind, named in (("of no library of ours", found.others), ("", found.ours)):
        for place, files in sorted(named.items(), key=lambda item: -len(item[1])):
            print(f"{len(files):6}  {place}\n        {files[0]}")
        print(f"{len(named)} places are named by reports {kind}".rstrip())
    return 1 if found.ours or status else 0


if __name__ == "__main__":
    sys.exit(main())
