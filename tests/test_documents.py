"""README snippets and notebooks run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parent.parent
SNIPPETS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.S)
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_readme_snippet_runs(number: int) -> None:
    environment = {**os.environ, "MACA_FALLBACK": "error"}
    done = subprocess.run(
        [sys.executable, "-c", SNIPPETS[number]], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_readme_shows_what_its_first_snippet_prints() -> None:
    done = subprocess.run([sys.executable, "-c", SNIPPETS[0]], capture_output=True, text=True, timeout=120)
    shown = re.findall(r"print\(.*?\) +# (.*)", SNIPPETS[0])
    printed = done.stdout.splitlines()
    assert len(shown) == len(printed) == 3
    for expected, got in zip(shown, printed):
        assert expected.startswith(got)


def test_there_are_notebooks() -> None:
    assert [n.stem[:2] for n in NOTEBOOKS] == ["01", "02", "03", "04", "05"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MACA_FALLBACK", raising=False)
    notebook = nbformat.read(path, as_version=4)
    assert all(not c.get("outputs") for c in notebook.cells), "notebooks are kept without outputs"
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(path.parent)}}).execute()
