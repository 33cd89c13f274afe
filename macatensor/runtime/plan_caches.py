"""The caches of plans: bounded, counted, and dropped where a global changes that plans depend on."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Hashable, Iterator
from typing import Any, TypeVar

from macatensor.runtime import counters

_Plan = TypeVar("_Plan")  # what was decided
LIMIT = 4096  # plans kept for one operator overload; a full cache is emptied and counted
# oneDNN writes code for each product and convolution: with AVX-512 60 to 145 KB, which it keeps for the last 1024 anyway.
LIMIT_WITH_CODE = 1024
generation = 0  # how often plans were dropped: a plan under way meanwhile was made under the old value
_closed = 0  # blocks of closed() that are entered
_caches: list[weakref.ref[PlanCache[Any]]] = []


class PlanCache(dict[Hashable, _Plan]):
    """What was decided once, by signature. The C launchers read it as the dictionary that it is.

    ``kernel``: the name of the kernel that its plans launch, where they are to be counted by it; ``with_code``: do they keep
    code that a library wrote for them?
    """

    def __init__(self, kernel: str = "", with_code: bool = False):
        super().__init__()
        self.kernel = kernel
        self.limit = LIMIT_WITH_CODE if with_code else LIMIT
        _caches.append(weakref.ref(self, _caches.remove))

    def remember(self, key: Hashable, value: _Plan, begun: int) -> None:
        """Stores what was begun in generation ``begun``, unless a switch changed meanwhile, on another thread. A full
        cache starts anew, so that 10,000 signatures do not stay in memory."""
        if begun != generation or _closed:
            return
        if len(self) >= self.limit:
            counters.count("plan_evictions", len(self))
            self.clear()
        self[key] = value


def drop_plans() -> None:
    """Forgets every plan."""
    global generation
    generation += 1
    for cache in _live():
        cache.clear()


def _live() -> list[PlanCache[Any]]:
    return [cache for reference in list(_caches) if (cache := reference()) is not None]


@contextlib.contextmanager
def closed() -> Iterator[None]:
    """Plans stay and none is remembered: for a global that is another one inside, where nothing of it is launched."""
    global _closed
    _closed += 1
    try:
        yield
    finally:
        _closed -= 1


def count_plans(*kernels: str) -> int:
    """How many plans are kept; of some kernels, where these are named."""
    return sum(len(cache) for cache in _live() if not kernels or cache.kernel in kernels)
