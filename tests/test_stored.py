"""A second process reads the graphs that the first compiled, where nobody else can have written them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from running import child_environment

import macatensor
from macatensor.compiling import stored
from macatensor.compiling.compiled_graph import Choices

PROGRAM = """
import json, sys
import torch, macatensor
import torch.nn.functional as F
from torch._dynamo.utils import counters

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)

    def forward(self, x):
        return F.gelu(self.norm(self.first(x))) * SCALE

SCALE = 2
torch.manual_seed(0)
model = Model().to("maca")
compiled = torch.compile(model)
found = []
for batch in (4, 6, 7):
    x = torch.randn(batch, 8, device="maca")
    result = compiled(x)
    (gradient,) = torch.autograd.grad(result.square().sum(), model.first.weight)
    assert torch.equal(result, model(x))
    found += [result.sum().item(), gradient.sum().item()]
with torch.no_grad():
    found.append(compiled(x).sum().item())
print(json.dumps({
    "results": found, "read": macatensor.counters()["graphs_from_disk"],
    "traced": counters["stats"]["unique_graphs"], "written": counters["aot_autograd"]["autograd_cache_saved"],
}))
"""


def start(program: Path, cache: Path, **environment: str) -> subprocess.Popen[str]:
    env = child_environment(TORCHINDUCTOR_CACHE_DIR=str(cache), OMP_NUM_THREADS="1", **environment)
    return subprocess.Popen([sys.executable, program], env=env, stdout=subprocess.PIPE, text=True)


def end(process: subprocess.Popen[str]) -> dict[str, Any]:
    said, _ = process.communicate(timeout=240)
    assert process.returncode == 0
    return json.loads(said.splitlines()[-1])  # type: ignore[no-any-return]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def test_later_processes_read_what_was_compiled(program: Path, tmp_path: Path) -> None:
    """Two may compile at once; who finds damaged files compiles anew."""
    cache = tmp_path / "cache"
    first, beside = [end(p) for p in (start(program, cache), start(program, cache))]
    assert first["results"] == beside["results"] and first["written"] + beside["written"] >= 2
    second = end(start(program, cache))
    assert second["results"] == first["results"]
    assert (
        second["read"] == 4 and second["written"] == 0
    )  # forward and backward, of fixed and of changing sizes
    files = [f for f in (cache / "aotautograd").rglob("*") if f.is_file()]
    assert files
    for i, file in enumerate(files):
        content = file.read_bytes()
        file.write_bytes(content[: len(content) // 2] if i % 2 else b"no pickle")
    assert end(start(program, cache))["results"] == first["results"]


def test_precompiled_programs_are_not_traced(program: Path, tmp_path: Path) -> None:
    """With PyTorch's own switch; what the first process did not see, and another text, is compiled then."""
    cache, switch = tmp_path / "cache", {"TORCH_CACHING_PRECOMPILE": "1"}
    first = end(start(program, cache, **switch))
    second = end(start(program, cache, **switch))
    assert first["traced"] > 0 and second["traced"] == 0
    assert second["results"] == first["results"]
    program.write_text(PROGRAM.replace("(4, 6, 7)", "(5, 1, 9)").replace("* SCALE", "* SCALE + 1"))
    assert end(start(program, cache, **switch))["traced"] > 0


@pytest.mark.parametrize("what", ["switch", "policy", "library", "choices"])
def test_keys_differ_where_graphs_may(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def key() -> str:
        x = torch.ones(3, device="maca", requires_grad=True)
        graph = torch.fx.symbolic_trace(torch.nn.Identity())
        with stored.storing(Choices(what == "choices" and changed, False), graph, [x]):
            return str(torch.compiler.config.cache_key_tag)

    changed = False
    before = key()
    assert key() == before
    changed = True
    if what == "switch":
        monkeypatch.setenv("MACA_FALLBACK", "warn")
    elif what == "library":
        monkeypatch.setattr(stored, "LIBRARY", Path(__file__))
    with macatensor.layout.policy("nchw") if what == "policy" else contextlib.nullcontext():
        assert key() != before


@pytest.mark.parametrize("why", ["link", "another user", "others"])
def test_foreign_folders_are_not_read(why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    assert not stored._who_else_writes(str(folder))
    if why == "link":
        (tmp_path / "link").symlink_to(folder)
        folder = tmp_path / "link"
    elif why == "others":
        folder.chmod(0o770)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
    torch._dynamo.reset()
    stored._warn.cache_clear()
    compiled = torch.compile(lambda x: x * 2, backend="maca")
    x = torch.ones(3, device="maca", requires_grad=True)
    with pytest.warns(RuntimeWarning, match=f"{why}.*TORCHINDUCTOR_CACHE_DIR"):
        result = compiled(x)
    assert torch.equal(result, x * 2)
    assert not [f for f in folder.rglob("*") if f.is_file()]


def test_what_no_file_can_hold_stays_in_memory() -> None:
    """A tensor among a graph's constants: it compiles, and nothing is written."""
    torch._dynamo.reset()
    counted = torch._dynamo.utils.counters["aot_autograd"]
    before = counted["autograd_cache_saved"]
    compiled = torch.compile(lambda x: x * torch.tensor([1.0, 2.0], device=x.device), backend="maca")
    for scale in (1.0, 3.0):
        x = torch.full((2,), scale, device="maca", requires_grad=True)
        assert compiled(x).tolist() == [scale, 2 * scale]
    assert counted["autograd_cache_saved"] == before


def test_inference_writes_nothing() -> None:
    torch._dynamo.reset()
    before = torch._dynamo.utils.counters["aot_autograd"]["autograd_cache_miss"]
    assert torch.compile(lambda x: x + 1, backend="maca")(torch.ones(2, device="maca")).tolist() == [2, 2]
    assert torch._dynamo.utils.counters["aot_autograd"]["autograd_cache_miss"] == before
