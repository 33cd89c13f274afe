"""The ABI holds: a library that only forwards gives the same results, and every failure of a library is an exception."""

from __future__ import annotations

import json
import subprocess
import textwrap
from pathlib import Path

import pytest
from running import run_python

import macatensor

TARGET = macatensor.device.library_info()["path"]

TRAINING = """
import ctypes, json, os, torch, macatensor
from macatensor import maca
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
    torch.nn.Flatten(), torch.nn.Linear(8 * 4 * 4, 5),
)
images, labels = torch.rand(4, 3, 8, 8), torch.tensor([0, 1, 2, 3])
maca(model)
images, labels = maca(images), maca(labels)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
losses = []
for _ in range(4):
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
torch.maca.manual_seed(3)
noise = torch.randn(1000, device="maca")
stream = torch.maca.Stream()
with torch.maca.stream(stream):
    product = noise * 2
stream.synchronize()
out = {
    "losses": losses,
    "state": {k: v.cpu().double().sum().item() for k, v in model.state_dict().items()},
    "noise": noise.cpu().tolist()[:5] + product.cpu().tolist()[:5],
    "launches": macatensor.counters()["launches"],
    "fallbacks": macatensor.counters()["fallbacks"],
    "name": torch.maca.get_device_name(),
    "packs": macatensor.counters()["weight_packs"],
}
if os.environ.get("MACA_INTERPOSER_TARGET"):
    spy = ctypes.CDLL(os.environ["MACA_LIBRARY"])
    spy.interposer_count.restype = spy.interposer_foreign_addresses.restype = ctypes.c_int64
    out["counted"] = {n: spy.interposer_count(n.encode()) for n in
                      ("plan_launch", "plan_create", "plan_pack", "memory_commit", "copy", "stream_create")}
    out["foreign"] = spy.interposer_foreign_addresses()
print(json.dumps(out))
"""

# What the fault tests share: the interposer's controls as `spy`.
CONTROLS = """
import ctypes, gc, os, torch, macatensor, pytest
from macatensor import maca
from running import Gate
spy = ctypes.CDLL(os.environ["MACA_LIBRARY"])
spy.interposer_count.restype = ctypes.c_int64
for name in ("interposer_fail_allocation", "interposer_fail_copy", "interposer_fail_pack"):
    getattr(spy, name).argtypes = [ctypes.c_int64]
spy.interposer_fail_launch.argtypes = [ctypes.c_int64, ctypes.c_int32]

def allocated():
    gc.collect()
    return torch.maca.memory_allocated()
"""


def through(library: Path, code: str, **environment: str | Path | None) -> subprocess.CompletedProcess[str]:
    return run_python(code, MACA_LIBRARY=library, MACA_INTERPOSER_TARGET=TARGET, **environment)


def test_every_launch_passes_through_the_abi_unchanged(interposer: Path) -> None:
    direct = json.loads(run_python(TRAINING, MACA_LIBRARY=TARGET, MACA_FALLBACK="error").stdout)
    spied = json.loads(through(interposer, TRAINING, MACA_FALLBACK="error").stdout)
    assert spied["name"] == "interposed"
    counted = spied["counted"]
    assert counted["plan_launch"] == spied["launches"] > 50
    assert counted["plan_pack"] == spied["packs"]
    assert counted["stream_create"] == 1 and counted["memory_commit"] > 0 and counted["copy"] > 0
    assert spied["foreign"] == 0, "an address reached the device without the tag of the library that made it"
    assert spied["losses"] == direct["losses"] and spied["losses"][-1] < spied["losses"][0]
    assert spied["state"] == direct["state"]
    assert spied["noise"] == direct["noise"]
    assert spied["launches"] == direct["launches"] and spied["fallbacks"] == 0


# Imports PyTorch once and macatensor in a forked child for every environment: JSON in, the ImportErrors' texts out.
IMPORTS = """
import json, os, sys, torch
said = {}
for name, environment in json.loads(sys.argv[1]).items():
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.environ.update(environment)
        text = "imported"
        try:
            import macatensor
        except ImportError as error:
            text = str(error)
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said[name] = pipe.read()
    assert os.waitpid(child, 0)[1] == 0, name
print(json.dumps(said))
"""

REFUSED = {
    "older_major": ["implements maca.h 1.2, this macatensor speaks maca.h 2.2: build the library against"],
    "newer_major": [
        "implements maca.h 3.2, this macatensor speaks maca.h 2.2: ",
        "or install the macatensor",
    ],
    "refuse": ["implements no version of maca.h that is known, this macatensor speaks maca.h 2.2"],
    "missing:plan_launch": ["lacks the mandatory function plan_launch"],
    "missing:memory_allocate": ["lacks the mandatory function memory_allocate"],
    "missing:error_take": ["lacks the mandatory function error_take"],
    "short": ["too small for the mandatory function plan_create"],
    "closed": ["could not open its device 0", "keeps its device closed"],
    "no file": ["found no loadable library"],
    "no elf": ["found no loadable library"],
    "no entry": ["exports no maca_get_interface", "expected"],
}


