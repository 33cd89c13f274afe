"""What is known to miss something, each with a reason; one that is mended fails the run until its line goes.

``parity_failures.txt`` has a line ``row: reason`` for each row of the op table; the coverage page counts them. What an
older PyTorch lacks stands here, by its version.
"""

from __future__ import annotations

from pathlib import Path

REASONS = {
    line.partition(":")[0].strip(): line.partition(":")[2].strip()
    for line in (Path(__file__).parent / "parity_failures.txt").read_text().splitlines()
    if line.strip() and not line.startswith("#")
}

# tests of `make versions` that ask for what came later
OF_PYTORCH = {
    "2.11": {
        "tests/test_autocast.py::test_custom_operators_choose_a_dtype": "register_autocast takes PyTorch's own devices",
        "tests/test_compile_programs.py::test_programs_compile_whole[custom_function-maca-True]": "AOTAutograd loses a "
        "symbolic size in a function with a hook behind it, on the CPU too",
        "tests/test_parity.py::test_row[_grid_sampler_2d_cpu_fallback_backward]": "calls the CPU's kernel on any device",
    }
}
