"""The row is the one place: what a row names exists, and no module of the runtime keeps a list of operators of its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import macatensor
from macatensor.accuracy.comparison import verdict
from macatensor.dispatch.meta_rules import META_RULES
from macatensor.parity import canonical, formulas
from macatensor.parity.draw import CALLS
from macatensor.parity.samples import generator_of
from macatensor.runtime import ffi
from op_table import TABLE, Kind, row
from op_table.row import also

PACKAGE = Path(macatensor.__file__).parent
MOST = 5  # operators of the table that a constant may name
_OPERATORS = {name for r in TABLE.values() for name in (r.name, r.operator, r.operator.removesuffix("_"))}

LISTS = {
    "parity/calls": "generators of sample calls, each for the operators whose arguments it draws",
    "bench/kernels.py": "the cases that the benchmark measures",
    "bench/device/bandwidth.py": "the cases that a device's bandwidth is measured by",
    "accuracy/comparison/columns.py": "columns of a report: max, mean and norm of a tensor",
    "accuracy/comparison/page.py": "columns of a report: max, mean and norm of a tensor",
}


def _named(node: ast.AST) -> set[str]:
    """Operators of the table among the strings under a node, and among the words of strings."""
    words = {
        word.removeprefix("aten::").removeprefix("aten.").removesuffix(".default")
        for n in ast.walk(node)
        if isinstance(n, ast.Constant) and isinstance(n.value, str)
        for word in n.value.split()
    }
    return words & _OPERATORS


def _constants(tree: ast.Module) -> Iterator[tuple[int, set[str]]]:
    """Line and operators of each assigned constant and of each literal collection."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Tuple, ast.List, ast.Set, ast.Dict)):
            yield node.lineno, _named(node)
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and node.value is not None:
            yield node.lineno, _named(node.value)


def _lists(path: Path) -> dict[int, set[str]]:
    return {line: names for line, names in _constants(ast.parse(path.read_text())) if len(names) > MOST}


def _excepted(path: Path) -> str:
    inside = path.relative_to(PACKAGE)
    return next((x for x in (str(inside), str(inside.parent)) if x in LISTS), "")


def test_no_module_lists_operators() -> None:
    found = {
        f"{path.relative_to(PACKAGE)}:{line}": sorted(names)
        for path in sorted(PACKAGE.rglob("*.py"))
        if not _excepted(path)
        for line, names in _lists(path).items()
    }
    assert not found, "facts about operators belong in rows (op_table/row.py): " + str(found)


def test_each_exception_is_needed() -> None:
    used = {_excepted(path) for path in PACKAGE.rglob("*.py") if _lists(path)} - {""}
    assert used == set(LISTS)


def test_a_list_is_found(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text("def f(row):\n    return row.operator in ('add', 'sub', 'mul', 'div', 'exp', 'log')\n")
    assert _lists(path) == {2: {"add", "sub", "mul", "div", "exp", "log"}}
    path.write_text("NAMES = frozenset('aten.add aten::sub mul div exp log'.split())\n")
    assert list(_lists(path)) == [1]
    path.write_text("NAMES = frozenset('add sub mul div exp'.split())\n")
    assert not _lists(path)


@pytest.mark.parametrize(
    "fields, functions",
    [
        (("formula",), formulas.SHARPER),
        (("floor",), formulas.FLOORS),
        (("magnitude", "magnitude_elsewhere"), formulas.MAGNITUDES),
        (("form",), canonical._FORMS),
        (("meta",), META_RULES),
    ],
)
def test_rows_and_functions_name_each_other(fields: tuple[str, ...], functions: dict[str, object]) -> None:
    named = {getattr(r, field) for r in TABLE.values() for field in fields} - {""}
    assert named == set(functions)


def test_rows_name_arguments_of_their_operators() -> None:
    for r in TABLE.values():
        named = {r.factor, r.added, r.number, *r.moves} - {""}
        if named:
            func = getattr(getattr(torch.ops.aten, r.operator), r.name.partition(".")[2] or "default")
            assert named <= {a.name for a in func._schema.arguments}, r.name
            assert r.factor or not r.added, r.name


def test_terms_are_said_where_a_bound_counts_them() -> None:
    for r in TABLE.values():
        assert r.terms in ("", "sum", "disturbance", "moments", "matrix"), r.name
        if r.bound.measure == "exact":
            assert not (r.terms or r.floor or r.magnitude or r.magnitude_elsewhere), r.name
        if r.factor:
            assert r.terms == "sum", r.name
        if r.floor:
            assert r.terms or r.bound.measure == "per_term", r.name
        if r.bound.chain:
            assert r.bound.measure == "per_term", r.name


def test_rows_are_sampled_as_rows_with_a_generator() -> None:
    said = [r for r in TABLE.values() if r.sampled_as]
    assert said
    for r in said:
        assert r.sampled_as in CALLS and r.name not in CALLS and r.operator not in CALLS, r.name
        assert generator_of(r) is CALLS[r.sampled_as]


def test_kernels_that_draw_have_a_law() -> None:
    for r in TABLE.values():
        assert (r.law is not None) == r.random, r.name


def test_functions_without_a_row_are_only_those() -> None:
    """What the verdicts add to the rows' operators by name has no row that could say it."""
    for kinds, field in (
        (verdict.SUMMING, "cancels"),
        (verdict.JUMPING, "jumps"),
        (verdict.RANDOM, "random"),
    ):
        rows = {r.operator.removesuffix("_") for r in TABLE.values()}
        said = {r.operator.removesuffix("_") for r in TABLE.values() if getattr(r, field)}
        assert said and kinds & rows == said


def test_more_fields_are_checked() -> None:
    with pytest.raises(TypeError, match="jmps"):
        also("relu", jmps=True)
    with pytest.raises(LookupError, match="no_such_operator"):
        also("no_such_operator", jumps=True)
    assert not hasattr(TABLE["relu"], "jmps")


def test_more_fields_of_one_overload() -> None:
    assert TABLE["sort"].ties and not TABLE["sort.stable"].ties
    assert TABLE["masked_fill.Tensor"].number == "value" and not TABLE["masked_fill.Scalar"].number
    assert not row.Row("x", Kind.VIEW).jumps


_ASKING = ("launch", "_launch", "_launch_align", "launch_kernel", "program", "program_of", "Request")


def _asked_by_name() -> set[str]:
    """Kernels that the runtime, the benchmark or a test asks for: first arguments of calls."""
    found = set()
    for path in [*PACKAGE.rglob("*.py"), *Path(__file__).parent.glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                function = (
                    node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                )
                if function in _ASKING:
                    found.add(node.args[0].value)
    return found


def test_every_kernel_has_a_row_or_a_caller() -> None:
    rows = {r.kernel_name for r in TABLE.values() if r.kind in (Kind.KERNEL, Kind.DYNAMIC)}
    unused = sorted(set(ffi.kernels()) - rows - _asked_by_name())
    assert not unused, f"kernels that nothing asks for: {unused}"
