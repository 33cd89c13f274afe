"""``torch.backends.maca``: the switches of ``torch.backends.cudnn`` and ``torch.backends.cuda`` for this device.

TF32 is off at first. The environment variables ``TORCH_ALLOW_TF32_CUBLAS_OVERRIDE`` (matrix products) and
``PYTORCH_ALLOW_CUDA_CUDNN_TF32`` (convolutions) set to 1 turn it on, and so does
``torch.set_float32_matmul_precision("high")`` for products; what is set here leaves PyTorch's global alone.
Attention and products with a vector keep float32. ``benchmark`` measures the algorithms that the library has for each
product and convolution, and ``benchmark_limit`` says how many of them (docs/tuning.md). ``enabled`` and the switches of
reduced-precision sums are kept for programs that set them: the libraries so far have one way, with sums in float32.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import ModuleType

import torch

from macatensor.choices import deciding
from macatensor.device.properties import library_info
from macatensor.runtime import ffi, plan_caches, plan_flags, switches
from macatensor.runtime.boxed import Value
from op_table import families


def _check_frozen(name: str) -> None:
    if torch.backends.flags_frozen():
        raise RuntimeError(
            f"not allowed to set {name} flags after disable_global_flags; please use flags() context manager instead"
        )


def _boolean(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} expects a bool, got {type(value).__name__}")
    return value


class _Switches:
    """Attributes with a value each; others do not exist. A change that plans depend on drops them."""

    def __init__(
        self, name: str, values: dict[str, object], changed: Callable[[str, bool], None] | None = None
    ):
        vars(self).update(_name=name, _values=values, _changed=changed)

    def __getattr__(self, attribute: str) -> Value:
        values = vars(self)["_values"]
        if attribute not in values:
            raise AttributeError(f"Unknown attribute {attribute} of {vars(self)['_name']}")
        return values[attribute]

    def __setattr__(self, attribute: str, value: object) -> None:
        before = getattr(self, attribute)
        name = vars(self)["_name"]
        _check_frozen(name)
        if type(before) is bool:
            value = _boolean(f"{name}.{attribute}", value)
        vars(self)["_values"][attribute] = value
        changed = vars(self)["_changed"]
        if changed is not None and value != before:
            changed(attribute, value)

    def __dir__(self) -> list[str]:
        return sorted(vars(self)["_values"])


def _matmul_changed(attribute: str, value: bool) -> None:
    if attribute == "allow_tf32":
        plan_flags.allow_tf32(matmul=value)


def _conv_changed(attribute: str, value: bool) -> None:
    if attribute == "allow_tf32":
        plan_flags.allow_tf32(convolution=value)


class TaskQueue:
    """The queue of ``MACA_TASK_QUEUE``: launches that run on a thread of the runtime, while Python goes on."""

    @property
    def mode(self) -> str:
        """``"auto"``: long launches and what follows them; ``"1"``: all of the default stream; ``"0"``: none.

        Setting it waits for what is queued. It stays ``"0"`` with ``MACA_LAUNCH_BLOCKING=1``, and with a library whose
        default stream does not run work at once anyway. Raises ValueError for another mode.
        """
        return ffi.task_queue()

    @mode.setter
    def mode(self, value: str) -> None:
        if value not in ffi.QUEUE_MODES:
            raise ValueError(f"task_queue.mode: got {value!r}; accepted: {', '.join(ffi.QUEUE_MODES)}")
        ffi.set_task_queue(value)


class PlanCache:
    """Plans of Fourier transforms, with the names of ``torch.backends.cuda.cufft_plan_cache``."""

    @property
    def size(self) -> int:
        return plan_caches.count_plans(*(row.kernel_name for row in families["fft"]))

    @property
    def max_size(self) -> int:
        """Plans kept for one operator. A full cache is emptied."""
        return plan_caches.LIMIT

    @max_size.setter
    def max_size(self, value: int) -> None:
        raise RuntimeError("fft_plan_cache.max_size is fixed on maca; clear() empties the cache")

    def clear(self) -> None:
        """Forgets every plan: those of other operators are kept in the same way and are quickly made again."""
        plan_caches.drop_plans()

    def __getitem__(self, device: torch.device | str | int) -> PlanCache:
        index = device if isinstance(device, int) else torch.device(device).index or 0
        if index != 0:
            raise RuntimeError(
                f"fft_plan_cache: expected 0 <= device index < 1, but got device with index {index}"
            )
        return self


_FLAGS = ("enabled", "benchmark", "benchmark_limit", "deterministic", "allow_tf32")


class MacaBackend(ModuleType):
    """The module itself: its switches are attributes, and unknown ones are refused."""

    def __init__(self, name: str) -> None:
        super().__init__(name, __doc__)
        matmul = plan_flags.tf32_matmul
        conv = plan_flags.tf32_convolution
        own = vars(self)
        own["matmul"] = _Switches(
            f"{name}.matmul",
            {
                "allow_tf32": matmul,
                "allow_fp16_reduced_precision_reduction": True,
                "allow_bf16_reduced_precision_reduction": True,
                "allow_fp16_accumulation": False,
            },
            _matmul_changed,
        )
        own["conv"] = _Switches(f"{name}.conv", {"allow_tf32": conv}, _conv_changed)
        own["fft_plan_cache"] = PlanCache()
        own["task_queue"] = TaskQueue()
        own["library_info"] = library_info
        own["_values"] = {
            "enabled": True,
            "benchmark": False,
            "benchmark_limit": 10,
            "deterministic": False,
        }
        sdp = torch.backends.cuda  # PyTorch keeps one set of these switches for all devices
        for switch in (
            "enable_flash_sdp", "flash_sdp_enabled", "enable_mem_efficient_sdp", "mem_efficient_sdp_enabled",
            "enable_math_sdp", "math_sdp_enabled", "enable_cudnn_sdp", "cudnn_sdp_enabled", "sdp_kernel",
            "allow_fp16_bf16_reduction_math_sdp", "fp16_bf16_reduction_math_sdp_allowed",
            "preferred_linalg_library", "preferred_blas_library", "preferred_rocm_fa_library",
        ):  # fmt: skip
            own[switch] = getattr(sdp, switch)

    def __getattr__(self, attribute: str) -> Value:
        if attribute == "allow_tf32":
            return self.conv.allow_tf32
        values = vars(self)["_values"]
        if attribute not in values:
            raise AttributeError(f"module {self.__name__!r} has no attribute {attribute!r}")
        return values[attribute]

    def __setattr__(self, attribute: str, value: Value) -> None:
        if attribute.startswith("__"):  # the import system sets __spec__ and the like
            super().__setattr__(attribute, value)
            return
        if attribute not in _FLAGS:
            raise AttributeError(f"module {self.__name__!r} has no attribute {attribute!r} that can be set")
        _check_frozen(self.__name__)
        if attribute == "allow_tf32":
            self.conv.allow_tf32 = value
        elif attribute == "benchmark_limit":
            vars(self)["_values"][attribute] = int(value)
            deciding.settings().most_ways = max(int(value), 0)
        else:
            value = _boolean(f"{self.__name__}.{attribute}", value)
            changed = value != vars(self)["_values"][attribute]
            vars(self)["_values"][attribute] = value
            if attribute == "deterministic" and changed:
                plan_flags.be_deterministic(value)
            if attribute == "benchmark":
                deciding.settings().benchmark = value

    def version(self) -> int:
        """Of the library's ABI: major * 1000 + minor."""
        return int(ffi.lib.maca_runtime_abi())

    def is_available(self) -> bool:
        return True

    def is_built(self) -> bool:
        return True

    def is_acceptable(self, tensor: torch.Tensor) -> bool:
        """Whether the library serves this tensor's convolutions."""
        return bool(self.enabled) and tensor.device.type == "maca" and tensor.dtype.is_floating_point

    def set_flags(
        self,
        _enabled: bool | None = None,
        _benchmark: bool | None = None,
        _benchmark_limit: int | None = None,
        _deterministic: bool | None = None,
        _allow_tf32: bool | None = None,
    ) -> tuple[bool, bool, int, bool, bool]:
        """Sets those that are not None. Returns what they were."""
        before = (self.enabled, self.benchmark, self.benchmark_limit, self.deterministic, self.allow_tf32)
        given = (_enabled, _benchmark, _benchmark_limit, _deterministic, _allow_tf32)
        for name, value in zip(_FLAGS, given):
            if value is not None:
                setattr(self, name, value)
        return before

    @contextlib.contextmanager
    def flags(
        self,
        enabled: bool = False,
        benchmark: bool = False,
        benchmark_limit: int = 10,
        deterministic: bool = False,
        allow_tf32: bool = True,
    ) -> Iterator[None]:
        """As ``torch.backends.cudnn.flags``, its defaults included."""
        with _unfrozen():
            before = self.set_flags(enabled, benchmark, benchmark_limit, deterministic, allow_tf32)
        try:
            yield
        finally:
            with _unfrozen():
                self.set_flags(*before)


def _unfrozen() -> AbstractContextManager[None]:
    result: AbstractContextManager[None] = getattr(torch.backends, "__allow_nonbracketed_mutation")()
    return result


def register() -> None:
    """Makes ``torch.backends.maca`` exist, as a module that can be imported."""
    override = switches.TF32_MATMUL.value()
    high = torch.get_float32_matmul_precision() != "highest"
    plan_flags.allow_tf32(
        matmul=high if override is None else override,
        convolution=switches.TF32_CONV.value(),
    )
    backend = MacaBackend("torch.backends.maca")
    sys.modules["torch.backends.maca"] = backend
    torch.backends.maca = backend  # type: ignore[attr-defined]

    def precision_changed(precision: str) -> None:
        with _unfrozen():
            backend.matmul.allow_tf32 = precision != "highest"

    plan_flags.follow_switches(precision_changed)
