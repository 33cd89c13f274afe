"""Which private names of PyTorch the sources use: ``python tests/private_names.py --write`` adds the PyTorch that runs.

Names are those of imports, of attributes of what was imported, and of whole texts, as of modules to be imported later. What is
asked of objects, as of a tensor's ``_base``, is not found: `tests/test_pytorch_facts.py` tests what the code takes for granted.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from macatensor.integration import pytorch_versions

SOURCES = Path(pytorch_versions.__file__).resolve().parents[1]
NAME = re.compile(r"torch(\.[A-Za-z]\w*)*(\._[A-Za-z]\w*)(\.\w+)*")
HEAD = """\
# Private names of PyTorch that macatensor uses, and the versions of PyTorch in which each was seen.
# python tests/private_names.py --write adds the version that runs.
"""


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """What is inside of a node, but for what is inside of functions in it: those themselves are."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, _FUNCTIONS):
            yield from _own(child)


def _imported(nodes: list[ast.AST]) -> dict[str, str]:
    """What each imported name stands for, in full."""
    stands_for: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.split(".")[0]
                stands_for[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                stands_for[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return stands_for


def _chain(node: ast.AST) -> list[str] | None:
    """``a.b.c`` as its names; None for what is no such thing."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else None


def _names(scope: ast.AST, around: dict[str, str]) -> Iterator[str]:
    """Names in a module or function, where ``around`` says what those imported around it stand for."""
    nodes = list(_own(scope))
    stands_for = {**around, **_imported(nodes)}
    inner = {id(n.value) for n in nodes if isinstance(n, ast.Attribute)}
    for node in nodes:
        if isinstance(node, _FUNCTIONS):
            yield from _names(node, stands_for)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.Attribute) and id(node) not in inner:
            chain = _chain(node)
            if chain and chain[0] in stands_for:
                yield ".".join([stands_for[chain[0]], *chain[1:]])


def used() -> set[str]:
    """The private names in the sources, each up to what it says of itself: no methods of dunder names."""
    found: set[str] = set()
    for path in SOURCES.rglob("*.py"):
        for name in _names(ast.parse(path.read_text()), {}):
            name = re.sub(r"\.__\w+__.*", "", name)
            if NAME.fullmatch(name) and not name.startswith("torch.ops."):
                found.add(name)
    return found


def text() -> str:
    """The file with the version that runs added where the name is there."""
    before, running = pytorch_versions.private_names(), pytorch_versions.running()
    lines = []
    for name in sorted(used()):
        versions = set(before.get(name, ())) - {running}
        if pytorch_versions.exists(name):
            versions.add(running)
        lines.append(f"{name}\t{' '.join(sorted(versions, key=pytorch_versions.by_number))}")
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    made = text()
    if "--write" in sys.argv[1:]:
        pytorch_versions.FILE.write_text(made)
    else:
        print(made, end="")
