"""Messages by gloo, in blocks of host memory that stays: a new one of 64 MiB costs more in pages than its bytes cost to copy.

Every rank cuts a message into the same blocks, of tensors of the host too. One block is between the ranks while the next
comes from the device, or goes there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
from torch._C._distributed_c10d import Work

from macatensor.distributed.snapshots import Source, Target
from macatensor.distributed.staging import as_bytes
from macatensor.runtime.awaited import no_waiting
from macatensor.runtime.boxed import Value
from macatensor.runtime.host_copies import download, host_address, upload

BLOCK = 4 << 20  # bytes
_MOST_KEPT = 32  # blocks of a process that no message uses
_ANYBODY = -1

_kept: list[torch.Tensor] = []  # of BLOCK bytes each


def _room(nbytes: int) -> torch.Tensor:
    if nbytes < BLOCK // 4:  # the allocator of the host has those at hand
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu")
    try:
        return _kept.pop()[:nbytes]
    except IndexError:
        return torch.empty(BLOCK, dtype=torch.uint8, device="cpu")[:nbytes]


def _keep(room: torch.Tensor) -> None:
    """Nobody uses it any longer."""
    if room.untyped_storage().nbytes() == BLOCK and len(_kept) < _MOST_KEPT:
        _kept.append(room.new_empty(0).set_(room.untyped_storage()))


def _cuts(nbytes: int) -> list[tuple[int, int]]:
    """Where each block begins, and its bytes. A message of no bytes is one block too."""
    return [(at, min(BLOCK, nbytes - at)) for at in range(0, max(nbytes, 1), BLOCK)]


def parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """A host tensor as the blocks that another rank gives or awaits, or itself where it is one."""
    if tensor.nbytes <= BLOCK or not tensor.is_contiguous():  # which gloo refuses in its own words
        return [tensor]
    return list(as_bytes(tensor.detach()).split(BLOCK))


class Sending:
    """Tensors on their way to a rank. They may be written from now on."""

    def __init__(self, gloo: Value, tensors: Sequence[torch.Tensor], to: int, tag: int):
        self._under_way: deque[tuple[Work, torch.Tensor]] = deque()
        for tensor in tensors:
            source = Source(tensor)
            for at, nbytes in _cuts(source.nbytes):
                while self._under_way and self._under_way[0][0].is_completed():
                    self._finish_one()
                room = _room(nbytes)
                with no_waiting():
                    download(room, source.buffer, source.offset + at, nbytes)
                self._under_way.append((gloo.send([room], to, tag), room))

    def has_arrived(self) -> bool:
        return all(work.is_completed() for work, _ in tuple(self._under_way))

    def finish(self) -> None:
        while self._under_way:
            self._finish_one()

    def _finish_one(self) -> None:
        work, room = self._under_way.popleft()
        work.wait()
        _keep(room)


class Receiving:
    """Tensors that a rank sends, or anybody."""

    def __init__(self, gloo: Value, tensors: Sequence[torch.Tensor], source: int, tag: int):
        self._gloo, self._tag = gloo, tag
        self._source = source
        self._targets = [Target(t) for t in tensors]
        self._blocks = deque((t, *cut) for t in self._targets for cut in _cuts(t.nbytes))
        self._posted: deque[tuple[Work, torch.Tensor, Target, int]] = deque()
        self._post()

    def _post(self) -> None:
        """Asks for the blocks: of anybody's for the first, which says whose the others are."""
        while self._blocks:
            target, at, nbytes = self._blocks.popleft()
            room = _room(nbytes)
            if self._source != _ANYBODY:
                work = self._gloo.recv([room], self._source, self._tag)
            else:
                work = self._gloo.recv_anysource([room], self._tag)
            self._posted.append((work, room, target, at))
            if self._source == _ANYBODY:
                return

    def has_arrived(self) -> bool:
        return all(work.is_completed() for work, *_ in tuple(self._posted))

    def source_rank(self) -> int:
        return self._source

    def finish(self) -> None:
        while self._posted:
            work, room, target, at = self._posted.popleft()
            work.wait()
            if self._source == _ANYBODY:
                self._source = work._source_rank()
                self._post()
            if room.numel():
                with no_waiting():
                    upload(target.buffer, target.offset + at, host_address(room), room.numel())
            _keep(room)
        for target in self._targets:
            target.finish()
