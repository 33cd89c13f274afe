"""Packages of other makers that look for devices by a list of names find maca.

Each module here adapts one maker's packages and says which versions it was written for. Nothing is imported that the
program has not imported: an adapter acts when a package's module is there, at once or after its import.
"""

from __future__ import annotations

import functools
import importlib
import sys
import warnings
from collections.abc import Callable, Iterable
from importlib import metadata

from maca_autoload import safetensors
from maca_autoload.torchvision import define

from macatensor.runtime.after_import import after_import
from macatensor.runtime.boxed import Value

# upstream module -> the adapter's module here and its function
_ADAPTERS = {
    "accelerate.state": ("accelerate", "state"),
    "accelerate.utils.modeling": ("accelerate", "modeling"),
    "accelerate.accelerator": ("accelerate", "accelerator"),
    "torch.nn.attention.varlen": ("varlen_attention", "kernels"),
    "torchtune.utils._device": ("torchtune", "device"),
    "torchtune.training.precision": ("torchtune", "precision"),
    "torchvision.extension": ("torchvision", "extension"),
    "torchvision.ops.roi_align": ("torchvision", "roi_align"),
    "transformers.training_args": ("transformers", "training_arguments"),
    "transformers.pipelines.base": ("transformers", "pipelines"),
    "lightning.pytorch.trainer.connectors.accelerator_connector": ("lightning", "trainer"),
    "lightning.fabric.connector": ("lightning", "fabric"),
    "pytorch_lightning.trainer.connectors.accelerator_connector": ("lightning", "trainer"),
    "lightning_fabric.connector": ("lightning", "fabric"),
}


def register() -> None:
    """Adapts what is imported, and the rest when it is."""
    safetensors.adapt()
    after_import("torchvision.extension", lambda: define(sys.modules["torchvision.extension"]))
    # after the one above: it needs the schemas
    for module, (adapter, function) in _ADAPTERS.items():
        after_import(module, functools.partial(_adapt, module, adapter, function))


def _adapt(module: str, adapter: str, function: str) -> None:
    ours = importlib.import_module(f"{__name__}.{adapter}")
    package = module.partition(".")[0]
    low, high = ours.UPSTREAM
    try:
        version = metadata.version(package.replace("_", "-"))
    except metadata.PackageNotFoundError:
        version = ""  # a copy in a folder
    try:
        getattr(ours, function)(sys.modules[module])
    except (AttributeError, ImportError, KeyError) as error:
        warnings.warn(
            f"{package} {version} does not find maca by itself ({error}); accepted: {low} up to, without, {high}",
            stacklevel=2,
        )


def replace_function(
    module: Value, name: str, function: Callable[..., Value], holders: Iterable[str]
) -> None:
    """Sets ``module.name``, and the same name in modules of the packages ``holders`` that imported the old one by it."""
    old = getattr(module, name)
    setattr(module, name, function)
    for path, held in list(sys.modules.items()):
        if path.partition(".")[0] in holders and vars(held).get(name) is old:
            setattr(held, name, function)
