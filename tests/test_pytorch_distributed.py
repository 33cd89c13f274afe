"""PyTorch's own tests of many ranks: what passes, fails, and has nothing to say of the device."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

RUN = Path(__file__).parent / "pytorch_distributed" / "run.py"

MODULE = """
import torch
import torch.distributed as dist
from torch.distributed._tensor.debug import CommDebugMode  # where 2.4 had it
from torch.testing._internal.common_distributed import skip_if_lt_x_gpu
from torch.testing._internal.distributed._tensor.common_dtensor import DTensorTestBase, with_comms

class Small(DTensorTestBase):
    @with_comms
    def test_sum(self):
        x = torch.full((2,), self.rank + 1.0, device=self.device_type)
        dist.all_reduce(x)
        self.assertEqual(x.tolist(), [10.0, 10.0])

    @skip_if_lt_x_gpu(4)
    @with_comms
    def test_rank_names_a_device(self):
        torch.cuda.set_device(self.rank)
        self.assertEqual(torch.ones(2, device=f"cuda:{self.rank}").device.type, "maca")

    @with_comms
    def test_device_is_the_cpu(self):
        self.assertEqual(self.device_type, "cpu")

    @with_comms
    def test_fails_everywhere(self):
        self.fail()
"""


def test_each_outcome_of_ranks_is_told(tmp_path: Path) -> None:
    (tmp_path / "distributed").mkdir()
    (tmp_path / "distributed" / "test_device_mesh.py").write_text(MODULE)
    answers = tmp_path / "answers.json"
    done = subprocess.run(
        [sys.executable, RUN, tmp_path, "test_device_mesh", "--json", answers],
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    found = {line["test"]: line["verdict"] for line in json.loads(answers.read_text())}
    assert found == {
        "Small::test_device_is_the_cpu": "fail",
        "Small::test_fails_everywhere": "empty",
        "Small::test_rank_names_a_device": "pass",
        "Small::test_sum": "pass",
    }
    assert "fail Small::test_device_is_the_cpu: AssertionError" in done.stdout
