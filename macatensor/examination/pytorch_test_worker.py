"""``python -m macatensor.examination.pytorch_test_worker FOLDER``: runs PyTorch's own tests, one on the CPU and on maca a task.

The tests are those that PyTorch instantiates for every device. With ``--list FILE ...`` it prints the tasks of these
files. FOLDER is the ``test`` folder of a checkout of PyTorch, of another version perhaps.
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
import time
import unittest
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch

from macatensor.device import memory
from macatensor.examination.foreign_tests import Ran, imported, run
from macatensor.examination.task import Answer, Task
from macatensor.examination.worker import own_output, serve

# What a skipped test says of the device, and not of what is installed.
_OF_THE_DEVICE = re.compile(
    r"Only runs on|doesn't run on|Insufficient .* memory|Unknown device type|Test requires|fewer than \d+ devices"
)
# What PyTorch says where a test names CUDA itself, and not the device that it is run on.
_OF_CUDA = re.compile(r"compiled with CUDA|only supported on CUDA|ATen_cuda|'aten::cudnn_")
# What maca refuses by name, as a tensor subclass cannot hold it.
_REFUSED = re.compile(r"got a nested tensor of layout torch\.strided")
_BOUND: Any = torch._C
_CHOICES: Any = _BOUND._ConvBackend
_ASIDE = re.compile(r"sparse|nested|quantize|named_tensor", re.IGNORECASE)


class Pair(NamedTuple):
    """One test, instantiated for the CPU and for maca; either may be missing."""

    cpu: unittest.TestCase | None
    maca: unittest.TestCase | None


class _LeftToTheDevice:
    """Which of its own kernels PyTorch takes for a convolution on a device that is not its own: whichever a test expects,
    so that it goes on to the convolution itself, forward, backward and forward over backward."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _CHOICES) and other != _CHOICES.Empty

    __hash__ = None  # type: ignore[assignment]


def _choice(select: Callable[..., object]) -> Callable[..., object]:
    """``torch._C._select_conv_backend``, which says ``Overrideable`` of every device but its own."""

    def chosen(*arguments: object) -> object:
        found = select(*arguments)
        return _LeftToTheDevice() if found == _CHOICES.Overrideable else found

    return chosen


def _of_any_device(decorate: Callable[..., object]) -> Callable[..., object]:
    """``largeTensorTest``: what a test takes of CUDA's memory it takes of any, and none is asked how much it has."""
    return lambda size, *device, **options: decorate(size)


def prepare(folder: Path) -> None:
    """Imports of the folder's modules work, on this device too."""
    warnings.simplefilter("ignore")
    # macatensor is imported: PyTorch lists its devices when its test package is
    from torch.testing._internal import common_device_type

    torch.set_num_threads(1)
    # its class calls itself "privateuse1" until it is set up, and names of tests follow
    common_device_type.PrivateUse1TestBase.setUpClass()
    common_device_type.onlyCUDA = common_device_type.onlyOn(["cuda", "maca"])
    common_device_type.largeTensorTest = _of_any_device(common_device_type.largeTensorTest)
    _BOUND._select_conv_backend = _choice(_BOUND._select_conv_backend)
    sys.path.insert(0, str(folder))
    os.chdir(folder)


@functools.cache
def tests_of(file: str) -> dict[str, Pair]:
    """``{"TestViewOps::test_diagonal": ...}`` of a file, as ``nn/test_pooling.py``."""
    module = imported(file.removesuffix(".py").replace("/", "."))
    found: dict[str, dict[str, unittest.TestCase]] = {}
    for name, device, test in _instantiated(module):
        found.setdefault(name, {})[device] = test
    return {name: Pair(at.get("cpu"), at.get("maca")) for name, at in found.items()}


def _instantiated(module: ModuleType) -> Iterator[tuple[str, str, unittest.TestCase]]:
    for name, value in vars(module).items():
        device = getattr(value, "device_type", None)
        if not (isinstance(value, type) and issubclass(value, unittest.TestCase)) or device not in (
            "cpu",
            "maca",
        ):
            continue
        for method in unittest.defaultTestLoader.getTestCaseNames(value):
            # the device is behind the test's own name, before dtype and parameters
            own, mark, rest = method.rpartition(f"_{device}_")
            if not mark:
                own, rest = method.removesuffix(f"_{device}"), ""
            generic = f"{own}_{rest}" if rest else own
            yield f"{name[: -len(device)]}::{generic}", device, value(method)


def answer_task(task: Task, limit: int | None = None) -> Answer:
    """ "empty" where the CPU does not pass, or where the test is not for a device such as maca: it says so, it is marked
    for CUDA and asks for CUDA by name, of which this PyTorch has none, or it comes to a nested tensor that is not jagged,
    which maca refuses."""
    answer = Answer(task)
    started = time.process_time()
    pair = tests_of(task.database)[task.entry]
    answer.outcome, answer.detail = _compare(pair)
    answer.wrong = int(answer.outcome == "fail")
    answer.samples = int(answer.outcome in ("pass", "fail"))
    answer.seconds = time.process_time() - started
    memory.empty_cache()  # a convolution with a large workspace leaves 7 GB, and there are several workers
    return answer


def _compare(pair: Pair) -> tuple[str, str]:
    assert pair.maca is not None
    host = run(pair.cpu) if pair.cpu is not None else Ran("skip", "Only runs on devices")
    for_devices = host.outcome == "skip" and "Only runs on" in host.said
    if host.outcome != "pass" and not for_devices:
        return "empty", f"the CPU: {host.outcome}: {host.said}"
    ours = run(pair.maca)
    if ours.outcome == "skip":
        return (
            "empty" if _OF_THE_DEVICE.search(ours.said) or for_devices else "fail"
        ), f"skipped: {ours.said}"
    if _REFUSED.search(ours.said):
        return "empty", ours.said
    if for_devices and ours.said:
        said = f"marked for CUDA: {ours.said}"
        return "empty" if _OF_CUDA.search(ours.said) else ours.outcome, said
    return ours.outcome, ours.said


def tasks_of(file: str) -> list[Task]:
    """Sparse, nested and quantized tensors aside, in files that are not of them."""
    whole = _ASIDE.search(file) is not None
    return [
        Task("suite", file, name, "")
        for name, pair in tests_of(file).items()
        if pair.maca is not None and (whole or not _ASIDE.search(name))
    ]


def main(arguments: list[str]) -> None:
    lines = own_output()
    folder, *rest = arguments
    prepare(Path(folder).resolve())
    if rest[:1] == ["--list"]:
        for file in rest[1:]:
            lines.write(json.dumps({"file": file, **_listed(file)}) + "\n")
        return
    serve(lines, answer_task)


def _listed(file: str) -> dict[str, object]:
    try:
        return {"tasks": [task.__dict__ for task in tasks_of(file)]}
    except Exception as error:  # whatever a module of another version stumbles over
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    main(sys.argv[1:])
