"""Importing this lets 4-D tensors keep their layout when they are transferred, in the whole process.

``macatensor migrate`` writes ``import macatensor.nchw``: a script for CUDA may ask for the strides that its own layout
gives, as ``x.view(len(x), -1)`` after a convolution does. ``layout.policy("nhwc")`` still changes it for a block.
"""

from __future__ import annotations

from macatensor.runtime.layout import policy

_kept = policy("nchw")
_kept.__enter__()
