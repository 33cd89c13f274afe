"""Dynamo sees a tensor of ours as a plain tensor on a device, as it sees one on CUDA.

A tensor subclass with ``__torch_dispatch__`` is otherwise an object of the user's to it, at which every graph ends.
What is replaced here are private names of PyTorch: where one of them is gone, a warning says so, and programs run as
they are written.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

import macatensor
from macatensor.compiling import steps
from macatensor.device.generators import Generator
from macatensor.runtime.after_import import after_import
from macatensor.runtime.tensor import MacaTensor

_PACKAGE = Path(macatensor.__file__).parent.as_posix()


def register() -> None:
    """Teaches Dynamo when it is imported, which takes seconds."""
    after_import("torch._dynamo.variables.builder", lambda: _taught(_teach_builder))
    after_import("torch._dynamo.trace_rules", lambda: _taught(_teach_rules))
    after_import("torch._dynamo.variables.optimizer", lambda: _taught(_teach_optimizer))
    after_import("torch._dynamo.convert_frame", lambda: _taught(steps.teach))
    after_import("torch._dynamo.device_interface", lambda: _taught(_teach_interfaces))
    after_import("torch._dynamo.debug_utils", lambda: _taught(_teach_repros))
    after_import("torch._dynamo.package", lambda: _taught(_teach_packages))
    after_import("torch._inductor.compile_fx", lambda: _taught(_refuse_ahead_of_time))
    _taught(_choose_backend)
    # a gradient that comes in a compiled backward as what it is
    MacaTensor.__coerce_same_metadata_as_tangent__ = _itself  # type: ignore[attr-defined]


def _taught(teach: Callable[[], None]) -> None:
    try:
        teach()
    except (AttributeError, ImportError, KeyError) as error:
        warnings.warn(
            f"torch.compile of PyTorch {torch.__version__} does not know maca ({error}); accepted: 2.11 to 2.15. "
            "Compiled functions run as they are written",
            stacklevel=2,
        )


def _itself(self: MacaTensor, meta: object = None, expected_type: type | None = None) -> MacaTensor:
    return self


def _teach_builder() -> None:
    from torch._dynamo.variables import builder

    for trace_numpy in (True, False):
        makers: dict[object, Any] = builder.VariableBuilder._type_dispatch_impl(trace_numpy)
        makers[MacaTensor] = builder.VariableBuilder.wrap_tensor
        makers[Generator] = builder.VariableBuilder.wrap_user_defined  # as one of the host's type
    others = builder.infer_subclass_type

    def infer_subclass_type(value: Any) -> Any:
        return None if type(value) is MacaTensor else others(value)

    builder.infer_subclass_type = infer_subclass_type
    always_static = vars(builder)["tensor_always_has_static_shape"]

    def has_static_shape(tensor: Any, is_tensor: bool, tensor_source: Any) -> Any:
        """A parameter has one where sizes may change; ours is told by its flag, not by its type."""
        if type(tensor) is MacaTensor and isinstance(tensor, torch.nn.Parameter):
            of_class = torch.empty(0, device="meta").as_subclass(torch.nn.Parameter)
            return always_static(of_class, is_tensor, tensor_source)
        return always_static(tensor, is_tensor, tensor_source)

    vars(builder)["tensor_always_has_static_shape"] = has_static_shape


def _teach_rules() -> None:
    """Functions of ours are traced where a program calls them, and are no programs themselves."""
    from torch._dynamo import trace_rules

    trace_rules.add("macatensor")
    trace_rules.get_mod_inlinelist().add(_PACKAGE)


def _teach_repros() -> None:
    """The files that ``TORCHDYNAMO_REPRO_AFTER`` writes need the device, and name the type of their inputs."""
    from torch._dynamo import debug_utils

    name = f"{MacaTensor.__module__}.{MacaTensor.__name__}".replace(".", "_")
    debug_utils.extra_imports += (
        f"import {MacaTensor.__module__}\n{name} = {MacaTensor.__module__}.{MacaTensor.__name__}\n"
    )


def _teach_packages() -> None:
    """What ``TORCH_CACHING_PRECOMPILE=1`` keeps holds for this device library alone."""
    from torch._dynamo import package

    theirs = package.DiskDynamoCache.path_prefix

    def path_prefix(self: Any) -> str:
        from macatensor.compiling.stored import packages_folder

        return packages_folder(theirs(self))

    package.DiskDynamoCache.path_prefix = path_prefix  # type: ignore[method-assign]


def _choose_backend() -> None:
    """``torch.compile(model)`` names Inductor before it sees a tensor: graphs with a tensor on the device take ours."""
    inductor = torch._TorchCompileInductorWrapper
    theirs = inductor.__call__

    def call(self: Any, model_: Any, inputs_: Any, **kwargs: Any) -> Any:
        if not _is_on_device(model_, inputs_):
            return theirs(self, model_, inputs_, **kwargs)  # type: ignore[no-untyped-call]
        from macatensor.compiling.backend import maca

        return maca(model_, inputs_)

    inductor.__call__ = call  # type: ignore[method-assign]


def _refuse_ahead_of_time() -> None:
    """AOTInductor generates code for the devices of Inductor; of a program on this one it would fail in the middle."""
    from torch._inductor import compile_fx

    theirs = compile_fx.compile_fx_aot

    @functools.wraps(theirs)
    def compile_fx_aot(model_: Any, example_inputs_: list[Any], *args: Any, **kwargs: Any) -> Any:
        if not _is_on_device(model_, example_inputs_):
            return theirs(model_, example_inputs_, *args, **kwargs)
        raise NotImplementedError(
            "AOTInductor compiles no program that lies on maca; accepted: programs on the host. torch.export.save(program, "
            "path) keeps this one for maca, torch.export.passes.move_to_device_pass(program, 'cpu') makes one for the host"
        )

    compile_fx.compile_fx_aot = compile_fx_aot


def _is_on_device(model: Any, inputs: Iterable[Any]) -> bool:
    """Does a graph of Dynamo's take, hold or make a tensor on the device?"""
    held: list[Any] = list(inputs)
    if isinstance(model, torch.nn.Module):
        held += [*model.parameters(), *model.buffers()]
    for node in getattr(getattr(model, "graph", None), "nodes", ()):
        held.append(node.meta.get("example_value"))
    return any(isinstance(t, torch.Tensor) and t.device.type == "maca" for t in held)


