"""Inference engines beside native PyTorch: ONNX Runtime and OpenVINO, where they are installed (the extra ``engines``).

Each gets the model as ONNX, computes in float32 and has as many threads as PyTorch.
"""

from __future__ import annotations

import importlib.util
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from macatensor.bench.measure import Call

_NEEDED = {
    "onnxruntime": ("onnx", "onnxscript", "onnxruntime"),
    "openvino": ("onnx", "onnxscript", "openvino"),
}


def engines(model: torch.nn.Module, x: torch.Tensor) -> dict[str, Call]:
    """A call of the model for each engine that is installed. Raises RuntimeError where one gives other results."""
    found = [name for name, needed in _NEEDED.items() if all(map(importlib.util.find_spec, needed))]
    if not found:
        return {}
    calls: dict[str, Call] = {}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        path = Path(folder) / "model.onnx"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the exporter's own
            torch.onnx.export(model, (x,), path, dynamo=True, verbose=False)
        expected = model(x)
        for name in found:
            run = _MAKERS[name](path, x)
            result = torch.from_numpy(run())
            if not torch.allclose(result, expected, rtol=1e-2, atol=1e-3):
                raise RuntimeError(f"{name} is {float((result - expected).abs().max()):.3g} from PyTorch")
            calls[name] = run
    return calls


def _onnxruntime(path: Path, x: torch.Tensor) -> Callable[[], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = torch.get_num_threads(), 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    given = {session.get_inputs()[0].name: x.numpy()}
    return lambda: session.run(None, given)[0]


def _openvino(path: Path, x: torch.Tensor) -> Callable[[], Any]:
    import openvino

    how = {
        "INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
    }  # fmt: skip
    request = openvino.Core().compile_model(str(path), "CPU", how).create_infer_request()
    given = x.numpy()
    return lambda: request.infer([given])[0]


_MAKERS: dict[str, Callable[[Path, torch.Tensor], Callable[[], Any]]] = {
    "onnxruntime": _onnxruntime, "openvino": _openvino,
}  # fmt: skip
