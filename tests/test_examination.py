"""PyTorch's operator database, asked of the device: the short form, and the examiner itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import time

import pytest
import torch

from macatensor.examination import forms, kept, summary
from macatensor.examination.entries import database
from macatensor.examination.examiner import IDLE_LIMIT, Watch, examine, processor_time
from macatensor.examination.expectations import FAILING, Reason, expectations, expected, verdict
from macatensor.examination.questions import is_nearer, is_random
from macatensor.examination.task import Answer, Task
from macatensor.examination.worker import answer_task


@pytest.fixture(scope="module")
def answers() -> list[Answer]:
    """The short form, in two worker processes."""
    return list(examine(forms.tasks(forms.SHORT)))


# The first of these waits for all answers, on a loaded machine long: the examiner itself bounds each task.
@pytest.mark.timeout(0)
@pytest.mark.parametrize("question", dict.fromkeys(asked.question for asked in forms.SHORT))
def test_short_form(answers: list[Answer], question: str) -> None:
    limits = {task.key: limit for task, limit in forms.tasks(forms.SHORT)}
    asked = [a for a in answers if a.task.question == question]
    assert sum(a.outcome != "empty" for a in asked) > 100
    wrong = [
        f"{judged} {a.task.key}: {a.detail}"
        for a in asked
        if (judged := verdict(a, forms.is_whole(a.task, limits[a.task.key]))) in FAILING
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.timeout(0)
def test_bars(answers: list[Answer]) -> None:
    rates = [*summary.rates(answers), summary.on_host(answers)]
    assert {r.name for r in rates if r.bar} == {n for n, *_, bar in summary.BARS if bar} | {
        "no operator on the host"
    }
    missed = [f"{r.name}: {r.share:.2%}, bar {r.bar:.0%}" for r in rates if r.bar and not r.is_met]
    assert not missed, missed
    assert summary.without_reason(answers) == []


def test_every_expectation_has_a_task() -> None:
    known = [task for task, _ in forms.tasks(forms.SHORT + forms.LONG + forms.BESIDE)]
    # PyTorch's own tests need a checkout
    suite = [e for e in expectations() if e.question == "suite"]
    assert all(re.fullmatch(r"Test\w+::test_[\w*?\[\]]+", e.entry) and e.dtype == "*" for e in suite)
    others = [e for e in expectations() if e.question != "suite"]
    assert not [e for e in others if not any(e.covers(task) for task in known)]
    assert all(isinstance(e.reason, Reason) for e in expectations())


_SCRIPT = """
import json, os, sys
print("ready", flush=True)
for line in sys.stdin:
    task = json.loads(line)["task"]
    if task["entry"] == "crashes":
        os.abort()
    if task["entry"] == "hangs":
        while True:
            pass
    print(json.dumps({"task": task, "outcome": "pass", "samples": 1}), flush=True)
