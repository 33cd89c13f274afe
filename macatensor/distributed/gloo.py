"""Gloo as the carrier: collectives of contiguous host tensors, each of which returns when it is over.

Gloo moves bytes for every dtype. It computes only the reductions of which its result is the same in every run; the
others are folded here, in the order of the ranks.
"""

from __future__ import annotations

import datetime
import hashlib
from collections import deque
from collections.abc import Sequence

import torch
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ProcessGroupGloo,
    ReduceOp,
    ScatterOptions,
    Store,
)

from macatensor.distributed.reduction import Reduction
from macatensor.distributed.snapshots import Source, Target
from macatensor.distributed.staging import as_bytes, together
from macatensor.runtime.awaited import no_waiting
from macatensor.runtime.boxed import Value
from macatensor.runtime.host_copies import download, host_address, upload

_BLOCK = 4 << 20  # bytes
_STAGES = 3  # blocks under way: one comes from the device, one is between the ranks, one goes to the device


def joined(store: Store, rank: int, ranks: int, timeout: datetime.timedelta) -> Value:
    """Gloo's context of a group, after every rank has joined it: a rank whose own connections stand could otherwise end
    the group while another still connects, which would wait for its whole time-out."""
    gloo: Value = ProcessGroupGloo(store, rank, ranks, timeout=timeout)
    gloo.barrier(BarrierOptions()).wait()
    return gloo


