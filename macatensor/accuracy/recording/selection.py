"""Which calls are recorded: ``op_range``, ``op_list`` and ``skip``."""

from __future__ import annotations

from collections.abc import Sequence

from macatensor.accuracy.recording.naming import check_known, is_of, nearest, parsed
from macatensor.accuracy.recording.threads import API, Open

_SEEN = 100_000  # names kept for the error about one that never came


class Selection:
    """Decides call by call, in the order in which calls begin.

    Raises:
        ValueError, TypeError: an argument of another form, or a name that this PyTorch does not know.
    """

    def __init__(self, op_range: Sequence[str | None], op_list: Sequence[str], skip: int):
        op_range, op_list = list(op_range or ()), list(op_list or ())
        if op_range and len(op_range) != 2:
            raise ValueError(
                f"accuracy: op_range is [first, past the last], with None for an open end; got {op_range}"
            )
        for name in op_range:
            if name is not None:
                check_known(parsed(name).op)
        self.first: str | None = op_range[0] if op_range else None
        self.past: str | None = op_range[1] if op_range else None
        if self.first is not None and self.first == self.past:
            raise ValueError(
                f"accuracy: op_range is half-open, so ['{self.first}', '{self.past}'] holds no call; name the call "
                "after it as the end, or None"
            )
        for word in op_list:
            if not isinstance(word, str):
                raise TypeError(f"accuracy: op_list holds names or kinds such as 'relu', got {word!r}")
            if "." in word:
                check_known(_op_of(word))
        if isinstance(skip, bool) or not isinstance(skip, int) or skip < 0:
            raise ValueError(
                f"accuracy: skip is how many calls to leave out after each, 0 or more; got {skip!r}"
            )
        self.op_list, self.skip = op_list, skip
        self.all = not op_range and not op_list and not skip
        self._inside = self.first is None
        self._missing = {name for name in (self.first, self.past) if name is not None}
        self._seen: list[str] = []
        self._units = 0
        self._matches: dict[str, bool] = {}
        self._is_found = not op_list
        self._exact = {word for word in op_list if word.endswith((".fwd", ".bwd"))}

    def known_as(self, call: Open, parent: Open | None, is_unit: bool) -> str:
        """The name by which ``op_range`` means the call, the next to begin."""
        return call.name

    def in_range(self, name: str) -> bool:
        """Is the call of this name, the next to begin, inside of op_range?"""
        if not self._missing:
            return self._inside
        if name in self._missing:
            self._missing.discard(name)
            if name == self.first and self.past != self.first:
                self._inside = self.past in self._missing or self.past is None
            if name == self.past:
                self._inside = False
        elif len(self._seen) < _SEEN:
            self._seen.append(name)
        return self._inside

    def matches(self, op: str, name: str) -> bool:
        """Is it of op_list?"""
        if not self.op_list:
            return True
        found = self._matches.get(op)
        if found is None:
            found = self._matches[op] = any(is_of(op, word) for word in self.op_list)
        self._is_found |= found or name in self._exact
        return found or name in self._exact

    def unit(self) -> bool:
        """Is the next unit one that ``skip`` records?"""
        taken = self._units % (self.skip + 1) == 0
        self._units += 1
        return taken

    def missing(self) -> str | None:
        """What to say at the end about names of op_range that never came, and an op_list that took no call."""
        if not self._missing:
            if self._is_found or not self._matches:  # nothing was called at all
                return None
            return f"accuracy: no call was of op_list {self.op_list}" + nearest(
                self.op_list[0], list(self._matches)
            )
        name = next(n for n in (self.first, self.past) if n in self._missing)
        assert name is not None
        return f"accuracy: op_range names {name!r}, which was not called" + nearest(name, self._seen)


class SelectionByExecution(Selection):
    """As mcPyTorch counts: a name's number says how many functions and modules had ended before, of whatever operator.

    What runs within a function or a module without submodules has its number; a backward call has its forward call's.
    """

    def __init__(self, op_range: Sequence[str | None], op_list: Sequence[str], skip: int):
        super().__init__(op_range, op_list, skip)
        self._begun = 0
        self._places: dict[str, int] = {}  # our name of a forward call, without its direction -> its number

    def known_as(self, call: Open, parent: Open | None, is_unit: bool) -> str:
        stem, _, direction = call.name.rpartition(".")
        if call.level != API or not self._missing:
            return call.name
        if direction == "bwd":
            place = self._places.get(stem, -1)
        elif parent is not None and parent.name.rpartition(".")[0] in self._places:
            place = self._places[stem] = self._begun - 1
        elif is_unit:
            place = self._places[stem] = self._begun
            self._begun += 1
        else:
            place = self._begun
        return f"{stem.rpartition('.')[0]}.{place}.{direction}"


def _op_of(word: str) -> str:
    return parsed(word).op if word.endswith((".fwd", ".bwd")) else word
