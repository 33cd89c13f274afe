"""Makes what a linker needs of an older glibc: ``python old_glibc.py 2.28 x86_64 FOLDER COMPILER``.

Linked against this machine's glibc, a library binds to the newest version of each symbol and runs on no older system. The
package ziglang lists the symbols of every glibc, with their versions: FOLDER gets libraries of those that the older one
has, without code. The compiler is told to search it first, so that nothing newer can get into what it links.

The list (lib/libc/glibc/abilists): names of libraries, versions, targets; then functions, then objects. Each of these is a
name, and one or more lines of it: a set of targets, for objects a size, a library, and versions; bit 7 marks the last of a name's lines
and of a line's versions. Sets and sizes are LEB128.
"""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

# library: the name by which it is loaded
LIBRARIES = {
    "c": "libc.so.6",
    "m": "libm.so.6",
    "pthread": "libpthread.so.0",
    "dl": "libdl.so.2",
    "rt": "librt.so.1",
}
LOADERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}
LAST = 0x80
Version = tuple[int, ...]


class List:
    """Zig's list, read from its beginning."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0
        self.libraries = [self._text() for _ in range(self._byte())]
        self.versions: list[Version] = [self._version() for _ in range(self._byte())]
        self.targets = [self._text() for _ in range(self._byte())]

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _text(self) -> str:
        end = self._data.index(0, self._at)
        text, self._at = self._data[self._at : end].decode(), end + 1
        return text

    def _version(self) -> Version:
        major, minor, patch = (self._byte() for _ in range(3))
        return (major, minor, patch) if patch else (major, minor)

    def _number(self) -> int:
        number = shift = 0
        while True:
            byte = self._byte()
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < LAST:
                return number

    def section(self, with_sizes: bool) -> Iterator[tuple[str, str, list[Version], set[str], int]]:
        """Symbol, library, versions, targets and size of each line of the next section."""
        lines = self._byte() | self._byte() << 8
        name = ""
        for _ in range(lines):
            name = name or self._text()
            targets = self._number()
            size = self._number() if with_sizes else 0
            library = self._byte()
            versions = []
            while True:
                byte = self._byte()
                versions.append(self.versions[byte & 0x7F])
                if byte & LAST:
                    break
            of = {t for i, t in enumerate(self.targets) if targets >> i & 1}
            yield name, self.libraries[library & 0x7F], versions, of, size
            if library & LAST:
                name = ""


def assembly(symbols: dict[str, tuple[set[Version], int]]) -> str:
    """Every symbol in each of its versions, the newest of which a linker takes."""
    lines = []
    for name, (versions, size) in sorted(symbols.items()):
        for version in sorted(versions):
            text = ".".join(map(str, version))
            own = f"{name}_{text.replace('.', '_')}"
            kind = f"%object\n.size {own}, {size}" if size else "%function"
            sign = "@@" if version == max(versions) else "@"
            lines.append(
                f".globl {own}\n.type {own}, {kind}\n.symver {own}, {name}{sign}GLIBC_{text}, remove\n{own}: .fill {max(size, 4)}"
            )
    return ".data\n" + "\n".join(lines) + "\n"


def main(version: str, machine: str, folder: Path, compiler: str) -> None:
    oldest = tuple(map(int, version.split(".")))
    zig = distribution("ziglang")
    listed = List(Path(str(zig.locate_file("ziglang/lib/libc/glibc/abilists"))).read_bytes())
    target = next(t for t in listed.targets if t.startswith(f"{machine}-linux") and t.endswith("-gnu"))
    found: defaultdict[str, dict[str, tuple[set[Version], int]]] = defaultdict(dict)
    for with_sizes in (False, True):
        for name, library, versions, targets, size in listed.section(with_sizes):
            had = {v for v in versions if v <= oldest}
            if target in targets and had:
                before, _ = found[library].get(name, (set(), 0))
                found[library][name] = (before | had, size)
    folder.mkdir(parents=True, exist_ok=True)
    nodes = folder / "versions.map"
    nodes.write_text("".join(f"GLIBC_{'.'.join(map(str, v))} {{ }};\n" for v in sorted(listed.versions)))
    names = {**LIBRARIES, "ld": LOADERS[machine]}
    for library, file in names.items():
        source = folder / f"{library}.s"
        source.write_text(assembly(found[library]))
        subprocess.run(
            [compiler, "-shared", "-nostdlib", f"-Wl,-soname,{file}", f"-Wl,--version-script={nodes}"]
            + ["-o", str(folder / file), str(source)],
            check=True,
        )
        if library not in ("c", "ld"):
            link = folder / f"lib{library}.so"
            link.unlink(missing_ok=True)
            link.symlink_to(file)
    # as the system's own: threads and dlopen() are asked of libc, as since 2.34, and found where they were
    others = " ".join(file for library, file in names.items() if library not in ("c", "m"))
    (folder / "libc.so").write_text(f"INPUT(libc.so.6 AS_NEEDED({others}))\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4])
