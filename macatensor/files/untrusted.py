"""Files that others wrote: where they may lie, how much they may hold, what each of their values may be.

Records, stored runs and rules come from other machines and other people. Reading one ends in values of the declared
types, or in a ValueError that names the file; nothing outside of its folder is opened for it.
"""

from __future__ import annotations

import functools
import json
import math
import os
import reprlib
import stat
import types
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
# What JSON has. Whoever reads it asks of every value what it is, or lets :func:`made` ask.
Json: TypeAlias = "None | bool | int | float | str | list[Json] | dict[str, Json]"

# What a file may hold. All are far above what the tools write, and below what ends a process of a few GB.
JSON_BYTES = 1 << 31  # of a text; 100,000 recorded calls are 0.4 GB
PICKLE_BYTES = (
    1 << 25
)  # of a pickle, whose tensors lie beside it; 350,000 names of files, or a minute and 2 GB
DEPTH = 64  # of lists in lists
LEAVES = 1 << 18  # values in the nested lists of an argument: one list may stand in another many times
KEY = 1000  # characters of a key
ELEMENTS = (
    1 << 32
)  # of a tensor whose elements are read: an expanded one has any number of them in a few bytes
_INTEGER = 1 << 64


def member(folder: Path, name: object) -> Path:
    """The path of a file that a record names, relative to its folder.

    Raises:
        ValueError: the name is no text, or leads out of the folder, by itself or through a link, or to what is no file.
    """
    if not isinstance(name, str) or "\0" in name:
        raise ValueError(f"{folder} names {reprlib.repr(name)}, which is no name of a file")
    path = folder / name
    try:
        inside = path.resolve().is_relative_to(folder.resolve())
        mode = os.stat(path).st_mode if inside and path.exists() else stat.S_IFREG
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: a circle of links
        raise ValueError(f"{path} cannot be looked up: {error}") from error
    if not inside:
        raise ValueError(
            f"{path} lies outside of {folder}, and a record's files are read in its folder only; copy it there if it is "
            "the record's"
        )
    if not stat.S_ISREG(mode):
        raise ValueError(f"{path} is no file")
    return path


def text_of(path: Path) -> str:
    """A text file. Raises OSError, and ValueError for one that is no UTF-8 or larger than :data:`JSON_BYTES`."""
    size = path.stat().st_size
    if size > JSON_BYTES:
        raise ValueError(
            f"{path} has {size} bytes, more than the {JSON_BYTES} that are read; record fewer steps"
        )
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text in UTF-8: {error}") from None


def parsed(text: str, where: str) -> Json:
    """The value of a JSON text. Halves of surrogate pairs, which no file or terminal takes, become "?".

    Raises:
        ValueError: it is none, or is nested too deeply; ``where`` begins the message.
    """
    try:
        value: Json = json.loads(text)
        if "\\ud" in text or "\\uD" in text:
            value = json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
    except RecursionError:
        raise ValueError(f"{where}: nested too deeply; {DEPTH} levels are read") from None
    except ValueError as error:  # of JSON, or an integer of thousands of digits
        raise ValueError(f"{where}: {error}") from error
    return value


def json_of(path: Path) -> Json:
    """The value in a JSON file. Raises OSError and ValueError."""
    return parsed(text_of(path), str(path))


def leaves(value: object, place: str = "") -> Iterator[tuple[str, object]]:
    """What stands in nested lists, tuples and dictionaries, by dotted places.

    Raises:
        ValueError: there are more levels than :data:`DEPTH` or more values than :data:`LEAVES`.
    """
    work: list[tuple[str, object, int]] = [(place, value, 0)]
    count = 0
    while work:
        place, value, depth = work.pop()
        count += 1
        if count > LEAVES or depth > DEPTH:
            raise ValueError(
                f"an argument is nested more than {DEPTH} deep or holds more than {LEAVES} values: no call has such"
            )
        if isinstance(value, (list, tuple, dict)):
            if len(value) > LEAVES:
                raise ValueError(f"an argument of {len(value)} values; at most {LEAVES} are read")
            inside = value.items() if isinstance(value, dict) else enumerate(value)
            items = [(f"{place}.{k}" if place else str(k), v, depth + 1) for k, v in inside]
            work += reversed(items)
        else:
            yield place, value


def sizes(value: object, least: int = 0) -> list[int]:
    """Sizes, or strides, of a tensor as PyTorch could have them.

    Raises:
        ValueError: they are no list of integers of at least ``least``, or their product is beyond 63 bits.
    """
    if not isinstance(value, (list, tuple)) or not all(type(n) is int and n >= least for n in value):
        raise ValueError(f"expected a list of integers from {least}, got {reprlib.repr(value)}")
    if math.prod(n for n in value if n > 1) >= 1 << 63 or len(value) > DEPTH:
        raise ValueError(f"no tensor has the sizes {reprlib.repr(list(value))}")
    return list(value)


