"""Public functions, methods and attributes say what they take and give; what is compiled has what its stubs say."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from macatensor.runtime import ffi

ROOT = Path(__file__).parents[1]
PACKAGES = ("macatensor", "op_table")


class Untyped(NamedTuple):
    """A public name whose type is ``Any``, and why it can be no other."""

    module: str
    name: str
    reason: str


EXCEPTIONS = (
    Untyped(
        "macatensor.runtime.boxed",
        "Value",
        "PyTorch's own OpOverload and __torch_dispatch__ take and give Any: an operator's schema says more",
    ),
    Untyped(
        "macatensor.demo.plots",
        "STYLE",
        "matplotlib's type of settings lists every setting of one version",
    ),
    Untyped(
        "macatensor.conformance.abi.header",
        "Pointer",
        "members of cffi's CData come from the C header, which no type checker reads",
    ),
)


def _says_any(node: ast.expr | None) -> bool:
    """Does an annotation, quoted or not, name ``Any``?"""
    if node is None:
        return False
    for part in ast.walk(node):
        if (
            isinstance(part, ast.Name)
            and part.id == "Any"
            or isinstance(part, ast.Attribute)
            and part.attr == "Any"
        ):
            return True
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            try:
                quoted = ast.parse(part.value, mode="eval").body
            except SyntaxError:
                continue
            if not isinstance(quoted, ast.Constant) and _says_any(quoted):
                return True
    return False


def _of_function(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    given = function.args
    rest = [a for a in (given.vararg, given.kwarg) if a is not None]
    for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs, *rest):
        if _says_any(argument.annotation):
            yield f"{function.name}({argument.arg})"
    if _says_any(function.returns):
        yield f"{function.name}()"


def _of_instances(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """Attributes that a method declares of ``self``."""
    for node in ast.walk(function):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute):
            if not node.target.attr.startswith("_") and _says_any(node.annotation):
                yield node.target.attr


def _untyped(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    """Public names of a module or a class that say ``Any``."""
    for node in body:
        if isinstance(node, (ast.If, ast.Try, ast.With)):
            yield from _untyped([*node.body, *getattr(node, "orelse", [])], prefix)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if not node.name.startswith("_"):
                yield from (prefix + name for name in _of_function(node))
            if prefix:
                yield from (prefix + name for name in _of_instances(node))
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            if any(_says_any(base) for base in node.bases):
                yield prefix + node.name
            yield from _untyped(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            is_alias = _says_any(node.value) and "TypeAlias" in ast.unparse(node.annotation)
            if not node.target.id.startswith("_") and (_says_any(node.annotation) or is_alias):
                yield prefix + node.target.id
        elif isinstance(node, ast.Assign) and _says_any(node.value):
            yield from (prefix + t.id for t in node.targets if isinstance(t, ast.Name) and t.id[0] != "_")


def _modules() -> Iterator[tuple[str, ast.Module]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield ".".join(path.relative_to(ROOT).with_suffix("").parts), ast.parse(path.read_text())


def test_no_public_name_says_any() -> None:
    found = {(module, name) for module, tree in _modules() for name in _untyped(tree.body)}
    assert found == {(e.module, e.name) for e in EXCEPTIONS}


@pytest.mark.parametrize(
    "source",
    [
        "def f(x: Any) -> None: ...",
        "def f(*x: int) -> 'list[Any] | None': ...",
        "class A:\n    def f(self, **x: dict[str, Any]) -> None: ...",
        "class A:\n    x: Any",
        "class A:\n    def __init__(self):\n        self.x: Any = 1",
        "class A(dict[str, Any]): ...",
        "x: Any = 1",
        "X = Callable[..., Any]",
        "X: TypeAlias = Any",
        "if TYPE_CHECKING:\n    def f() -> typing.Any: ...",
    ],
)
def test_any_is_found_wherever_it_hides(source: str) -> None:
    assert list(_untyped(ast.parse(source).body))


@pytest.mark.parametrize(
    "source", ["def _f(x: Any) -> None: ...", "def f(x: object) -> int: ...", "def f(word: str = 'Any'): ..."]
)
def test_what_is_private_or_typed_passes(source: str) -> None:
    assert not list(_untyped(ast.parse(source).body))


# -- the stubs of what is compiled


def _stub(name: str) -> ast.Module:
    return ast.parse((ROOT / "libmaca_ffi" / f"{name}.pyi").read_text())


COMPILED = {"_launcher": ffi.native, "_recorder": ffi.native_recorder}


@pytest.mark.parametrize("name", COMPILED)
def test_stubs_name_what_is_compiled(name: str) -> None:
    """Functions, classes and the members that the C types define; ``RecordedValue`` and its like are made by C alone."""
    module = COMPILED[name]
    stub = _stub(name)
    named = {node.name for node in stub.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    named |= {
        n.target.id for n in stub.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
    }
    public = {n for n in vars(module) if not n.startswith("_")}
    assert public <= {n for n in named if not n.startswith("_")}
    missing = []
    for node in stub.body:
        kind = getattr(module, node.name, None) if isinstance(node, ast.ClassDef) else None
        if kind is None:
            continue
        for member in node.body:
            of = getattr(member, "name", None) or getattr(getattr(member, "target", None), "id", None)
            if of is not None and not hasattr(kind, of):
                missing.append(f"{node.name}.{of}")
    assert not missing


def test_each_compiled_module_has_a_stub() -> None:
    assert {p.stem for p in (ROOT / "libmaca_ffi").glob("*.pyi")} == {"_binding", *COMPILED}
