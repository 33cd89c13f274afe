"""What is compiled and joined of users' own sources, what is refused, and what their kernels may not answer."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from extension_kernels import FAST, MARKED, marked, unload_all
from running import run_python

from macatensor import cpp_extension


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("extensions")


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    yield
    unload_all()


def c_library(body: str, folder: Path, name: str) -> Path:
    source = folder / f"{name}.c"
    source.write_text(f"#include <string.h>\n#include <maca.h>\n{body}")
    return source


TABLE = r"""
static const char* kernel_name(maca_device* d, int32_t i) { return i == 0 ? "gelu" : NULL; }
static maca_status create(maca_device* d, const maca_plan_request* r, maca_plan** p, maca_reason* why) { CREATE }
static maca_status info(maca_device* d, const maca_plan* p, maca_plan_info* i) { INFO }
static maca_status launch(maca_device* d, const maca_plan* p, const maca_launch* l) { LAUNCH }
static maca_status destroy(maca_device* d, maca_plan* p) { return MACA_OK; }
static maca_interface table = {.size = sizeof table, .major = MACA_ABI_MAJOR, .minor = MACA_ABI_MINOR,
    .library = "answers", .kernel_name = kernel_name, .plan_create = create, .plan_info = info,
    .plan_launch = launch, .plan_destroy = destroy};
__attribute__((visibility("default"))) const maca_interface* maca_get_interface(int32_t major) { return &table; }
"""


@pytest.mark.parametrize(
    "create, info, launch, text",
    [
        (
            "return MACA_OK;",
            "return MACA_OK;",
            "return MACA_OK;",
            "plan_create returned MACA_OK and the plan NULL",
        ),
        ("return 77;", "return MACA_OK;", "return MACA_OK;", "77, which is no maca_status"),
        (
            "*p = (maca_plan*)1; return MACA_OK;",
            "i->cost = 9; return MACA_OK;",
            "return MACA_OK;",
            "cost = 9",
        ),
        (
            "*p = (maca_plan*)1; return MACA_OK;",
            "return MACA_OK;",
            "return MACA_DEVICE_ERROR;",
            "plan_launch returned",
        ),
        (
            "*p = (maca_plan*)1; return MACA_OK;",
            "return MACA_OK;",
            "return -5;",
            "-5, which is no maca_status",
        ),
    ],
)
def test_answers_that_the_header_forbids_are_errors(
    folder: Path, create: str, info: str, launch: str, text: str
) -> None:
    body = TABLE.replace("CREATE", create).replace("INFO", info).replace("LAUNCH", launch)
    x = torch.zeros(2, device="maca")
    with cpp_extension.load("answers", c_library(body, folder, "answers"), build_directory=folder):
        with pytest.raises(RuntimeError, match=f"gelu.default: the extension answers's .*{text}"):
            torch.nn.functional.gelu(x)
    assert torch.nn.functional.gelu(x).tolist() == [0.0, 0.0]


MISFITS = {
    "nothing": ("int nothing;", "exports no maca_get_interface"),
    "other_major": (
        TABLE.replace("MACA_ABI_MAJOR", "9"),
        "implements maca.h 9.2, this macatensor speaks maca.h 2.2",
    ),
    "no_major": (
        '__attribute__((visibility("default"))) const maca_interface* maca_get_interface(int32_t m) { return NULL; }',
        "implements no version of maca.h that is known",
    ),
    "no_slot": (TABLE.replace(", .plan_info = info", ""), "lacks the mandatory function plan_info"),
    "no_kernel": (TABLE.replace('i == 0 ? "gelu" : NULL', "NULL"), "names no kernel"),
    "short": (TABLE.replace("sizeof table", "64"), "too small for the mandatory function"),
    "undefined": (TABLE.replace("CREATE", "extern int nowhere_to_be_found(void); return nowhere_to_be_found();"),
                  "undefined symbol: nowhere_to_be_found"),
}  # fmt: skip


@pytest.mark.parametrize("misfit", MISFITS)
def test_libraries_that_do_not_fit_are_refused(folder: Path, misfit: str) -> None:
    body, text = MISFITS[misfit]
    for name in ("CREATE", "INFO", "LAUNCH"):
        body = body.replace(name, "return MACA_UNSUPPORTED;")
    with pytest.raises(ImportError, match=f"could not join the extension {misfit}: .*{text}"):
        cpp_extension.load(misfit, c_library(body, folder, misfit), build_directory=folder)
    assert not cpp_extension.joined()


def test_kernels_for_the_host_join_no_other_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("macatensor.runtime.extensions._memory_is_the_hosts", lambda: False)
    with pytest.raises(ImportError, match="its kernels run on the host, where this device's memory is not"):
        marked("mark", 42, folder)
    monkeypatch.undo()
    assert torch.nn.functional.gelu(torch.zeros(1, device="maca")).tolist() == [0.0]


def test_the_compilers_words_are_in_the_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="(?s)Error building extension 'wrong': .*no_such_thing"):
        cpp_extension.load_inline("wrong", "int x = no_such_thing;", build_directory=folder)
    with pytest.raises(ValueError, match="expected a name as Python's are"):
        cpp_extension.load_inline("a/../../b", "", build_directory=folder / "inner")
    assert not (folder / "inner").exists()
    with pytest.raises(FileNotFoundError, match="does not exist"):
        cpp_extension.load("absent", folder / "absent.cpp", build_directory=folder)
    with pytest.raises(ValueError, match=r"expected C \(.c\) or C\+\+"):
        cpp_extension.load("rust", folder / "kernel.rs", build_directory=folder)
    with pytest.raises(ValueError, match="has no sources"):
        cpp_extension.load("none", [], build_directory=folder)
    with pytest.raises(TypeError, match=r"extra_cflags got the text '-O1 -g'; accepted: .* \['-O1', '-g'\]"):
        cpp_extension.load_inline("text", "", extra_cflags="-O1 -g", build_directory=folder)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(RuntimeError, match="there is no compiler no-such-compiler; install one, or set CXX"):
        cpp_extension.load_inline("wrong", "int x;", build_directory=folder)


def test_equal_sources_are_compiled_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header, source = tmp_path / "mark.h", tmp_path / "kernel.cpp"
    header.write_text("#define MARK 3.0f\n")
    source.write_text('#include <maca_extension.h>\n#include "mark.h"\n' + MARKED)

    def loaded(**options: object) -> Path:
        return cpp_extension.load("kept", source, extra_cflags=FAST, build_directory=tmp_path / "made",
                                  verbose=True, **options).path  # type: ignore[arg-type]  # fmt: skip

    first = loaded()
    assert "Building extension kept" in capsys.readouterr().err
    x = torch.zeros(1, device="maca")
    assert torch.nn.functional.gelu(x).tolist() == [3.0]
    assert loaded() == first and "No modifications detected" in capsys.readouterr().err
    header.write_text("#define MARK 4.0f\n")  # what a source includes counts, too
    assert loaded() != first and torch.nn.functional.gelu(x).tolist() == [4.0]
    header.write_text("#define MARK 3.0f\n")
    assert loaded() == first and torch.nn.functional.gelu(x).tolist() == [3.0]


def test_several_processes_may_load_at_once(tmp_path: Path) -> None:
    program = """
