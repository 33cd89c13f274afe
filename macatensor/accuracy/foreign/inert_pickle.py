"""Pickles read without their power: a pickle is a program, and this is a machine that has no instruction to do harm.

Texts, numbers and containers are made; a name is looked up by the caller, who gives a :class:`Known` or a plain value,
never something of Python's own that can be called; only a :class:`Known` is called, and only an :class:`Inert` gets a
state. The bound of the pickle's size bounds the work: every instruction is a byte at least, and none makes more than
its bytes say. What is shared may stand in many places: who walks through the value counts (``untrusted.leaves``), and
what is hashed is flat.
"""

from __future__ import annotations

import pickletools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from macatensor.files.untrusted import KEY

_T = TypeVar("_T")
Set: TypeAlias = "set[object] | frozenset[object]"

_INTEGER = 1 << 128
_HASHED = 64  # parts of a key: tuples of tuples that share theirs are hashed again and again


class Refused(ValueError):
    """The pickle asks for what no record needs."""


@dataclass(frozen=True)
class Known:
    """A name that may be called, and what is done instead of calling it."""

    name: str
    make: Callable[..., object]

    def __repr__(self) -> str:
        return f"<{self.name}>"


@dataclass(frozen=True)
class InertClass:
    """A class that is known by name only."""

    name: str

    def __repr__(self) -> str:
        return f"<class {self.name}>"


class Inert:
    """An object of a class that is not made: its name, and what it would have held."""

    def __init__(self, name: str):
        self.name = name
        self.state: object = None

    def __repr__(self) -> str:
        return f"<{self.name}>"


def _check_hashed(value: object, left: int = _HASHED) -> int:
    """Refuses what costs much to hash. Returns how many parts may follow."""
    if isinstance(value, (str, bytes)) and len(value) > KEY:
        raise Refused(f"a key of {len(value)} characters")
    if isinstance(value, (tuple, frozenset)):
        for item in value:
            left = _check_hashed(item, left - 1)
    elif isinstance(value, (list, dict, set)):
        raise Refused(f"a {type(value).__name__} as a key")
    if left < 0:
        raise Refused(f"a key of more than {_HASHED} parts")
    return left


def _atom_set(kind: type[Set], items: Sequence[object]) -> Set:
    for item in items:
        _check_hashed(item)
    return kind(items)


def a_set(kind: type[Set]) -> Callable[..., Set]:
    """What makes a set of a list of its items; of a range, which names any number of them in a few bytes, it does not."""

    def make(items: object = ()) -> Set:
        if not isinstance(items, (list, tuple)):
            raise Refused(f"a set of a {type(items).__name__}")
        return _atom_set(kind, items)

    return make


