"""What PyTorch exports of models on maca is run by other engines, ONNX Runtime and OpenVINO, and by PyTorch without maca.

A part of `make long`: .venv/bin/python -m pytest -n0 tests/packages/exports.py
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export.passes import move_to_device_pass

sys.path.insert(0, str(Path(__file__).parents[1]))
from running import run_python


class Tagger(nn.Module):
    """Words to classes, by a recurrent network of both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.recurrent = (
            nn.Embedding(32, 16),
            nn.LSTM(16, 16, 2, batch_first=True, bidirectional=True),
        )
        self.classes = nn.Linear(32, 4)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.classes(self.recurrent(self.words(words))[0])
        return result


def resnet() -> tuple[nn.Module, torch.Tensor]:
    import torchvision

    return torchvision.models.resnet18(num_classes=10), torch.rand(2, 3, 64, 64)


def convnext() -> tuple[nn.Module, torch.Tensor]:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    return ConvNeXt([CNBlockConfig(16, 32, 2), CNBlockConfig(32, None, 2)], num_classes=10), torch.rand(
        2, 3, 64, 64
    )


def encoder() -> tuple[nn.Module, torch.Tensor]:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2), torch.rand(
        2, 5, 16
    )


def unet() -> tuple[nn.Module, torch.Tensor]:
    layers = (
        nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU(), nn.Conv2d(8, 8, 3, 2, 1),
        nn.Upsample(scale_factor=2.0), nn.ConvTranspose2d(8, 4, 2, 2),
    )  # fmt: skip
    return nn.Sequential(*layers), torch.rand(2, 3, 16, 16)


def tagger() -> tuple[nn.Module, torch.Tensor]:
    return Tagger(), torch.randint(32, (2, 7))


MODELS = (resnet, convnext, encoder, unet, tagger)


class Exported:
    """A model on maca, its example there and on the host, and what the host gives."""

    def __init__(self, make: Callable[[], tuple[nn.Module, torch.Tensor]]) -> None:
        torch.manual_seed(0)
        model, self.x = make()
        model.eval()
        with torch.no_grad():
            self.expected = model(self.x)
        self.model, self.example = model.to("maca"), (self.x.to("maca"),)

    def check(self, result: Any) -> None:
        # float32 of networks of 2 to 18 layers, another order of sums in each: 4e-7 to 6e-7 were seen of values near 1
        torch.testing.assert_close(torch.as_tensor(result), self.expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dynamo", [True, False], ids=["dynamo", "TorchScript"])
@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_files_of_onnx_run(make: Callable[..., Any], dynamo: bool, tmp_path: Path) -> None:
    import onnxruntime
    import openvino

    exported, path = Exported(make), tmp_path / "model.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the older exporter's end, and of torchvision
        torch.onnx.export(
            exported.model, exported.example, path, dynamo=dynamo, input_names=["x"], verbose=False
        )
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    exported.check(session.run(None, {session.get_inputs()[0].name: exported.x.numpy()})[0])
    precise = {"INFERENCE_PRECISION_HINT": "f32"}
    exported.check(openvino.Core().compile_model(path, "CPU", precise)(exported.x.numpy())[0])


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_programs_run_without_maca(make: Callable[..., Any], tmp_path: Path) -> None:
    exported = Exported(make)
    program = move_to_device_pass(torch.export.export(exported.model, exported.example), "cpu")
    torch.export.save(program, tmp_path / "program.pt2")
    torch.save(exported.x, tmp_path / "x")
    run_python(
        """
        import sys, torch
        program = torch.export.load(sys.argv[1] + "/program.pt2").module()
        with torch.no_grad():
            torch.save(program(torch.load(sys.argv[1] + "/x")), sys.argv[1] + "/y")
        assert "macatensor" not in sys.modules
        """,
        str(tmp_path),
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    exported.check(torch.load(tmp_path / "y"))
