"""MacaTensor: the device ``maca`` for stock PyTorch, every operator visible in Python.

``import macatensor`` registers the device; :func:`maca` moves data to it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from macatensor.integration.interpreters import refuse_sub_interpreters  # isort: skip

refuse_sub_interpreters()

# then this: what follows may miss a name that an unknown PyTorch lacks
from macatensor.integration import pytorch_versions  # noqa: E402  isort: skip

pytorch_versions.warn_of_unknown()

# ffi then: it loads the library, or says why not
from macatensor.runtime import ffi, layout, switches  # noqa: E402, F401  isort: skip
from macatensor.integration import logs, registration  # noqa: E402

registration.register()
logs.begin()
switches.warn_of_unknown()

from macatensor import accuracy, device  # noqa: E402
from macatensor.choices import deciding as _deciding  # noqa: E402
from macatensor.choices.bank import Measured as _Measured  # noqa: E402
from macatensor.device.op_info import begin as _begin_op_info  # noqa: E402
from macatensor.dispatch.host_fallback import fallback  # noqa: E402
from macatensor.integration.convert import maca  # noqa: E402
from macatensor.runtime.counters import counters, reset_counters  # noqa: E402
from macatensor.runtime.launches import launches  # noqa: E402
from macatensor.runtime.tensor import MacaTensor  # noqa: E402


def _measure(asked: _deciding.Asked, signature: str) -> _Measured | None:
    from macatensor.tuning.measuring import measure  # with what knows of references: when it is needed

    return measure(asked, signature)


def _tune_file(path: Path) -> None:
    from macatensor.tuning.offline import tune

    tune(path)


_deciding.measure_with(_measure, _tune_file)
_begin_op_info()
sys.modules[f"{__name__}.layout"] = layout  # a public module, whichever folder it is in

__version__ = "0.1.0"
__all__ = [
    "MacaTensor",
    "accuracy",
    "counters",
    "device",
    "fallback",
    "launches",
    "layout",
    "maca",
    "reset_counters",
]
