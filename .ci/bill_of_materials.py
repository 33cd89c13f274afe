"""A wheel's bill of materials in CycloneDX: what is compiled into it and what it requires, with versions and licences."""

from __future__ import annotations

import email
import hashlib
import re
import subprocess
import uuid
import zipfile
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

# Of packages whose metadata have no expression of SPDX: what their licence files say.
LICENCES = {
    "jinja2": "BSD-3-Clause",
    "onednn-cpu-gomp": "Apache-2.0",  # what it holds of others: share/doc/onednn/THIRD-PARTY-PROGRAMS
    "rich": "MIT",
    "safetensors": "Apache-2.0",
    # its packaging, OpenBLAS and LAPACK in it, and the runtime of GCC's Fortran
    "scipy-openblas32": "BSD-2-Clause AND BSD-3-Clause AND GPL-3.0-or-later WITH GCC-exception-3.1",
}


@dataclass(frozen=True)
class Compiled:
    """What a compiler put into the wheel beside our own code; NOTICE says the same in words."""

    name: str
    version: str
    licence: str
    description: str


def compiled() -> list[Compiled]:
    """What of others is in the compiled libraries."""
    gcc = subprocess.run(["g++", "-dumpfullversion"], capture_output=True, text=True, check=True)
    return [
        Compiled(
            "gcc-runtime",
            gcc.stdout.strip(),
            "GPL-3.0-or-later WITH GCC-exception-3.1",
            "libstdc++ and libgcc, linked statically",
        ),
        Compiled(
            "onednn-headers",
            metadata.version("onednn-devel-cpu-gomp"),
            "Apache-2.0",
            "dnnl.hpp, the inline functions that call libdnnl",
        ),
    ]


def licence_of(package: str) -> str:
    """SPDX's expression. Raises SystemExit where neither the package nor the list above has one."""
    said = metadata.metadata(package).get("License-Expression") or LICENCES.get(package)
    if said is None:
        raise SystemExit(
            f"{package} states no licence in SPDX's words: read it, and add it to {Path(__file__).name}"
        )
    return said


def required_by(wheel: Path) -> list[str]:
    """Names of the packages that an installation of the wheel brings, its extras aside."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        head = email.message_from_bytes(archive.read(name))
    lines = [line for line in head.get_all("Requires-Dist", []) if "extra ==" not in line]
    return sorted(re.match(r"[\w.-]+", line)[0] for line in lines)  # type: ignore[index]


def bill(wheel: Path, seconds: int) -> Bom:
    """The bill of a wheel, made at that time; versions of required packages are those it is tested with."""
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    licences = LicenseFactory()
    version = wheel.name.split("-")[1]
    whole = Component(
        type=ComponentType.LIBRARY,
        name="macatensor",
        version=version,
        bom_ref=f"macatensor@{version}",
        purl=PackageURL("pypi", name="macatensor", version=version),
        licenses=[licences.make_from_string("Apache-2.0")],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
    )
    parts = [
        Component(
            name=part.name,
            version=part.version,
            bom_ref=f"{part.name}@{part.version}",
            description=part.description,
            scope=ComponentScope.REQUIRED,
            licenses=[licences.make_from_string(part.licence)],
        )
        for part in compiled()
    ]
    for package in required_by(wheel):
        found = metadata.version(package)
        parts.append(
            Component(
                name=package,
                version=found,
                bom_ref=f"{package}@{found}",
                scope=ComponentScope.REQUIRED,
                licenses=[licences.make_from_string(licence_of(package))],
                purl=PackageURL("pypi", name=package, version=found),
            )
        )
    made = Bom(
        components=parts,
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, digest),  # the same wheel, the same bill
        metadata=BomMetaData(component=whole, timestamp=datetime.fromtimestamp(seconds, timezone.utc)),
    )
    made.register_dependency(whole, parts)
    return made


def write(wheel: Path, seconds: int) -> Path:
    """Writes it beside the wheel."""
    path = wheel.with_suffix(".cdx.json")
    path.write_text(JsonV1Dot6(bill(wheel, seconds)).output_as_string(indent=1) + "\n")
    return path
