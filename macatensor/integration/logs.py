"""The logger ``macatensor`` and what ``MACA_LOG_LEVEL`` says of it."""

from __future__ import annotations

import logging

from macatensor.runtime import switches

_NAMES = {"DEBUG": logging.DEBUG, "INFO": logging.INFO, "WARNING": logging.WARNING, "ERROR": logging.ERROR}


def begin() -> None:
    """Gives the logger the level of ``MACA_LOG_LEVEL`` and, where the program has configured no logging, a handler on
    standard error. Without a level the program's own logging decides, as of any library."""
    level, lines = switches.LOG_LEVEL.value(), switches.OP_INFO.value()
    if level is None and not lines:
        return
    logger = logging.getLogger("macatensor")
    if level is not None:
        logger.setLevel(_NAMES[level])
    if not logger.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
