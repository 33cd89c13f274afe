"""Who carries a group's collectives: the device library where it joins the ranks, gloo for the rest."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Sequence

import torch
from torch._C._distributed_c10d import PrefixStore, Store

from macatensor.distributed.gloo import GlooCarrier
from macatensor.distributed.library import LibraryCarrier, meet
from macatensor.distributed.snapshots import SharedBuffers
from macatensor.runtime import switches


class Way:
    """How one collective goes. ``library`` is None where the device library carries nothing of the group."""

    def __init__(self, carriers: Carriers, library: LibraryCarrier | None, call: str):
        self._carriers = carriers
        self._call = call
        self._has_begun = False
        self.library = library
        if library is not None:
            library.begin(call)

    def agree(self) -> None:
        """Returns when every rank makes this call. Raises where another one does."""
        if self.library is None or not self.library.agree():
            self.gloo().agree()

    def gloo(self) -> GlooCarrier:
        """For host tensors. It moves nothing where the ranks do not all make the same call."""
        gloo = self._carriers.gloo()
        if not self._has_begun:
            gloo.begin(self._call)
            self._has_begun = True
        return gloo


class Carriers:
    """Those of a group. They are made by its first collective, where its ranks meet, under a lock of the group's own:
    ranks whose groups begin in another order, each on a thread, do not wait for one another."""

    def __init__(self, store: Store, rank: int, ranks: int, timeout: datetime.timedelta):
        self._store = store
        self._rank = rank
        self._ranks = ranks
        self._timeout = timeout
        self._meeting = threading.RLock()
        self._has_met = False
        self._library: LibraryCarrier | None = None
        self._gloo: GlooCarrier | None = None
        self._shared = SharedBuffers()

    def way(self, call: str | None) -> Way:
        """For a collective that is the same ``call`` on every rank. None: a message, which nobody here carries."""
        return Way(self, None if call is None else self.library(), call or "")

    def library(self) -> LibraryCarrier | None:
        """Meets the other ranks where it has not yet."""
        if not self._has_met:
            with self._meeting:
                if not self._has_met:
                    store = PrefixStore("library/", self._store)
                    self._library = meet(store, self._rank, self._ranks, self._timeout)
                    self._has_met = True
        return self._library

    def gloo(self) -> GlooCarrier:
        """As :meth:`library`."""
        with self._meeting:
            if self._gloo is None:
                self._gloo = GlooCarrier(self._store, self._rank, self._ranks, self._timeout)
            return self._gloo

    def has_shared_memory(self) -> bool:
        return self.library() is not None and switches.COLLECTIVES.value() == "library"

    def see(self, tensors: Sequence[torch.Tensor]) -> None:
        """A collective of these is about to be issued: what comes again moves to memory that ranks share."""
        if self._library is not None:
            self._shared.see(tensors)

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self._timeout = timeout
        for carrier in (self._library, self._gloo):
            if carrier is not None:
                carrier.set_timeout(timeout)

    def abort(self) -> None:
        for carrier in (self._library, self._gloo):
            if carrier is not None:
                carrier.abort()
