"""What every process of a run begins with, the ranks that a test starts among them: all are forks of one.

``SUITE_DEVICE``: "maca" or "cpu"; ``SUITE_FOLDER``: the ``test`` folder of a checkout of PyTorch. PyTorch's tests want a device of the rank's number on one machine. A process sees one
device here, so every number means it, and the count says 4.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import io
import itertools
import os
import sys
import time
import warnings
from pathlib import Path
from types import ModuleType

DEVICE = os.environ["SUITE_DEVICE"]
FOLDER = Path(os.environ["SUITE_FOLDER"])
RANKS = 4
MOVED = {  # modules of 2.4, and where PyTorch has them now, perhaps with an underscore before a name
    "torch.distributed._tensor.": "torch.distributed.tensor.",
    "torch.distributed._composable.fsdp.": "torch.distributed.fsdp._fully_shard.",
}
# what test files import, and takes seconds
_LARGE = (
    "torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.pipelining", "torch.distributed.tensor.parallel",
    "torch.testing._internal.common_fsdp", "torch.testing._internal.common_distributed",
)  # fmt: skip

warnings.simplefilter("ignore")
sys.path.insert(0, str(FOLDER))


class _Moved(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules by the names that they had."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        for old, new in MOVED.items():
            if not name.startswith(old):
                continue
            rest = name.removeprefix(old).split(".")
            for marks in itertools.product(("", "_"), repeat=len(rest)):
                there = new + ".".join(mark + part for mark, part in zip(marks, rest, strict=True))
                with contextlib.suppress(ModuleNotFoundError):
                    if importlib.util.find_spec(there) is not None:
                        return importlib.machinery.ModuleSpec(name, self, origin=there)
        return None

    def create_module(self, spec):  # type: ignore[no-untyped-def]
        module = importlib.import_module(spec.origin)
        self.own = module.__spec__
        return module

    def exec_module(self, module):  # type: ignore[no-untyped-def]
        module.__spec__ = self.own


def _foreign_tests() -> ModuleType:
    """By its place: importing the package would load the device, which the CPU's run must not have."""
    place = Path(__file__).parents[2] / "macatensor" / "examination" / "foreign_tests.py"
    spec = importlib.util.spec_from_file_location("foreign_tests", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _one_device_of_every_number() -> None:
    """Where a rank's number names a device, the one device is meant. Other modules hold both functions by name, so their
    code is exchanged."""
    from macatensor.dispatch import transfer
    from macatensor.runtime import ordinal as place

    def ordinal(device=None, optional=True):  # type: ignore[no-untyped-def]
        return min(device, 0) if isinstance(device, int) else 0

    def check_index(device):  # type: ignore[no-untyped-def]
        return None

    place.ordinal.__code__ = ordinal.__code__
    transfer.check_index.__code__ = check_index.__code__


def _begin() -> type:
    import torch
    import torch.multiprocessing

    torch.set_num_threads(1)
    if DEVICE == "maca":
        with contextlib.redirect_stderr(io.StringIO()):  # a list of names
            import macatensor.as_cuda  # noqa: F401

        _one_device_of_every_number()
        for module in (torch.maca, torch.cuda):
            module.device_count = lambda: RANKS
    from torch.testing._internal.distributed._tensor import common_dtensor  # reads the counts

    if DEVICE == "maca":
        # its list of backends has those of named vendors, and of others only this spelling
        common_dtensor.DTensorTestBase.backend = property(
            lambda self: "cpu:gloo,maca:mccl" if self.device_type == "maca" else "gloo"
        )

        torch.cuda.nccl.version = lambda: (2, 20, 5)  # asked at import, before a test is skipped
        torch.cuda._sleep = lambda cycles: time.sleep(cycles / 1e9)  # tests ask a device to be late; of 1 GHz
    sys.modules["torchvision"] = None  # type: ignore[assignment]  # tests that want it are skipped
    sys.meta_path.append(_Moved())
    from torch.distributed._tensor import placement_types

    placement_types._Partial = placement_types.Partial
    # a rank that is a fork of what has imported all takes 0.1 s instead of 6
    plain = torch.multiprocessing.get_context
    torch.multiprocessing.get_context = lambda method=None: plain("fork" if method == "spawn" else method)
    for module in _LARGE:
        importlib.import_module(module)
    torch._dynamo.reset()  # each rank calls it, and it imports more
    base: type = common_dtensor.DTensorTestBase
    return base


def module_of(file: str) -> ModuleType | Exception:
    """A file of ``distributed``, imported, or why it cannot be."""
    sys.path.insert(0, str((FOLDER / "distributed" / file).parent))
    try:
        module: ModuleType = FOREIGN_TESTS.imported(Path(file).stem)
    except Exception as error:
        return error
    for value in vars(module).values():
        if (
            isinstance(value, type)
            and issubclass(value, _BASE)
            and "backend" in vars(value)
            and value is not _BASE
        ):
            del value.backend  # NCCL by name, which the list of backends has beside no other type of device
    return module


FOREIGN_TESTS = _foreign_tests()
_BASE = _begin()
