"""``torch.maca.tunable``: the names of ``torch.cuda.tunable`` over the bank of measured choices (docs/tuning.md).

What is decided once in a process stays: a signature that ran before :func:`enable` keeps the library's own choice.
"""

from __future__ import annotations

import os
from pathlib import Path

from macatensor.choices import bank, deciding
from macatensor.choices.machine import machine

__all__ = [
    "enable", "get_filename", "get_max_tuning_duration", "get_max_tuning_iterations", "get_results", "get_validators",
    "is_enabled", "mgpu_tune_gemm_in_file", "read_file", "record_untuned_enable", "record_untuned_is_enabled",
    "set_filename", "set_max_tuning_duration", "set_max_tuning_iterations", "tune_gemm_in_file", "tuning_enable",
    "tuning_is_enabled", "write_file", "write_file_on_exit",
]  # fmt: skip


def enable(val: bool = True) -> None:
    """Uses measured choices from now on, and measures what no bank knows unless :func:`tuning_enable` says no."""
    deciding.settings().enabled = bool(val)


def is_enabled() -> bool:
    """Whether measured choices are used."""
    return deciding.settings().enabled


def tuning_enable(val: bool = True) -> None:
    """Whether signatures that no bank knows are measured. It counts where :func:`is_enabled`."""
    deciding.settings().tuning = bool(val)


def tuning_is_enabled() -> bool:
    """What :func:`tuning_enable` set; True at first, False where ``TUNE_BANK_PATH`` gives a bank."""
    return deciding.settings().tuning


def record_untuned_enable(val: bool = True) -> None:
    """Kept for programs that set it: calls are recorded by ``macatensor tune --dump``."""
    deciding.settings().record_untuned = bool(val)


def record_untuned_is_enabled() -> bool:
    """What :func:`record_untuned_enable` set."""
    return deciding.settings().record_untuned


def set_max_tuning_duration(duration: int) -> None:
    """Milliseconds that the ways of one signature are timed, beyond their first seven rounds. Raises ValueError below 0."""
    if duration < 0:
        raise ValueError(f"set_max_tuning_duration got {duration} ms; expected 0 or more")
    deciding.settings().duration = duration / 1000


def get_max_tuning_duration() -> int:
    """In milliseconds; 200 at first."""
    return round(deciding.settings().duration * 1000)


def set_max_tuning_iterations(iterations: int) -> None:
    """Calls of one way in a row, at most. Raises ValueError below 1."""
    if iterations < 1:
        raise ValueError(f"set_max_tuning_iterations got {iterations}; expected 1 or more")
    deciding.settings().iterations = int(iterations)


def get_max_tuning_iterations() -> int:
    """100 at first."""
    return deciding.settings().iterations


def set_filename(filename: str | os.PathLike[str], insert_device_ordinal: bool = False) -> None:
    """Reads and writes this file; ``""``: this machine's in ``TUNE_BANK_PATH`` or the user's cache. There is one device,
    so with ``insert_device_ordinal`` 0 is put before the name's suffix."""
    if not os.fspath(filename):
        deciding.set_path(None)
        return
    path = Path(filename)
    deciding.set_path(path.with_name(f"{path.stem}0{path.suffix}") if insert_device_ordinal else path)


def get_filename() -> str:
    """The file that is read and written."""
    return str(deciding.path())


def get_results() -> tuple[tuple[str, str, str, float], ...]:
    """What is known: kernel, signature, the way ("Default": the library's own choice), and milliseconds of a call by it."""
    return tuple(
        (bank.kernel_of(e.signature), e.signature, e.way or "Default", 1000 * e.seconds.get(e.way, 0.0))
        for e in deciding.known()
    )


def get_validators() -> tuple[tuple[str, str], ...]:
    """What must agree for a bank to be used: its version and the machine."""
    return (
        ("BANK_VERSION", str(bank.VERSION)),
        *((name.upper(), str(value)) for name, value in machine().items()),
    )


def read_file(filename: str | os.PathLike[str] | None = None) -> bool:
    """Adds what a bank holds; False where it holds nothing for this machine, which the log explains."""
    return deciding.read(None if filename is None else Path(filename)) > 0


def write_file(filename: str | os.PathLike[str] | None = None) -> bool:
    """Adds what is known to a bank, by default :func:`get_filename`, now. False where it cannot be written."""
    return deciding.save(None if filename is None else Path(filename))


def write_file_on_exit(val: bool) -> None:
    """Whether what was measured and not saved yet is added to the bank when the process ends; True at first."""
    deciding.settings().saves_at_exit = bool(val)


def tune_gemm_in_file(filename: str | os.PathLike[str]) -> None:
    """Measures the calls in a file of ``macatensor tune --dump``. Raises OSError and ValueError for another file."""
    deciding.tune_file(Path(filename))


def mgpu_tune_gemm_in_file(filename_pattern: str, num_gpus: int) -> None:
    """:func:`tune_gemm_in_file` of each file that the pattern matches; there is one device, whatever ``num_gpus`` says."""
    import glob

    for name in sorted(glob.glob(filename_pattern)):
        tune_gemm_in_file(name)


def set_aoe(dump_path: str | os.PathLike[str]) -> None:
    """torch_npu's name: tunes from now on, with the banks in a folder, which is made. Raises OSError where it cannot be."""
    folder = Path(dump_path)
    folder.mkdir(parents=True, exist_ok=True)
    deciding.set_path(bank.file_in(folder))
    enable()
    tuning_enable()
