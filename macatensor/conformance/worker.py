"""``python -m macatensor.conformance.worker``: asks kernels and behaviours of the library that is loaded.

Takes the tasks of :mod:`macatensor.examination`: question ``"kernel"`` with the name of a row and a dtype, or one of
:mod:`macatensor.conformance.behaviour`.
"""

from __future__ import annotations

import ctypes
import os
import resource
import time
import warnings
from pathlib import Path

import torch

from macatensor.conformance.behaviour import BEHAVIOURS
from macatensor.conformance.worker_names import LAYOUTS, REPORTS
from macatensor.device.properties import library_info
from macatensor.examination.task import Answer, Task
from macatensor.examination.worker import own_output, serve
from macatensor.parity.runner import run_row
from macatensor.parity.samples import overload
from op_table import TABLE, Kind

_MOST_MEMORY = 8 << 30  # bytes: a library that takes it without end does not take the machine
_KEPT = 600  # characters of a failing line
_folder = os.environ.get(REPORTS)
_report = Path(_folder) / str(os.getpid()) if _folder else None


def _say_what_is_written() -> None:
    """Tells the layer which arguments kernels write though they are no results."""
    layer = ctypes.CDLL(str(library_info()["path"]))
    tell = layer.validation_writes
    tell.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int]
    for row in TABLE.values():
        if row.kind is not Kind.KERNEL:
            continue
        try:
            packet = overload(row)
        except AttributeError:
            continue
        forms = [packet]
        in_place = getattr(torch.ops.aten, f"{row.operator}_", None)
        if in_place is not None:
            forms += [getattr(in_place, name) for name in in_place.overloads()]
        for form in forms:
            tensors = [
                a for a in form._schema.arguments if not a.is_out and "Tensor" in str(a.type)
            ]  # plans have these alone as arguments
            for position, argument in enumerate(tensors):
                unsaid = argument.name in row.also_writes
                written = argument.alias_info is not None and argument.alias_info.is_write
                if written or unsaid:
                    always = unsaid or (form is packet and written)
                    tell(row.kernel_name.encode(), position, int(always))


_read = 0


def _findings() -> list[str]:
    """What the layer wrote since the last time, each line once."""
    global _read
    if _report is None or not _report.exists():
        return []
    with _report.open("rb") as file:
        file.seek(_read)
        said = file.read()
        _read = file.tell()
    lines = [line.replace("\t", ": ", 1) for line in said.decode(errors="replace").splitlines()]
    return list(dict.fromkeys(lines))


def _kernel(answer: Answer) -> None:
    row = TABLE[answer.task.entry]
    layouts = tuple(filter(None, os.environ.get(LAYOUTS, "").split(",")))
    result = run_row(row, (answer.task.dtype,), layouts or None)
    seen = _findings()
    answer.samples, answer.max_ulp = result.samples, result.max_ulp
    answer.wrong = result.failed + len(seen)
    answer.detail = (seen + result.failures + [""])[0][:_KEPT]
    if answer.wrong:
        answer.outcome = "fail"
    elif result.declined:
        answer.outcome = "declined"
        answer.detail = result.declines[0].partition("# ")[2][:_KEPT]


def answer_task(task: Task, limit: int | None) -> Answer:
    """Asks one question; what it raises is a failure."""
    answer = Answer(task)
    started = time.process_time()
    try:
        if task.question == "kernel":
            _kernel(answer)
        else:
            BEHAVIOURS[task.question](answer)
            seen = _findings()
            if seen and answer.outcome == "pass":
                answer.outcome, answer.detail = "fail", seen[0][:_KEPT]
    except Exception as error:
        answer.outcome = "fail"
        answer.detail = f"{type(error).__name__}: {str(error)[:_KEPT]}"
    answer.seconds = time.process_time() - started
    return answer


def main() -> None:
    lines = own_output()
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_MEMORY, _MOST_MEMORY))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if _report is not None:
        _say_what_is_written()
    serve(lines, answer_task)


if __name__ == "__main__":
    main()
