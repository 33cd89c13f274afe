"""The rules of maca.h asked of a library through the C interface itself: the runtime would hide its mistakes.

Nothing here imports PyTorch or the rest of macatensor, so the whole of it starts in a tenth of a second and one process
a rule is cheap. ``python -m abi`` in the folder above runs it; :mod:`macatensor.conformance.interface` does.
"""
