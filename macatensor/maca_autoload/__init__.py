"""What ``import torch`` loads of MacaTensor: the device's name, and a module ``torch.maca`` that waits to be used.

PyTorch calls :func:`register`, an entry point of the group ``torch.backends``, at the end of its own import, unless
``TORCH_DEVICE_BACKEND_AUTOLOAD=0``. A program that never uses maca pays for the name alone, 0.3 ms beside PyTorch's
search of entry points: macatensor and its library are loaded by the first use. PyTorch tells of that itself where it makes a tensor on a device
(``torch.maca._lazy_init``); what else may come first is named in :func:`register`. The device guard waits too: with one,
the autograd engine starts a thread, after which a forked child cannot run a backward pass, not even on the host.

Standard library and PyTorch alone; nothing here imports macatensor before it is needed.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import threading
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from maca_autoload import safetensors, torchvision
from maca_autoload.after_import import after_import
from torch.utils import backend_registration

_GPUS = ("/dev/nvidiactl", "/dev/kfd")  # of NVIDIA, of AMD
_lock = threading.RLock()
_put_back: list[Callable[[], None]] = []  # what has to go before macatensor registers the device itself
_passes: list[bool] = []  # True: the autograd engine has started, without a thread for a device to come
_seeds: list[int] = []  # of torch.manual_seed, before there was a device to seed
# what programs call of packages that look for a device, which macatensor/packages then answers
_ASKING = {
    "accelerate.state": "PartialState.__init__",
    "accelerate.utils.modeling": "get_max_memory",
    "accelerate.accelerator": "Accelerator.__init__",
    "transformers.training_args": "TrainingArguments.__post_init__",
    "transformers.pipelines.base": "Pipeline.__init__",
    **{
        f"{package}.connectors.accelerator_connector": "_AcceleratorConnector.__init__"
        for package in ("lightning.pytorch.trainer", "pytorch_lightning.trainer")
    },
    **{f"{package}.connector": "_Connector.__init__" for package in ("lightning.fabric", "lightning_fabric")},
}


def _has_gpu() -> bool:
    """Asks no driver: that takes time, and a forked child could use the GPU no more."""
    return torch.backends.cuda.is_built() and any(map(os.path.exists, _GPUS))


def register() -> None:
    """Makes ``torch.device("maca")`` exist. Called by ``import torch``; does nothing where another package has given
    PyTorch's one free device a name before, nor beside a GPU that PyTorch is built for: maca would be its accelerator."""
    if _has_gpu():
        return
    if torch._C._get_privateuse1_backend_name() not in ("privateuseone", "maca") or hasattr(torch, "maca"):
        return
    backend_registration.rename_privateuse1_backend("maca")
    torch._C._acc.register_python_privateuseone_hook(backend_registration._DummyPrivateUse1Hook())
    for owner, waiting in ((torch, _Device("torch.maca")), (torch.backends, _Waiting("torch.backends.maca"))):
        _put(owner, "maca", waiting)
        sys.modules[waiting.__name__] = waiting
    packed: Any = torch.nn.utils.rnn.PackedSequence
    kinds: tuple[type, ...] = (torch.Tensor, packed, torch.nn.Module)
    for kind in kinds:
        _put(kind, "maca", _method(kind, "maca"))
    for kind in kinds[:2]:
        _put(kind, "is_maca", property(lambda self: self.data.device.type == "maca"))
    _put(torch.Tensor, "pin_memory", _method(torch.Tensor, "pin_memory"))
    engine = torch.autograd.graph._engine_run_backward
    for autograd in (torch.autograd.graph, torch.autograd):
        _put(autograd, "_engine_run_backward", _first_pass(engine))
    # of a file with tensors of maca, read with a function for its map_location
    _put(torch._utils, "_get_restore_location", _restored(torch._utils._get_restore_location))
    # made in C++ by an allocator that the device has not, which ends the process
    _put(torch.UntypedStorage, "__new__", staticmethod(_storage_on(torch.UntypedStorage.__new__)))
    # modules keep their parameters' identity when they move, if that is known before the first one does
    _put(torch._C._nn, "_parse_to", _parse_to(torch._C._nn._parse_to))
    _put(torch.nn.Module, "to_empty", _to_empty(torch.nn.Module.to_empty))
    dlpack: Any = torch.utils.dlpack
    for owner in (torch, dlpack):  # programs keep it by its name
        _put(owner, "to_dlpack", to_dlpack(dlpack.to_dlpack))
    for name in torch.accelerator.__all__:
        theirs = getattr(torch.accelerator, name)
        # which accelerator there is, and whether, needs no library
        if (
            callable(theirs)
            and not isinstance(theirs, type)
            and name not in ("current_accelerator", "is_available", "device_count")
        ):
            _put(torch.accelerator, name, _function(torch.accelerator, name))
    for name, otherwise in (("is_available", False), ("device_count", 0)):
        _put(torch.accelerator, name, _answer(torch.accelerator, name, otherwise))
    # what DataParallel asks, which leaves a module of the host there
    parallel: Any = importlib.import_module("torch.nn.parallel.data_parallel")
    _put(parallel, "_get_available_device_type", _answer(parallel, "_get_available_device_type", None))
    if torch.distributed.is_available():
        _put(torch.distributed.Backend, "__new__", _backend_named(torch.distributed.Backend.__new__))
    safetensors.adapt()
    after_import("torchvision.extension", lambda: torchvision.define(sys.modules["torchvision.extension"]))
    for upstream, asking in _ASKING.items():
        after_import(upstream, functools.partial(_ask_first, upstream, asking))


