"""Runs the scripts of ``docs/launchers`` with two ranks each: ``python tests/other_launchers/run.py [WORD ...]``.

``DS_BUILD_OPS=0 pip install --no-build-isolation -r tests/other_launchers/requirements.txt`` installs the launchers;
one that is missing is said and fails nothing. Exit status 1 where a script fails or a rank says nothing of its loss.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "docs" / "launchers"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
ACCELERATE = [
    sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "2", "--multi_gpu", "--num_machines", "1",
    "--mixed_precision", "no", "--dynamo_backend", "no",
]  # fmt: skip
CASES = {  # the package that it needs, how it starts, the script with its arguments
    "torchrun": ("torch", TORCHRUN, "with_torchrun.py", []),
    "accelerate": ("accelerate", ACCELERATE, "with_accelerate.py", []),
    "lightning": ("lightning", TORCHRUN, "with_lightning.py", []),
    "deepspeed ZeRO-1": ("deepspeed", TORCHRUN, "with_deepspeed.py", ["1"]),
    "deepspeed ZeRO-2": ("deepspeed", TORCHRUN, "with_deepspeed.py", ["2"]),
}
SAID = re.compile(r"rank (\d) of 2: loss (\d+\.\d+) on maca:0")


def run(name: str) -> str:
    """What came of a case; "passed" first where it did."""
    package, begin, script, arguments = CASES[name]
    if importlib.util.find_spec(package) is None:
        return f"not installed: {package}"
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [*begin, str(SCRIPTS / script), *arguments]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired as error:
        return f"failed: it has not ended\n{error.stdout!r}\n{error.stderr!r}"
    losses = dict(SAID.findall(done.stdout))
    if done.returncode or set(losses) != {"0", "1"} or max(map(float, losses.values())) > 0.5:
        return f"failed: {losses}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return f"passed: losses {losses}"


def main() -> int:
    wanted = [name for name in CASES if not sys.argv[1:] or any(word in name for word in sys.argv[1:])]
    results = {}
    for name in wanted:
        results[name] = run(name)
        print(f"{name}: {results[name]}", flush=True)
    return int(any(text.startswith("failed") for text in results.values()))


if __name__ == "__main__":
    sys.exit(main())
