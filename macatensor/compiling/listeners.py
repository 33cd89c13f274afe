"""Who wants to know what is compiled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class Listeners(Generic[T]):
    """Lists that get everything that is told while somebody listens; it is true while there are any."""

    def __init__(self) -> None:
        self._lists: list[list[T]] = []

    def __bool__(self) -> bool:
        return bool(self._lists)

    def tell(self, what: T) -> None:
        """Gives it to everyone who listens."""
        for found in self._lists:
            found.append(what)

    def last(self) -> T | None:
        """What was told last to those who listen now."""
        return next((found[-1] for found in reversed(self._lists) if found), None)

    @contextmanager
    def listening(self) -> Iterator[list[T]]:
        """What is told inside."""
        found: list[T] = []
        self._lists.append(found)
        try:
            yield found
        finally:
            self._lists[:] = [other for other in self._lists if other is not found]
