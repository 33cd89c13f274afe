"""Test files of another version of PyTorch: their import, in which names that its test package has no longer become
decorators that do nothing, and what a test came to. It needs neither PyTorch nor macatensor loaded, so that a process
without the device may use it."""

from __future__ import annotations

import importlib
import re
import sys
import unittest
from types import ModuleType
from typing import NamedTuple

_ERROR = re.compile(r"(\w+\.)*\w*(Error|Exception|Refused)\b")
# of what waits for ranks, processes or threads, whose own errors come after it
_OF_RANKS = re.compile("exited with (error code|exception)")


class Ran(NamedTuple):
    """``outcome``: "pass", "fail" or "skip"; ``said``: the line of what was said that names the error."""

    outcome: str
    said: str = ""


def run(test: unittest.TestCase) -> Ran:
    """Runs one test with its class set up."""
    result = unittest.TestResult()
    unittest.TestSuite([test]).run(result)
    for outcome, said in (
        ("fail", [text for _, text in result.failures + result.errors]),
        ("skip", [text for _, text in result.skipped]),
        ("fail", ["an expected failure did not come" for _ in result.unexpectedSuccesses]),
    ):
        if said:
            return Ran(outcome, _error_of(said[0]))
    return Ran("pass")


def _error_of(text: str) -> str:
    text = text.rpartition("another exception occurred:\n")[2]  # what came of handling the first
    lines = [line for line in text.splitlines() if line.strip()] or [""]
    first = next((line for line in lines if _ERROR.match(line) and not _OF_RANKS.search(line)), lines[-1])
    return first.strip()


def _gone(name: str) -> object:
    """In place of a name that PyTorch's test package no longer has."""
    if name.startswith("__"):
        raise AttributeError(name)
    if name.isupper():
        return False

    def decorator(*arguments: object, **_: object) -> object:
        found = arguments[0] if len(arguments) == 1 else None
        return found if callable(found) else (lambda function: function)

    return decorator


def imported(name: str) -> ModuleType:
    """The module, with what it imports from PyTorch's test package and is gone in its place."""
    while True:
        try:
            return importlib.import_module(name)
        except (ImportError, AttributeError) as error:
            lacking = getattr(error, "obj", None) or sys.modules.get(error.name or "")
            if (
                not isinstance(lacking, ModuleType)
                or not lacking.__name__.startswith("torch.testing.")
                or hasattr(lacking, "__getattr__")
            ):
                raise
            vars(lacking)["__getattr__"] = _gone