def _teach_optimizer() -> None:
    """Counts of steps lie on the device where the parameters do, as for CUDA: else each step would read them."""
    from torch._dynamo.variables.optimizer import OptimizerVariable

    others = OptimizerVariable._set_capturable

    def set_capturable(self: Any, tx: Any) -> None:
        for group in self.value.param_groups:
            parameters = group.get("params", ())
            ours = all(isinstance(p, MacaTensor) and p not in self.value.state for p in parameters)
            if ours and "capturable" in group:
                group["capturable"] = True
        others(self, tx)

    OptimizerVariable._set_capturable = set_capturable  # type: ignore[method-assign]


def _teach_interfaces() -> None:
    """``torch.maca``'s streams, events and device functions, by the names of ``DeviceInterface``."""
    from torch._dynamo import device_interface

    device = torch.get_device_module("maca")

    class MacaInterface(device_interface.DeviceInterface):
        Event = device.Event
        Stream = device.Stream

        class Worker:
            @staticmethod
            def set_device(index: int) -> None:
                device.set_device(index)

            @staticmethod
            def current_device() -> int:
                return int(device.current_device())

            @staticmethod
            def get_device_properties(of: Any = None) -> Any:
                return device.get_device_properties(of)

        current_device = staticmethod(device.current_device)
        set_device = staticmethod(device.set_device)
        device_count = staticmethod(device.device_count)
        is_available = staticmethod(device.is_available)
        stream = staticmethod(device.stream)
        current_stream = staticmethod(device.current_stream)
        set_stream = staticmethod(device.set_stream)
        synchronize = staticmethod(device.synchronize)
        get_device_properties = staticmethod(device.get_device_properties)
        memory_allocated = staticmethod(device.memory_allocated)

        @staticmethod
        def exchange_device(device: int) -> int:
            return 0  # there is one

        maybe_exchange_device = exchange_device

        @staticmethod
        def get_raw_stream(index: int) -> int:
            return int(device.current_stream().stream_id)

        @staticmethod
        def is_bf16_supported(including_emulation: bool = False) -> bool:
            return True

        @staticmethod
        def get_compute_capability(of: Any = None) -> str:
            return ""

        @staticmethod
        def is_triton_capable(of: Any = None) -> bool:
            return False

    device_interface.register_interface_for_device("maca", MacaInterface)
    device_interface.register_interface_for_device("maca:0", MacaInterface)
