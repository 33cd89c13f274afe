"""Does a device library keep to maca.h? ``macatensor conform libmine.so`` asks, level by level, and says what is next.

=====  ====================================================================================================
level  what is asked
=====  ====================================================================================================
0      the library loads: sizes, slots, versions
1      memory, copies, streams, events, plans, errors, threads: each rule of the header, through the C interface
2      every kernel, against float64 references, in memory where what it touches is seen
3      streams, graphs, indices out of range, memory that runs out
4      PyTorch's own operator database
5      whole models, and their speed
=====  ====================================================================================================

Nothing of the library runs in this process: what crashes, hangs, exits or takes all memory costs a line.
"""

from __future__ import annotations

from macatensor.conformance.outcome import Line
from macatensor.conformance.runner import LEVELS, conform

__all__ = ["LEVELS", "Line", "conform"]