import sys, torch
from macatensor import cpp_extension
cpp_extension.load_inline("shared", sys.argv[2], extra_cflags=["-O1", "-DMARK=7.0f"], build_directory=sys.argv[1])
print(torch.nn.functional.gelu(torch.zeros(1, device="maca")).item())
"""
    done = run_python(
        """
        import subprocess, sys
        command = [sys.executable, "-c", sys.argv[3], *sys.argv[1:3]]
        started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        print([p.communicate()[0].strip() for p in started])
        """,
        str(tmp_path),
        MARKED,
        program,
    )
    assert done.stdout == "['7.0', '7.0']\n"
    assert len(list(tmp_path.glob("*.so"))) == 1 and not list(tmp_path.glob(".shared-*"))


def test_several_threads_may_load_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(lambda _: marked("threads", 8.0, tmp_path), range(2)))
    assert made[0].path == made[1].path
    assert torch.nn.functional.gelu(torch.zeros(1, device="maca")).tolist() == [8.0]
    assert len(list(tmp_path.glob("*.so"))) == 1


def test_packages_build_them(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text(
        "from pathlib import Path\n\nfrom macatensor.cpp_extension import load_library\n\n"
        "kernels = load_library(Path(__file__).with_name('_kernels.so'))\n"
    )
    (tmp_path / "kernels.cpp").write_text("#include <maca_extension.h>\n" + MARKED)
    (tmp_path / "setup.py").write_text(
        "from setuptools import setup\n\nfrom macatensor.cpp_extension import BuildExtension, MACAExtension\n\n"
        "setup(name='package', version='1', packages=['package'], cmdclass={'build_ext': BuildExtension},\n"
        "      ext_modules=[MACAExtension('package._kernels', ['kernels.cpp'], extra_compile_args=['-O1', '-DMARK=8.0f'])])\n"
    )
    done = run_python(
        """
        import os, runpy, sys
        os.chdir(sys.argv[1])
        sys.argv = ["setup.py", "-q", "build_ext", "--inplace"]
        runpy.run_path("setup.py")
        sys.path.insert(0, os.getcwd())
        import package, torch
        print(package.kernels, torch.nn.functional.gelu(torch.zeros(1, device="maca")).item())
        """,
        str(tmp_path),
    )
    assert done.stdout.endswith("<extension _kernels: gelu> 8.0\n")
    with pytest.raises(ImportError, match="found no loadable library"):
        cpp_extension.load_library(tmp_path / "absent.so")
