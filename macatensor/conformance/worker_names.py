"""What the worker is called, and the variables that it reads."""

from __future__ import annotations

import sys

COMMAND = (sys.executable, "-m", "macatensor.conformance.worker")
REPORTS = "MACA_VALIDATION_REPORTS"  # the folder of the layer's reports, one file a process
LAYOUTS = "MACA_CONFORMANCE_LAYOUTS"  # those that are asked, with commas between
