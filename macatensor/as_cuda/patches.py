"""Attributes that are replaced for a while and put back as they were."""

from __future__ import annotations

from collections.abc import Callable

_ABSENT = object()


class Patches:
    """What was replaced where, and how to undo it."""

    def __init__(self) -> None:
        self.served: list[str] = []  # "torch.cuda.synchronize -> torch.maca.synchronize"
        self.missing: list[str] = []  # "torch.cuda.CUDAGraph"
        self._replaced: list[tuple[object, str, object]] = []
        self._undo: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        return bool(self._replaced)

    def replace(self, owner: object, name: str, value: object, note: str | None = None) -> None:
        """Sets ``owner.name``. The object found in the owner's own dictionary is what comes back."""
        self._replaced.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)
        if note is not None:
            self.served.append(note)

    def on_undo(self, action: Callable[[], None], note: str) -> None:
        """Records something done other than by an attribute."""
        self._undo.append(action)
        self.served.append(note)

    def undo(self) -> None:
        """Puts everything back, last first."""
        while self._replaced:
            owner, name, before = self._replaced.pop()
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        while self._undo:
            self._undo.pop()()
        self.served.clear()
        self.missing.clear()

    def attributes(self) -> list[tuple[object, str, object]]:
        """Owner, name and original object of each replaced attribute (None where there was none)."""
        return [(owner, name, None if old is _ABSENT else old) for owner, name, old in self._replaced]
