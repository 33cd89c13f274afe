"""What ``make aarch64`` has cross-compiled: its symbols and names. It is run under qemu-user by ``make replay``.

Not among the tests of `make test`, for which nothing is built: ``pytest tests/wheels/aarch64.py``.
"""

from __future__ import annotations

import email
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from checks import EXPORTED, LIBRARIES, OPENMP

DIST = Path(__file__).resolve().parents[2] / "dist" / "aarch64"


@pytest.fixture(scope="module")
def wheel() -> Path:
    found = list(DIST.glob("macatensor-*-cp310-abi3-manylinux_2_28_aarch64.whl"))
    assert len(found) == 1, f"{DIST} holds {[p.name for p in DIST.glob('*')]}: make aarch64"
    return found[0]


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_is_of_arm_and_exports_its_entries(unpacked: Path, library: str) -> None:
    from elftools.elf.elffile import ELFFile

    with (unpacked / library).open("rb") as file:
        elf = ELFFile(file)
        assert elf.get_machine_arch() == "AArch64"
        symbols = elf.get_section_by_name(".dynsym").iter_symbols()
        exported = {s.name for s in symbols if s.name and s.entry.st_shndx != "SHN_UNDEF"}
        needed = {
            t.needed for t in elf.get_section_by_name(".dynamic").iter_tags() if t.entry.d_tag == "DT_NEEDED"
        }
    assert {name for name in exported if not OPENMP.fullmatch(name)} == EXPORTED[library]
    assert not [name for name in needed if name.startswith(("libdnnl", "libstdc++"))]


@pytest.mark.parametrize("library", LIBRARIES)
def test_what_a_library_lacks_is_in_libraries_that_it_names(unpacked: Path, library: str) -> None:
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
    assert not [name for name in missing if not re.match(r"_?Py|scipy_", name)]


def test_the_wheel_asks_for_glibc_2_28(wheel: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", "--json", wheel],
        capture_output=True,
        text=True,
        check=True,
    )
    asked = {version for of in json.loads(done.stdout)["versioned_symbols"].values() for version in of}
    newest = max(tuple(map(int, v.split("_")[1].split("."))) for v in asked if v.startswith("GLIBC_"))
    assert newest <= (2, 28), asked
    assert not [v for v in asked if v.startswith(("GLIBCXX", "CXXABI"))]


def test_onednn_is_required_on_x86_alone(unpacked: Path) -> None:
    folder = next(unpacked.glob("macatensor-*.dist-info"))
    metadata = email.message_from_string((folder / "METADATA").read_text())
    (line,) = [line for line in metadata.get_all("Requires-Dist", []) if line.startswith("onednn")]
    assert "platform_machine" in line and "x86_64" in line
    assert "manylinux_2_28_aarch64" in (folder / "WHEEL").read_text()