def refusals_of(libraries: dict[str, Path]) -> dict[str, tuple[str, str]]:
    """By the interposer's mode, of which each has its library: the library's path and what the import said."""
    environments = {
        mode: {
            "MACA_LIBRARY": str(library),
            "MACA_INTERPOSER_TARGET": str(TARGET),
            "MACA_INTERPOSER_MODE": mode,
        }
        for mode, library in libraries.items()
    }
    said = json.loads(run_python(IMPORTS, json.dumps(environments)).stdout)
    return {mode: (environments[mode]["MACA_LIBRARY"], said[mode]) for mode in libraries}


@pytest.fixture(scope="module")
def refusals(interposer: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """For every way a library can be wrong: its path and what the import said."""
    folder = tmp_path_factory.mktemp("libraries")
    (folder / "text.so").write_text("not a library")
    (folder / "empty.c").write_text("int nothing(void) { return 0; }\n")
    subprocess.run(
        ["cc", "-shared", "-fPIC", str(folder / "empty.c"), "-o", str(folder / "empty.so")], check=True
    )
    paths = {"no file": folder / "missing.so", "no elf": folder / "text.so", "no entry": folder / "empty.so"}
    return refusals_of({mode: paths.get(mode, interposer) for mode in REFUSED})


@pytest.mark.parametrize("mode", REFUSED)
def test_a_wrong_library_is_an_import_error(refusals: dict[str, tuple[str, str]], mode: str) -> None:
    path, said = refusals[mode]
    for word in [*REFUSED[mode], path, "MACA_LIBRARY", "unset it to use the host library"]:
        assert word in said


def test_a_newer_minor_serves_as_what_is_known(interposer: Path) -> None:
    done = through(
        interposer, TRAINING + 'print(torch.maca.library_info()["abi"])', MACA_INTERPOSER_MODE="newer"
    )
    trained, version = done.stdout.splitlines()
    assert version == "2.7" and json.loads(trained)["launches"] > 50


def test_slots_that_may_be_missing(interposer: Path) -> None:
    code = """
    import torch, macatensor
    from macatensor import maca
    layer = maca(torch.nn.Conv2d(3, 8, 3))
    x = maca(torch.rand(2, 3, 8, 8))
    torch.set_num_threads(1)
    with torch.inference_mode():
        layer(x), layer(x)
    assert macatensor.counters()["weight_packs"] == 0
    """
    through(interposer, code, MACA_INTERPOSER_MODE="optional")


def test_a_library_whose_default_stream_is_asynchronous(interposer: Path) -> None:
    code = """
    default, side = torch.maca.default_stream(), torch.maca.Stream()
    x = maca(torch.zeros(1000))
    x * 2, x + 1  # plans
    def busy():
        gate = Gate()
        assert not default.query()
        return gate
    gate = busy()
    x += 1
    gate.open_soon()
    assert x.sum().item() == 1000
    gate = busy()
    x += 1
    with torch.maca.stream(side):
        y = x * 2  # waits for the default stream
    z = y + 1      # and that for the side stream
    assert not default.query()  # Python ran ahead
    gate.open_soon()
    assert z.cpu().eq(5).all(), z
    busy().open_soon()
    source = torch.ones(1000)
    x.copy_(source)
    source.zero_()
    assert x.cpu().eq(1).all()
    table, bad = maca(torch.arange(5.0)), maca(torch.tensor([99]))
    for wait in (torch.maca.synchronize, lambda: (x + 1).cpu()):
        busy().open_soon()
        table[bad]
        with pytest.raises(IndexError, match="index 99 .*kernel index"):
            wait()
    layer, image = maca(torch.nn.Conv2d(8, 16, 3)), maca(torch.rand(2, 8, 16, 16))
    with torch.inference_mode():
        found = [layer(image) for _ in range(3)]
    assert torch.equal(found[0].cpu(), found[1].cpu())
    torch.testing.assert_close(found[1].cpu(), found[2].cpu())
    assert macatensor.runtime.ffi.lib.maca_task_queue_get() == 0  # the library has its own
    """
    environment = {"MACA_INTERPOSER_MODE": "asynchronous", "MACA_TASK_QUEUE": "1"}
    through(interposer, CONTROLS + textwrap.dedent(code), **environment)


def test_out_of_memory_midway(interposer: Path) -> None:
    code = """
    x = maca(torch.ones(300, 300))
    layer = maca(torch.nn.Linear(300, 300))
    big = torch.ones(1 << 22)
    before = allocated()
    for nth in range(1, 4):
        torch.maca.empty_cache()
        spy.interposer_reset()
        spy.interposer_fail_allocation(-1)
        with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate .* Allocated: .* Reserved: .* Limit"):
            maca(big)
        with pytest.raises(torch.OutOfMemoryError):
            y = x
            for _ in range(400):
                y = torch.cat([y, y])
        spy.interposer_reset()
        del y
        assert allocated() == before, (allocated(), before)
    # the first attempt fails, the one after the cache is emptied succeeds
    spy.interposer_fail_allocation(1)
    free = maca(torch.ones(1 << 21))
    del free
    spy.interposer_fail_allocation(1)
    assert maca(torch.ones(1 << 23)).sum().item() == 1 << 23
    out = layer(x)
    out.sum().backward()
    assert torch.isfinite(layer.weight.grad).all().item()
    assert torch.maca.memory_stats()["num_ooms"] >= 6
    """
    through(interposer, CONTROLS + textwrap.dedent(code))


def test_launch_failures(interposer: Path) -> None:
    code = """
    x = maca(torch.ones(4))
    w = maca(torch.ones(4)).requires_grad_()
    x + x, x.exp(), x.add_(0), torch.cat([x, x]), (w * x).sum()
    def calls():
        yield lambda: x + x
        yield lambda: x + 1
        yield lambda: x.exp()
        yield lambda: x.add_(1.0)
        yield lambda: torch.cat([x, x])
        yield lambda: torch.add(x, x, out=torch.empty(4, device="maca"))
        yield lambda: torch._foreach_add([x, x], 1)
        yield lambda: (w * x).sum()
        yield lambda: torch.zeros(3, device="maca") + 1
    before = allocated()
    for code, error in ((1, IndexError), (2, RuntimeError), (3, RuntimeError), (4, RuntimeError),
                        (5, torch.linalg.LinAlgError)):
        for call in calls():
            spy.interposer_fail_launch(1, code)
            with pytest.raises(error, match=f"injected failure {code}"):
                call()
            assert allocated() == before
            spy.interposer_reset()
    assert (x + x).tolist() == [2.0] * 4
    # in backward, on the engine's thread
    loss = (w * x).exp().sum()
    spy.interposer_fail_launch(1, 3)
    with pytest.raises(RuntimeError, match="injected failure 3"):
        loss.backward()
    del loss
    w.grad = None
    assert allocated() == before
    # a failing copy
    for call in (lambda: maca(torch.ones(3)), lambda: x.cpu(), lambda: x.tolist(), lambda: x.sum().item()):
        x.sum()
        spy.interposer_fail_copy(1)
        with pytest.raises(RuntimeError):
            call()
        spy.interposer_reset()
        assert allocated() == before
    assert x.tolist() == [1.0] * 4
    # a weight that cannot be packed is used as it is
    layer, image = maca(torch.nn.Conv2d(3, 8, 3)), maca(torch.rand(2, 3, 16, 16))
    with torch.inference_mode():
        want = layer(image).cpu()
        other = maca(torch.nn.Conv2d(3, 8, 3))
        other.load_state_dict(layer.state_dict())
        spy.interposer_fail_pack(-1)
        got = [other(image) for _ in range(3)][2].cpu()
    torch.testing.assert_close(got, want)
    """
    through(interposer, CONTROLS + textwrap.dedent(code))


def test_parity_counts_declined_apart_from_wrong(interposer: Path) -> None:
    code = """
    import json
    from typer.testing import CliRunner
    from macatensor.cli import app

    def parity(name):
        done = CliRunner().invoke(app, ["parity", name, "--dtype", "float32", "--json"])
        return done.exit_code, json.loads(done.stdout)[0]

    spy.interposer_decline(b"exp")
    status, row = parity("exp")
    assert status == 0 and row["verdict"] == "DECLINED" and row["failed"] == 0 and row["samples"] == 0, row
    assert row["declined"] > 8 and row["max_ulp"] == row["share"] == 0
    assert len(row["declines"]) == 8 and "interposer declines exp" in row["declines"][0]
    printed = CliRunner().invoke(app, ["parity", "exp", "--dtype", "float32"])
    assert printed.exit_code == 0 and f"{row['declined']} samples declined" in printed.output
    status, row = parity("expm1")
    assert status == 0 and row["verdict"] == "pass" and row["declined"] == 0 and row["samples"] > 8
    """
    through(interposer, CONTROLS + textwrap.dedent(code))


def test_a_declined_plan_goes_the_next_way(interposer: Path) -> None:
    code = """
    x = maca(torch.tensor([0.5, 1.5]))
    spy.interposer_decline(b"exp")
    with macatensor.fallback("error"):
        with pytest.raises(NotImplementedError, match="interposer declines exp"):
            x.exp()
    with macatensor.fallback("warn"), pytest.warns(UserWarning, match="aten.exp.default runs on the host"):
        y = x.exp()
    torch.testing.assert_close(y.cpu(), x.cpu().exp())
    assert macatensor.counters()["fallbacks"] == 1
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device|same device"):
        x + torch.ones(2)
    """
    through(interposer, CONTROLS + textwrap.dedent(code), MACA_FALLBACK=None)
