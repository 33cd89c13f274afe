"""Measured choices: right ones alone, one a signature, kept in a bank, and none where bits must repeat."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from running import asked_of, run_python
from typer.testing import CliRunner

import macatensor
from macatensor import maca
from macatensor.choices import bank, deciding
from macatensor.choices.deciding import OWN
from macatensor.cli import app
from macatensor.runtime import plan_caches
from macatensor.runtime.ffi import ffi, is_host_library, lib
from macatensor.tuning import calls, measuring, offline

needs_ways = pytest.mark.xfail(
    not is_host_library() and lib.maca_runtime_abi() < 2002, reason="the library lists no ways", strict=False
)


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path) -> Iterator[Path]:
    """Nothing decided, a bank of the test's own, short measurements; all as before afterwards."""
    settings = deciding.settings()
    before, watcher = dict(vars(settings)), deciding.watcher
    vars(settings).update(
        decided={}, known={}, unsaved={}, has_read=False, path=tmp_path / "bank.jsonl", duration=0.0
    )
    plan_caches.drop_plans()
    yield tmp_path / "bank.jsonl"
    vars(settings).update(before)
    deciding.watcher = watcher
    torch.backends.maca.benchmark = False
    plan_caches.drop_plans()


def product(m: int = 24, k: int = 40, n: int = 56) -> torch.Tensor:
    torch.manual_seed(0)
    return maca(torch.rand(m, k)) @ maca(torch.rand(k, n))


