"""Launches of a tape that follow one another become one: a ``pointwise_program``.

A tape knows each launch by its plan's request (kernel, operands, attributes) and by the memory it touches. A launch
joins a group that wrote what it reads, element for element, where nothing between them touches the group's memory: the
group then runs in its last launch's place. Whatever names and views the tensors had, here they are ranges of memory, so
views between the operators are no obstacle. What only the group reads is never written.

Besides elementwise kernels these may be such as compute each row of dense memory by itself (sums over the last
dimensions, softmax, layer norm): a group then works on whole rows, and on what has one element a row.

The kernel runs the parts as they are, a tile at a time, so that every bit is the same. A library that declines the
program keeps the parts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from macatensor.compiling import fused
from macatensor.compiling.launches import Extent, Launch, Source, Touch, read_launch
from macatensor.dispatch.request import Declined, Request
from macatensor.runtime.ffi import ffi, native
from macatensor.runtime.meta import Meta

if TYPE_CHECKING:
    from macatensor.runtime.ffi import CData

_MOST_PARTS = 24
# A sum of two tensors and the softmax or layer norm of it take as long apart: what one memory access costs less, the
# processor's foresight loses between rows.
_LEAST_BY_ROWS = 3


@dataclass(eq=False)
class Group:
    """Launches that become one. ``row``: elements of a row, 0 where no member works on rows."""

    count: int  # elements
    row: int = 0
    members: list[Launch] = field(default_factory=list)
    touches: list[Touch] = field(default_factory=list)
    written: dict[tuple[int, int], tuple[Meta, Extent]] = field(
        default_factory=dict
    )  # results, by where they are

    def add(self, launch: Launch) -> None:
        on = self.extent_of(launch)
        assert on is not None
        self.row = launch.row or self.row
        self.members.append(launch)
        self.touches += launch.touches
        for touch, meta, extent in launch.results:
            self.written[touch.place] = meta, extent if launch.row else on

    def extent_of(self, launch: Launch) -> Extent | None:
        """What the launch's index space is in the group's; None where they do not agree."""
        if launch.count == self.count:
            return Extent.ELEMENTS if launch.row in (0, self.row or launch.row) else None
        return Extent.ROWS if self.row and not launch.row and launch.count * self.row == self.count else None


def fuse(tape: native.Tape, requests: Mapping[int, Request]) -> tuple[list[list[int]], list[tuple[int, int]]]:
    """Fuses what can be of a tape that has been recorded; ``requests`` by the number of their programs. The indices of the
    steps that became one, for each; and stand-ins of which the second may take the first's memory, if that ends there."""
    readers: dict[int, set[int]] = defaultdict(set)  # of each stand-in, by the launches' indices
    steps = []
    for i, (program, scalars, touched) in enumerate(tape.steps()):
        touches = [Touch(*t) for t in touched]
        for touch in touches:
            if not touch.writes:
                readers[touch.memory].add(i)
        steps.append((touches, read_launch(i, requests.get(program), touches, scalars)))
    programs: dict[object, CData | None] = {}
    made = []
    apart = {launch.index: launch for _, launch in steps if launch is not None}
    heirs = []
    for group in _groups(steps):
        if len(group.members) < (_LEAST_BY_ROWS if group.row else 2):
            continue
        built = fused.Program(
            group.members, group.count, group.row, _private(group, readers, tape.is_scratch)
        )
        key = built.key()
        if key not in programs:
            try:
                programs[key] = built.request().create_program(
                    "a compiled program", [False] * len(built.inputs), in_memory=True
                )
            except Declined:
                programs[key] = None
        held = programs[key]
        if held is not None:
            address = int(ffi.cast("intptr_t", held))
            made.append(([m.index for m in group.members], address, built.places()))
            heirs += built.heirs(group.members)
            for member in group.members:
                del apart[member.index]
    tape.fuse(made)
    heirs += [pair for launch in apart.values() for pair in launch.heirs()]
    return [indices for indices, _, _ in made], [pair for pair in heirs if min(pair) >= 0]


def _private(
    group: Group, readers: Mapping[int, set[int]], is_scratch: Callable[[int], bool]
) -> Callable[[int], bool]:
    """Does the group alone read this memory?"""
    indices = {m.index for m in group.members}
    return lambda memory: memory >= 0 and is_scratch(memory) and readers.get(memory, set()) <= indices


def _groups(steps: Sequence[tuple[list[Touch], Launch | None]]) -> Iterator[Group]:
    still_open: list[Group] = []
    for touches, launch in steps:
        joined = _group_for(launch, still_open) if launch is not None else None
        for group in list(still_open):
            if group is not joined and _conflicts(touches, group.touches):
                still_open.remove(group)
                yield group
        if launch is None:
            continue
        if joined is None:
            joined = Group(launch.count)
            still_open.append(joined)
        joined.add(launch)
    yield from still_open


def _conflicts(some: list[Touch], others: list[Touch]) -> bool:
    """Would it be wrong to change their order?"""
    return any((a.writes or b.writes) and a.meets(b) for a in some for b in others)


def _group_for(launch: Launch, still_open: list[Group]) -> Group | None:
    """The group that it joins: all of those together that it reads results of, where that may be, else the last."""
    read = [g for g in still_open if any(s is not None and s.place in g.written for s in launch.sources)]
    rows = {g.row for g in read} - {0}
    if len(read) > 1 and len({g.count for g in read}) == 1 and len(rows) <= 1:
        together = Group(read[0].count, max(rows, default=0))
        for group in read:  # each is open still, so none of them touches what another wrote
            together.members += group.members
            together.touches += group.touches
            together.written |= group.written
        if _joins(launch, together):
            together.members.sort(key=lambda member: member.index)
            still_open[:] = [g for g in still_open if g not in read] + [together]
            return together
    return next((g for g in reversed(read) if _joins(launch, g)), None)


def _joins(launch: Launch, group: Group) -> bool:
    """Does it read what the group wrote, and may it run with it, tile by tile?"""
    on = group.extent_of(launch)
    if on is None or len(group.members) >= _MOST_PARTS:
        return False
    reads = False
    for source, touch in zip(launch.sources, launch.touches):
        if source is None:
            continue
        if _is_register(source, on, group, launch.row):
            reads = True
        elif on is Extent.ROWS or any(t.writes and t.meets(touch) for t in group.touches):
            return False  # in another order than it was written
    if not reads:
        return False
    for written, meta, _ in launch.results:
        for member in (*group.members, launch):
            for source, touch in zip(member.sources, member.touches):
                if source is not None and touch.meets(written) and not _is_same(source, written, meta):
                    return False
        for other in group.touches:
            if other.writes and other.meets(written) and other.place != written.place:
                return False
        known = group.written.get(written.place)
        if known is not None and known[0].numel != meta.numel:
            return False
    return True


def _is_register(source: Source, on: Extent, group: Group, row: int) -> bool:
    """Is it what the group wrote, as its parts may read it?"""
    known = group.written.get(source.place)
    if known is None or known[0].dtype is not source.meta.dtype or source.extent is not Extent.ELEMENTS:
        return False
    if known[1] is on:
        return source.is_direct
    row = row or group.row
    return (
        on is Extent.ELEMENTS
        and known[1] is Extent.ROWS
        and source.meta.size == (group.count // row, row)
        and source.meta.stride == (1, 0)
    )


def _is_same(source: Source, written: Touch, meta: Meta) -> bool:
    """Does it lie where the result does, element for element?"""
    return source.is_direct and source.place == written.place and source.meta.numel == meta.numel
