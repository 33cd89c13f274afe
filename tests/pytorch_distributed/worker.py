"""``python worker.py`` runs the tests of files (:mod:`within`). A line ``{"file": ..., "tests": [...]}`` comes, with the
names of tests or none for all of them; a process runs the file and prints ``{"process": ...}``, then two lines for each
test, when it begins and when it has ended, and ``{"ended": status}`` comes after them."""

from __future__ import annotations

import json
import os
import sys
import time
import unittest
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, TextIO

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


def _say(lines: TextIO, **line: object) -> None:
    print(json.dumps(line), file=lines)


def _run(file: str, wanted: list[str], lines: TextIO) -> None:
    module = within.module_of(file)
    if isinstance(module, Exception):
        _say(lines, test="import", outcome="fail", said=f"{type(module).__name__}: {module}")
        return
    for test in _tests(module):
        name = f"{type(test).__name__}::{test._testMethodName}"
        if wanted and name not in wanted:
            continue
        _say(lines, test=name, outcome="began", said="")
        status = _forked(_run_one, test, name, lines)
        if status:
            _say(lines, test=name, outcome="fail", said=f"the process ended with status {status}")


def _run_one(test: unittest.TestCase, name: str, lines: TextIO) -> None:
    began = time.monotonic()
    outcome, said = within.FOREIGN_TESTS.run(test)
    seconds = round(time.monotonic() - began, 1)
    _say(lines, test=name, outcome=outcome, said=said[:300], seconds=seconds)


def _forked(call: Callable[..., None], *given: Any) -> int:
    """The status of a process that calls it. Ranks that are threads leave threads of autograd, after which PyTorch refuses
    ranks that are forks: so each test has a process of its own."""
    process = os.fork()
    if process == 0:
        call(*given)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def main() -> None:
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    if os.environ.get("SUITE_QUIET", "1") == "1":
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
    for line in sys.stdin:
        asked = json.loads(line)
        _say(lines, ended=_forked(_begin, asked, lines))


def _begin(asked: dict[str, Any], lines: TextIO) -> None:
    os.setpgid(0, 0)  # with the ranks that it starts: who waits too long ends them all
    _say(lines, process=os.getpid())
    _run(asked["file"], asked["tests"], lines)


if __name__ == "__main__":
    main()
