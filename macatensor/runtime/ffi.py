"""The only module that touches the compiled ones: loads the device library, turns its failures into exceptions."""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import torch

from macatensor.runtime import switches

try:
    from libmaca_ffi import _binding
except ImportError as error:  # pragma: no cover - a broken install
    raise ImportError(
        f"macatensor found no compiled libmaca_ffi._binding ({error}); expected the module that its build makes. "
        "Run `make build` in a checkout, or reinstall the wheel."
    ) from error


def _module(name: str) -> ModuleType:
    """Another module of the same shared library; Python finds modules by the names of files."""
    spec = importlib.util.spec_from_file_location(f"libmaca_ffi.{name}", _binding.__file__)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ffi = _binding.ffi
lib = _binding.lib
if TYPE_CHECKING:  # the .pyi files beside the compiled modules say what is in them
    from libmaca_ffi import _launcher, _recorder
    from libmaca_ffi._binding import CData as CData
    from libmaca_ffi._launcher import Buffer as Buffer
    from libmaca_ffi._launcher import Program as Program

    native = _launcher
    native_recorder = _recorder
else:
    native = _module("_launcher")  # shim/launcher: Buffer, Program, the launchers' bases, __torch_dispatch__
    native_recorder = _module("_recorder")  # shim/recorder: what accuracy.record does at every call
NULL = ffi.NULL

OK = lib.MACA_OK
DECLINED = lib.MACA_DECLINED
INVALID = lib.MACA_INVALID
OUT_OF_MEMORY = lib.MACA_OUT_OF_MEMORY
NOT_READY = lib.MACA_NOT_READY
DEVICE_ERROR = lib.MACA_DEVICE_ERROR
UNSUPPORTED = lib.MACA_UNSUPPORTED
PARTIAL_OVERLAP = lib.MACA_SHIM_PARTIAL_OVERLAP
OVERLAPS_IN_PART = (
    "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single memory location. "
    "Please clone() the tensor before performing the operation."
)
MISUSE = lib.MACA_SHIM_MISUSE
BROKEN = lib.MACA_SHIM_BROKEN
LOST = lib.MACA_SHIM_LOST


def library_path() -> Path:
    """``MACA_LIBRARY``, or the host library that was built with this package."""
    chosen = switches.LIBRARY.value()
    return host_library_path() if chosen is None else chosen


def is_host_library() -> bool:
    """Is the loaded library the one that was built with this package?"""
    return LIBRARY == host_library_path()


def host_library_path() -> Path:
    """The host library that was built with this package."""
    import libmaca_ffi

    for folder in libmaca_ffi.__path__:
        path = Path(folder) / "lib" / "libmaca_host.so"
        if path.exists():
            return path
    # an editable install keeps what it compiled beside the extension module
    return Path(_binding.__file__).parent / "lib" / "libmaca_host.so"


_OPENBLAS_CORES = {"baseline": "Prescott", "avx2": "Haswell", "avx512": "SkylakeX"}
_OPENBLAS_VARIABLE = "OPENBLAS_CORETYPE"


@contextmanager
def _openblas_limited() -> Iterator[None]:
    """OpenBLAS keeps to ``MACA_SIMD`` if it is loaded in the block: it reads its own variable, then and never again.

    It believes what it is told, and would die of instructions that the processor lacks: PyTorch knows what it has.
    A variable that is set already holds. After the block it is as before: NumPy's OpenBLAS, and programs that this one
    starts, have their own.
    """
    levels = list(_OPENBLAS_CORES)
    has = {"AVX2": "avx2", "AVX512": "avx512"}.get(torch.backends.cpu.get_cpu_capability(), "baseline")
    asked = switches.SIMD.value()
    if asked not in levels or os.environ.get(_OPENBLAS_VARIABLE) or platform.machine() != "x86_64":
        yield
        return
    os.environ[_OPENBLAS_VARIABLE] = _OPENBLAS_CORES[min(asked, has, key=levels.index)]
    try:
        yield
    finally:
        del os.environ[_OPENBLAS_VARIABLE]


