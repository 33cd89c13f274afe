"""Runs one script of another maker in this process, a fork of run.py that has imported PyTorch and torchvision already.

Data sets that would be downloaded are synthetic, weights that would be are those a model is born with, and a script ends
after so many calls of ``backward``.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import random
import runpy
import sys
import traceback
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from PIL import Image
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from macatensor import as_cuda

as_cuda.disable()  # importing it enables; every child of run.py decides for itself


class Enough(BaseException):
    """The script has trained long enough."""


class Pictures(torch.utils.data.Dataset[Any]):
    """Stands for a data set of torchvision: noise with a square whose place and shade follow from the class."""

    samples = 64
    shape: tuple[int, ...] = (28, 28)
    classes = [str(i) for i in range(10)]

    def __init__(self, root: str = "", train: bool = True, transform: Any = None, target_transform: Any = None,
                 download: bool = False, **_: Any) -> None:  # fmt: skip
        draws = np.random.RandomState(0 if train else 1)
        self.targets = torch.arange(self.samples) % 10
        pictures = draws.randint(0, 64, (self.samples, *self.shape)).astype(np.uint8)
        for picture, label in zip(pictures, self.targets.tolist()):
            picture[2 * label : 2 * label + 6, 4:20] += np.uint8(100 + 8 * label)
        self.data: Any = torch.from_numpy(pictures) if len(self.shape) == 2 else pictures
        self.transform, self.target_transform = transform, target_transform

    @property
    def train_labels(self) -> torch.Tensor:
        return self.targets

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        picture: Any = Image.fromarray(np.asarray(self.data[index]))
        label: Any = int(self.targets[index])
        if self.transform is not None:
            picture = self.transform(picture)
        return picture, label if self.target_transform is None else self.target_transform(label)


class ColourPictures(Pictures):
    shape = (32, 32, 3)


def _no_downloads() -> None:
    """Puts synthetic data in the place of what scripts fetch."""
    for name in ("MNIST", "FashionMNIST", "KMNIST"):
        setattr(torchvision.datasets, name, Pictures)
    for name in ("CIFAR10", "CIFAR100"):
        setattr(torchvision.datasets, name, ColourPictures)

    def born_with(*_: Any, **__: Any) -> Any:
        return sys._getframe(1).f_locals["model"].state_dict()

    torchvision.models._api.WeightsEnum.get_state_dict = born_with
    with contextlib.suppress(ImportError):
        import requests

        @contextlib.contextmanager
        def local(url: str, **_: Any) -> Iterator[Any]:
            with open(url.rpartition("/")[2], "rb") as file:
                yield type("Answer", (), {"raw": file})

        requests.get = local
    with contextlib.suppress(ImportError):
        import nltk

        nltk.tokenize.word_tokenize = str.split


class HostDraws(TorchDispatchMode):
    """Random numbers of maca are drawn by PyTorch's CPU kernels from the host's generator, then copied."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        ours = [False]

        def host(value: Any) -> Any:
            if isinstance(value, torch.Tensor) and value.device.type == "maca":
                ours[0] = True
                return value.cpu()
            if isinstance(value, torch.device) and value.type == "maca":
                ours[0] = True
                return torch.device("cpu")
            return value

        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        packet = func.overloadpacket
        host_args, host_kwargs = tree_map(host, args), tree_map(host, kwargs)
        if not ours[0]:
            return func(*args, **kwargs)
        if packet is torch.ops.aten.native_dropout and args[2]:
            # as dropout of the CPU draws
            noise = torch.empty(args[0].shape).bernoulli_(1 - args[1])
            mask = noise.to("maca", args[0].dtype)
            return args[0] * mask.div(1 - args[1]), mask.bool()
        made = func(*host_args, **host_kwargs)
        if func._schema.is_mutable:
            args[0].copy_(made)
            return args[0]
        return tree_map(lambda v: v.to("maca") if isinstance(v, torch.Tensor) else v, made)


