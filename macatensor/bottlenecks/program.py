"""Runs a program as Python would, inside of a measuring session."""

from __future__ import annotations

import contextlib
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from macatensor.bottlenecks.session import Enough, Session


@contextlib.contextmanager
def _as_main(script: Path, arguments: Sequence[str]) -> Iterator[None]:
    argv, path = sys.argv, sys.path[:]
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path


def run(script: Path, arguments: Sequence[str], session: Session) -> int:
    """Runs ``script`` as ``__main__``; returns the exit status that it would have alone, 0 where it was stopped.

    What it raises is printed as Python prints it, from its own first line on.
    """
    try:
        with _as_main(script, arguments), session.running():
            runpy.run_path(str(script), run_name="__main__")
    except Enough:
        pass
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except BaseException as error:
        own = error.__traceback__
        while own is not None and own.tb_frame.f_code.co_filename != str(script):
            own = own.tb_next
        if own is None and not isinstance(error, SyntaxError):
            raise  # not the program's
        sys.stderr.flush()
        traceback.print_exception(type(error), error, own)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0
