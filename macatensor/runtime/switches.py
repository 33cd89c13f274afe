"""Environment switches: name, type, meaning and origin of each, in the one place that reads them.

A switch is read when it is asked for, so that a program may set ``os.environ`` before it matters; ``when`` says
when that is.
"""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T", covariant=True)


@dataclass(frozen=True)
class Switch(Generic[T]):
    """One environment variable. Empty counts as unset."""

    name: str
    meaning: str  # of a set value
    unset: str  # meaning when unset
    parse: Callable[[str], T]  # raises ValueError, whose text says what is accepted
    default: T
    when: (
        str  # "import": once; "call": whenever it matters; "library": by the compiled library, when it loads
    )

    def text(self) -> str | None:
        """What the environment says, None when it says nothing."""
        return os.environ.get(self.name) or None

    def value(self) -> T:
        """The typed value. Raises ValueError, naming the variable, for a text that is none."""
        text = self.text()
        if text is None:
            return self.default
        try:
            return self.parse(text)
        except ValueError as error:
            raise ValueError(f"{self.name}={text!r}; {error}") from None

    @property
    def origin(self) -> str:
        """``"environment"`` or ``"default"``."""
        return "default" if self.text() is None else "environment"


def _flag(text: str) -> bool:
    if text not in ("0", "1"):  # "false" must not switch on what it names
        raise ValueError("accepted: 0, 1")
    return text == "1"


