"""``python -m abi LIBRARY [--limit SECONDS] [--memory BYTES] [RULE...]``: one line of JSON for each rule.

Every rule is asked in a forked child with the library loaded anew, so that one that crashes, hangs, exits or takes all
memory costs a line.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import sys
import tempfile
import time
from pathlib import Path

from . import communicators, loading, memory, plans, streams, ways  # noqa: F401 - each registers its rules
from .device import Opened
from .rules import RULES, Broken, NotAsked, Rule

_PAGE = os.sysconf("SC_PAGE_SIZE")


def _resident(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def _in_child(rule: Rule, path: Path, answers: int) -> None:
    """Asks the rule and writes verdict and text; ends the process."""
    verdict, text = "pass", ""
    try:
        d = Opened(path)
        if rule.opens:
            d.open()
        rule.check(d)
    except Broken as error:
        verdict, text = "FAIL", str(error)
    except NotAsked as error:
        verdict, text = "n/a", str(error)
    except OSError as error:
        verdict, text = "FAIL", f"the library does not load: {error}"
    except BaseException as error:
        verdict, text = "FAIL", f"{type(error).__name__}: {error}"
    os.write(answers, json.dumps([verdict, text]).encode())
    os._exit(0)


def ask(rule: Rule, path: Path, limit: float, most: int) -> dict[str, object]:
    """The rule's line: name, level, group, sentence, remedy, verdict, text, seconds."""
    reader, writer = os.pipe()
    printed = tempfile.TemporaryFile()
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)
        _in_child(rule, path, writer)
    os.close(writer)
    verdict, text, said = "FAIL", "", b""
    watch = select.poll()
    watch.register(reader, select.POLLIN | select.POLLHUP)
    while True:
        if watch.poll(50):
            piece = os.read(reader, 1 << 16)
            said += piece
            if not piece or _is_whole(said):
                break
        if time.monotonic() - started > limit:
            verdict, text = "FAIL", f"hangs: no answer within {limit:g} s"
            break
        if _resident(child) > most:
            verdict, text = "FAIL", f"takes memory without end: more than {most >> 20} MiB"
            break
    if not text and _is_whole(said):
        verdict, text = json.loads(said)
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        pass
    _, status = os.waitpid(child, 0)
    os.close(reader)
    if not text and not said:
        how = (
            f"crashes: {signal.strsignal(os.WTERMSIG(status)) or 'signal'} ({signal.Signals(os.WTERMSIG(status)).name})"
            if os.WIFSIGNALED(status)
            else f"ends the process with status {os.WEXITSTATUS(status)}; no function exits"
        )
        verdict, text = "FAIL", how
    printed.seek(0)
    output = printed.read(2000).decode(errors="replace").strip()
    if output and verdict != "FAIL":
        verdict, text = "FAIL", f"prints {output.splitlines()[0][:120]!r}; no function prints"
    elif output:
        text += f"; printed: {output[-300:]}"
    return {
        "name": rule.name, "level": rule.level, "group": rule.group, "sentence": rule.sentence, "remedy": rule.remedy,
        "verdict": verdict, "text": text, "seconds": round(time.monotonic() - started, 3),
    }  # fmt: skip


def _tell_kernels(d: Opened) -> None:
    raise NotAsked(json.dumps(d.kernels()))


def _is_whole(said: bytes) -> bool:
    try:
        json.loads(said)
    except ValueError:
        return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m abi", description=__doc__)
    parser.add_argument("library", type=Path)
    parser.add_argument("rules", nargs="*")
    parser.add_argument("--limit", type=float, default=60.0)
    parser.add_argument("--memory", type=int, default=4 << 30)
    parser.add_argument("--list", action="store_true", help="name the rules and ask none")
    parser.add_argument("--kernels", action="store_true", help="print the names of the library's kernels")
    chosen = parser.parse_args()
    if chosen.kernels:
        named = Rule("kernels", 0, "", "", "", _tell_kernels)
        answer = ask(named, chosen.library, chosen.limit, chosen.memory)
        print(answer["text"] if answer["verdict"] == "n/a" else "null")
        return 0
    rules = [RULES[name] for name in chosen.rules] or list(RULES.values())
    output = os.fdopen(os.dup(1), "w")
    for rule in rules:
        if chosen.list:
            line: dict[str, object] = {"name": rule.name, "level": rule.level, "sentence": rule.sentence}
        else:
            line = ask(rule, chosen.library, chosen.limit, chosen.memory)
        print(json.dumps(line), file=output, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
