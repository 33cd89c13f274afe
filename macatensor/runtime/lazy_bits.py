"""Lazy conjugates and negatives on the host, while an operator of ours runs.

PyTorch calls ``__torch_dispatch__`` with their dispatch keys off: what multiplies by ``t.conj()`` there multiplies by ``t``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

_KEYS = tuple(torch._C._dispatch_key_parse(name) for name in ("Conjugate", "Negative"))


@contextlib.contextmanager
def lazy_bits() -> Iterator[None]:
    """The host's operators that run inside see the lazy bits of their operands, as anywhere else."""
    excluded = [torch._C._dispatch_tls_is_dispatch_key_excluded(key) for key in _KEYS]
    for key in _KEYS:
        torch._C._dispatch_tls_set_dispatch_key_excluded(key, False)
    try:
        yield
    finally:
        for key, was in zip(_KEYS, excluded):
            torch._C._dispatch_tls_set_dispatch_key_excluded(key, was)