class GlooCarrier:
    """A context of gloo for one group. Its collectives are called in the same order on every rank."""

    name = "gloo"
    _agreement: tuple[Value, torch.Tensor, list[torch.Tensor]] | None = None

    def __init__(self, store: Store, rank: int, ranks: int, timeout: datetime.timedelta):
        self.rank = rank
        self.ranks = ranks
        self._gloo = joined(store, rank, ranks, timeout)
        self._stages: list[torch.Tensor] = []

    def begin(self, call: str) -> None:
        """``call`` is what the program called. What comes next waits until every rank has begun it."""
        digest = hashlib.blake2b(call.encode(), digest_size=16).digest()
        mine = torch.frombuffer(bytearray(digest), dtype=torch.uint8)
        every = list(mine.new_empty((self.ranks, mine.numel())).unbind())
        self._agreement = self._gloo.allgather([every], [mine], AllgatherOptions()), mine, every

    def agree(self) -> None:
        """Raises on every rank where they did not all begin the same call: gloo would move what it finds."""
        agreement, self._agreement = self._agreement, None
        if agreement is None:
            return
        work, mine, every = agreement
        work.wait()
        if any(not torch.equal(mine, other) for other in every):
            raise RuntimeError(
                "the ranks called different collectives, or gave operands of different sizes or dtypes"
            )

    def reduce(self, source: Source, target: Target | None, reduction: Reduction, computes: bool) -> None:
        """Of all ranks' operands. ``computes``: by gloo itself. ``target``: where it goes, if it goes here."""
        if computes:
            self._reduce_in_blocks(source, target, reduction)
            if target is not None:
                target.finish()
        else:
            reduced = self.all_reduce(source.host(), reduction)
            if target is not None:
                target.put(reduced)

    def _reduce_in_blocks(self, source: Source, target: Target | None, reduction: Reduction) -> None:
        """Through a few host buffers that stay: a new one of 64 MiB costs more in pages than its bytes cost to copy."""
        options = AllreduceOptions()
        options.reduceOp = ReduceOp(getattr(ReduceOp, reduction.name))
        under_way: deque[tuple[Value, torch.Tensor, int]] = deque()

        def finish_one() -> None:
            work, block, at = under_way.popleft()
            work.wait()
            if target is not None:
                done = reduction.after(block, self.ranks)
                with no_waiting():
                    upload(target.buffer, target.offset + at, host_address(done), done.nbytes)

        for number, at in enumerate(range(0, source.nbytes, _BLOCK)):
            if len(under_way) == _STAGES:
                finish_one()
            nbytes = min(_BLOCK, source.nbytes - at)
            if len(self._stages) == number < _STAGES:
                self._stages.append(torch.empty(_BLOCK, dtype=torch.uint8, device="cpu"))
            block = self._stages[number % _STAGES][:nbytes].view(source.dtype)
            with no_waiting():
                download(block, source.buffer, source.offset + at, nbytes)
            if reduction.factor is not None:
                block.copy_(reduction.before(block))
            self.agree()  # the first block has been copied meanwhile
            under_way.append((self._gloo.allreduce([block], options), block, at))
        while under_way:
            finish_one()
        self.agree()

    def all_reduce(self, host: torch.Tensor, reduction: Reduction) -> torch.Tensor:
        """The reduction of all ranks' tensors, in the order of the ranks."""
        self.agree()
        if not host.numel():
            return host
        host = reduction.before(host)
        n = -(-host.numel() // self.ranks)
        padded = host.new_zeros(n * self.ranks)
        padded[: host.numel()] = host.reshape(-1)
        mine = self._fold_own(list(padded.chunk(self.ranks)), reduction)
        return torch.cat(self.all_gather(mine))[: host.numel()]

    def reduce_scatter(self, parts: Sequence[torch.Tensor], reduction: Reduction) -> torch.Tensor:
        """The reduction of the ranks' parts number ``rank``."""
        self.agree()
        return self._fold_own([reduction.before(part) for part in parts], reduction)

    def _fold_own(self, parts: Sequence[torch.Tensor], reduction: Reduction) -> torch.Tensor:
        own = parts[self.rank]
        received = list(own.new_empty((len(parts), *own.shape)).unbind())
        self.all_to_all(received, parts)
        return reduction.fold(received)

    def broadcast(self, host: torch.Tensor, root: int) -> torch.Tensor:
        self.agree()
        options = BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        if host.numel():
            self._gloo.broadcast([as_bytes(host)], options).wait()
        return host

    def all_gather(self, host: torch.Tensor, like: Sequence[torch.Tensor] = ()) -> list[torch.Tensor]:
        """Every rank's tensor; ``like``: tensors of their sizes, where these differ."""
        self.agree()
        whole = host.new_empty((0 if like else self.ranks, *host.shape))
        received = [torch.empty_like(t) for t in like] or list(whole.unbind())
        if any(t.numel() for t in received):
            if len({t.numel() for t in received}) == 1:
                self._gloo.allgather(
                    [[as_bytes(t) for t in received]], [as_bytes(host)], AllgatherOptions()
                ).wait()
            else:
                for root, target in enumerate(received):
                    if root == self.rank:
                        target.copy_(host.view(target.shape))
                    self.broadcast(target, root)
        return received

    def gather(self, host: torch.Tensor, received: Sequence[torch.Tensor], root: int) -> None:
        self.agree()
        options = GatherOptions()
        options.rootRank = root
        if host.numel():
            targets = [[as_bytes(t) for t in received]] if root == self.rank else []
            self._gloo.gather(targets, [as_bytes(host)], options).wait()

    def scatter(self, target: torch.Tensor, parts: Sequence[torch.Tensor], root: int) -> None:
        self.agree()
        options = ScatterOptions()
        options.rootRank = root
        if target.numel():
            sources = [[as_bytes(t) for t in parts]] if root == self.rank else []
            self._gloo.scatter([as_bytes(target)], sources, options).wait()

    def all_to_all(self, received: Sequence[torch.Tensor], parts: Sequence[torch.Tensor]) -> None:
        """Part i goes to rank i; part i of ``received`` comes from it."""
        self.agree()
        into, out = together(received), together(parts)
        sizes = [t.nbytes for t in received], [t.nbytes for t in parts]
        self._gloo.alltoall_base(into, out, *sizes, AllToAllOptions()).wait()
        for target, source in zip(received, into.split(sizes[0])):
            if target.numel() and target.data_ptr() != source.data_ptr():
                as_bytes(target).copy_(source)

    def abort(self) -> None:
        self._gloo.abort()

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self._gloo.set_timeout(timeout)

    def barrier(self) -> None:
        self._gloo.barrier().wait()