def _ask_first(module: str, name: str) -> None:
    """Lets the device be loaded before a package looks for one."""
    if not _put_back:
        return
    owner: Any = sys.modules[module]
    kind, _, name = name.rpartition(".")
    if kind:
        owner = getattr(owner, kind, None)
    if owner is not None and hasattr(owner, name):
        _put(owner, name, (_method if kind else _function)(owner, name))


def load() -> None:
    """Imports macatensor, which takes the place of what waits here. Raises what that import raises."""
    with _lock:
        if not _put_back:  # done, or never begun
            return
        # whatever mode the first use is under, and under whichever grad mode, concerns that use alone
        with (
            torch._C._DisableTorchDispatch(),
            torch._C.DisableTorchFunction(),
            torch.inference_mode(False),
            torch.enable_grad(),
        ):
            importlib.import_module("macatensor")


def withdraw() -> bool:
    """Takes away all that :func:`register` has put in place, but for the name. Called by macatensor, which is told whether
    the host ran a backward pass before."""
    while _put_back:
        _put_back.pop()()
    torch.get_device_module.cache_clear()
    return bool(_passes)


def seed_device() -> None:
    """Seeds the device as ``torch.manual_seed`` did before there was one. Called by macatensor."""
    while _seeds:
        torch.get_device_module("maca").manual_seed_all(_seeds.pop())
        _seeds.clear()


class _Waiting(ModuleType):
    """A module that loads macatensor when something of it is asked for, and then answers as the one in its place."""

    def _real(self) -> Any:
        load()
        real = sys.modules[self.__name__]
        if real is self:
            raise AttributeError(f"{self.__name__}: macatensor is being imported")
        return real

    def __getattr__(self, name: str) -> Any:
        # what Python itself asks of every module, as `warnings` and `inspect` do
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self._real(), name)

    def __setattr__(self, name: str, value: object) -> None:
        if name.startswith("__"):
            super().__setattr__(name, value)
        else:
            setattr(self._real(), name, value)

    def __dir__(self) -> list[str]:
        return dir(self._real())


class _Device(_Waiting):
    """``torch.maca``: answers by itself what PyTorch asks in programs of the host."""

    @property
    def _withdraw(self) -> Callable[[], bool]:
        return withdraw

    @property
    def _seed(self) -> Callable[[], None]:
        return seed_device

    @property
    def _initialized(self) -> bool:
        """Has checkpointing a random state of the device to keep?"""
        return not _put_back

    def _lazy_init(self) -> None:
        load()

    def _is_in_bad_fork(self) -> bool:
        return bool(self._real()._is_in_bad_fork()) if not _put_back else False

    def manual_seed_all(self, seed: int) -> None:
        if _put_back:
            _seeds[:] = [seed]
        else:
            self._real().manual_seed_all(seed)

    def is_available(self) -> bool:
        """Can the device be used? Loads its library; where that fails, warns of the reason and says no, for a program
        that asks may go on without."""
        return bool(_unless_broken(lambda: self._real().is_available(), False))