def _load_library() -> Path:
    try:
        switches.check()
    except ValueError as error:  # the library must not load without what was asked of it
        raise ImportError(f"macatensor: {error}") from None
    path = library_path()
    message = ffi.new("char[]", 2048)
    # what is fenced is taken back when it is released: nothing may run on it then
    blocking = switches.LAUNCH_BLOCKING.value() or switches.MEMORY_FENCE.value()
    index = switches.device_index()
    with _openblas_limited():
        failed = lib.maca_runtime_load(str(path).encode(), index, blocking, message, 2048)
    if failed:
        found = ffi.string(message).decode(errors="replace")
        remedies = []
        if index > 0:
            remedies.append(
                f"Set MACA_VISIBLE_DEVICES (now {index}) to the index of a device it has, or unset it."
            )
        if switches.LIBRARY.text():
            remedies.append(
                "Point MACA_LIBRARY at a library that implements this version of maca.h, or unset it to use the host library."
            )
        remedy = " ".join(remedies) or "Rebuild the package (`make build`)."
        raise ImportError(f"macatensor could not load its device library: {found}. {remedy}")
    return path


LIBRARY = _load_library()
MEMORY_LIMIT = switches.DEVICE_MEMORY.value()  # bytes; 0: none
if MEMORY_LIMIT:
    lib.maca_memory_set_limit(MEMORY_LIMIT)
if switches.MEMORY_FENCE.value() and lib.maca_memory_fence():
    raise ImportError(
        f"macatensor: MACA_MEMORY_FENCE=1 needs a device library that puts memory behind single pages (memory_reserve of"
        f" maca.h); {LIBRARY} does not. Unset it."
    )

QUEUE_MODES = ("0", "1", "auto")  # as maca_task_queue_set() numbers them


def task_queue() -> str:
    """The mode that :func:`set_task_queue` set."""
    return QUEUE_MODES[lib.maca_task_queue_get()]


def set_task_queue(mode: str) -> str:
    """Sets what ``MACA_TASK_QUEUE`` set at import, for all threads, and returns what was set before.

    ``"0"``: the default stream's launches run at once. ``"1"``: on a thread of the runtime, while Python goes on.
    ``"auto"``: long ones run there, and others while one of those is unfinished. Waits for what is queued. It stays
    ``"0"`` with ``MACA_LAUNCH_BLOCKING=1``, and with a library whose default stream does not run work at once anyway.
    """
    before = task_queue()
    check(lib.maca_task_queue_set(QUEUE_MODES.index(mode)), "MACA_TASK_QUEUE")
    return before


def _close_task_queue() -> None:
    """The queue's thread must not run while the process is taken down. Raises what failed and no one has met."""
    set_task_queue("0")
    if lib.maca_task_queue_take_used():
        raise_pending()


_allocate = native.allocate
_cast = ffi.cast


def allocate(nbytes: int) -> Buffer:
    """A ``Buffer`` of device memory, released with its last reference. Raises torch.OutOfMemoryError."""
    buffer = _allocate(nbytes)
    if buffer is None:
        raise launch_error(last_failure().status or OUT_OF_MEMORY, "an allocation")
    return buffer


def pinned_memory(nbytes: int) -> object:
    """Pinned host memory as a capsule of DLPack, None where the library has none. Raises torch.OutOfMemoryError."""
    capsule = native.pin(nbytes)
    if capsule is None and last_failure().status != UNSUPPORTED:
        raise launch_error(last_failure().status, "pin_memory()")
    return capsule


def pointer(buffer: Buffer) -> CData:
    """A buffer as the functions of :data:`lib` take it; its caller keeps the buffer alive."""
    return _cast("maca_buffer*", buffer.handle)


def size_text(nbytes: int) -> str:
    """A number of bytes as CUDA's messages print it, ``2.00 MiB``."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= scale:
            return f"{nbytes / scale:.2f} {unit}"
    return f"{nbytes} bytes"


def memory_statistics() -> CData:
    """The allocator's numbers, as the struct ``maca_memory_statistics``."""
    statistics = ffi.new("maca_memory_statistics*")
    lib.maca_memory_get_statistics(statistics)
    return statistics


_live_tensors: Callable[[], str] = str


def name_live_tensors(by: Callable[[], str]) -> None:
    """Takes the function that names the largest live blocks in a sentence, for errors of memory."""
    global _live_tensors
    _live_tensors = by


