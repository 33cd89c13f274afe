"""What ``make release`` has built into ``dist/``, and nothing of the checkout: what is inside, where it runs, that it works.

Not among the tests of `make test`, for which nothing is built: ``pytest tests/wheels/checks.py``.
"""

from __future__ import annotations

import email
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "dist"
TORCH = re.search(r"^TORCH \?= (.*)$", (ROOT / "Makefile").read_text(), flags=re.M)[1]  # type: ignore[index]
LIBRARIES = ("libmaca_ffi/_binding.abi3.so", "libmaca_ffi/lib/libmaca_host.so")
PACKAGES = ("libdnnl.so.3", "libscipy_openblas.so")  # come with what the wheel requires
EXPORTED = {
    LIBRARIES[0]: {"PyInit__binding", "PyInit__launcher", "PyInit__recorder"},
    LIBRARIES[1]: {"maca_get_interface", "maca_host_summarize"},
}
OPENMP = re.compile(r"(GOMP|omp)_\w+")


def sole(pattern: str) -> Path:
    found = list(DIST.glob(pattern))
    assert len(found) == 1, f"dist/ holds {[p.name for p in found]} for {pattern}; expected one: make release"
    return found[0]


@pytest.fixture(scope="module")
def wheel() -> Path:
    return sole("macatensor-*-manylinux_2_28_x86_64.whl")


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` of a fresh environment that holds PyTorch and the wheel with what it requires."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    binaries = folder / "venv" / "bin"
    subprocess.run([binaries / "pip", "install", "--quiet", "--no-compile", TORCH, wheel], check=True)
    return binaries


def run(binaries: Path, *command: str, **environment: str) -> str:
    """What a command of the environment prints, run in its folder, with nothing of ours on any path."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MACA_", "PYTHON"))}
    done = subprocess.run(
        [binaries / command[0], *command[1:]],
        cwd=binaries.parent,
        env={**kept, "MACA_FALLBACK": "error", **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_runs_with_glibc_2_28(wheel: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", "--json", wheel],
        capture_output=True,
        text=True,
        check=True,
    )
    facts = json.loads(done.stdout)
    asked = {version for of in facts["versioned_symbols"].values() for version in of}
    newest = {
        kind: max(tuple(map(int, v.split("_")[1].split("."))) for v in asked if v.startswith(f"{kind}_"))
        for kind in ("GLIBC", "GCC")
    }
    assert newest["GLIBC"] <= (2, 28) and newest["GCC"] <= (7, 0, 0), asked
    assert not [v for v in asked if v.startswith(("GLIBCXX", "CXXABI"))]
    assert set(facts["external_libs"]) == set(PACKAGES), facts["external_libs"]
    assert not facts["unsupported_isa"] and not facts["pyfpe"]
    # what is in the way of the tag is what the packages bring, and nothing else
    blocked = facts["policy_upgrades"]["manylinux_2_28_x86_64"]
    assert blocked == {"libs_to_eliminate": sorted(PACKAGES)}


def test_the_wheel_is_small(wheel: Path) -> None:
    assert wheel.stat().st_size <= 12 << 20


def test_nothing_says_where_it_was_built(unpacked: Path) -> None:
    from elftools.elf.elffile import ELFFile

    places = {
        str(ROOT),
        tempfile.gettempdir() + "/",
        str(Path.home()),
        sys.prefix,
        "build-env-",
        "/.zig-cache",
    }
    for library in LIBRARIES:
        path = unpacked / library
        held = path.read_bytes()
        assert not [place for place in places if place.encode() in held], library
        with path.open("rb") as file:
            tags = {t.entry.d_tag: t for t in ELFFile(file).get_section_by_name(".dynamic").iter_tags()}
        assert "DT_RPATH" not in tags
        places_searched = tags["DT_RUNPATH"].runpath.split(":") if "DT_RUNPATH" in tags else []
        assert all(p.startswith("$ORIGIN/") for p in places_searched), places_searched


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_exports_its_entries_alone(unpacked: Path, library: str) -> None:
    from elftools.elf.elffile import ELFFile

    with (unpacked / library).open("rb") as file:
        symbols = ELFFile(file).get_section_by_name(".dynsym").iter_symbols()
        exported = {s.name for s in symbols if s.name and s.entry.st_shndx != "SHN_UNDEF"}
    assert {name for name in exported if not OPENMP.fullmatch(name)} == EXPORTED[library]


@pytest.mark.parametrize("library", LIBRARIES)
def test_what_a_library_lacks_is_in_libraries_that_it_names(unpacked: Path, library: str) -> None:
    """A module of Python may be linked with anything missing: the interpreter has its functions, and nothing else."""
    from elftools.elf.elffile import ELFFile

    with (unpacked / library).open("rb") as file:
        elf = ELFFile(file)
        versions = elf.get_section_by_name(".gnu.version")
        missing = {
            symbol.name
            for i, symbol in enumerate(elf.get_section_by_name(".dynsym").iter_symbols())
            if symbol.entry.st_shndx == "SHN_UNDEF"
            and symbol.entry.st_info.bind == "STB_GLOBAL"
            and versions.get_symbol(i).entry["ndx"] in ("VER_NDX_LOCAL", "VER_NDX_GLOBAL")
        }
    assert not [name for name in missing if not re.match(r"_?Py|dnnl_|scipy_", name)]


def test_the_wheel_holds_every_module(wheel: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "macatensor", "op_table", "libmaca_ffi/include"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    # these are top-level packages
    listed_as = {re.sub("^macatensor/(?=maca_)", "", name) for name in listed.stdout.split()}
    assert not listed_as - held
    assert not [name for name in held if name.endswith((".cpp", ".cu", "CMakeLists.txt"))]


def test_the_wheel_says_what_it_is(wheel: Path, unpacked: Path) -> None:
    folder = next(unpacked.glob("macatensor-*.dist-info"))
    metadata = email.message_from_string((folder / "METADATA").read_text())
    version = re.search(r'^__version__ = "(.*)"$', (ROOT / "macatensor/__init__.py").read_text(), flags=re.M)
    assert version is not None and metadata["Version"] == version[1] == wheel.name.split("-")[1]
    assert metadata["License-Expression"] == "Apache-2.0"
    assert {p.name for p in folder.glob("licenses/*")} == {"LICENSE", "NOTICE"}
    assert "manylinux_2_28_x86_64" in (folder / "WHEEL").read_text()
    assert f"## {version[1]}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_source_builds_that_wheel() -> None:
    """It was built from it; here, that nothing else lies in it that a build leaves."""
    import tarfile

    with tarfile.open(sole("macatensor-*.tar.gz")) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "NOTICE", "libmaca_ffi/CMakeLists.txt"} <= held
    assert not [
        name for name in held if name.endswith((".so", ".o", ".pyc")) or name.startswith(("build/", ".venv"))
    ]


def test_the_dockerfile_has_no_faults() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("hadolint"), ROOT / "Dockerfile"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_hashes_are_those_of_the_files() -> None:
    sums = dict(line.split("  ")[::-1] for line in (DIST / "SHA256SUMS").read_text().splitlines())
    assert set(sums) == {p.name for p in DIST.iterdir()} - {"SHA256SUMS"}
    for name, digest in sums.items():
        assert hashlib.sha256((DIST / name).read_bytes()).hexdigest() == digest, name


def test_the_bill_of_materials_is_valid_and_whole(wheel: Path) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    text = wheel.with_suffix(".cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bill = json.loads(text)
    (digest,) = bill["metadata"]["component"]["hashes"]
    assert digest == {"alg": "SHA-256", "content": hashlib.sha256(wheel.read_bytes()).hexdigest()}
    licences = {
        c["name"]: [
            one.get("expression") or one["license"].get("id", one["license"].get("name"))
            for one in c["licenses"]
        ]
        for c in bill["components"]
    }
    assert licences["onednn-cpu-gomp"] == ["Apache-2.0"]
    assert any("BSD-3-Clause" in text for text in licences["scipy-openblas32"])
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    required = {
        re.match(r"[\w.-]+", line)[0]  # type: ignore[index]
        for line in metadata.get_all("Requires-Dist")
        if "extra ==" not in line
    }
    assert required <= set(licences) and all(licences.values())


def test_an_empty_environment_passes_check(installed: Path) -> None:
    facts = json.loads(run(installed, "macatensor", "check", "--json"))
    assert facts["proof"] == "tensor([1., 1.], device='maca:0')"
    assert Path(facts["library"]["path"]).is_relative_to(installed.parent)
    assert {"oneDNN", "OpenBLAS"} <= set(re.findall("oneDNN|OpenBLAS", facts["device"]["libraries"]))


@pytest.mark.parametrize("simd", ["baseline", "avx2", "avx512"])
def test_each_instruction_set_is_in_the_wheel(installed: Path, simd: str) -> None:
    facts = json.loads(run(installed, "macatensor", "check", "--json", MACA_SIMD=simd))
    best = json.loads(run(installed, "macatensor", "check", "--json"))["device"]["simd"]
    order = ["baseline", "avx2", "avx512"]
    has = (
        next(level for level in reversed(order) if best.startswith(level)) if best[:3] != "amx" else "avx512"
    )
    assert facts["device"]["simd"].startswith(min(simd, has, key=order.index))


STEP = """
import copy, torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
    nn.Flatten(), nn.Linear(32, 10),
)
x, y = torch.randn(8, 3, 32, 32), torch.randint(10, (8,))

def steps(model, x, y):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.detach().cpu() for p in model.parameters()]

expected, weights = steps(copy.deepcopy(model), x, y)
losses, got = steps(model.to("maca"), x.to("maca"), y.to("maca"))
assert losses[2] < losses[0], losses
torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-5)
torch.testing.assert_close(got, weights, rtol=1e-3, atol=1e-4)
import macatensor
print(macatensor.__file__, macatensor.counters()["fallbacks"])
"""


def test_an_empty_environment_trains_a_network(installed: Path) -> None:
    file, fallbacks = run(installed, "python", "-c", textwrap.dedent(STEP)).split()
    assert Path(file).is_relative_to(installed.parent) and fallbacks == "0"


@pytest.mark.timeout(3600)
def test_a_second_build_is_the_same_file(wheel: Path, tmp_path: Path) -> None:
    """The first was built from the source distribution in a folder that is gone, this one from the checkout."""
    subprocess.run([sys.executable, ROOT / ".ci" / "release.py", "--again", tmp_path], check=True)
    again = tmp_path / wheel.name
    if again.read_bytes() != wheel.read_bytes():
        with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(again) as other:
            parts = [n for n in one.namelist() if n not in other.namelist() or one.read(n) != other.read(n)]
        raise AssertionError(f"{parts or 'their order or times'} differ")
