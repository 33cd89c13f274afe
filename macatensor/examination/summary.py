"""What an examination came to: rates by question against their bars, and a record of each entry for the coverage page."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from macatensor.examination.entries import database, typical_dtype
from macatensor.examination.expectations import expected
from macatensor.examination.task import Answer
from op_table.coverage import EXAMINATION

RECORD = EXAMINATION


@dataclass(frozen=True)
class Rate:
    """How many tasks of a question passed of those that asked something; ``bar``: the least share wanted."""

    name: str
    passed: int
    asked: int
    bar: float | None = None

    @property
    def share(self) -> float:
        return self.passed / self.asked if self.asked else 1.0

    @property
    def is_met(self) -> bool:
        return self.bar is None or self.share >= self.bar


BARS = (
    ("forward, typical dtype, first 5 samples", "forward", "operators", True, 0.99),
    ("forward, every dtype", "forward", "operators", False, 0.97),
    ("forward, references", "forward", "references", False, None),
    ("forward, foreach", "forward", "foreach", False, None),
    ("gradients", "gradient", "operators", False, 0.97),
    ("gradients of gradients", "second_order", "operators", False, None),
    ("strided, transposed, offset, expanded", "noncontiguous", "operators", False, 0.98),
    ("channels_last", "channels_last", "operators", False, 0.98),
    ("strides of results", "strides", "operators", False, None),
    ("out=", "out", "operators", False, 0.95),
    ("in place", "inplace", "operators", False, None),
    ("same bits for any number of threads", "threads", "operators", False, None),
    ("errors", "errors", "operators", False, 0.95),
)


def rates(answers: Iterable[Answer]) -> list[Rate]:
    """One for each question that was asked."""
    passed: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    for answer in answers:
        task = answer.task
        if answer.outcome == "empty":
            continue
        for name, question, source, typical, _ in BARS:
            if task.question != question or task.database != source:
                continue
            if typical and task.dtype != typical_dtype(database(source)[task.entry]):
                continue
            asked[name] += 1
            # one question of its own: a sample beyond the first may fail without failing it
            first = typical and answer.outcome == "fail" and answer.samples and not answer.wrong_first
            passed[name] += bool(answer.outcome == "pass" or first)
    found = [Rate(name, passed[name], asked[name], bar) for name, *_, bar in BARS if asked[name]]
    return found


def on_host(answers: Iterable[Answer]) -> Rate:
    """Entries whose forward in their typical dtype stays off the host."""
    forward = [
        a
        for a in answers
        if a.task.question == "forward"
        and a.task.database == "operators"
        and a.task.dtype == typical_dtype(database("operators")[a.task.entry])
        and a.outcome != "empty"
    ]
    return Rate("no operator on the host", sum(not a.on_cpu for a in forward), len(forward), 0.97)


def without_reason(answers: Iterable[Answer]) -> list[Answer]:
    """Answers that are not a pass and stand in no line of the table of expectations."""
    return [a for a in answers if a.outcome not in ("pass", "empty") and expected(a.task) is None]


class EntryFacts(TypedDict):
    """What ``record.json`` says of an entry."""

    dtypes: list[str]
    failing: list[str]
    kinds: dict[str, int]
    on_cpu: list[str]
    answers: dict[str, str]
    max_ulp: float
    reasons: list[str]


def record(answers: Iterable[Answer]) -> dict[str, object]:
    """What the coverage page says of each entry of the operator database, and the rates."""
    answers = list(answers)
    entries: dict[str, EntryFacts] = defaultdict(
        lambda: {
            "dtypes": [],
            "failing": [],
            "kinds": {},
            "on_cpu": [],
            "answers": {},
            "max_ulp": 0.0,
            "reasons": [],
        }
    )
    for a in answers:
        if a.task.database != "operators" or a.outcome == "empty":
            continue
        entry = entries[a.task.entry]
        if a.task.question == "forward":
            entry["dtypes" if a.outcome == "pass" else "failing"].append(a.task.dtype)
            if a.task.dtype == typical_dtype(database("operators")[a.task.entry]):
                entry["kinds"], entry["on_cpu"] = a.kinds, sorted(a.on_cpu)
                entry["max_ulp"] = float(f"{a.max_ulp:.3g}")
        else:
            entry["answers"][a.task.question] = a.outcome
        line = expected(a.task)
        if a.outcome != "pass" and line is not None:
            text = f"{line.reason.value}: {line.text}"
            if text not in entry["reasons"]:
                entry["reasons"].append(text)
    summary = [
        {"name": r.name, "passed": r.passed, "asked": r.asked, "bar": r.bar}
        for r in [*rates(answers), on_host(answers)]
    ]
    for entry in entries.values():  # tasks end in another order in each run
        for texts in (entry["dtypes"], entry["failing"], entry["reasons"]):
            texts.sort()
        entry["kinds"] = dict(sorted(entry["kinds"].items()))
        entry["answers"] = dict(sorted(entry["answers"].items()))
    return {"rates": summary, "entries": {name: entries[name] for name in sorted(entries)}}


def write(answers: Iterable[Answer], path: Path = RECORD) -> None:
    """Writes the record that the coverage page is made from."""
    path.write_text(json.dumps(record(answers), indent=1, sort_keys=True) + "\n")
