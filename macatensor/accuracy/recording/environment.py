"""What a run depends on besides its code: versions, flags, seeds, the machine."""

from __future__ import annotations

import importlib.metadata
import multiprocessing
import os
import platform
import sys

import torch

from macatensor.accuracy.records import FORMAT

_PACKAGES = ("torch", "macatensor", "numpy", "safetensors", "torchvision", "transformers", "triton")
_PREFIXES = ("MACA", "PYTORCH_", "TORCH", "CUDA_", "CUBLAS_", "NCCL_", "GLOO_", "OMP_", "MKL_", "ATEN_")
_NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PYTHONHASHSEED")


def environment() -> dict[str, object]:
    """As JSON has it."""
    return {
        "format": FORMAT,
        "pid": os.getpid(),
        "parent": os.getppid(),
        "process": multiprocessing.current_process().name,
        "argv": sys.argv,
        "executable": sys.executable,
        "folder": os.getcwd(),
        "python": sys.version,
        "platform": platform.platform(),
        "machine": {"processor": platform.machine(), "cores": os.cpu_count()},
        "versions": _versions(),
        "flags": _flags(),
        "variables": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(_PREFIXES) or name in _NAMES
        },
        "devices": _devices(),
    }


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    found["torch"] = torch.__version__
    found["torch.git"] = torch.version.git_version
    return found


def _flags() -> dict[str, object]:
    return {
        "threads": torch.get_num_threads(),
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "grad_enabled": torch.is_grad_enabled(),
        "inference_mode": torch.is_inference_mode_enabled(),
        "autocast": {
            kind: str(torch.get_autocast_dtype(kind)).removeprefix("torch.")
            for kind in ("cpu", "cuda", "maca")
            if torch._C._is_autocast_available(kind) and torch.is_autocast_enabled(kind)
        },
        "mkldnn": torch.backends.mkldnn.enabled,
        "cudnn": {
            "enabled": torch.backends.cudnn.enabled,
            "benchmark": torch.backends.cudnn.benchmark,
            "deterministic": torch.backends.cudnn.deterministic,
        },
        "maca": {
            "matmul.allow_tf32": torch.backends.maca.matmul.allow_tf32,  # type: ignore[attr-defined]
            "conv.allow_tf32": torch.backends.maca.conv.allow_tf32,  # type: ignore[attr-defined]
        },
    }


def _devices() -> dict[str, object]:
    found: dict[str, object] = {}
    for kind in ("cuda", "maca"):
        module = getattr(torch, kind, None)
        if module is not None and module.is_available():
            found[kind] = [module.get_device_name(i) for i in range(module.device_count())]
    return found