def readable(shape: list[int], stride: list[int] | None = None) -> None:
    """Refuses a tensor of more than :data:`ELEMENTS` elements, or that spreads over the memory of so many.

    Raises:
        ValueError: it is too large, or has another number of strides than of sizes.
    """
    spread = 1
    if stride is not None:
        if len(stride) != len(shape):
            raise ValueError(f"sizes {shape} with strides {stride}")
        spread += sum((n - 1) * s for n, s in zip(shape, stride) if n)
    if math.prod(shape) > ELEMENTS or (0 not in shape and spread > ELEMENTS):
        raise ValueError(
            f"a tensor of sizes {shape} and strides {stride} takes more than the {ELEMENTS} elements that are read; "
            "record less of it"
        )


# -- values of declared types
class _Unfit(Exception):
    """A value is not of its declared type: what was expected, and where in the value."""

    def __init__(self, expected: str, value: object):
        self.expected, self.value, self.path = expected, value, ""


_Reader = Callable[[object], object]
_PLAIN: dict[object, tuple[type, ...]] = {
    bool: (bool,), int: (int,), float: (int, float), str: (str,), type(None): (type(None),),
}  # fmt: skip


def _plain(kinds: frozenset[type], text: str) -> _Reader:
    def read(value: object) -> object:
        kind = type(value)
        if kind not in kinds or (isinstance(value, int) and not -_INTEGER < value < _INTEGER):
            raise _Unfit(text, value)
        return value

    return read


def _one_of(values: tuple[str, ...]) -> _Reader:
    def read(value: object) -> object:
        if not isinstance(value, str) or value not in values:
            raise _Unfit(" or ".join(map(repr, values)), value)
        return value

    return read


def _items(item: _Reader, length: int | None, kind: type) -> _Reader:
    def read(value: object) -> object:
        if not isinstance(value, list) or length not in (None, len(value)):
            raise _Unfit("a list" if length is None else f"a list of {length}", value)
        return kind([_under(item, v, i) for i, v in enumerate(value)])

    return read


def _table(item: _Reader) -> _Reader:
    def read(value: object) -> object:
        if not isinstance(value, dict):
            raise _Unfit("an object", value)
        return {k: _under(item, v, k) for k, v in value.items()}

    return read


def _under(item: _Reader, value: object, key: object) -> object:
    try:
        return item(value)
    except _Unfit as error:
        error.path = f"{str(key)[:80]}.{error.path}" if error.path else str(key)[:80]
        raise


def _or_null(reader: _Reader) -> _Reader:
    return lambda value: None if value is None else reader(value)


def _anything(value: object) -> object:
    for _ in leaves(value):
        pass
    return value


def _reader(hint: Any) -> _Reader:
    origin, given = get_origin(hint), get_args(hint)
    if hint is object:
        return _anything
    if origin is Literal:
        return _one_of(given)
    if origin in (Union, types.UnionType):
        if all(g in _PLAIN for g in given):
            names = " or ".join("null" if g is type(None) else g.__name__ for g in given)
            return _plain(frozenset(k for g in given for k in _PLAIN[g]), names)
        (other,) = [g for g in given if g is not type(None)]
        return _or_null(_reader(other))
    if origin is tuple:
        return _items(_reader(given[0]), len(given), tuple)
    if origin is dict:
        return _table(_reader(given[1]))
    if origin is not None:
        return _items(_reader(given[0]), None, list)
    if is_dataclass(hint):
        return lambda value: _made(hint, value)  # type: ignore[arg-type]  # looked up later: it may hold itself
    return _plain(frozenset(_PLAIN[hint]), hint.__name__)


@functools.cache
def _readers(kind: type) -> dict[str, _Reader]:
    hints = get_type_hints(kind)
    return {f.name: _reader(hints[f.name]) for f in fields(kind)}


def _is_needed(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _made(kind: type[T], held: object) -> T:
    if not isinstance(held, dict):
        raise _Unfit("an object", held)
    readers = _readers(kind)  # type: ignore[arg-type]  # mypy finds no hash in a class
    given = {}
    for name, value in held.items():
        reader = readers.get(name)
        if reader is None:
            raise _Unfit(f"one of the keys {', '.join(readers)}", name)
        try:
            given[name] = reader(value)
        except _Unfit as error:
            error.path = f"{name}.{error.path}" if error.path else name
            raise
    missing = [repr(f.name) for f in fields(kind) if _is_needed(f) and f.name not in given]  # type: ignore[arg-type]
    if missing:
        raise _Unfit(f"the key {', '.join(missing)} too", held)
    return kind(**given)


def made(kind: type[T], held: object, where: str) -> T:
    """A dataclass of the values of a JSON object, each of its field's type.

    Args:
        kind: a dataclass of None, bool, int, float, str, object, Literal, lists, tuples, dictionaries, other dataclasses.
        held: an object as :func:`parsed` gives it.
        where: the file, and the line or key, for the message.

    Raises:
        ValueError: a value is of another type, a key is unknown or missing, or an integer has more than 64 bits.
    """
    try:
        return _made(kind, held)
    except RecursionError:
        raise ValueError(f"{where}: nested too deeply; {DEPTH} levels are read") from None
    except ValueError as error:  # of what a class asks of its values
        raise ValueError(f"{where}: {error}") from None
    except _Unfit as error:
        key = f"{error.path}: " if error.path else ""
        raise ValueError(
            f"{where}: {key}expected {error.expected}, got {reprlib.repr(error.value)}"
        ) from None
