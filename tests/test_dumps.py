"""Dumps by torch_npu's names, HDF5 files, OP_INFO lines, log levels, options and formats."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch
from running import run_python

import macatensor
from macatensor import accuracy, maca
from macatensor.accuracy import records


def program() -> torch.Tensor:
    torch.manual_seed(0)
    return maca(torch.rand(3, 4)) @ maca(torch.rand(4, 5)) + 1


@pytest.mark.supports("torch.maca: init_dump set_dump finalize_dump")
def test_a_dump_is_a_record(tmp_path: Path) -> None:
    config = tmp_path / "dump.json"
    config.write_text(json.dumps({"dump": {
        "dump_path": str(tmp_path / "out"), "dump_mode": "all", "dump_list": [{"layer": ["aten.mm.default"]}]}}))  # fmt: skip
    with pytest.raises(RuntimeError, match="init_dump"):
        torch.maca.set_dump(config)
    torch.maca.init_dump()
    torch.maca.set_dump(config)
    with pytest.raises(RuntimeError, match="under way"):
        torch.maca.set_dump(config)
    program()
    folder = torch.maca.finalize_dump()
    (process,) = records.read(folder).processes
    assert [c.op for c in process.calls if c.level == "aten"] == ["aten.mm.default"]
    assert accuracy.replay(folder).failures == []
    assert torch.maca.finalize_dump() is None


@pytest.mark.parametrize("change, said", [
    ({"dump_pth": "x"}, "did you mean 'dump_path'"),
    ({"dump_mode": "inputs"}, "did you mean 'input'"),
    ({"dump_data": "all of it"}, "dump_data="),
    ({"dump_list": "aten.mm"}, "is a list"),
    ({"dump_list": [3]}, "names no operators"),
    ({"dump_path": 3}, "dump_path is the folder"),
    ({"dump_level": "kernel"}, "accepted: 'op'"),
])  # fmt: skip
def test_wrong_dumps_are_refused(change: dict[str, object], said: str, tmp_path: Path) -> None:
    torch.maca.init_dump()
    try:
        with pytest.raises(ValueError, match=said):
            torch.maca.set_dump({"dump": {"dump_path": str(tmp_path / "out"), **change}})
        with pytest.raises(ValueError, match="expected"):
            torch.maca.set_dump({"dmp": {}})
    finally:
        torch.maca.finalize_dump()
    assert not (tmp_path / "out").exists()


@pytest.mark.supports("torch.maca: dumper")
def test_hdf5_holds_a_record_whole(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    file = tmp_path / "run.h5"
    with torch.maca.dumper(dump_path=file):
        product = maca(torch.full((2, 3), 2.0, dtype=torch.bfloat16)) @ maca(
            torch.ones(3, 2, dtype=torch.bfloat16)
        )
        program()
    with h5py.File(file) as held:
        (process,) = held.values()
        got = process["calls/aten.mm.0.fwd/outputs/0"]
        assert got.attrs["dtype"] == "bfloat16" and got.shape == (2, 2)
        assert torch.from_numpy(got[()]).view(torch.bfloat16).equal(product.cpu())
    folder = accuracy.from_hdf5(file, tmp_path / "back")
    replayed = accuracy.replay(folder)
    assert replayed.failures == [] and {"aten.mm.default", "aten.add.Tensor"} <= {
        c.op for c in replayed.calls
    }
    with torch.maca.dumper(use_dump=False, use_load=True, load_file_path=file) as again:
        pass
    assert len(again[0].calls) == len(replayed.calls) and again[0].failures == []
    with pytest.raises(FileExistsError):
        accuracy.to_hdf5(folder, file)


def test_hostile_hdf5_is_refused(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "other.h5", "w") as held:
        held["x"] = 3
    with pytest.raises(ValueError, match="no record"):
        accuracy.from_hdf5(tmp_path / "other.h5", tmp_path / "a")
    for number, (group, name) in enumerate([("..", "0"), ("process-0-1", "tensors/evil.txt")]):
        with h5py.File(tmp_path / f"{number}.h5", "w") as held:
            held.attrs["format"] = "macatensor record"
            made = held.create_group("outer").create_group("x") if group == ".." else held.create_group(group)
            for part in (records.ENVIRONMENT, records.CALLS, name):
                made[part] = "{}"
        with pytest.raises((ValueError, AttributeError)):
            accuracy.from_hdf5(tmp_path / f"{number}.h5", tmp_path / f"out{number}")
    assert sorted(p.name for p in tmp_path.rglob("*evil*")) == []


@pytest.mark.supports("torch.maca: op_info")
def test_op_info_names_operands_and_algorithm(caplog: pytest.LogCaptureFixture) -> None:
    a = maca(torch.rand(8, 16))
    with caplog.at_level(logging.INFO, "macatensor.device.op_info"), torch.maca.op_info():
        a @ a.t()
        torch.ones(2) + 1
    lines = [r.message for r in caplog.records]
    (line,) = [text for text in lines if "aten.mm.default" in text]
    assert line.startswith(
        "OP_INFO aten.mm.default(float32[8, 16](16, 1), float32[16, 8](1, 16)) -> float32[8, 8](8, 1)"
    )
    assert line.endswith(" us") and " by " in line
    assert not any("aten.add" in text for text in lines)  # of the host


@pytest.mark.supports("MACA_OP_INFO MACA_LOG_LEVEL")
def test_switches_of_the_log() -> None:
    code = "import torch, macatensor; torch.ones(3).maca() + 1"
    said = run_python(code, MACA_OP_INFO="1").stderr
    assert "INFO macatensor.device.op_info: OP_INFO aten.add.Tensor(float32[3](1), 1)" in said
    code = "import logging, macatensor; print(logging.getLogger('macatensor').getEffectiveLevel())"
    assert run_python(code, MACA_LOG_LEVEL="DEBUG").stdout.strip() == "10"
    assert run_python(code).stdout.strip() == "30"
    assert "accepted: DEBUG" in run_python("import macatensor", expect=1, MACA_LOG_LEVEL="loud").stderr


@pytest.mark.supports("torch.maca: set_option get_option")
def test_options_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = torch.backends.maca
    before = {name: torch.maca.get_option(name) for name in ("allow_matmul_tf32", "allow_conv_tf32", "deterministic",
                                                            "implementation", "compile_cache")}  # fmt: skip
    try:
        torch.maca.set_option(
            {"ALLOW_MATMUL_HF32": "enable", "deterministic": True, "compile_cache": "disable"}
        )
        assert (
            backend.matmul.allow_tf32 and backend.deterministic and not torch.maca.get_option("compile_cache")
        )
        assert torch.maca.get_option("precision_mode") == "allow_fp32_to_tf32"
        torch.maca.set_option({"ACL_PRECISION_MODE": "must_keep_origin_dtype"})
        assert not backend.matmul.allow_tf32
        for choice in ("measure", "bank", "library"):
            torch.maca.set_option({"implementation": choice})
            assert torch.maca.get_option("implementation") == choice
    finally:
        torch.maca.set_option(before)


@pytest.mark.parametrize("option, said", [
    ({"deterministic": True, "determinstic": True}, "did you mean 'deterministic'"),
    ({"xyzzy": 1}, "accepted: precision_mode"),
    ({"precision_mode": "must_keep_orign_dtype"}, "did you mean 'must_keep_origin_dtype'"),
    ({"implementation": "guess"}, "accepted: 'library'"),
    ({"allow_conv_tf32": "maybe"}, "accepted: True"),
])  # fmt: skip
def test_unknown_options_name_the_nearest(option: dict[str, object], said: str) -> None:
    before = torch.backends.maca.deterministic
    with pytest.raises(ValueError, match=said):
        torch.maca.set_option(option)
    assert torch.backends.maca.deterministic == before  # none is set where one is unknown


@pytest.mark.supports("torch.maca: format_cast get_maca_format pack_weights")
def test_formats_and_packed_weights() -> None:
    x = maca(torch.rand(2, 3, 4, 5))
    assert torch.maca.get_maca_format(x) == "NHWC"
    plain = torch.maca.format_cast(x, "nchw")
    assert torch.maca.get_maca_format(plain) == "NCHW" and torch.equal(plain.cpu(), x.cpu())
    assert torch.maca.format_cast(x, "NHWC") is x
    assert torch.maca.get_maca_format(maca(torch.rand(2, 3))) == "ND"
    assert torch.maca.get_maca_format(maca(torch.rand(2, 3)).t()) == "strided"
    with pytest.raises(ValueError, match="did you mean 'NHWC'"):
        torch.maca.format_cast(x, "NHCW")
    with pytest.raises(ValueError, match="5"):
        torch.maca.format_cast(x, "NDHWC")
    layer = maca(torch.nn.Conv2d(16, 32, 3, padding=1))
    image = maca(torch.rand(2, 16, 16, 16))
    packed = torch.maca.pack_weights(layer, image)
    assert packed in (0, 1) and torch.maca.pack_weights(layer, image) == 0
    if packed:
        macatensor.reset_counters()
        with torch.no_grad():
            layer(image)
        assert macatensor.counters()["weight_packs"] == 0
    with pytest.raises(TypeError, match="expected a module"):
        torch.maca.pack_weights(x)  # type: ignore[arg-type]
