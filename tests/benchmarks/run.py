"""Every benchmark with full budgets, as JSON on standard output: ``python tests/benchmarks/run.py [CASE...]``.

Exit status 1 when a bar is missed. Take figures on an idle machine. That the benchmarks work is tested in
tests/test_bench.py; times are no unit tests.
"""

from __future__ import annotations

import subprocess
import sys

if __name__ == "__main__":
    command = [sys.executable, "-m", "macatensor", "bench", "--json", *sys.argv[1:]]
    sys.exit(subprocess.run(command).returncode)
