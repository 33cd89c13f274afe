"""Gloo as the carrier: collectives of contiguous host tensors, each of which returns when it is over.

Gloo moves bytes for every dtype. It computes only the reductions of which its result is the same in every run; the
others are folded here, in the order of the ranks.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Sequence

import torch
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    AllToAllOptions,
    BroadcastOptions,
    GatherOptions,
    ProcessGroupGloo,
    ReduceOp,
    ScatterOptions,
    Store,
)

from macatensor.distributed.reduction import Reduction
from macatensor.distributed.staging import as_bytes, together
from macatensor.runtime.boxed import Value


class GlooCarrier:
    """A context of gloo for one group. Its collectives are called in the same order on every rank."""

    name = "gloo"

    def __init__(self, store: Store, rank: int, ranks: int, timeout: datetime.timedelta):
        self.rank = rank
        self.ranks = ranks
        self._gloo: Value = ProcessGroupGloo(store, rank, ranks, timeout=timeout)

    def agree(self, call: str) -> None:
        """Raises on every rank where they do not all make the same call: gloo would move what it finds."""
        digest = hashlib.blake2b(call.encode(), digest_size=16).digest()
        mine = torch.frombuffer(bytearray(digest), dtype=torch.uint8)
        if any(not torch.equal(mine, other) for other in self.all_gather(mine)):
            raise RuntimeError(
                "the ranks called different collectives, or gave operands of different sizes or dtypes"
            )

    def all_reduce(self, host: torch.Tensor, reduction: Reduction, computes: bool) -> torch.Tensor:
        """The reduction of all ranks' tensors. ``computes``: by gloo itself."""
        if not host.numel():
            return host
        host = reduction.before(host)
        if computes:
            options = AllreduceOptions()
            options.reduceOp = ReduceOp(getattr(ReduceOp, reduction.name))
            self._gloo.allreduce([host], options).wait()
            return reduction.after(host, self.ranks)
        n = -(-host.numel() // self.ranks)
        padded = host.new_zeros(n * self.ranks)
        padded[: host.numel()] = host.reshape(-1)
        mine = self._fold_own(list(padded.chunk(self.ranks)), reduction)
        return torch.cat(self.all_gather(mine))[: host.numel()]

    def reduce_scatter(self, parts: Sequence[torch.Tensor], reduction: Reduction) -> torch.Tensor:
        """The reduction of the ranks' parts number ``rank``."""
        return self._fold_own([reduction.before(part) for part in parts], reduction)

    def _fold_own(self, parts: Sequence[torch.Tensor], reduction: Reduction) -> torch.Tensor:
        own = parts[self.rank]
        received = list(own.new_empty((len(parts), *own.shape)).unbind())
        self.all_to_all(received, parts)
        return reduction.fold(received)

    def broadcast(self, host: torch.Tensor, root: int) -> torch.Tensor:
        options = BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        if host.numel():
            self._gloo.broadcast([as_bytes(host)], options).wait()
        return host

    def all_gather(self, host: torch.Tensor, like: Sequence[torch.Tensor] = ()) -> list[torch.Tensor]:
        """Every rank's tensor; ``like``: tensors of their sizes, where these differ."""
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
        options = GatherOptions()
        options.rootRank = root
        if host.numel():
            targets = [[as_bytes(t) for t in received]] if root == self.rank else []
            self._gloo.gather(targets, [as_bytes(host)], options).wait()

    def scatter(self, target: torch.Tensor, parts: Sequence[torch.Tensor], root: int) -> None:
        options = ScatterOptions()
        options.rootRank = root
        if target.numel():
            sources = [[as_bytes(t) for t in parts]] if root == self.rank else []
            self._gloo.scatter([as_bytes(target)], sources, options).wait()

    def all_to_all(self, received: Sequence[torch.Tensor], parts: Sequence[torch.Tensor]) -> None:
        """Part i goes to rank i; part i of ``received`` comes from it."""
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