"""


def test_crashes_and_hangs_fail_one_task_each() -> None:
    names = ("a", "crashes", "b", "hangs", "c")
    tasks = [(Task("forward", "operators", name, "float32"), None) for name in names]
    got = list(examine(tasks, time_limit=0.5, command=(sys.executable, "-c", textwrap.dedent(_SCRIPT))))
    outcomes = {a.task.entry: a.outcome for a in got}
    assert outcomes == {"a": "pass", "crashes": "crash", "b": "pass", "hangs": "hang", "c": "pass"}
    (hang,) = [a for a in got if a.outcome == "hang"]
    assert hang.seconds > 0.5 and "processor time" in hang.detail


def test_a_task_awaiting_a_processor_is_no_hang() -> None:
    """A loaded machine: an hour by the clock, and a hundredth of it computed."""
    watch = Watch(now=0.0, computed=5.0)
    for second in range(0, 3600, 10):
        assert watch.objection(second, 5.0 + second / 100, limit=120.0) == ""
    assert watch.spent(computed=41.0) == 36.0
    assert "within 120 s of processor time" in watch.objection(3600.0, 5.0 + 121.0, limit=120.0)


def test_a_task_that_waits_forever_hangs() -> None:
    watch = Watch(now=0.0, computed=5.0)
    assert watch.objection(IDLE_LIMIT, 5.0, limit=600.0) == ""
    assert watch.objection(IDLE_LIMIT + 1, 5.5, limit=600.0) == ""  # it has worked meanwhile
    assert watch.objection(2 * IDLE_LIMIT, 5.5, limit=600.0) == ""
    assert "nothing computed" in watch.objection(2 * IDLE_LIMIT + 2, 5.5, limit=600.0)


def test_processor_time_is_that_of_the_process() -> None:
    before, own = processor_time(os.getpid()), time.process_time()
    while time.process_time() < own + 0.05:
        pass
    assert processor_time(os.getpid()) - before >= 0.05
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with pytest.raises(OSError):
        processor_time(ended.pid)


def test_a_wrong_result_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    info = database("operators")["sub"]
    honest = info.op

    def off_by_little(a: torch.Tensor, b: torch.Tensor, **options: object) -> torch.Tensor:
        result = honest(a, b, **options)
        return result + 1e-3 if result.device.type == "maca" else result

    monkeypatch.setattr(info, "op", off_by_little)
    answer = answer_task(Task("forward", "operators", "sub", "float32"), 3)
    assert answer.outcome == "fail" and answer.wrong == 3
    assert "close" in answer.detail


def test_wrong_gradients_and_wrong_outs_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    info = database("operators")["sin"]
    honest = info.op

    def steeper(t: torch.Tensor, **options: object) -> torch.Tensor:
        result = honest(t, **options)
        return result + 0 * result if t.device.type != "maca" or options else result + 1e-3 * (t - t.detach())

    def shifted(t: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        result = honest(t) if out is None else honest(t, out=out)
        return result.add_(1e-3) if out is not None and t.device.type == "maca" else result

    monkeypatch.setattr(info, "op", steeper)
    assert answer_task(Task("gradient", "operators", "sin", "float64"), 1).outcome == "fail"
    monkeypatch.setattr(info, "op", shifted)
    assert answer_task(Task("out", "operators", "sin", "float32"), 1).outcome == "fail"


def test_wrong_strides_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    info = database("operators")["cumsum"]
    honest = info.op

    def reordered(t: torch.Tensor, *args: object, **options: object) -> torch.Tensor:
        result = honest(t, *args, **options)
        return result.mT.contiguous().mT if t.device.type == "maca" else result

    monkeypatch.setattr(info, "op", reordered)
    assert answer_task(Task("strides", "operators", "cumsum", "float32"), 1).outcome == "fail"


def test_values_of_random_operators_only_are_free() -> None:
    def random(name: str, *operands: torch.Tensor) -> bool:
        return is_random(database("operators")[name], (operands[0], operands[1:], {}))

    ones = torch.ones(8)
    assert random("rand_like", ones) and random("normal", ones, ones) and random("empty_like", ones)
    assert not random("add", ones, torch.full((8,), torch.nan)) and not random("sort", ones)


def test_rounding_is_judged_by_float64() -> None:
    info = database("operators")["sum"]
    sample = (torch.tensor([1.0, 2.0**-11, 2.0**-11], dtype=torch.float16), (), {})
    exact = torch.tensor(1 + 2.0**-10, dtype=torch.float16)
    off = exact - 2.0**-10
    assert is_nearer(info, sample, exact.maca(), off)
    assert not is_nearer(info, sample, off.maca(), exact)
    assert not is_nearer(info, sample, torch.tensor(torch.nan, dtype=torch.float16).maca(), off)


def test_answers_survive_an_interruption(tmp_path) -> None:
    import json

    path = tmp_path / "answers.jsonl"
    answer = Answer(Task("forward", "operators", "add", "float32"), samples=3)
    path.write_text("stamp\n" + json.dumps(answer.as_json()) + "\n" + json.dumps(answer.as_json())[:20])
    assert kept.read_answers(path, "stamp") == {answer.task.key: answer}
    assert kept.read_answers(path, "of other code") == {}


@pytest.mark.parametrize("resume", [True, False])
def test_an_interrupted_run_goes_on(tmp_path, resume) -> None:
    path = tmp_path / "reports" / "answers.jsonl"
    asked = [(Task("forward", "operators", entry, "float32"), None) for entry in ("add", "mul", "sub")]
    given: list[str] = []

    def give(left):
        for task, _ in left:
            given.append(task.entry)
            yield Answer(task)

    first = kept.answers(asked, give, path, "stamp")
    next(first), next(first)
    first.close()
    path.write_text(path.read_text() + '{"task')  # the line that was being written
    entries = [answer.task.entry for answer in kept.answers(asked, give, path, "stamp", resume)]
    assert entries == ["add", "mul", "sub"]
    assert given[2:] == (["sub"] if resume else ["add", "mul", "sub"])
    assert len(kept.read_answers(path, "stamp")) == 3
    for of in ("stamp", "of other code"):  # of a whole run and of other code nothing is taken
        given.clear()
        assert len(list(kept.answers(asked, give, path, of))) == len(given) == 3


def _task_of(depends_on_processor: bool) -> Task:
    line = next(
        e
        for e in expectations()
        if not set("*[?") & set(e.entry + e.question)
        and (e.reason is Reason.PROCESSOR) == depends_on_processor
    )
    return Task(line.question, "operators", line.entry, "float32" if "*" in line.dtype else line.dtype)


def test_verdicts() -> None:
    task = _task_of(depends_on_processor=False)
    assert expected(task) is not None
    assert verdict(Answer(task, "fail")) == "xfail"
    assert verdict(Answer(task, "crash")) == "crash"
    assert verdict(Answer(task, "pass")) == "xpass"
    assert verdict(Answer(task, "pass"), whole=False) == "pass"
    either = _task_of(depends_on_processor=True)
    assert verdict(Answer(either, "fail")) == "xfail" and verdict(Answer(either, "crash")) == "crash"
    assert verdict(Answer(either, "pass")) == "pass"
