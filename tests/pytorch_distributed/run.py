"""PyTorch's own tests of many ranks: ``python tests/pytorch_distributed/run.py CHECKOUT [--json FILE] [--limit SECONDS] [WORD ...]``.

CHECKOUT is a checkout of PyTorch, of 2.4 or about. Each file of :data:`FILES` with a WORD in its name (all, without a WORD) runs on
maca, with CUDA read as maca and four ranks on one machine; what does not pass runs on the CPU with gloo as well, and
counts only if it passes there, or if the CPU skips it because it wants a device. A failure that is known has a line in
``expected.tsv``: file, test (a shell pattern), reason (``Reason`` of the examination's table), text. Exit status: 1 for a failure without
a line, or a pass with one.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
FILES = (
    "test_c10d_functional_native.py", "test_c10d_object_collectives.py", "test_functional_api.py",
    "test_device_mesh.py", "_tensor/test_api.py", "_tensor/test_dtensor.py", "_tensor/test_embedding_ops.py",
    "_tensor/test_init.py", "_tensor/test_math_ops.py", "_tensor/test_matrix_ops.py", "_tensor/test_optimizers.py",
    "_tensor/test_pointwise_ops.py", "_tensor/test_random_ops.py", "_tensor/test_redistribute.py",
    "_tensor/test_tensor_ops.py", "_tensor/test_view_ops.py", "_composable/test_replicate.py",
    "_composable/fsdp/test_fully_shard_init.py", "_composable/fsdp/test_fully_shard_training.py",
    "_composable/fsdp/test_fully_shard_autograd.py", "_composable/fsdp/test_fully_shard_clip_grad_norm_.py",
    "_composable/fsdp/test_fully_shard_comm.py", "_composable/fsdp/test_fully_shard_frozen.py",
    "_composable/fsdp/test_fully_shard_memory.py", "_composable/fsdp/test_fully_shard_mixed_precision.py",
    "_composable/fsdp/test_fully_shard_state_dict.py", "pipelining/test_backward.py", "pipelining/test_microbatch.py",
    "pipelining/test_pipe.py", "pipelining/test_transformer.py", "pipelining/test_unflatten.py", "checkpoint/test_dtensor_checkpoint.py",
    "checkpoint/test_dtensor_resharding.py", "checkpoint/test_file_system_checkpoint.py",
    "checkpoint/test_fsdp_model_state.py", "checkpoint/test_fsdp_optim_state.py", "checkpoint/test_hsdp_checkpoint.py",
    "checkpoint/test_tp_checkpoint.py", "tensor/parallel/test_parallelize_api.py",
    "tensor/parallel/test_tp_examples.py", "tensor/parallel/test_tp_random_state.py",
    "tensor/parallel/test_tp_style.py", "tensor/parallel/test_ddp_2d_parallel.py",
    "tensor/parallel/test_fsdp_2d_parallel.py", "optim/test_zero_redundancy_optimizer.py",
)  # fmt: skip
TEST_LIMIT = 90  # seconds that PyTorch's harness gives the ranks of one test


class _Device:
    """A process that runs tests of files on "maca" or "cpu", one file after another, each in a fork of it."""

    def __init__(self, name: str, folder: Path, limit: int):
        self._name, self._limit = name, limit
        env = {
            **os.environ,
            "SUITE_DEVICE": name, "SUITE_FOLDER": str(folder), "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1",
            "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(limit),
            "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])]),
        }  # fmt: skip
        self._worker = subprocess.Popen(
            [sys.executable, str(HERE / "worker.py")],
            env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder, start_new_session=True,
        )  # fmt: skip
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._worker.stdout is not None
        for line in self._worker.stdout:
            self._lines.put(line)
        self._lines.put('{"ended": "of the worker"}')

    def lines(self, file: str, tests: list[str]) -> list[dict[str, str]]:
        """What each test of a file came to; a process that ends or says nothing any longer is a failure of its test."""
        assert self._worker.stdin is not None
        print(json.dumps({"file": file, "tests": tests}), file=self._worker.stdin, flush=True)
        found: dict[str, dict[str, str]] = {}
        process = 0
        while True:
            try:  # PyTorch's harness should have ended a test twice by then
                line = json.loads(self._lines.get(timeout=3 * self._limit + 120))
            except queue.Empty:
                os.killpg(process or self._worker.pid, signal.SIGKILL)
                continue
            if "ended" in line:
                break
            process = line.get("process", process)
            if "test" in line:
                found[line["test"]] = line
                if line["outcome"] != "began":
                    print(f"    {self._name}: {line['outcome']} {line['test']}", file=sys.stderr, flush=True)
        for said in found.values():
            if said["outcome"] == "began":
                said.update(outcome="fail", said=f"the process ended with status {line['ended']}")
        return list(found.values())

    def close(self) -> None:
        assert self._worker.stdin is not None
        self._worker.stdin.close()
        self._worker.wait()


def _answers(ours: _Device, host: _Device, file: str) -> list[dict[str, str]]:
    """With ``outcome`` "pass", "fail", or "empty" where the CPU's run does not pass either."""
    lines = ours.lines(file, [])
    rest = [line["test"] for line in lines if line["outcome"] != "pass"]
    there = {line["test"]: line for line in host.lines(file, rest)} if rest else {}
    for line in lines:
        line["file"] = file
        if line["outcome"] == "pass":
            continue
        beside = there.get(line["test"], {"outcome": "none", "said": ""})
        is_for_devices = beside["outcome"] == "skip"
        if line["outcome"] == "skip" or not (beside["outcome"] == "pass" or is_for_devices):
            line["said"] = (
                f"{line['outcome']}: {line['said']}; the CPU: {beside['outcome']}: {beside['said']}"
            )
            line["outcome"] = "empty"
    return lines


