"""For tests of compiled programs: Dynamo begins anew, and tells how many graphs it has made."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    """Of every test of the file that imports it."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])
