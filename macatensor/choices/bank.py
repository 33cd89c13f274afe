"""The bank: what was measured, one JSON object a line, in one file for each machine.

The first line says what the file is, its version and its machine. A later line of the same signature replaces an earlier
one, so files may be appended to one another. Whoever saves takes a lock, reads what others have saved meanwhile, adds its
own, and renames a new file into place: a reader meets the old file or the new one, never a part.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from macatensor.choices.machine import fingerprint, machine
from macatensor.files.untrusted import Json, parsed

try:
    import fcntl
except ImportError:  # pragma: no cover - no such locks there; a rename is still whole
    fcntl = None  # type: ignore[assignment]

_LOG = logging.getLogger(__name__)
KIND, VERSION = "macatensor tuning bank", 1
MOST_BYTES = 1 << 26  # of a file: some 100,000 signatures
MOST_LINE = 1 << 16
_MOST_NAME = 63  # characters of a way's name (maca.h)


@dataclass(frozen=True)
class Measured:
    """What was measured of one signature."""

    signature: str  # canonical JSON (macatensor.choices.signature)
    way: str  # the one to go; "": the library's own choice
    seconds: Mapping[str, float] = field(default_factory=dict)  # a call by each way that is right, medians
    wrong: tuple[str, ...] = ()  # ways whose results were outside of the row's bound
    call: Json = None  # the operator and its arguments, to be measured again

    @property
    def gain(self) -> float:
        """The chosen way's time over that of the library's own choice; 1 where nothing is known."""
        own, chosen = self.seconds.get("", 0.0), self.seconds.get(self.way, 0.0)
        return chosen / own if own > 0 and chosen > 0 else 1.0


def kernel_of(signature: str) -> str:
    """The kernel's name in a signature; "" in what is none."""
    try:
        facts = parsed(signature, "")
    except ValueError:
        return ""
    return str(facts.get("kernel", "")) if isinstance(facts, dict) else ""


def folder() -> Path:
    """Where banks are kept, where nobody says otherwise."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "macatensor" / "tuning"


def file_in(directory: Path) -> Path:
    """This machine's bank in a folder."""
    return directory / f"{fingerprint()}.jsonl"


_said: set[tuple[Path, str]] = set()


def _say_once(path: Path, what: str) -> None:
    if (path, what) not in _said:
        _said.add((path, what))
        _LOG.warning("%s: %s", path, what)


def _entry(value: Json) -> Measured:
    """A line's entry. Raises ValueError for what is none."""
    if not isinstance(value, dict):
        raise ValueError("no object")
    signature, way = value.get("signature"), value.get("way")
    seconds, wrong = value.get("seconds", {}), value.get("wrong", [])
    if not isinstance(signature, str) or not _is_name(way) or not isinstance(seconds, dict):
        raise ValueError("no entry of a bank")
    if not isinstance(wrong, list) or not all(_is_name(name) for name in wrong):
        raise ValueError("no list of ways")
    times = {
        name: float(taken)
        for name, taken in seconds.items()
        if _is_name(name) and isinstance(taken, (int, float)) and 0 < taken < 1e9
    }
    return Measured(signature, str(way), times, tuple(map(str, wrong)), value.get("call"))


def _is_name(value: object) -> bool:
    return (
        isinstance(value, str)
        and len(value) <= _MOST_NAME
        and value.isascii()
        and (value.isprintable() or not value)
    )


def read(path: Path, *, of_this_machine: bool = True) -> dict[str, Measured]:
    """What a bank holds, by signature. A file that is missing is empty; one that is no bank, of another version or, with
    ``of_this_machine``, of another machine is logged once as a warning and empty; so are damaged lines."""
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            _say_once(path, f"has {size} bytes, a bank at most {MOST_BYTES}; it is not read")
            return {}
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return {}
    except OSError as error:
        _say_once(path, f"cannot be read ({error}); choices are the library's own")
        return {}
    if not lines:
        return {}
    found: dict[str, Measured] = {}
    damaged = 0
    accepts = has_header = False
    for line in lines:
        try:
            if len(line) > MOST_LINE:
                raise ValueError("too long")
            value = parsed(line, "")
            if isinstance(value, dict) and "bank" in value:
                accepts, has_header = _accepts(path, value, of_this_machine), True
            elif accepts:
                entry = _entry(value)
                found[entry.signature] = entry
        except ValueError:
            damaged += 1
    if damaged:
        _say_once(path, f"{damaged} of {len(lines)} lines are damaged and left out")
    elif not has_header:
        _say_once(path, f"holds nothing that this version ({VERSION}) reads for this machine")
    return found


def _accepts(path: Path, header: Mapping[str, Json], of_this_machine: bool) -> bool:
    """May what follows this header be used here?"""
    if header.get("bank") != KIND or header.get("version") != VERSION:
        _say_once(path, f"is of version {header.get('version')!r}, this macatensor reads {VERSION}")
        return False
    if of_this_machine and header.get("machine") != machine():
        _say_once(path, "is of another machine or device library; its choices are not used")
        return False
    return True


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Alone among all processes that save to the file."""
    if fcntl is None:
        yield
        return
    with open(path.with_name(path.name + ".lock"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def save(path: Path, entries: Iterable[Measured]) -> int:
    """Adds entries to a file, theirs before what others have saved, and returns how many it has. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path):
        merged = read(path)
        for entry in entries:
            merged[entry.signature] = entry
        header = {"bank": KIND, "version": VERSION, "machine": machine()}
        lines = [json.dumps(header), *(json.dumps(asdict(e)) for e in merged.values())]
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".new")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write("\n".join(lines) + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
    return len(merged)