def _known() -> list[list[str]]:
    lines = (HERE / "expected.tsv").read_text().splitlines()
    return [line.split("\t") for line in lines if line and not line.startswith("#")]


def verdict(line: dict[str, str], known: list[list[str]]) -> str:
    """ "pass", "empty", "xfail", or what fails a run: "fail", "xpass"."""
    is_known = any(
        line["file"] == file and fnmatch.fnmatchcase(line["test"], test) for file, test, _, _ in known
    )
    if line["outcome"] == "pass":
        return "xpass" if is_known else "pass"
    return "xfail" if is_known and line["outcome"] == "fail" else line["outcome"]


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("checkout", type=Path)
    options.add_argument("words", nargs="*")
    options.add_argument("--json", type=Path)
    options.add_argument(
        "--limit", type=int, default=TEST_LIMIT, help="seconds of a test; more on a busy machine"
    )
    asked = options.parse_args()
    folder = asked.checkout / "test" if (asked.checkout / "test").is_dir() else asked.checkout
    known, all_lines = _known(), []
    total: Counter[str] = Counter()
    ours, host = (_Device(name, folder.resolve(), asked.limit) for name in ("maca", "cpu"))
    for file in FILES:
        if asked.words and not any(word in file for word in asked.words):
            continue
        lines = _answers(ours, host, file)
        for line in lines:
            line["verdict"] = verdict(line, known)
            if line["verdict"] in ("fail", "xpass"):
                print(f"  {line['verdict']} {line['test']}: {line['said']}")
        counted = Counter(line["verdict"] for line in lines)
        total += counted
        print(f"{file}: " + ", ".join(f"{n} {name}" for name, n in sorted(counted.items())), flush=True)
        all_lines += lines
        if asked.json:
            asked.json.write_text(json.dumps(all_lines, indent=1))
    for device in (ours, host):
        device.close()
    print("all: " + ", ".join(f"{n} {name}" for name, n in sorted(total.items())))
    return int(bool(total["fail"] or total["xpass"]))


if __name__ == "__main__":
    sys.exit(main())