class Machine:
    """Runs one pickle.

    ``find``: what a name stands for. ``persistent``: what a persistent id stands for. Both raise :class:`Refused`.
    """

    def __init__(self, find: Callable[[str, str], object], persistent: Callable[[object], object]):
        self.find, self.persistent = find, persistent
        self.stack: list[object] = []
        self.marks: list[int] = []
        self.memo: dict[int, object] = {}

    def run(self, data: bytes) -> object:
        """The pickled value.

        Raises:
            Refused: it asks for what no record needs.
            Exception: it is damaged; of any class.
        """
        for instruction, argument, _ in pickletools.genops(data):
            name = instruction.name
            if name == "STOP":
                break
            if name in _VALUES:
                if isinstance(argument, str):  # halves of surrogate pairs: no file and no terminal takes them
                    argument = argument.encode(errors="replace").decode()
                elif isinstance(argument, int) and not -_INTEGER < argument < _INTEGER:
                    raise Refused("an integer of more than 128 bits")
                self.stack.append(argument)
            elif name in _MAKES:
                self.stack.append(_MAKES[name]())
            elif name in _STEPS:
                _STEPS[name](self, argument)
            elif name not in ("PROTO", "FRAME"):
                raise Refused(f"the instruction {name}, which no record needs")
        (value,) = self.stack
        return value

    def top(self, kinds: type[_T] | tuple[type[_T], ...], what: str) -> _T:
        """The value on top, which the next instruction changes."""
        value = self.stack[-1]
        if not isinstance(value, kinds):
            raise Refused(f"{what} of a {type(value).__name__}")
        return value

    def marked(self) -> list[object]:
        """What was put there since the last mark."""
        at = self.marks.pop()
        items = self.stack[at:]
        del self.stack[at:]
        return items

    def taken(self, count: int) -> list[object]:
        items = self.stack[-count:]
        if len(items) < count:
            raise IndexError("the stack is empty")
        del self.stack[-count:]
        return items

    # -- instructions
    def mark(self, _: object) -> None:
        self.marks.append(len(self.stack))

    def pop(self, _: object) -> None:
        if self.marks and self.marks[-1] == len(self.stack):
            self.marks.pop()
        else:
            self.stack.pop()

    def pop_mark(self, _: object) -> None:
        self.marked()

    def put(self, place: int | None) -> None:
        self.memo[len(self.memo) if place is None else int(place)] = self.stack[-1]

    def get(self, place: int) -> None:
        self.stack.append(self.memo[int(place)])

    def tuple_of(self, count: int) -> None:
        self.stack.append(tuple(self.taken(count)))

    def tuple_marked(self, _: object) -> None:
        self.stack.append(tuple(self.marked()))

    def frozen(self, _: object) -> None:
        self.stack.append(_atom_set(frozenset, self.marked()))

    def append(self, _: object) -> None:
        (item,) = self.taken(1)
        self.top(list, "an item").append(item)

    def appends(self, _: object) -> None:
        items = self.marked()
        self.top(list, "items").extend(items)

    def add_items(self, _: object) -> None:
        items = self.marked()
        self.top(set, "members").update(_atom_set(set, items))

    def set_item(self, _: object) -> None:
        self._set(self.taken(2))

    def set_items(self, _: object) -> None:
        self._set(self.marked())

    def _set(self, items: list[object]) -> None:
        held = self.top(dict, "an entry")
        for key, value in zip(items[::2], items[1::2], strict=True):
            _check_hashed(key)
            held[key] = value

    def name(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        self.stack.append(self.find(module, name))

    def name_on_stack(self, _: object) -> None:
        module, name = self.taken(2)
        if not (isinstance(module, str) and isinstance(name, str)):
            raise Refused("a name that is no text")
        self.stack.append(self.find(module, name))

    def call(self, _: object) -> None:
        what, given = self.taken(2)
        if not isinstance(given, tuple):
            raise Refused("a call without a tuple of arguments")
        if isinstance(what, InertClass):
            self.stack.append(Inert(what.name))
        elif isinstance(what, Known):
            self.stack.append(what.make(*given))
        else:
            raise Refused(f"a call of a {type(what).__name__}")

    def make_object(self, count: int) -> None:
        what = self.taken(count)[0]
        if not isinstance(what, InertClass):
            raise Refused(f"a new object of a {type(what).__name__}")
        self.stack.append(Inert(what.name))

    def build(self, _: object) -> None:
        (state,) = self.taken(1)
        held = self.top((Inert, OrderedDict), "a state")  # a state_dict has one beside its entries
        if isinstance(held, Inert):
            held.state = state

    def persistent_id(self, _: object) -> None:
        self.stack.append(self.persistent(self.taken(1)[0]))


_VALUES = frozenset(
    "BININT BININT1 BININT2 LONG1 LONG4 BINFLOAT SHORT_BINUNICODE BINUNICODE BINUNICODE8 SHORT_BINBYTES BINBYTES "
    "BINBYTES8".split()
)
_MAKES: dict[str, Callable[[], object]] = {
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False,
    "EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple, "EMPTY_SET": set,
}  # fmt: skip
_STEPS: dict[str, Callable[..., None]] = {
    "MARK": Machine.mark, "POP": Machine.pop, "POP_MARK": Machine.pop_mark,
    "BINPUT": Machine.put, "LONG_BINPUT": Machine.put, "MEMOIZE": Machine.put,
    "BINGET": Machine.get, "LONG_BINGET": Machine.get,
    "TUPLE": Machine.tuple_marked, "TUPLE1": lambda m, _: m.tuple_of(1), "TUPLE2": lambda m, _: m.tuple_of(2),
    "TUPLE3": lambda m, _: m.tuple_of(3), "FROZENSET": Machine.frozen,
    "APPEND": Machine.append, "APPENDS": Machine.appends, "ADDITEMS": Machine.add_items,
    "SETITEM": Machine.set_item, "SETITEMS": Machine.set_items,
    "GLOBAL": Machine.name, "STACK_GLOBAL": Machine.name_on_stack, "REDUCE": Machine.call,
    "NEWOBJ": lambda m, _: m.make_object(2), "NEWOBJ_EX": lambda m, _: m.make_object(3),
    "BUILD": Machine.build, "BINPERSID": Machine.persistent_id,
}  # fmt: skip