def _out_of_memory(what: str = "") -> torch.OutOfMemoryError:
    """The error in CUDA's words, with what holds most memory. ``what`` failed; by default the last allocation."""
    s = memory_statistics()
    allocated, reserved = s.allocated_bytes[0].current, s.reserved_bytes[0].current
    limit = size_text(s.limit_bytes) if s.limit_bytes >= 0 else "none (set MACA_DEVICE_MEMORY)"
    return torch.OutOfMemoryError(
        f"MACA out of memory. {what or f'Tried to allocate {size_text(s.failed_bytes)}'}. "
        f"Allocated: {size_text(allocated)}. "
        f"Reserved: {size_text(reserved)}. Limit: {limit}. "
        f"Free tensors, call torch.maca.empty_cache(), or use a smaller batch.{_live_tensors()}"
    )


_pending: list[Exception] = []  # failures of queued work that no one has met yet, oldest first
_ALLOCATING = ("", "memory_allocate", "memory_reserve", "memory_commit", "memory_decommit")
_MOST_ERRORS = 10_000  # taken at once; Python runs at most 1024 launches ahead of the default stream


class Failure(NamedTuple):
    """What the library answered to a call that did not succeed."""

    slot: str  # the function of maca.h; "": the runtime itself refused
    status: int
    text: str  # slot, status and the library's reason; or what it gave and what was expected
    extension: str = ""  # the joined library that answered; "": the device's own

    @property
    def said(self) -> str:
        """``"the device library's plan_launch returned ..."``."""
        whose = f"the extension {self.extension}'s" if self.extension else "the device library's"
        return f"{whose} {self.text}"


def _read(failure: CData) -> Failure:
    slot, extension = ("" if t == NULL else _string(t) for t in (failure.slot, failure.extension))
    return Failure(slot, int(failure.status), _string(failure.text), extension)


def last_failure() -> Failure:
    """Of the calling thread's last call that failed."""
    failure = ffi.new("maca_failure*")
    lib.maca_runtime_failure(failure)
    return _read(failure)


def _string(text: CData) -> str:
    return str(ffi.string(text).decode(errors="replace"))


def lost() -> str:
    """Why nothing can be asked of the device again; "" while it can."""
    why = lib.maca_runtime_lost()
    return "" if why == NULL else _string(why)


def _library_error(failure: Failure, operator: str) -> Exception:
    """The exception for what the library answered: ``operator``, slot, status and reason, and what to do."""
    if failure.status == LOST:
        return torch.AcceleratorError(f"MACA error: {failure.text}")
    said = f"{operator}: {failure.said}"
    if failure.status == OUT_OF_MEMORY:
        return _out_of_memory(said)
    if failure.status != BROKEN:
        said += "; expected MACA_OK"
    if failure.extension:
        remedy = "Report it to whoever wrote it; unload() of the extension computes without it."
    elif is_host_library():
        remedy = "Please report this."
    else:
        remedy = f"Report it to whoever makes {LIBRARY}; unset MACA_LIBRARY to compute with the host library."
    kind = NotImplementedError if failure.status == UNSUPPORTED else RuntimeError
    return kind(f"{said}. {remedy}")


def _collect_errors() -> None:
    """Takes the library's errors over, and the failures that no call could return."""
    failure = ffi.new("maca_failure*")
    while lib.maca_runtime_take_failure(failure):
        _pending.append(_library_error(_read(failure), "earlier work"))
    for _ in range(_MOST_ERRORS):
        error = ffi.new("maca_error*")
        if lib.maca_runtime_error(error) != OK:
            _pending.append(_library_error(last_failure(), "earlier work"))
            return
        if error.status == OK:
            return
        text = (
            _string(error.text) or f"a launch failed, of which error_take says no more than code {error.code}"
        )
        kernel = lib.maca_runtime_kernel_of(error.correlation)
        if kernel != NULL:
            text += (
                f" (found by the kernel {_string(kernel)} after its launch had returned; "
                "MACA_LAUNCH_BLOCKING=1 raises this at the launch)"
            )
        if error.sticky:
            _pending.append(torch.AcceleratorError(f"MACA error: {lost()}"))
        elif error.code == lib.MACA_ERROR_INDEX:
            _pending.append(IndexError(text))
        elif error.code == lib.MACA_ERROR_SINGULAR:
            _pending.append(torch.linalg.LinAlgError(text))  # type: ignore[attr-defined]
        elif error.code == lib.MACA_ERROR_INTERNAL:
            _pending.append(RuntimeError(f"{text} (a defect of the device library; please report it)"))
        else:
            _pending.append(RuntimeError(text))
    _pending.append(
        RuntimeError(
            f"the device library's error_take gave {_MOST_ERRORS} errors and has more; expected MACA_OK in "
            f"maca_error.status when none is left. The oldest: {_pending[0]}. Report it to whoever makes {LIBRARY}."
        )
    )
    _pending.insert(0, _pending.pop())