def _nudge_at_first_call(seed: int) -> None:
    """Moves every weight by one unit in the last place, up, down or not at all, before a module is called."""

    def nudge(*_: Any) -> None:
        hook.remove()
        for found in gc.get_objects():
            if isinstance(found, torch.nn.Parameter) and found.is_floating_point():
                # drawn by what the weights are: the collector's order differs from run to run
                own = zlib.crc32(found.data.flatten()[:64].numpy().tobytes(), seed)
                draws = torch.Generator().manual_seed(own)
                found.data.mul_(1 + 2**-23 * torch.randint(-1, 2, found.shape, generator=draws))

    hook = torch.nn.modules.module.register_module_forward_pre_hook(nudge)


def _recording(record: dict[str, Any], steps: int) -> Callable[..., None]:
    backward = torch.Tensor.backward
    inside = [False]  # a function mode calls it again

    def recorded(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        if inside[0]:
            backward(self, *args, **kwargs)
            return
        inside[0] = True
        try:
            if self.numel() == 1:
                record["losses"].append(float(self.detach().cpu().double()))
            if self.device.type not in record["devices"]:
                record["devices"].append(self.device.type)
            backward(self, *args, **kwargs)
        finally:
            inside[0] = False
        record["steps"] += 1
        if record["steps"] >= steps:
            raise Enough

    return recorded


def _cpu_as_accelerator() -> None:
    """The CPU is what torch.accelerator names, so that a script shuffles and pins as beside a device."""
    accelerator: Any = torch.accelerator
    accelerator.is_available = lambda: True
    accelerator.current_accelerator = lambda check_available=False: torch.device("cpu")
    accelerator.device_count = lambda: 1
    accelerator.set_device_index = accelerator.synchronize = lambda *_: None
    torch.Tensor.pin_memory = lambda self, device=None: self  # type: ignore[method-assign]


def _with_older_names() -> None:
    """Pillow 10 has dropped a name that the tutorial's style transfer resizes by."""
    Image.ANTIALIAS = Image.LANCZOS  # type: ignore[attr-defined]


def _with_a_terminal() -> None:
    """pytorch-cifar asks stty how wide it is; a run has none."""
    popen = os.popen
    os.popen = lambda command, *how: io.StringIO("24 80") if command == "stty size" else popen(command, *how)  # type: ignore


def run(mode: str, file: Path, script: Path, arguments: list[str], samples: int, steps: int) -> int:
    """Runs ``script`` and gives its exit status.

    ``mode`` is ``cpu``, ``as_cuda`` or ``migrated``, with ``+draws`` where the device's random numbers are to be the
    host's, ``+without oneDNN``, ``+nudged0`` (1, 2, … are other draws) where weights begin a unit in the last place apart,
    ``+perturbed`` under accuracy.perturbation. ``file`` gets, as JSON, the losses, the devices they lay on and
    who ended the script. ``samples`` of a data set, ``steps`` of backward.
    """
    mode, _, manner = mode.partition("+")
    record: dict[str, Any] = {"losses": [], "devices": [], "steps": 0, "ended": "by an error"}
    Pictures.samples = samples
    _no_downloads()
    _with_a_terminal()
    _with_older_names()
    if mode == "cpu":
        _cpu_as_accelerator()
    if mode == "as_cuda":
        as_cuda.enable()
    torch.Tensor.backward = _recording(record, steps)  # type: ignore[method-assign]
    torch.backends.mkldnn.set_flags(manner != "without oneDNN")
    if manner.startswith("nudged"):
        _nudge_at_first_call(int(manner.removeprefix("nudged")))
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    watch: Any = contextlib.nullcontext()
    if manner == "draws":
        watch = HostDraws()
    elif manner == "perturbed":
        from macatensor import accuracy

        watch = accuracy.perturbation(trials=1)
    status = 0
    try:
        with watch as seen:
            try:
                runpy.run_path(str(script), run_name="__main__")
                record["ended"] = "by itself"
            except Enough:
                record["ended"] = "by us"
        if manner == "perturbed":
            record["perturbed"] = str(seen)
    except SystemExit as error:
        status = 1 if error.code else 0
        record["ended"] = f"by exit {error.code}"
    except BaseException:
        traceback.print_exc()
        status = 1
    file.write_text(json.dumps(record))
    return status
