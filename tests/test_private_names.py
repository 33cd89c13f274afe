"""The list of PyTorch's private names is that of the sources, and a PyTorch that is not in it is warned of once."""

from __future__ import annotations

import private_names
import pytest
from running import run_python

from macatensor.integration import pytorch_versions


def test_the_list_is_that_of_the_sources() -> None:
    assert set(pytorch_versions.private_names()) == private_names.used(), (
        "python tests/private_names.py --write"
    )


def test_every_name_was_seen_somewhere() -> None:
    assert not [name for name, versions in pytorch_versions.private_names().items() if not versions]


def test_names_are_where_they_were_seen() -> None:
    running = pytorch_versions.running()
    if running not in pytorch_versions.versions_seen():
        pytest.xfail(f"PyTorch {running} has not been looked at: python tests/private_names.py --write")
    listed = pytorch_versions.private_names()
    wrong = [
        name for name, versions in listed.items() if (running in versions) != pytorch_versions.exists(name)
    ]
    assert not wrong


def test_a_name_that_is_not_there_is_none() -> None:
    assert pytorch_versions.exists("torch._C._get_tracing_state")
    assert not pytorch_versions.exists("torch._C._no_such_name")
    assert not pytorch_versions.exists("torch._no_such_module.name")


UNKNOWN = """
import warnings
import torch

torch.__version__ = type(torch.__version__)("9.1.0")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import macatensor
    torch.ones(2, device="maca") + 1
(said,) = [str(w.message) for w in caught if "has not run with" in str(w.message)]
print(said)
"""


def test_an_unknown_version_is_warned_of_once() -> None:
    said = run_python(UNKNOWN).stdout
    assert "PyTorch 9.1.0" in said and "2.13" in said
    assert "`macatensor check` lists" in said and "pip install" in said


def test_a_known_version_is_not_warned_of() -> None:
    program = "import warnings; warnings.simplefilter('error'); import macatensor"
    run_python(program)


MISSING = """
import json
import torch

from macatensor.integration import pytorch_versions

del torch._C._current_graph_task_id
print(json.dumps(pytorch_versions.missing_names()))
"""


def test_missing_names_are_told() -> None:
    assert run_python(MISSING).stdout.strip() == '["torch._C._current_graph_task_id"]'
