"""Adapters of other makers' packages act on what a program imports, and on nothing else."""

from __future__ import annotations

import re
import warnings
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from running import ROOT, run_python

from macatensor import packages
from macatensor.packages import (
    accelerate,
    lightning,
    stand_ins,
    torchtune,
    torchvision,
    transformers,
)


def test_adapters_import_nothing_themselves() -> None:
    run_python(
        """
        import sys, torch
        torch.ones(1, device="maca")
        for name in ("accelerate", "transformers", "lightning", "pytorch_lightning", "peft", "safetensors", "torchtune", "torchvision"):
            assert name not in sys.modules, name
        """
    )


@pytest.mark.parametrize("adapter", [accelerate, lightning, torchtune, torchvision, transformers])
def test_adapters_state_their_upstream_versions(adapter: ModuleType) -> None:
    low, high = adapter.UPSTREAM
    assert tuple(map(int, low.split("."))) < tuple(map(int, high.split(".")))


def test_an_unknown_version_gets_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "accelerate.state", ModuleType("accelerate.state"))
    monkeypatch.setattr(metadata, "version", lambda name: "9.0")
    with pytest.warns(UserWarning, match=r"accelerate 9\.0 does not find maca.*accepted: 1\.0"):
        packages._adapt("accelerate.state", "accelerate", "state")


def test_accelerate_finds_the_device_last() -> None:
    class PartialState:
        found = "cpu"
        device = None
        backend = distributed_type = None

        @property
        def default_device(self) -> torch.device:
            return torch.device(self.found)

        def _prepare_backend(self, *_: object) -> tuple[object, str]:
            return None, "NO"

        def set_device(self) -> None:
            pass

    module = SimpleNamespace(
        PartialState=PartialState, DistributedType=SimpleNamespace(NO="NO", MULTI_GPU="MULTI_GPU")
    )
    accelerate.state(module)  # type: ignore[arg-type]
    assert PartialState().default_device == torch.device("maca")
    PartialState.found = "meta"
    assert PartialState().default_device == torch.device("meta")


def test_functions_are_replaced_where_held(monkeypatch: pytest.MonkeyPatch) -> None:
    owner, holder, stranger = ModuleType("made_up"), ModuleType("made_up.part"), ModuleType("stranger")
    for module in (owner, holder, stranger):
        module.ask = len  # type: ignore[attr-defined]
        monkeypatch.setitem(__import__("sys").modules, module.__name__, module)
    packages.replace_function(owner, "ask", max, ["made_up"])
    assert (owner.ask, holder.ask, stranger.ask) == (max, max, len)


def test_torchvision_imports_without_its_library() -> None:
    run_python(
        """
        import sys, types, torch
        extension = types.ModuleType("torchvision.extension")
        extension._has_ops, extension._assert_has_ops = lambda: False, lambda: None
        from maca_autoload import torchvision
        if not hasattr(torch.ops.torchvision, "nms"):
            torchvision.define(extension)
            torchvision.define(extension)
        for name in ("nms", "qnms", "roi_align", "deform_conv2d", "_ps_roi_pool_backward"):
            assert hasattr(torch.ops.torchvision, name), name
        """
    )


def test_models_load_by_a_function_as_location(tmp_path: object) -> None:
    path = f"{tmp_path}/weights.pt"
    torch.save({"w": torch.arange(3.0).maca()}, path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.load(path, map_location=lambda storage, location: storage)["w"].device.type == "cpu"
        assert torch.load(path, map_location=lambda storage, location: None)["w"].device.type == "maca"
        assert torch.load(path, map_location=lambda storage, location: storage.maca())["w"].tolist() == [
            0,
            1,
            2,
        ]


PAGE = (ROOT / "docs" / "packages.md").read_text()
# what needs no package that is not installed for the other tests
SNIPPETS = [
    program
    for title, program in re.findall(r"## ([^\n]+)\n(?:(?!\n## ).)*?```python\n(.*?)```", PAGE, flags=re.S)
    if title in ("flash_attn", "apex", "torchvision")
]


@pytest.mark.parametrize("program", SNIPPETS, ids=range(len(SNIPPETS)))
def test_documented_programs_run(program: str) -> None:
    shown = re.findall(r"print\(.*\)  # (.*)", program)
    printed = run_python(program, MACA_FALLBACK="error").stdout.splitlines()
    assert shown and printed == shown


def test_each_documented_stand_in_has_a_program() -> None:
    assert len(SNIPPETS) == 3


def test_unknown_names_are_not_provided() -> None:
    with pytest.raises(ValueError, match="expected names of"):
        stand_ins.provide("xformers")


def test_safetensors_writes_and_reads_the_device(tmp_path: Path) -> None:
    run_python(
        f"""
        import torch
        from safetensors import safe_open
        from safetensors.torch import load_file, load_model, save, save_file, save_model
        path = {str(tmp_path / "conv.safetensors")!r}
        conv = torch.nn.Conv2d(3, 4, 3)
        there = torch.nn.Conv2d(3, 4, 3).to("maca")
        there.load_state_dict(conv.state_dict())
        assert not there.weight.is_contiguous()
        save_file(there.state_dict(), path)
        assert save(there.state_dict()) == save(conv.state_dict())
        for device in ("maca", torch.device("maca", 0)):
            read = load_file(path, device=device)
            assert all(t.is_maca and t.cpu().equal(conv.state_dict()[n]) for n, t in read.items())
            with safe_open(path, framework="pt", device=device) as file:
                assert sorted(file.keys()) == ["bias", "weight"] and file.get_slice("weight").get_shape() == [4, 3, 3, 3]
                assert file.get_slice("weight")[1:3].cpu().equal(conv.weight[1:3]) and file.get_tensor("bias").is_maca
        assert not load_file(path)["bias"].is_maca
        save_model(there, path)
        other = torch.nn.Conv2d(3, 4, 3).to("maca")
        load_model(other, path, device="maca")
        assert other.weight.is_maca and other.weight.cpu().equal(conv.weight)
        try:
            save_file({{"a": there.weight.transpose(0, 1)}}, path)
        except ValueError as error:
            assert "non contiguous" in str(error)
        else:
            raise AssertionError
        """
    )
