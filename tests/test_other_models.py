"""25 tiny models of other makers' packages give on maca what they give on the CPU, with nothing computed on the host.

All models of the catalogue: `tests/other_models/table.py`.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

HERE = Path(__file__).parent / "other_models"
sys.path.insert(0, str(HERE))

from catalogue import Model  # noqa: E402
from stages import run  # noqa: E402

MODELS = {
    "transformers, causal": "gpt2 llama gemma2 bloom mamba mixtral",
    "transformers, masked": "bert albert deberta-v2 fnet",
    "transformers, seq2seq": "t5 bart",
    "transformers, vision": "vit segformer",
    "transformers, text with images or sound": "clip wav2vec2",
    "timm": "mobilenetv3_small_050 convnext_atto ghostnet_050",
    "diffusers": "UNet2DModel AutoencoderKL DiTTransformer2DModel",
    "torch_geometric": "GCN GAT GIN",
}
TORCH = re.search(r"^torch==(.*)$", (HERE / "requirements.txt").read_text(), flags=re.M)[1]  # type: ignore[index]


@functools.cache
def reports(package: str) -> dict[str, dict[str, Any]]:
    """The report of every model of a package that was made before the process ended, by name."""
    asked = [
        (group, n) for group, names in MODELS.items() if group.startswith(package) for n in names.split()
    ]
    done = subprocess.run(
        [sys.executable, str(HERE / "stages.py"), *itertools.chain(*asked)],
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    found = {r["name"]: r for r in map(json.loads, done.stdout.splitlines())}
    return {"": {"status": done.returncode, "error": done.stderr[-2000:]}, **found}


# torchvision, without which timm cannot be imported, wants one PyTorch exactly
needs_packages = pytest.mark.xfail(
    torch.__version__.partition("+")[0] != TORCH or sys.version_info < (3, 11),
    reason=f"`make test` has these packages for PyTorch {TORCH} and Python 3.11 or newer",
    run=False,
)


@needs_packages
@pytest.mark.parametrize(
    ("group", "name"), [(group, name) for group, models in MODELS.items() for name in models.split()]
)
def test_model_gives_what_the_cpu_gives(group: str, name: str) -> None:
    found = reports(group.partition(",")[0])
    assert name in found, f"no report; `make test` installs what it needs: {found['']}"
    report = found[name]
    assert report["stages"] and not report.get("error"), report
    assert set(report["stages"].values()) == {"pass"}, report
    assert report["fallbacks"] == 0, report


def test_there_are_25_models() -> None:
    assert sum(len(models.split()) for models in MODELS.values()) == 25


class Weighted(torch.nn.Module):
    """Columns of ones and of the input, by a weight, with a function over them."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([[1.0, 1.0], [-1.0, 1.0]]))
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x @ self.weight)


def asked_of(function: Callable[[torch.Tensor], torch.Tensor]) -> str:
    return run(Model(Weighted(function), {"x": torch.tensor([[3.0, 3.0], [1.0, 2.0]])}), "forward")


def test_a_wrong_number_fails_its_stage() -> None:
    assert asked_of(torch.sin) == "pass"
    assert asked_of(lambda y: torch.sin(y) * (1.001 if y.device.type == "maca" else 1)).startswith(
        "fail: 0.001 apart"
    )
    assert asked_of(lambda y: y / 0 if y.device.type == "maca" else y).startswith("fail: AssertionError: NaN")


def test_enlarged_rounding_passes_its_stage() -> None:
    def step_at_zero(y: torch.Tensor) -> torch.Tensor:
        return (y + (1e-7 if y.device.type == "maca" else 0)).sign()

    assert asked_of(step_at_zero) == "pass"


def test_random_numbers_need_only_be_finite() -> None:
    assert asked_of(lambda y: y + torch.rand_like(y)) == "finite"
    assert asked_of(
        lambda y: torch.rand_like(y).log() if y.device.type == "cpu" else torch.rand_like(y) / 0
    ) == ("fail: not finite")
