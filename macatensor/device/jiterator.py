"""``torch.maca.jiterator``: refused. CUDA compiles a text of C++ while the program runs; a maca library is compiled
ahead of time and has no compiler. ``torch.library.custom_op`` with ``register_kernel("maca")`` is the way."""

from __future__ import annotations

from typing import NoReturn

_WHY = (
    "torch.maca compiles no code at run time: kernels come compiled in the device library. Write a "
    'torch.library.custom_op and register_kernel("maca") for it, or a kernel in the library.'
)


def _create_jit_fn(code_string: str, **kwargs: object) -> NoReturn:
    """Raises NotImplementedError."""
    raise NotImplementedError(_WHY)


def _create_multi_output_jit_fn(code_string: str, num_outputs: int, **kwargs: object) -> NoReturn:
    """Raises NotImplementedError."""
    raise NotImplementedError(_WHY)
