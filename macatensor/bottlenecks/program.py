"""Runs a program as Python would, inside of a measuring session."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from macatensor.bottlenecks.session import Enough, Session
from macatensor.files.scripts import run_as_main


def run(script: Path, arguments: Sequence[str], session: Session) -> int:
    """Runs ``script`` as ``__main__``; returns the exit status that it would have alone, 0 where it was stopped.

    What it raises is printed as Python prints it, from its own first line on.
    """
    try:
        with session.running():
            run_as_main(script, arguments)
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
