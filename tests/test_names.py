"""Names of tests say in a few words what holds."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
MOST_WORDS = 8


def _words(name: str) -> list[str]:
    return [word for word in name.removeprefix("test_").split("_") if word]


@pytest.mark.parametrize("path", sorted(TESTS.glob("test_*.py")), ids=lambda path: path.stem)
def test_names_have_eight_words_at_most(path: Path) -> None:
    tree = ast.parse(path.read_text())
    names = [n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name.startswith("test_")]
    assert not [name for name in names if len(_words(name)) > MOST_WORDS]
