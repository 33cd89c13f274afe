"""The name under which scripts written for mcPyTorch import the accuracy tool: ``from maca_tools import accuracy``."""

import sys

from macatensor.maca_tools import accuracy

sys.modules[f"{__name__}.accuracy"] = accuracy  # for ``import maca_tools.accuracy``

__all__ = ["accuracy"]
