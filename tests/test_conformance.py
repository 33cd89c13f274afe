"""The conformance kit finds every planted defect, and none in the libraries that are right."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import planted_libraries as plants
import pytest
from interposer_library import host_library

from macatensor.cli.kernels_page import PAGE, page
from macatensor.conformance import interface
from macatensor.conformance.abi.header import HEADER
from macatensor.conformance.kernels import ask_kernels, missing_kernels
from macatensor.conformance.outcome import Line
from macatensor.conformance.report import badge, junit, reached, write
from macatensor.conformance.runner import next_step
from macatensor.conformance.starting import write_device

ROOT = Path(__file__).parents[1]
LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
HANGS = {"sleeps", "spins", "takes all memory"}
# a worker loads PyTorch for each: the others are for `make long`
KERNELS = (
    plants.OF_KERNELS if LONG else ["writes past the end", "writes its input", "unused reads past the end"]
)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plants.compile_plants(tmp_path_factory.mktemp("plants"))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that `macatensor new-device` writes, built as its README says."""
    folder = tmp_path_factory.mktemp("new") / "mydevice"
    write_device(folder)
    for command in (
        ["cmake", "-S", folder, "-B", folder / "build"],
        ["cmake", "--build", folder / "build"],
    ):
        subprocess.run(command, check=True, capture_output=True, env=_environment())
    return folder / "build" / "libmydevice.so"


