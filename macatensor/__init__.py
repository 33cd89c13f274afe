"""MacaTensor: the device ``maca`` for stock PyTorch, every operator visible in Python.

``import macatensor`` registers the device; :func:`maca` moves data to it.
"""

from __future__ import annotations

# ffi first: it loads the library, or says why not
from macatensor import ffi, registration, switches  # noqa: F401  isort: skip

registration.register()
switches.warn_of_unknown()

from macatensor import accuracy, device, layout  # noqa: E402
from macatensor.convert import maca  # noqa: E402
from macatensor.counting import counters, reset_counters  # noqa: E402
from macatensor.host_fallback import fallback  # noqa: E402
from macatensor.tensor import MacaTensor  # noqa: E402

__version__ = "0.1.0"
__all__ = ["MacaTensor", "accuracy", "counters", "device", "fallback", "layout", "maca", "reset_counters"]
