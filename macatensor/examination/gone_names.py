"""Imports of test files of another version of PyTorch: names that its test package has no longer become decorators that
do nothing. It needs neither PyTorch nor macatensor loaded, so that a process without the device may use it."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType


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
        except ImportError as error:
            lacking = sys.modules.get(error.name or "")
            if (
                lacking is None
                or not lacking.__name__.startswith("torch.testing.")
                or hasattr(lacking, "__getattr__")
            ):
                raise
            vars(lacking)["__getattr__"] = _gone
