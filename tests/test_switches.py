"""Environment switches: typed values, origins, and names that nothing reads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from running import level_is_at_least, run_python

from macatensor.runtime import switches


@pytest.mark.supports(
    "MACA_LIBRARY MACA_VISIBLE_DEVICES MACA_DEVICE_MEMORY MACA_FALLBACK MACA_GRAIN MACA_COLLECTIVES MACA_SIMD MACA_WINOGRAD "
    "MACA_SPLIT_FLOAT32 MACA_VENDOR_LIBRARIES MACA_PRODUCT_PROPOSALS MACA_VENDOR_FOLDER MACA_LAUNCH_BLOCKING MACA_BACKWARD_THREAD PYTORCH_DEFAULT_NCHW OMP_NUM_THREADS"
)
def test_values_and_origins(monkeypatch: pytest.MonkeyPatch) -> None:
    for switch in switches.ALL.values():
        monkeypatch.delenv(switch.name, raising=False)
        assert switch.value() == switch.default and switch.origin == "default" and switch.text() is None
        monkeypatch.setenv(switch.name, "")
        assert switch.value() == switch.default and switch.origin == "default"
        assert switch.meaning and switch.unset and switch.when in ("import", "call", "library")
    for name in ("MACA_LIBRARY", "MACA_VISIBLE_DEVICES", "MACA_DEVICE_MEMORY", "MACA_FALLBACK", "MACA_GRAIN", "MACA_COLLECTIVES", "MACA_SIMD",
                 "MACA_WINOGRAD", "MACA_SPLIT_FLOAT32", "MACA_VENDOR_LIBRARIES", "MACA_PRODUCT_PROPOSALS", "MACA_VENDOR_FOLDER", "MACA_LAUNCH_BLOCKING", "MACA_SANITIZE", "MACA_TASK_QUEUE", "MACA_BACKWARD_THREAD", "PYTORCH_DEFAULT_NCHW", "OMP_NUM_THREADS"):  # fmt: skip
        assert name in switches.ALL
    for switch, text, value in (
        (switches.LIBRARY, "/a/b.so", Path("/a/b.so")),
        (switches.VISIBLE_DEVICES, "2,3", 2),
        (switches.DEVICE_MEMORY, "8G", 8 << 30),
        (switches.DEVICE_MEMORY, "1.5 MiB".replace(" ", ""), 3 << 19),
        (switches.LAUNCH_BLOCKING, "1", True),
        (switches.LAUNCH_BLOCKING, "0", False),
        (switches.FALLBACK, "silent", "silent"),
        (switches.GRAIN, "1", 1),
        (switches.SIMD, "avx2", "avx2"),
        (switches.WINOGRAD, "0", False),
        (switches.SPLIT_FLOAT32, "0", False),
        (switches.VENDOR_LIBRARIES, "0", False),
        (switches.PRODUCT_PROPOSALS, "1", 1),
        (switches.VENDOR_FOLDER, "/a/b", Path("/a/b")),
        (switches.DEFAULT_NCHW, "1", True),
        (switches.NUM_THREADS, "4", 4),
        (switches.SANITIZE, "1", True),
        (switches.TASK_QUEUE, "auto", "auto"),
        (switches.BACKWARD_THREAD, "1", True),
        (switches.TF32_MATMUL, "0", False),
        (switches.TF32_CONV, "1", True),
    ):
        monkeypatch.setenv(switch.name, text)
        assert switch.value() == value and switch.origin == "environment"


def test_what_is_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    for switch, text in (
        (switches.VISIBLE_DEVICES, "first"),
        (switches.DEVICE_MEMORY, "lots"),
        (switches.DEVICE_MEMORY, "-1G"),
        (switches.DEVICE_MEMORY, "99999999999G"),
        (switches.FALLBACK, "loud"),
        (switches.GRAIN, "0"),
        (switches.SIMD, "mmx"),
        (switches.TASK_QUEUE, "2"),
        (switches.LAUNCH_BLOCKING, "yes"),
        (switches.WINOGRAD, "no"),
        (switches.DEFAULT_NCHW, "false"),
        (switches.TF32_MATMUL, "on"),
    ):
        monkeypatch.setenv(switch.name, text)
        with pytest.raises(ValueError, match=f"{switch.name}={text!r}"):
            switch.value()
        with pytest.raises(ValueError, match=f"{switch.name}={text!r}"):
            switches.check()
        monkeypatch.delenv(switch.name)
    monkeypatch.setenv("OMP_NUM_THREADS", "4,2")  # OpenMP's: a number for each level of nesting
    switches.check()


def test_what_is_no_value_ends_the_import() -> None:
    """Those too that are read late or by the compiled library, which takes any text; with the remedy that fits."""
    code = """
        try:
            import macatensor
        except ImportError as error:
            print(error)
    """
    for text, said in (
        ({"MACA_SIMD": "avx999"}, "MACA_SIMD='avx999'; accepted: baseline, avx2, avx512, amx"),
        ({"MACA_VISIBLE_DEVICES": "7"}, "Set MACA_VISIBLE_DEVICES (now 7) to the index of a device it has"),
    ):
        assert said in run_python(code, **text).stdout


def test_unknown_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("MACA_"):
            monkeypatch.delenv(name)
    assert switches.unknown() == {}
    monkeypatch.setenv("MACA_FALBACK", "error")
    monkeypatch.setenv("MACA_QUXX_OF_OTHERS", "1")
    monkeypatch.setenv("MACA_INTERPOSER_MODE", "1")  # a library's own
    assert switches.unknown() == {"MACA_FALBACK": "MACA_FALLBACK", "MACA_QUXX_OF_OTHERS": None}
    with pytest.warns(UserWarning, match="MACA_FALBACK; did you mean MACA_FALLBACK"):
        switches.warn_of_unknown()


def test_a_misspelt_name_is_warned_of_at_import() -> None:
    said = run_python("import macatensor", MACA_DEVICE_MEMROY="8G").stderr
    assert "MACA_DEVICE_MEMROY; did you mean MACA_DEVICE_MEMORY?" in said
    assert run_python("import macatensor", MACA_FALLBACK="warn").stderr == ""


def test_instruction_sets_that_were_not_built() -> None:
    """A library built for this processor alone says so where less is asked for; one of all levels runs."""
    code = """
        try:
            import macatensor, torch
            print(macatensor.device.library_info()["simd"], torch.ones(2, device="maca").sum().item())
        except ImportError as error:
            print(error)
    """
    said = run_python(code, MACA_SIMD="baseline").stdout
    assert said == "baseline 2.0\n" or "build it with MACA_ISAS=all" in said, said


def test_every_library_keeps_to_the_level() -> None:
    """oneDNN and OpenBLAS choose their kernels themselves: a level that only ours keep to tests nothing of theirs. The
    variable that OpenBLAS reads is gone when it has been read, and one that the user set holds."""
    code = """
        import os
        try:
            import macatensor
            info = macatensor.device.library_info()
            print(info["simd"], info["libraries"], os.environ.get("OPENBLAS_CORETYPE"))
        except ImportError as error:
            print(error)
    """
    for level, onednn, openblas in (
        ("baseline", "(sse41)", "(Katmai)"),  # what OpenBLAS calls its lowest
        ("avx2", "(avx2)", "(Haswell)"),
        ("avx512", "(avx512_core)", "(SkylakeX)"),
    ):
        said = run_python(code, MACA_SIMD=level, OPENBLAS_CORETYPE=None, ONEDNN_MAX_CPU_ISA=None).stdout
        if "build it with MACA_ISAS=all" in said or not level_is_at_least(level):
            continue
        assert said.startswith(f"{level} oneDNN") and onednn in said and openblas in said, said
        assert said.endswith(" None\n"), said
    said = run_python(
        code, MACA_SIMD="avx512", OPENBLAS_CORETYPE="Nehalem", ONEDNN_MAX_CPU_ISA="SSE41"
    ).stdout
    if level_is_at_least("avx512"):
        assert "(sse41)" in said and said.endswith("(Nehalem) Nehalem\n"), said