def _unless_broken(ask: Callable[[], Any], otherwise: object) -> Any:
    try:
        return ask()
    except (ImportError, OSError) as error:
        warnings.warn(f"maca is installed and cannot be used: {error}", stacklevel=3)
        return otherwise


def _put(owner: Any, name: str, value: object) -> None:
    held = vars(owner)
    had, before = name in held, held.get(name)
    setattr(owner, name, value)
    _put_back.append(lambda: setattr(owner, name, before) if had else delattr(owner, name))


def _function(owner: Any, name: str) -> Callable[..., Any]:
    """A function of a module that first loads, whoever holds it."""

    @functools.wraps(getattr(owner, name))
    def call(*args: object, **kwargs: object) -> object:
        load()
        return getattr(owner, name)(*args, **kwargs)

    return call


def _answer(owner: Any, name: str, otherwise: object) -> Callable[..., Any]:
    """A function of a module that first loads, and answers ``otherwise`` where the device cannot be used."""
    ask = _function(owner, name)
    return functools.wraps(ask)(lambda: _unless_broken(ask, otherwise))


def _method(owner: type, name: str) -> Callable[..., Any]:
    """A method that first loads."""

    @functools.wraps(getattr(owner, name, load))
    def call(self: object, *args: object, **kwargs: object) -> object:
        load()
        return getattr(owner, name)(self, *args, **kwargs)

    call.__name__ = name
    call.__qualname__ = f"{owner.__qualname__}.{name}"
    return call


def to_dlpack(theirs: Callable[[torch.Tensor], object]) -> Callable[[torch.Tensor], object]:
    """``torch.to_dlpack``, whose C++ lends a tensor of the device without its memory. macatensor's as well."""

    @functools.wraps(theirs)
    def lent(tensor: torch.Tensor) -> object:
        ours = isinstance(tensor, torch.Tensor) and tensor.device.type == "maca"
        return tensor.__dlpack__() if ours else theirs(tensor)

    return lent


def _storage_on(theirs: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(theirs)
    def new(cls: type, *args: object, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is None or torch.device(device).type != "maca":
            return theirs(cls, *args, **kwargs)
        load()
        return torch.UntypedStorage.__new__(cls, *args, **kwargs)

    return new


def _first_pass(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """The engine's entry, that notes the first pass and is the engine's own from then on."""

    @functools.wraps(theirs)
    def run(*args: object, **kwargs: object) -> Any:
        if _put_back and not _passes:
            _passes.append(True)
            for owner in (torch.autograd.graph, torch.autograd):
                setattr(owner, "_engine_run_backward", theirs)  # noqa: B010
        return theirs(*args, **kwargs)

    return run


def _restored(theirs: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(theirs)
    def location(device: object) -> Any:
        if callable(torch.serialization._serialization_tls.map_location) and str(device).startswith("maca"):
            load()
        return torch._utils._get_restore_location(device) if not _put_back else theirs(device)

    return location


def _parse_to(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """What ``Module.to`` reads its arguments with, before it converts anything."""

    @functools.wraps(theirs)
    def parse(*args: object, **kwargs: object) -> Any:
        parsed = theirs(*args, **kwargs)
        if parsed[0] is not None and parsed[0].type == "maca":
            load()
        return parsed

    return parse


def _to_empty(theirs: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(theirs)
    def to_empty(self: torch.nn.Module, *, device: Any, recurse: bool = True) -> Any:
        if device is not None and torch.device(device).type == "maca":
            load()
        return theirs(self, device=device, recurse=recurse)

    return to_empty


def _backend_named(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """What ``init_process_group`` asks about the backend's name: ``mccl`` is registered by then. Without a name PyTorch
    takes the one of the accelerator, which is maca; ``mccl`` serves tensors of the host too."""

    @functools.wraps(theirs)
    def new(cls: type, name: str) -> Any:
        if isinstance(name, str) and ("mccl" in name.lower() or name == "undefined"):
            load()
        return theirs(cls, name)

    return new
