"""What the check of a rule raises."""

from __future__ import annotations


class Broken(Exception):
    """The library breaks a rule; the text says what was given and what came back."""


class NotAsked(Exception):
    """The rule is about what this library does not have; the text says what that is."""


def expect(holds: object, text: str) -> None:
    """Raises :class:`Broken` with ``text`` unless ``holds``."""
    if not holds:
        raise Broken(text)
