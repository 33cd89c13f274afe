"""Models of other makers' packages, compiled: `tests/other_models/compiled.py` says what holds and has 30 of them."""

from __future__ import annotations

import functools
import itertools
import json
import os
import subprocess
import sys

import pytest
from test_other_models import HERE, needs_packages

MODELS = {
    "bert": "transformers, masked",
    "llama": "transformers, causal",
    "vit": "transformers, vision",
    "convnext_atto": "timm",
}


@functools.cache
def reports() -> dict[str, list[str]]:
    """What fails of every model, by name; under "" how the process ended."""
    asked = itertools.chain(*((group, name) for name, group in MODELS.items()))
    done = subprocess.run(
        [sys.executable, str(HERE / "compiled.py"), *asked],
        capture_output=True,
        text=True,
        timeout=840,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    found = {r["name"]: r["failures"] for r in map(json.loads, done.stdout.splitlines())}
    return {"": [done.stderr[-2000:]], **found}


@pytest.mark.timeout(900)  # four models from nothing: two minutes alone
@needs_packages
@pytest.mark.parametrize("name", MODELS)
def test_compiled_model_gives_what_eager_gives(name: str) -> None:
    found = reports()
    assert name in found, f"no report; `make test` installs what it needs: {found['']}"
    assert not found[name]
