"""``python worker.py`` runs the tests of files (:mod:`within`). A line ``{"file": ..., "tests": [...]}`` comes, with the
names of tests or none for all of them; a process runs the file and prints ``{"process": ...}``, then two lines for each
test, when it begins and when it has ended, and ``{"ended": status}`` comes after them."""

from __future__ import annotations

import json
import os
import sys
import time
import unittest
from collections.abc import Iterator
from types import ModuleType

import within


def _tests(module: ModuleType) -> Iterator[unittest.TestCase]:
    for value in vars(module).values():
        if (
            isinstance(value, type)
            and issubclass(value, unittest.TestCase)
            and value.__module__ == module.__name__
        ):
            for name in unittest.defaultTestLoader.getTestCaseNames(value):
                yield value(name)


def _run(file: str, wanted: list[str]) -> Iterator[dict[str, object]]:
    module = within.module_of(file)
    if isinstance(module, Exception):
        yield {"test": "import", "outcome": "fail", "said": f"{type(module).__name__}: {module}"}
        return
    for test in _tests(module):
        name = f"{type(test).__name__}::{test._testMethodName}"
        if wanted and name not in wanted:
            continue
        yield {"test": name, "outcome": "began", "said": ""}
        began = time.monotonic()
        outcome, said = within.FOREIGN_TESTS.run(test)
        seconds = round(time.monotonic() - began, 1)
        yield {"test": name, "outcome": outcome, "said": said[:300], "seconds": seconds}


def main() -> None:
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    if os.environ.get("SUITE_QUIET", "1") == "1":
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
    for line in sys.stdin:
        asked = json.loads(line)
        process = os.fork()
        if process == 0:
            os.setpgid(0, 0)  # with the ranks that it starts: who waits too long ends them all
            print(json.dumps({"process": os.getpid()}), file=lines)
            for said in _run(asked["file"], asked["tests"]):
                print(json.dumps(said), file=lines)
            os._exit(0)
        _, status = os.waitpid(process, 0)
        print(json.dumps({"ended": os.waitstatus_to_exitcode(status)}), file=lines)


if __name__ == "__main__":
    main()