def _count(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise ValueError("expected a positive number")
    return int(text)


def _natural(text: str) -> int:
    if not text.strip().isdecimal():
        raise ValueError("expected a number, 0 or more")
    return int(text)


def _devices(text: str) -> int:
    first = text.split(",")[0].strip()
    if not first.isdecimal():
        raise ValueError("expected a device index such as 0")
    return int(first)


def _bytes(text: str) -> int:
    size = text.strip().upper().removesuffix("B").removesuffix("I")
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(size[-1:], 1)
    try:
        value = int(float(size[:-1] if unit > 1 else size) * unit)
    except (ValueError, OverflowError):
        value = -1
    if not 0 <= value < 1 << 63:
        raise ValueError("expected a number of bytes below 2**63, or a number with K, M or G, as in 8G")
    return value


def _one_of(*accepted: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in accepted:
            raise ValueError(f"accepted: {', '.join(accepted)}")
        return text

    return parse


LIBRARY: Switch[Path | None] = Switch(
    "MACA_LIBRARY", "device library to load", "the host library of this package", Path, None, "import"
)
VISIBLE_DEVICES = Switch(
    "MACA_VISIBLE_DEVICES",
    "which of the library's devices is maca:0",
    "the first; under torchrun LOCAL_RANK's",
    _devices,
    0,
    "import",
)
DEVICE_MEMORY = Switch(
    "MACA_DEVICE_MEMORY", "limit of device memory", "no limit but the machine's", _bytes, 0, "import"
)
MEMORY_FENCE = Switch(
    "MACA_MEMORY_FENCE",
    "1: each operand ends where memory does, and is NaN until written; a kernel that leaves it faults",
    "memory is cached",
    _flag,
    False,
    "import",
)
LAUNCH_BLOCKING = Switch(
    "MACA_LAUNCH_BLOCKING",
    "1: every launch waits, errors come at their line",
    "launches are asynchronous",
    _flag,
    False,
    "import",
)
TASK_QUEUE = Switch(
    "MACA_TASK_QUEUE",
    "launches of the default stream run on a thread of their own: 1: all, auto: long ones and what follows them, 0: none",
    "long launches overlap with Python",
    _one_of("0", "1", "auto"),
    "auto",
    "import",
)
BACKWARD_THREAD = Switch(
    "MACA_BACKWARD_THREAD",
    "1: backward passes run on a thread of the autograd engine",
    "on the thread that calls them, when all roots are on maca",
    _flag,
    False,
    "import",
)
SANITIZE = Switch(
    "MACA_SANITIZE",
    "1: hazards between streams are reported with both operators and stacks",
    "hazards are resolved silently",
    _flag,
    False,
    "import",
)
FALLBACK = Switch(
    "MACA_FALLBACK",
    "operators without a kernel: warn, error or silent",
    "warn once per operator",
    _one_of("warn", "error", "silent"),
    "warn",
    "call",
)
GRAIN: Switch[int | None] = Switch(
    "MACA_GRAIN", "elements worth a thread", "each kernel's own", _count, None, "library"
)
SIMD: Switch[str | None] = Switch(
    "MACA_SIMD",
    "highest instruction set used, by oneDNN and OpenBLAS too: baseline, avx2, avx512, amx",
    "the best of this CPU",
    _one_of("baseline", "avx2", "avx512", "amx"),
    None,
    "library",
)
WINOGRAD = Switch(
    "MACA_WINOGRAD",
    "0: convolutions by the definition alone",
    "3 x 3 convolutions by minimal filtering where that is quicker",
    _flag,
    True,
    "library",
)
SPLIT_FLOAT32 = Switch(
    "MACA_SPLIT_FLOAT32",
    "0: float32 is multiplied as it is, not in three bfloat16 parts",
    "large products in parts, on processors that multiply tiles of bfloat16",
    _flag,
    True,
    "library",
)
VENDOR_LIBRARIES = Switch(
    "MACA_VENDOR_LIBRARIES",
    "0: a library for GPUs multiplies with its own kernels alone",
    "with cuBLAS and cuDNN, or the vendor's likes of them, where they are found",
    _flag,
    True,
    "library",
)
PRODUCT_PROPOSALS = Switch(
    "MACA_PRODUCT_PROPOSALS",
    "how many of cuBLAS's algorithms a library for GPUs times for a long product; 1: none, the first is taken",
    "eight, once a process and kind of product, where algorithms need not be deterministic",
    int,
    8,
    "library",
)
VENDOR_FOLDER: Switch[Path | None] = Switch(
    "MACA_VENDOR_FOLDER",
    "where a library for GPUs looks for the vendor's libraries first",
    "what the process has loaded, the loader's paths, and where wheels put them",
    Path,
    None,
    "library",
)
COLLECTIVES = Switch(
    "MACA_COLLECTIVES",
    "who carries collectives: library: the device library where it can, staged: it, from ordinary memory alone, gloo",
    "the device library, zero copy for memory that is used again; gloo where it cannot",
    _one_of("library", "staged", "gloo"),
    "library",
    "call",
)
TUNE_BANK_PATH: Switch[Path | None] = Switch(
    "TUNE_BANK_PATH",
    "folder of tuning banks; measured choices of products and convolutions are used from the start",
    "the user's cache, and the device library chooses",
    Path,
    None,
    "import",
)
LOG_LEVEL: Switch[str | None] = Switch(
    "MACA_LOG_LEVEL",
    "level of the logger macatensor: DEBUG, INFO, WARNING or ERROR",
    "the program's own logging decides",
    _one_of("DEBUG", "INFO", "WARNING", "ERROR"),
    None,
    "import",
)
OP_INFO = Switch(
    "MACA_OP_INFO",
    "1: each operator is logged with operands, implementation and time",
    "none is",
    _flag,
    False,
    "import",
)
DEFAULT_NCHW = Switch(
    "PYTORCH_DEFAULT_NCHW",
    "1: 4-D tensors keep their layout at transfers",
    "4-D tensors become channels_last",
    _flag,
    False,
    "call",
)
TRACE_BUFFER_SIZE = Switch(
    "TORCH_MCCL_TRACE_BUFFER_SIZE",
    "how many collectives the flight recorder keeps; 0: none",
    "2000",
    _natural,
    2000,
    "call",
)
DEBUG_INFO_TEMP_FILE: Switch[str | None] = Switch(
    "TORCH_MCCL_DEBUG_INFO_TEMP_FILE",
    "where a failed collective writes the last ones as JSON: this and the rank's number",
    "nothing is written",
    str,
    None,
    "call",
)
NUM_THREADS: Switch[int | None] = Switch(
    "OMP_NUM_THREADS", "compute threads at start", "PyTorch's number", _count, None, "library"
)
TF32_MATMUL: Switch[bool | None] = Switch(
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "torch.backends.maca.matmul.allow_tf32 at first: 1: True, 0: False",
    "as torch.get_float32_matmul_precision() says",
    _flag,
    None,
    "import",
)
TF32_CONV = Switch(
    "PYTORCH_ALLOW_CUDA_CUDNN_TF32",
    "torch.backends.maca.conv.allow_tf32 at first: 1: True, 0: False",
    "False",
    _flag,
    False,
    "import",
)

ALL: dict[str, Switch[object]] = {
    switch.name: switch
    for switch in (
        LIBRARY,
        VISIBLE_DEVICES,
        DEVICE_MEMORY,
        FALLBACK,
        GRAIN,
        SIMD,
        WINOGRAD,
        SPLIT_FLOAT32,
        VENDOR_LIBRARIES,
        PRODUCT_PROPOSALS,
        VENDOR_FOLDER,
        MEMORY_FENCE,
        LAUNCH_BLOCKING,
        TASK_QUEUE,
        BACKWARD_THREAD,
        SANITIZE,
        COLLECTIVES,
        TUNE_BANK_PATH,
        LOG_LEVEL,
        OP_INFO,
        DEFAULT_NCHW,
        TF32_MATMUL,
        TF32_CONV,
        TRACE_BUFFER_SIZE,
        DEBUG_INFO_TEMP_FILE,
        NUM_THREADS,
    )
}


def device_index() -> int:
    """The index of the library's device that is maca:0; of a rank that torchrun started, where nothing else is said,
    -1 minus its number on this machine, of which the runtime takes the remainder by the number of devices."""
    local_rank = os.environ.get("LOCAL_RANK", "")
    if VISIBLE_DEVICES.text() is None and local_rank.isdecimal():
        return -1 - int(local_rank)
    return VISIBLE_DEVICES.value()


_OF_LIBRARIES = ("MACA_INTERPOSER_",)  # prefixes that a device library, not this package, reads


def unknown() -> dict[str, str | None]:
    """``MACA_*`` variables of the environment that nothing reads, each with the nearest known name, if one is near."""
    known = [name for name in ALL if name.startswith("MACA_")]
    strange = [
        name
        for name in os.environ
        if name.startswith("MACA_") and name not in ALL and not name.startswith(_OF_LIBRARIES)
    ]
    return {
        name: next(iter(difflib.get_close_matches(name.upper(), known, 1, 0.75)), None)
        for name in sorted(strange)
    }


def check() -> None:
    """Reads every switch, so that a wrong text is met at import and not where it is first used, or never: the
    compiled library takes no number for 0. Raises ValueError. ``OMP_NUM_THREADS`` is OpenMP's, which also has lists.
    """
    for switch in ALL.values():
        if switch is not NUM_THREADS:
            switch.value()


def warn_of_unknown() -> None:
    """Warns of each :func:`unknown` variable. Called once, by ``import macatensor``."""
    for name, nearest in unknown().items():
        hint = f"did you mean {nearest}?" if nearest else f"known: {', '.join(ALL)}"
        warnings.warn(f"macatensor reads no environment variable {name}; {hint}", stacklevel=2)
