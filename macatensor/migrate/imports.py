"""Import statements: under new names, split where names part, and inserted where a program begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import libcst as cst
from libcst.helpers import get_full_name_for_node

Target = tuple[cst.ImportAlias, str, str]  # what was imported, its qualified name, its new one
_ATTRIBUTES = ("torch.maca", "torch.backends.maca")  # made by import macatensor, not found as files


class NeededImports:
    """Modules that new names begin with."""

    def __init__(self) -> None:
        self.modules: list[str] = []

    def add(self, module: str) -> None:
        """``import module`` is needed; below torch, torch itself is enough."""
        module = "torch" if module.split(".")[0] == "torch" else module
        if module not in self.modules:
            self.modules.append(module)


def dotted(name: str) -> cst.Name | cst.Attribute:
    """``a.b.c`` as an expression."""
    first, *rest = name.split(".")
    result: cst.Name | cst.Attribute = cst.Name(first)
    for part in rest:
        result = cst.Attribute(result, cst.Name(part))
    return result


def _as(name: str) -> cst.AsName:
    return cst.AsName(cst.Name(name))


def split_import(targets: Sequence[Target]) -> list[cst.BaseSmallStatement]:
    """``import a as b, c`` under the new names, a statement each."""
    made: list[cst.BaseSmallStatement] = []
    for alias, name, new in targets:
        bare = alias.with_changes(comma=cst.MaybeSentinel.DEFAULT)
        if new == name:
            made.append(cst.Import([bare]))
        elif new in _ATTRIBUTES and alias.asname is None:
            made.append(cst.Import([cst.ImportAlias(cst.Name("torch"))]))
        elif new in _ATTRIBUTES:
            parent, _, last = new.rpartition(".")
            made.append(
                cst.ImportFrom(dotted(parent), [cst.ImportAlias(cst.Name(last), asname=alias.asname)])
            )
        else:
            made.append(cst.Import([bare.with_changes(name=dotted(new))]))
    return made


def split_from(node: cst.ImportFrom, targets: Sequence[Target]) -> list[cst.BaseSmallStatement]:
    """``from a import b, c`` under the new names: one statement for each module that they now come from."""
    modules = list(dict.fromkeys(new.rpartition(".")[0] for _, _, new in targets))
    unrenamed = all(name.rpartition(".")[2] == new.rpartition(".")[2] for _, name, new in targets)
    if len(modules) == 1 and unrenamed:
        return [node.with_changes(module=dotted(modules[0]))]
    made: list[cst.BaseSmallStatement] = []
    for module in modules:
        aliases = []
        for alias, name, new in targets:
            parent, _, last = new.rpartition(".")
            if parent != module:
                continue
            old = name.rpartition(".")[2]
            asname = alias.asname or (_as(old) if last != old else None)
            aliases.append(cst.ImportAlias(cst.Name(last), asname=asname))
        made.append(cst.ImportFrom(dotted(module), aliases))
    return made


def _imported(statement: cst.CSTNode) -> list[str]:
    """The modules that a statement imports."""
    names: list[str] = []
    if isinstance(statement, cst.SimpleStatementLine):
        for small in statement.body:
            if isinstance(small, cst.Import):
                names += [get_full_name_for_node(a.name) or "" for a in small.names if a.asname is None]
            elif isinstance(small, cst.ImportFrom) and small.module is not None and not small.relative:
                names.append("from " + (get_full_name_for_node(small.module) or ""))
    return names


def _imports_us(module: cst.Module) -> bool:
    found = [
        get_full_name_for_node(alias.name) or ""
        for statement in module.body
        if isinstance(statement, cst.SimpleStatementLine)
        for small in statement.body
        if isinstance(small, cst.Import)
        for alias in small.names
    ]
    found += [n.removeprefix("from ") for s in module.body for n in _imported(s)]
    return any(name.split(".")[0] == "macatensor" for name in found)


def _line(module: str) -> cst.SimpleStatementLine:
    return cst.SimpleStatementLine([cst.Import([cst.ImportAlias(dotted(module))])])


def insert_imports(
    module: cst.Module, needed: NeededImports, package: str = "macatensor.nchw"
) -> tuple[cst.Module, int]:
    """Puts ``import`` of the ``package`` and what is needed after the docstring and the imports from __future__. Gives the
    line of the former too, or 0 where it was there."""
    present = [name for statement in module.body for name in _imported(statement)]
    wanted = [] if _imports_us(module) else [package]
    wanted += [m for m in needed.modules if m not in present]
    if not wanted:
        return module, 0
    place = 1 if module.get_docstring() is not None else 0
    while place < len(module.body) and "from __future__" in _imported(module.body[place]):
        place += 1
    lines: list[Any] = [_line(m) for m in wanted]
    body = list(module.body)
    if place and "from __future__" not in _imported(body[place - 1]):  # apart from the docstring
        lines[0] = lines[0].with_changes(leading_lines=[cst.EmptyLine(indent=False)])
        if place < len(body) and _imported(body[place]):
            rest: Any = body[place]
            body[place] = rest.with_changes(
                leading_lines=[e for i, e in enumerate(rest.leading_lines) if i or e.comment is not None]
            )
    body[place:place] = lines
    made = module.with_changes(body=body)
    line = next(
        i for i, text in enumerate(made.code.splitlines(), 1) if text.strip() == f"import {wanted[0]}"
    )
    return made, line if wanted[0] == package else 0
