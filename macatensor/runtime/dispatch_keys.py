"""Dispatch keys that PyTorch has turned off where an operator of ours runs, turned on for what is called there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

_LAZY = tuple(torch._C._dispatch_key_parse(name) for name in ("Conjugate", "Negative"))


@contextlib.contextmanager
def not_excluded(*keys: torch._C.DispatchKey) -> Iterator[None]:
    """Operators of this thread that run inside see ``keys``."""
    excluded = [torch._C._dispatch_tls_is_dispatch_key_excluded(key) for key in keys]
    for key in keys:
        torch._C._dispatch_tls_set_dispatch_key_excluded(key, False)
    try:
        yield
    finally:
        for key, was in zip(keys, excluded):
            torch._C._dispatch_tls_set_dispatch_key_excluded(key, was)


def lazy_bits() -> contextlib.AbstractContextManager[None]:
    """The host's operators that run inside see the lazy conjugates and negatives of their operands, as anywhere else.

    PyTorch calls ``__torch_dispatch__`` with their keys off: what multiplies by ``t.conj()`` there multiplies by ``t``.
    """
    return not_excluded(*_LAZY)