def _environment() -> dict[str, str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {**os.environ, "PATH": path}
    for name in ("MACA_LIBRARY", "MACA_FALLBACK"):
        environment.pop(name, None)
    return environment


def _wrong(lines: list[Line]) -> list[str]:
    return [f"{line.name}: {line.text}" for line in lines if line.verdict == "FAIL"]


def test_the_host_library_keeps_every_rule() -> None:
    names = [rule.name for rule in interface.rules()]
    lines = list(interface.ask(host_library(), names))
    assert not _wrong(lines) and len(lines) == len(names) > 50
    assert all(line.verdict == "pass" for line in lines), "the host library has all that is asked for"


def test_the_interposer_keeps_every_rule(interposer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MACA_INTERPOSER_TARGET", str(host_library()))
    assert not _wrong(list(interface.ask(interposer, [rule.name for rule in interface.rules()])))


def test_the_new_device_keeps_every_rule(small: Path) -> None:
    lines = list(interface.ask(small, [rule.name for rule in interface.rules()]))
    assert not _wrong(lines)
    absent = {line.name for line in lines if line.verdict == "n/a"}
    optional = {"ways_keep_to_the_capacity", "a_way_computes_or_is_declined", "launches_have_their_times"}
    joined = {"two_ranks_exchange", "ranks_have_the_same_bits", "a_rank_that_dies_ends_the_collective"}
    assert optional | joined < absent
    assert len(absent - optional - joined) == 5, "nor reserved or pinned memory, nor a kernel with an index"


# Calls whose kernels the small library lacks: composites, counts, decompositions, creation, complex numbers with gaps,
# factorizations that trust their pivots. Each gives what the host gives.
LACKING = """
import torch
import macatensor

torch.manual_seed(0)
a = torch.rand(5, 5)
a = a @ a.T + torch.eye(5)
x, v = torch.rand(5, 6, 7), torch.tensor([3, 1, 3, 2, 1])
lu, pivots = torch.linalg.lu_factor(a)
ldl, ldl_pivots = torch.linalg.ldl_factor(a)
calls = {
    "nonzero": (lambda t: (t > 0.5).nonzero(), x),
    "unique": (torch.unique, v),
    "unique rows": (lambda t: torch.unique(t, dim=0), v),
    "masked": (lambda t: t[t > 0.5], x),
    "bincount": (torch.bincount, v),
    "repeat_interleave": (torch.repeat_interleave, v),
    "arange": (lambda t: t + torch.arange(5, device=t.device), v),
    "lstsq": (lambda t: torch.linalg.lstsq(t, t)[0], a),
    "fft2": (lambda t: torch.fft.fft2(t, s=[3, 10], dim=[1, 2]), x),
    "irfft": (lambda t: torch.fft.irfft(torch.fft.rfft(t, dim=1), dim=1), x),
    "complex": (lambda t: torch.complex(t, t)[::2, :, ::3].conj().contiguous(), x),
    "cholesky": (lambda t: torch.cholesky(t, upper=True), a),
    "lu_solve": (lambda t: torch.linalg.lu_solve(lu.to(t.device), pivots.to(t.device), t), a),
    "ldl_solve": (lambda t: torch.linalg.ldl_solve(ldl.to(t.device), ldl_pivots.to(t.device), t), a),
    "binary_cross_entropy": (lambda t: torch.nn.functional.binary_cross_entropy(t, t), x),
    "attention": (lambda t: torch.nn.functional.scaled_dot_product_attention(t, t, t), x),
}
for name, (call, given) in calls.items():
    got = call(given.to("maca"))
    assert got.device.type == "maca", name
    torch.testing.assert_close(got.cpu(), call(given), rtol=1e-4, atol=1e-4, msg=lambda text: f"{name}: {text}")
print(macatensor.counters()["fallbacks"], "calls on the host")
"""


def test_what_a_library_lacks_the_host_computes(small: Path) -> None:
    environment = {**_environment(), "MACA_LIBRARY": str(small), "MACA_FALLBACK": "silent"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LACKING],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > 20  # counted, every one


ABSENT_RESULTS = """
import sys
from pathlib import Path
from abi.device import OK, Opened
from abi.plans import create
from abi.requests import FLOAT32, INT64, Request

d = Opened(Path(sys.argv[1]))
d.open()
along, kth = [("dim", 1), ("keepdim", False)], [("k", 2), ("dim", 1), ("keepdim", False)]
for kernel, sizes, attributes in (
    ("repeat", [3, 4], []), ("cummax", [3, 4], [("dim", 1)]), ("cummin", [3, 4], [("dim", 1)]), ("kthvalue", [3], kth),
    ("mode", [3], along), ("median", [3], along), ("nanmedian", [3], along),
):
    results = [(FLOAT32, sizes)] if kernel == "repeat" else [(FLOAT32, sizes), (INT64, sizes)]
    request = Request(kernel, [(FLOAT32, [3, 4])], results, attributes)
    assert create(d, request)[0] == OK, kernel
    last = request.pointer.arguments[len(results)]
    last.kind, last.count = 0, 0
    assert create(d, request)[0] != OK, kernel
"""


def test_absent_results_are_refused() -> None:
    path = {"PYTHONPATH": str(ROOT / "macatensor" / "conformance")}
    done = subprocess.run([sys.executable, "-c", ABSENT_RESULTS, str(host_library())], env={**os.environ, **path},
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, (done.returncode, done.stderr)


def test_each_rule_quotes_the_header() -> None:
    header = " ".join(re.sub(r"(?m)^\s*\*", " ", HEADER.read_text()).split())
    for rule in interface.rules():
        assert " ".join(rule.sentence.split()) in header, (rule.name, rule.sentence)


@pytest.mark.parametrize("defect", plants.OF_THE_INTERFACE)
def test_a_broken_rule_is_found(defect: str, planted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MACA_PLANT", defect)
    monkeypatch.setenv("MACA_PLANT_TARGET", str(host_library()))
    rule = plants.OF_THE_INTERFACE[defect]
    (line,) = interface.ask(planted, [rule], limit=3 if defect in HANGS else 60, memory=1 << 29)
    assert line.name == rule and line.verdict == "FAIL" and line.text and line.remedy


@pytest.mark.parametrize("defect", KERNELS)
def test_a_wrong_kernel_is_found(defect: str, planted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MACA_PLANT", defect)
    monkeypatch.setenv("MACA_PLANT_TARGET", str(host_library()))
    row = plants.OF_KERNELS[defect]
    lines = list(ask_kernels(planted, ["relu", "sum"], [row], ["float32"], ["contiguous", "sliced"], 1))
    assert len(lines) == 1 and lines[0].verdict == "FAIL", lines


def test_right_kernels_raise_no_alarm() -> None:
    rows = ["relu", "add.Tensor", "sum.dim_IntList", "index_add", "cumsum"] if LONG else ["relu"]
    lines = list(ask_kernels(host_library(), interface.kernels_of(host_library()) or [], rows, ["float32"],
                             ["contiguous", "sliced"], 1))  # fmt: skip
    assert not _wrong(lines) and all(line.samples for line in lines) and len(lines) >= len(rows)


def test_the_page_of_the_device_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / "device.md").read_text(), flags=re.S)
    assert len(blocks) == 4
    for block in blocks:
        done = subprocess.run(
            ["bash", "-ec", block], cwd=tmp_path, env=_environment(), capture_output=True, text=True
        )
        assert done.returncode == 0, (block, done.stdout[-2000:], done.stderr[-2000:])
        if "train.py" in block:
            accuracy = float(re.search(r"accuracy ([\d.]+)%", done.stdout)[1])  # type: ignore[index]
            assert accuracy > 90 and " 0 launches" not in done.stdout
    cases = ET.parse(tmp_path / "report.xml").findall(".//testcase")
    assert len(cases) == len(interface.rules())
    assert (
        "level 1" in (tmp_path / "report.svg").read_text()
        and "Next." in (tmp_path / "report.html").read_text()
    )


def test_reports_say_what_is_next(tmp_path: Path) -> None:
    lines = [
        Line("a", 0, "loading", "pass"),
        Line("b", 1, "memory", "FAIL", "gave 7 \x01<&", "`bytes` is 1 or more", "give 8", 0.5),
        Line("c", 1, "memory", "n/a", "no such slot"),
    ]
    step = next_step(lines, host_library())
    assert "b: gave 7" in step and "give 8" in step and reached(lines) == 0
    text = write(lines, host_library(), step, tmp_path / "page.html").read_text()
    assert "&lt;&amp;" in text and "1 fail" in text and "level 0" in badge(lines)
    suites = ET.fromstring(junit(lines).partition("\n")[2])
    assert [s.get("failures") for s in suites] == ["0", "1"] and len(suites.findall(".//skipped")) == 1
    json.dumps([line.as_json() for line in lines])


def test_kernels_that_most_programs_want_come_first() -> None:
    missing = missing_kernels(["copy", "add"])
    assert missing[:3] == ["fill", "mul", "mm"] and "add" not in missing and len(missing) > 200


def test_the_page_of_signatures_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run `python -m macatensor.cli.kernels_page --write`"


def test_a_new_device_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine.c").write_text("int x;")
    with pytest.raises(FileExistsError, match="has files"):
        write_device(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.c"]
