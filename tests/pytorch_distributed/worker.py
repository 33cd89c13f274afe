"""``python worker.py [TEST ...]``: runs the tests of one file (:mod:`within`) and prints a line of JSON for each."""

from __future__ import annotations

import json
import os
import re
import sys
import time
import unittest

import within

_ERROR = re.compile(r"(\w+\.)*\w*(Error|Exception|Refused)\b.*")


def _last_error(text: str) -> str:
    """The innermost error that a rank or the test itself raised, in a line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    found = [line for line in lines if _ERROR.match(line) and "exited with error code" not in line]
    return (found or lines or [""])[0][:300]


def _ran(test: unittest.TestCase) -> tuple[str, str]:
    result = unittest.TestResult()
    unittest.TestSuite([test]).run(result)
    for outcome, said in (
        ("fail", [text for _, text in result.failures + result.errors]),
        ("skip", [text for _, text in result.skipped]),
        ("fail", ["an expected failure did not come" for _ in result.unexpectedSuccesses]),
    ):
        if said:
            return outcome, _last_error(said[0])
    return "pass", ""


def _tests() -> list[unittest.TestCase]:
    if isinstance(within.MODULE, Exception):
        return []
    found: list[unittest.TestCase] = []
    for value in vars(within.MODULE).values():
        if (
            isinstance(value, type)
            and issubclass(value, unittest.TestCase)
            and value.__module__ == within.MODULE.__name__
        ):
            found += [value(name) for name in unittest.defaultTestLoader.getTestCaseNames(value)]
    return found


def main() -> None:
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    if os.environ.get("SUITE_QUIET", "1") == "1":
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
    if isinstance(within.MODULE, Exception):
        error = within.MODULE
        print(
            json.dumps({"test": "import", "outcome": "fail", "said": f"{type(error).__name__}: {error}"}),
            file=lines,
        )
        return
    wanted = set(sys.argv[1:])
    for test in _tests():
        name = f"{type(test).__name__}::{test._testMethodName}"
        if wanted and name not in wanted:
            continue
        print(json.dumps({"test": name, "outcome": "began"}), file=lines)
        began = time.monotonic()
        outcome, said = _ran(test)
        seconds = round(time.monotonic() - began, 1)
        print(json.dumps({"test": name, "outcome": outcome, "said": said, "seconds": seconds}), file=lines)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)
