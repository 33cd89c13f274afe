"""Rewrites sources written for CUDA into sources for ``maca``; the command is ``macatensor migrate``.

``rules`` says what becomes what, ``rewrite`` applies it to the syntax tree of one file, ``project`` walks a folder,
``distributed`` adds data parallel training, ``report`` writes the lists.
"""

from __future__ import annotations
