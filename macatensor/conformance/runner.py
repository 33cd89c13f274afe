"""Asks the levels in turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from macatensor.conformance import interface, kernels, programs
from macatensor.conformance.outcome import ABSENT, FAIL, Line

LEVELS = {
    0: "it loads",
    1: "memory, copies, streams, events, plans, errors, threads",
    2: "kernels",
    3: "streams, graphs, indices, memory that runs out",
    4: "PyTorch's operator database",
    5: "models and their speed",
}


def conform(
    library: Path,
    levels: Sequence[int] = (0, 1, 2, 3),
    patterns: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    layouts: Sequence[str] = (),
    workers: int = 2,
    limit: float = 60.0,
) -> Iterator[Line]:
    """Lines as they come. A library that does not load, or fails a rule of level 0, is asked nothing more.

    ``patterns``: rows of levels 2 and 3, as `macatensor parity` takes them; ``limit``: seconds for one line.
    """
    library = library.resolve()
    failed = False
    if {0, 1} & set(levels):
        for at in (0, 1):
            names = [rule.name for rule in interface.rules() if rule.level == at and at in levels]
            if not names or failed:
                continue
            for line in interface.ask(library, names, limit):
                failed |= line.level == 0 and line.verdict == FAIL
                yield line
    if failed:
        return
    if {2, 3} & set(levels):
        have = interface.kernels_of(library, limit)
        if have is None:
            text = "the library does not open, or does not name its kernels, in a process of its own"
            yield Line("kernels", 2, "kernels", FAIL, text, remedy=f"macatensor conform {library} --level 0")
            return
        if not have:
            yield Line(
                "kernels", 2, "kernels", ABSENT, "the library has no kernels", remedy=_next_kernel(have)
            )
        if 2 in levels and have:
            yield from kernels.ask_kernels(library, have, patterns, dtypes, layouts, workers, 2 * limit)
        if 3 in levels:
            yield from kernels.ask_behaviours(library, have, patterns, workers, 2 * limit)
    if 4 in levels:
        yield from programs.database(library)
    if 5 in levels:
        yield from programs.models(library)
        yield from programs.speed(library)


def _next_kernel(have: Sequence[str]) -> str:
    missing = kernels.missing_kernels(have)
    return (
        f"write {missing[0]}; `macatensor ops --kernels {missing[0]}` shows what it is asked for"
        if missing
        else ""
    )


def next_step(lines: Sequence[Line], library: Path) -> str:
    """One sentence that says what to do next, by the lowest level where something is wrong."""
    for line in sorted(lines, key=lambda x: x.level):
        if line.verdict == FAIL:
            return f"{line.name}: {line.text}. " + (f"Next: {line.remedy}" if line.remedy else "Mend it.")
    if not lines:
        return "Nothing was asked."
    top = max(line.level for line in lines)
    if top < 5 and top != 2 and top != 3:
        return f"All that was asked of levels up to {top} holds. Next: `macatensor conform {library} --level {top + 1}`"
    have = interface.kernels_of(library) or []
    missing = kernels.missing_kernels(have)
    if missing:
        some = ", ".join(missing[:5])
        return f"All that was asked holds. {len(missing)} kernels run on the host; most programs want {some} first."
    return "All that was asked holds."