def conv(groups: int = 1) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.nn.functional.conv2d(
        maca(torch.rand(2, 32, 14, 14)), maca(torch.rand(32, 32 // groups, 3, 3)), padding=1, groups=groups
    )


def test_every_way_of_a_product_is_right() -> None:
    for call in (product, lambda: product(4, 64, 9), lambda: product(1, 300, 7)):
        ready = measuring.trial(asked_of(call)[0])
        assert ready is not None and not ready.wrong and len(ready.contenders) >= 2
        assert ready.contenders[0].way == OWN


def test_every_way_of_a_convolution_is_right() -> None:
    names = {c.way for c in measuring.trial(asked_of(conv)[0]).contenders}  # type: ignore[union-attr]
    assert len(names) >= 3 and OWN in names
    x, w = (maca(torch.rand(s)).requires_grad_() for s in ((2, 32, 14, 14), (32, 32, 3, 3)))
    y = torch.nn.functional.conv2d(x, w, padding=1)

    def backward() -> None:
        torch.autograd.grad(y, (x, w), torch.ones_like(y), retain_graph=True)

    (asked,) = (a for a in asked_of(backward) if a.kernel == "convolution_backward")
    ready = measuring.trial(asked)
    assert ready is not None and not ready.wrong and len(ready.contenders) >= 5


def test_a_kernel_with_one_way_is_not_measured() -> None:
    torch.backends.maca.benchmark = True
    maca(torch.rand(3, 3, dtype=torch.float64)) @ maca(torch.rand(3, 3, dtype=torch.float64))
    maca(torch.arange(9).view(3, 3)) @ maca(torch.arange(9).view(3, 3))
    assert deciding.known() == []


@pytest.mark.supports("torch.backends.maca.benchmark torch.backends.maca.benchmark_limit")
def test_benchmark_measures_and_keeps(fresh: Path) -> None:
    assert product().shape == (24, 56) and not fresh.exists() and deciding.known() == []
    deciding.settings().decided.clear()
    plan_caches.drop_plans()
    torch.backends.maca.benchmark = True
    want = torch.rand(24, 40, generator=torch.manual_seed(0)).double()
    right = torch.rand(40, 56).double()  # what product() draws next
    torch.testing.assert_close(product().cpu(), (want @ right).float())
    (measured,) = deciding.known()
    assert OWN in measured.seconds and len(measured.seconds) >= 2 and measured.way in measured.seconds
    assert deciding.save() and list(bank.read(fresh)) == [measured.signature]
    assert json.loads(measured.signature)["kernel"] == "mm"
    torch.backends.maca.benchmark_limit = 1  # beside the library's own choice
    try:
        product(25, 41, 57)
    finally:
        torch.backends.maca.benchmark_limit = 10
    (other,) = {m.signature for m in deciding.known()} - {measured.signature}
    assert len(next(m for m in deciding.known() if m.signature == other).seconds) <= 2


def test_a_decided_signature_stays_in_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    first = product()
    torch.backends.maca.benchmark = True
    plan_caches.drop_plans()
    assert torch.equal(product().cpu(), first.cpu()) and deciding.known() == []  # it ran before
    ways = iter(["panels", "onednn"])
    monkeypatch.setattr(
        deciding, "_measure", lambda asked, signature: bank.Measured(signature, next(ways), {"": 1.0})
    )
    with macatensor.launches() as made:
        for _ in range(3):
            plan_caches.drop_plans()
            product(30, 41, 57)
    assert {launch.implementation for launch in made if launch.kernel == "mm"} == {"panels"}


def test_nothing_is_measured_where_bits_must_repeat() -> None:
    torch.backends.maca.benchmark = True
    torch.use_deterministic_algorithms(True)
    try:
        product()
        assert deciding.known() == []
    finally:
        torch.use_deterministic_algorithms(False)
    product()
    assert len(deciding.known()) == 1  # another signature: the flags are part of it


def test_a_captured_graph_measures_nothing() -> None:
    torch.backends.maca.benchmark = True
    a, b = maca(torch.rand(9, 40)), maca(torch.rand(40, 8))
    graph = torch.maca.MacaGraph()
    with torch.maca.graph(graph):
        a @ b
    assert deciding.known() == []


def test_a_wrong_way_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asked_of(product)[0]
    honest = measuring.fetch
    launched: list[int] = []

    def spoiled(t: torch.Tensor) -> torch.Tensor:
        got = honest(t)
        launched.append(1)
        return got * 1.001 if len(launched) == 2 else got

    monkeypatch.setattr(measuring, "fetch", spoiled)
    ready = measuring.trial(asked)
    assert (
        ready is not None
        and len(ready.wrong) == 1
        and ready.wrong[0] not in {c.way for c in ready.contenders}
    )


def test_the_own_choice_stays_where_times_meet() -> None:
    def contender(way: str, times: list[float]) -> measuring._Contender:
        made = measuring._Contender(way, None)  # type: ignore[arg-type]
        made.times = times
        return made

    own = contender(OWN, [1.0, 1.1, 1.2, 1.3])
    assert measuring._chosen([own, contender("near", [0.9, 0.95, 1.15, 1.2])]) == OWN
    assert measuring._chosen([own, contender("apart", [0.8, 0.9, 0.9, 0.9])]) == "apart"
    assert measuring._chosen([own]) == OWN


def test_a_missing_way_is_the_own_choice(fresh: Path) -> None:
    signature = asked_of(product)[0].signature()
    bank.save(fresh, [bank.Measured(signature, "no such way", {"": 1.0})])
    deciding.settings().decided.clear()
    plan_caches.drop_plans()
    deciding.settings().enabled = True
    assert product().shape == (24, 56)


def test_modes_of_the_program_see_no_measurement() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[str] = []

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def, override]
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    a, b = maca(torch.rand(11, 40)), maca(torch.rand(40, 8))
    torch.backends.maca.benchmark = True
    state = torch.maca.get_rng_state(), torch.get_rng_state()
    with Watching(), macatensor.launches() as made:
        a @ b
    assert seen == ["aten.mm.default"] and [launch.kernel for launch in made] == ["mm"]
    assert len(deciding.known()) == 1
    assert torch.equal(torch.get_rng_state(), state[1]) and torch.equal(torch.maca.get_rng_state(), state[0])


def test_shapes_are_dumped_and_tuned_offline(tmp_path: Path, fresh: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text("import sys, torch\nassert sys.argv[1:] == ['--own', '3']\n"
                      "torch.nn.Linear(40, 24).to('maca')(torch.rand(8, 40).maca())\n")  # fmt: skip
    shapes, runner = tmp_path / "shapes.json", CliRunner()
    done = runner.invoke(app, ["tune", "--dump", str(shapes), str(script), "--own", "3"])
    assert done.exit_code == 0, done.output
    (call,) = calls.load(shapes)
    assert isinstance(call, dict) and call["operator"] == "addmm" and not fresh.exists()
    deciding.settings().decided.clear()
    done = runner.invoke(app, ["tune", "--from", str(shapes), "--bank", str(tmp_path / "banks"), "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    (file,) = (tmp_path / "banks").glob("*.jsonl")
    assert report["bank"] == str(file) and len(report["measured"]) == 1
    assert calls.load(file) == [call]
    table = runner.invoke(app, ["tune", str(script), "--own", "3"])
    assert table.exit_code == 0 and "Bank:" in table.output
    assert runner.invoke(app, ["tune"]).exit_code == 2


@pytest.mark.parametrize("text", [
    "[]", "{}", '{"shapes": "macatensor shapes", "version": 2, "calls": []}', "no JSON",
    '{"shapes": "macatensor shapes", "version": 1, "calls": 3}',
])  # fmt: skip
def test_a_file_without_shapes_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "shapes.json"
    file.write_text(text)
    with pytest.raises(ValueError, match="shapes.json"):
        calls.load(file)
    assert CliRunner().invoke(app, ["tune", "--from", str(file)]).exit_code == 2


def test_hostile_calls_are_left_out() -> None:
    tensor = {"dtype": "float32", "size": [4, 4], "stride": [4, 1]}
    huge = {"dtype": "float32", "size": [1 << 40, 1 << 20], "stride": [1, 1]}
    listed = [
        None, 3, {}, {"operator": "exp", "arguments": [tensor]}, {"operator": "mm", "arguments": []},
        {"operator": "mm", "arguments": [huge, tensor]}, {"operator": "mm", "arguments": [{"dtype": "Tensor"}, tensor]},
        {"operator": "mm", "arguments": [tensor, {"dtype": "float32", "size": [3, 3], "stride": [3, 1]}]},
        {"operator": "mm", "arguments": [[0] * 1000, tensor]}, {"operator": "mm", "arguments": [tensor, tensor]},
    ]  # fmt: skip
    assert len(offline.tune_calls(listed)) == 1  # type: ignore[arg-type]


@pytest.mark.supports(
    "torch.maca.tunable: enable is_enabled tuning_enable tuning_is_enabled set_filename get_filename get_results read_file "
    "write_file write_file_on_exit get_validators set_max_tuning_duration get_max_tuning_duration "
    "set_max_tuning_iterations get_max_tuning_iterations record_untuned_enable record_untuned_is_enabled "
    "tune_gemm_in_file mgpu_tune_gemm_in_file",
    "torch.maca.set_aoe",
)
def test_names_of_cuda_tunable(tmp_path: Path) -> None:
    tunable = torch.maca.tunable
    theirs = {n for n in dir(torch.cuda.tunable) if not n.startswith("_") and n in torch.cuda.tunable.__all__}
    missing = theirs - set(tunable.__all__)
    assert missing <= {
        "set_rotating_buffer_size",
        "get_rotating_buffer_size",
        "set_numerical_check_tolerances",
    }, missing
    assert not tunable.is_enabled()
    tunable.enable()
    assert tunable.is_enabled() and tunable.tuning_is_enabled()
    tunable.set_filename(tmp_path / "mine.jsonl", insert_device_ordinal=True)
    assert tunable.get_filename() == str(tmp_path / "mine0.jsonl")
    product(17, 33, 9)
    ((kernel, signature, way, milliseconds),) = tunable.get_results()
    assert kernel == "mm" and signature and way and milliseconds > 0
    assert tunable.write_file() and tunable.read_file() and not tunable.read_file(tmp_path / "none.jsonl")
    assert tunable.write_file(tmp_path / "copy.jsonl") and tunable.read_file(tmp_path / "copy.jsonl")
    assert ("BANK_VERSION", "1") in tunable.get_validators()
    tunable.tuning_enable(False)
    product(18, 33, 9)
    assert len(tunable.get_results()) == 1
    for put, get, value in ((tunable.set_max_tuning_duration, tunable.get_max_tuning_duration, 50),
                            (tunable.set_max_tuning_iterations, tunable.get_max_tuning_iterations, 7)):  # fmt: skip
        put(value)
        assert get() == value
        with pytest.raises(ValueError, match="expected"):
            put(-1)
    tunable.record_untuned_enable()
    assert tunable.record_untuned_is_enabled()
    tunable.write_file_on_exit(False)
    tunable.set_filename("")
    torch.maca.set_aoe(tmp_path / "aoe")
    assert tunable.tuning_is_enabled() and Path(tunable.get_filename()).parent == tmp_path / "aoe"
    shapes = tmp_path / "shapes.json"
    with calls.recording() as found:
        product(19, 33, 9)
    calls.store(found, shapes)
    tunable.mgpu_tune_gemm_in_file(str(tmp_path / "shape*.json"), 1)
    with pytest.raises(OSError):
        tunable.tune_gemm_in_file(tmp_path / "none.json")


@pytest.mark.supports("TUNE_BANK_PATH")
def test_a_given_bank_is_used_and_not_written(tmp_path: Path) -> None:
    code = """
    import sys, torch, macatensor
    from macatensor.choices import bank, deciding
    assert torch.maca.tunable.is_enabled() and not torch.maca.tunable.tuning_is_enabled()
    assert str(deciding.path().parent) == sys.argv[1]
    a, b = torch.rand(24, 40).maca(), torch.rand(40, 56).maca()
    with macatensor.launches() as made:
        a @ b
    print(made[0].implementation)
    asked = []
    deciding.watcher = lambda call, signature: asked.append(signature)
    macatensor.runtime.plan_caches.drop_plans()
    a @ b
    if not bank.read(deciding.path()):
        own = made[0].implementation
        way = "onednn" if "panels" in own else "panels"
        bank.save(deciding.path(), [bank.Measured(asked[0], way, {"": 2.0, way: 1.0})])
    """
    first = run_python(code, str(tmp_path), TUNE_BANK_PATH=tmp_path).stdout.strip()
    second = run_python(code, str(tmp_path), TUNE_BANK_PATH=tmp_path).stdout.strip()
    assert first != second and ("onednn" in second or "panels" in second), (first, second)


def test_max_autotune_measures_before_the_tape() -> None:
    a, b = maca(torch.rand(13, 40)), maca(torch.rand(40, 21))
    compiled = torch.compile(lambda x, y: (x @ y).relu(), backend="maca", mode="max-autotune")
    got = compiled(a, b)
    assert [bank.kernel_of(m.signature) for m in deciding.known()] == ["mm"]
    assert not deciding.measures() and torch.equal(compiled(a, b).cpu(), got.cpu())
    torch.testing.assert_close(got.cpu(), a.cpu() @ b.cpu())


def test_candidates_of_a_request_and_of_none() -> None:
    asked = asked_of(product)[0]
    assert {"onednn", "panels"} <= set(asked.ways())
    with pytest.raises(Exception, match="no such way|no matrix product"):
        asked.make("no such way")
    names, count = ffi.new("char const*[]", 64), ffi.new("int32_t*", 5)
    from macatensor.dispatch.request import Request

    assert lib.maca_program_candidates(Request("relu").build(), names, 64, count) == 0 and count[0] == 0


def test_wrong_candidates_of_a_library_are_an_error(interposer: Path) -> None:
    code = """
    import ctypes, os, torch, macatensor, pytest
    spy = ctypes.CDLL(os.environ["MACA_LIBRARY"])
    torch.backends.maca.benchmark = True
    torch.maca.tunable.set_filename(os.environ["TMPDIR"] + "/bank.jsonl")
    torch.maca.tunable.set_max_tuning_duration(0)
    a = torch.rand(24, 40).maca()
    assert (a @ torch.rand(40, 56).maca()).shape == (24, 56)
    assert spy.interposer_count(b"plan_candidates") == 1 and len(torch.maca.tunable.get_results()) == 1
    for wrong, text in ((b"candidates", "gave 1000 names"), (b"candidate", "no text of 1 to 63")):
        assert spy.interposer_number(wrong)
        with pytest.raises(RuntimeError, match=f"plan_candidates .*{text}"):
            a @ torch.rand(40, 57).maca()
    """
    target = macatensor.device.library_info()["path"]
    run_python(code, MACA_LIBRARY=interposer, MACA_INTERPOSER_TARGET=target, TMPDIR=str(interposer.parent))
