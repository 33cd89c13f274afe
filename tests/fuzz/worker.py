"""A process that runs calls: ``worker.py MAP FIRST COUNT STEP [--device-only]``, one JSON line for each that differs.

Before a call its seed and the side that runs it stand in the file MAP, so that whoever started the process knows what it
died of.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import mmap
import os
import resource
import struct
import sys
from dataclasses import asdict
from pathlib import Path

import torch
from calls import Call, draw
from outcome import difference, run, words
from recipes import is_tensor

import macatensor  # noqa: F401 - the device

# bytes of addresses beyond those at the start: what 2^31 elements take is refused, not begun
MEMORY = 3 << 29
FIELDS = "<qqq"  # a seed, the side (0 host, 1 device), a counter that shows life


def compare(call: Call, sides: tuple[str, ...], mark: object = None) -> str:
    """In which way the device differs from the host; "" where it does not, or where the host alone was not asked."""
    ran = []
    for i, side in enumerate(sides):
        if mark is not None:
            mark(i)  # type: ignore[operator]
        ran.append(run(call, side))
    return difference(call, *ran) if len(sides) == 2 else ""


def reaches_device(call: Call) -> bool:
    """Whether an operand lies there, or a result is to."""
    given = [r for v in (*call.args, *call.kwargs.values()) for r in (v if isinstance(v, list) else [v])]
    return any(
        not r["tensor"].get("host") if is_tensor(r) else isinstance(r, dict) and "device" in r for r in given
    )


def _addresses() -> int:
    """Bytes of addresses that the process has; with fences the device's memory alone is terabytes of them."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("map", type=Path)
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("step", type=int)
    parser.add_argument(
        "--device-only", default="", help="operators that the host is not asked, with commas between"
    )
    parser.add_argument("--case", action="store_true", help="one call, as JSON, on the standard input")
    asked = parser.parse_args()
    # AddressSanitizer takes terabytes of addresses, and has a limit of its own
    if "ASAN_OPTIONS" not in os.environ:
        limit = _addresses() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    faulthandler.enable()
    torch.set_num_threads(1)
    alone = set(filter(None, asked.device_only.split(",")))
    given = Call(**json.load(sys.stdin)) if asked.case else None
    # libraries print, too: theirs goes where the errors go
    said = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with asked.map.open("r+b") as file, said:
        shared = mmap.mmap(file.fileno(), struct.calcsize(FIELDS))
        for i in range(asked.count):
            seed = asked.first + i * asked.step
            call = given or draw(seed)
            sides = ("maca",) if call.operator in alone or "*" in alone else ("cpu", "maca")
            if len(sides) == 1 and not reaches_device(call):  # the host's kernel again
                continue

            def mark(side: int, seed: int = seed, i: int = i, sides: tuple[str, ...] = sides) -> None:
                shared[:] = struct.pack(FIELDS, seed, int(sides[side] == "maca"), 2 * i + side)

            try:
                found = compare(call, sides, mark)
            except Exception as error:
                made = "cannot be made" not in str(error)  # operands that nobody can make
                found = (
                    f"raises in the comparison: {type(error).__name__}: {words(str(error))}" if made else ""
                )
            if found:
                print(json.dumps({"seed": seed, "found": found, "call": asdict(call)}), file=said, flush=True)
        shared[:] = struct.pack(FIELDS, -1, 0, -1)


if __name__ == "__main__":
    main()
