"""Snippets of the documentation run, the files that it names exist, and notebooks run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from op_table import TABLE
from op_table.coverage import EXAMINATION

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
SNIPPETS = [
    (page, number, text)
    for page in PAGES
    for number, text in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.S))
    if page.name != "packages.md"  # other makers' packages: tests/packages/programs.py, in `make long`
]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# A path of this repository in code: it begins with one of its folders and ends in a file's ending or a slash.
FOLDERS = [".ci", "docs", "libmaca_ffi", "macatensor", "notebooks", "op_table", "tests"]
WRITTEN = {"tests/long_results.json"}  # by `make long`, where it has run
CODE_PATH = re.compile(rf"`((?:{'|'.join(map(re.escape, FOLDERS))})/(?:[\w./-]*\.[a-z]+\w*|[\w/-]*/)?)`")
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(?:#[^)]*)?\)")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def run(snippet: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "MACA_FALLBACK": "error"}
    return subprocess.run(
        [sys.executable, "-c", snippet], env=environment, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize(
    ("page", "number", "snippet"), SNIPPETS, ids=[f"{name_of(p)}-{n}" for p, n, _ in SNIPPETS]
)
def test_snippet_runs(page: Path, number: int, snippet: str) -> None:
    done = run(snippet)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("page", "prints"), [("README.md", 3), ("docs/index.md", 1)])
def test_first_snippet_prints_what_the_page_shows(page: str, prints: int) -> None:
    snippet = next(text for p, n, text in SNIPPETS if name_of(p) == page and n == 0)
    shown = re.findall(r"print\(.*?\) +# (.*)", snippet)
    printed = run(snippet).stdout.splitlines()
    assert len(shown) == len(printed) == prints
    for expected, got in zip(shown, printed):
        assert expected.startswith(got)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text()
    missing = [path for path in CODE_PATH.findall(text) if path not in WRITTEN and not (ROOT / path).exists()]
    missing += [path for path in LINK.findall(text) if not (page.parent / path).exists()]
    assert not missing, f"{name_of(page)} names what is not there: {missing}"


def test_paths_are_found_in_pages() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    assert len(CODE_PATH.findall(text)) > 30 and len(LINK.findall(text)) > 30


def test_pictures_are_small_and_shown() -> None:
    readme = (ROOT / "README.md").read_text()
    for picture in (ROOT / "docs" / "pictures").iterdir():
        assert picture.stat().st_size <= 150_000, picture
        assert f"]({name_of(picture)})" in readme


def test_make_docs_installs_the_extra() -> None:
    listed = re.search(r"^docs = \[(.*)\]$", (ROOT / "pyproject.toml").read_text(), flags=re.M)
    assert listed is not None
    assert f"--no-compile {listed[1].replace(',', '')}\n" in (ROOT / "Makefile").read_text()


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 160


def test_the_index_lists_each_notebook() -> None:
    assert [n.stem[:2] for n in NOTEBOOKS] == [f"{i:02}" for i in range(1, len(NOTEBOOKS) + 1)]
    listed = re.findall(r"^\.\./notebooks/(\w+)$", (ROOT / "docs/index.md").read_text(), re.MULTILINE)
    assert listed == [n.stem for n in NOTEBOOKS]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_runs_in_any_folder(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MACA_FALLBACK", raising=False)
    notebook = nbformat.read(path, as_version=4)
    assert all(not c.get("outputs") for c in notebook.cells), "notebooks are kept without outputs"
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()


def test_examination_figures_are_those_of_its_record() -> None:
    rates = {rate["name"]: rate for rate in json.loads(EXAMINATION.read_text())["rates"]}
    strict, every = rates["forward, typical dtype, first 5 samples"], rates["forward, every dtype"]
    share = f"{strict['passed']} of {strict['asked']} entries"
    assert share in (ROOT / "README.md").read_text()
    page = " ".join((ROOT / "docs" / "examination.md").read_text().split())
    assert share in page
    assert (
        f"{every['passed'] / every['asked']:.1%}".replace("%", " %") + f" of all {every['asked']} pairs"
        in page
    )


def test_readme_counts_the_models_of_their_page() -> None:
    page = (ROOT / "docs" / "models.md").read_text()
    total = re.search(r"^\| all \| (\d+) \| .* \| 0 \|$", page, flags=re.M)  # none on the host
    assert total is not None and f"[{total[1]} tiny ones](docs/models.md)" in (ROOT / "README.md").read_text()


def test_design_states_the_bound_of_gelu() -> None:
    page = (ROOT / "docs" / "design.md").read_text()
    stated = re.search(r"How far may GELU err\? \| Its row: `ulp\((.*?)\)`", page)
    bound = TABLE["gelu"].bound
    short = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64"}
    assert stated is not None and bound.measure == "ulp"
    assert stated[1].split(", ") == [f"{short[dtype]}={number:g}" for dtype, number in bound.limits]
    picture = (ROOT / "docs" / "pictures" / "operators.svg").read_text().replace("&#160;", " ")
    assert f"{bound.limit('float32'):g} ulp (float64 {bound.limit('float64'):g}" in picture


def test_design_answers_a_newcomers_questions() -> None:
    """In which words the named files speak of the answer; that they exist, another test says."""
    page = (ROOT / "docs" / "design.md").read_text()
    rows = re.findall(r"^\| ([^|]*\?) \| ([^|]*) \| ([^|]*) \|$", page, re.M)
    assert len(rows) == 16
    for question, answer, files in rows:
        texts = [(ROOT / name).read_text() for name in re.findall(r"`([^`]*)`", files)]
        words = [w for w in re.findall(r"`([\w.]+)`", answer) if w.isidentifier()]
        for word in words:
            assert any(word in text for text in texts), f"{question} no file has {word}"