def _take_error(operator: str, failure: Failure) -> Exception:
    """The newest error, that of the launch that just failed, as the exception that PyTorch raises for it."""
    _collect_errors()
    return _pending.pop() if _pending else _library_error(failure, operator)


def raise_later(error: Exception) -> None:
    """Keeps a failure for the host's next wait, where it cannot be raised: a launch has no Python to tell."""
    _pending.append(error)


def raise_pending() -> None:
    """Raises the oldest failure of queued work and forgets the others. Called where the host has waited for it."""
    _collect_errors()
    if _pending:
        first = _pending[0]
        _pending.clear()
        raise first


def launch_error(status: int, operator: str) -> Exception:
    """The exception for a call of :data:`lib`, just made by this thread for ``operator``, that returned ``status``."""
    if status == PARTIAL_OVERLAP:
        return RuntimeError(OVERLAPS_IN_PART)
    failure = last_failure()
    if status == MISUSE:
        return RuntimeError(f"{operator}: {failure.text}")
    if status == DEVICE_ERROR:
        return _take_error(operator, failure)
    if status == OUT_OF_MEMORY and failure.slot in _ALLOCATING:
        return _out_of_memory()
    return _library_error(failure, operator)


def check(status: int, operator: str) -> None:
    """Raises :func:`launch_error` unless ``status`` is MACA_OK."""
    if status != OK:
        raise launch_error(status, operator)


def finish_wait(status: int, operator: str) -> None:
    """After the host has waited: raises what failed in the work, else why the wait itself failed, if it did."""
    raise_pending()
    check(status, operator)


def own(buffer: Buffer) -> None:
    """Gives a buffer that shares memory until it is written memory of its own. Raises torch.OutOfMemoryError."""
    if buffer.is_lazy:
        check(lib.maca_buffer_own(pointer(buffer)), "a copy on writing")


def may_resize(buffer: Buffer) -> bool:
    """Can :func:`resize` give the buffer other memory? A captured graph keeps the addresses of what it uses."""
    return bool(lib.maca_buffer_may_resize(pointer(buffer)))


def resize(buffer: Buffer, nbytes: int) -> None:
    """Gives a buffer, and so every tensor in it, memory of another size with what it held. Raises RuntimeError where a
    captured graph uses it."""
    check(lib.maca_buffer_resize(pointer(buffer), nbytes), "resize_() of a storage")


def move_bytes(operator: str, move: Callable[..., int], *operands: CData | int) -> bool:
    """Calls a function of :data:`lib` that moves or sets bytes of buffers, whose last operand is their number, for
    ``operator``; of no bytes nothing is asked. Were there any? Raises RuntimeError where they are not all the buffers'
    own."""
    if operands[-1]:
        check(move(*operands), operator)
    return bool(operands[-1])


def copy_bytes(to: Buffer, to_offset: int, source: Buffer, source_offset: int, nbytes: int) -> None:
    """Copies between two buffers, on the current stream."""
    ends = pointer(to), to_offset, pointer(source), source_offset
    move_bytes("copy on the device", lib.maca_buffer_copy, *ends, nbytes)


def fill_bytes(buffer: Buffer, offset: int, byte: int, nbytes: int, operator: str) -> None:
    """Sets bytes of a buffer for ``operator``."""
    move_bytes(operator, lib.maca_buffer_fill, pointer(buffer), offset, byte, nbytes)


def device_info() -> CData:
    """The library's ``maca_device_info``."""
    info = ffi.new("maca_device_info*")
    check(lib.maca_runtime_info(info), "device_info()")
    return info


@functools.cache
def kernels() -> frozenset[str]:
    """Names of the library's kernels."""
    names: list[str] = []
    while (name := lib.maca_runtime_kernel(len(names))) != NULL:
        names.append(_string(name))
    return frozenset(names)


set_task_queue(switches.TASK_QUEUE.value())
atexit.register(_close_task_queue)
os.register_at_fork(before=lib.maca_task_queue_before_fork)
