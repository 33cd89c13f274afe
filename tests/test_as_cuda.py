"""The names of CUDA on maca: what is redirected, that all of it can be undone, and scripts of others unchanged."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from running import run_python
from torch.overrides import _len_torch_function_stack

SCRIPTS = Path(__file__).parent / "scripts"
# run a script as its author would, then look at what it left
RUN_UNDER = """
import runpy, sys
path, prelude = sys.argv[1:3]
sys.argv = [path]
exec(prelude)
state = runpy.run_path(path, run_name="__main__")
import torch
devices = {p.device.type for p in state["model"].parameters()}
losses = state["losses"]
print("DEVICES", *sorted(devices))
print("FALLS", sum(losses[-5:]) < 0.9 * sum(losses[:5]))
print("LOGITS", state["logits"].dtype if "logits" in state else None)
"""


@pytest.fixture
def as_cuda() -> Iterator[object]:
    """The module, redirecting inside the test only."""
    from macatensor import as_cuda as module

    module.disable()  # importing it enables
    with module.redirect():
        yield module
    assert not module.is_enabled()


@pytest.mark.supports("macatensor.as_cuda")
@pytest.mark.parametrize("name", ["imagenet_trainer", "char_gpt", "dcgan"])
def test_script_trains_unchanged(name: str) -> None:
    done = run_python(RUN_UNDER, str(SCRIPTS / f"{name}.py"), "import macatensor.as_cuda", timeout=240)
    assert "DEVICES maca\n" in done.stdout
    assert "FALLS True\n" in done.stdout
    assert done.stderr.count("names of CUDA act on maca") == 1


def test_script_with_autocast_computes_in_bfloat16() -> None:
    done = run_python(RUN_UNDER, str(SCRIPTS / "char_gpt.py"), "import macatensor.as_cuda", timeout=240)
    assert "LOGITS torch.bfloat16\n" in done.stdout


def test_nothing_is_redirected_without_the_import() -> None:
    run_python("""
        import torch
        before = {n: getattr(torch.cuda, n) for n in torch.cuda.__all__}
        import macatensor
        assert not torch.cuda.is_available()
        assert torch.device("cuda").type == "cuda"
        assert not torch.ones(2).is_cuda
        assert torch.autocast("cpu").device == "cpu"
        assert all(getattr(torch.cuda, n) is v for n, v in before.items())
    """)


def test_host_code_is_unaffected(as_cuda) -> None:
    x = torch.ones(3, requires_grad=True)
    (2 * x).sum().backward()
    assert x.grad.device.type == "cpu" and not x.is_cuda
    assert torch.device("cpu").type == "cpu" and torch.zeros(2, device="meta").device.type == "meta"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.get_autocast_dtype("cpu") is torch.bfloat16
    assert torch.einsum("cuda", torch.ones(1, 2, 3, 4)).shape == (4, 1, 3, 2)  # an equation, not a device


@pytest.mark.supports("macatensor.as_cuda.disable")
def test_disable_restores_every_attribute(as_cuda) -> None:
    as_cuda.disable()
    depth = _len_torch_function_stack()
    as_cuda.enable(quiet=True)
    replaced = as_cuda._patches.attributes()
    assert len(replaced) > 100
    now = [vars(owner)[name] for owner, name, _ in replaced]
    assert all(new is not old for new, (_, _, old) in zip(now, replaced))
    registry = list(torch.serialization._package_registry)
    as_cuda.disable()
    for owner, name, old in replaced:
        assert vars(owner).get(name) is old, f"{owner}.{name}"
    assert len(torch.serialization._package_registry) == len(registry) - 1
    assert _len_torch_function_stack() == depth
    assert as_cuda.redirected() == [] == as_cuda.missing()
    as_cuda.disable()  # once more changes nothing
    assert not torch.cuda.is_available() and torch.device("cuda").type == "cuda"
    as_cuda.enable(quiet=True)


@pytest.mark.supports("macatensor.as_cuda.redirect")
def test_compiled_programs_are_forgotten() -> None:
    run_python(
        """
        import macatensor.as_cuda
        import torch
        double = torch.compile(lambda x: x * 2, backend="aot_eager")
        assert double(torch.ones(2, device="cuda")).tolist() == [2.0, 2.0]
        torch.compiler.reset()  # imports what only a build for CUDA has
        assert double(torch.ones(3, device="cuda")).tolist() == [2.0, 2.0, 2.0]
        """
    )


def test_distributed_checkpoints_hold_the_device(tmp_path: Path) -> None:
    run_python(
        """
        import sys
        import torch.distributed.checkpoint as checkpoint
        import macatensor.as_cuda
        import torch
        checkpoint.save({"x": torch.arange(4.0, device="cuda")}, checkpoint_id=sys.argv[1])
        state = {"x": torch.zeros(4, device="cuda")}
        checkpoint.load(state, checkpoint_id=sys.argv[1])
        assert state["x"].is_cuda and state["x"].tolist() == [0.0, 1.0, 2.0, 3.0]
        """,
        str(tmp_path / "saved"),
    )


def test_redirect_leaves_the_state_it_found(as_cuda) -> None:
    with as_cuda.redirect():
        assert torch.cuda.is_available()
    assert torch.cuda.is_available()  # the outer one is still on
    as_cuda.disable()
    with pytest.raises(ZeroDivisionError), as_cuda.redirect():
        _ = 1 / 0
    assert not torch.cuda.is_available()
    as_cuda.enable(quiet=True)


def test_other_modes_survive(as_cuda) -> None:
    as_cuda.disable()
    with torch.device("meta"):
        as_cuda.enable(quiet=True)
        assert torch.ones(1).device.type == "meta"
        assert torch.ones(1, device="cuda").device.type == "maca"
        as_cuda.disable()
        assert torch.ones(1).device.type == "meta"
    assert torch.ones(1).device.type == "cpu"
    as_cuda.enable(quiet=True)


def test_redirected_names_their_target(as_cuda) -> None:
    listed = as_cuda.redirected()
    assert "torch.cuda.synchronize -> torch.maca.synchronize" in listed
    assert 'device="cuda" -> device="maca"' in listed
    assert len(set(listed)) == len(listed)
    assert torch.cuda.synchronize is torch.maca.synchronize


def test_missing_raises_and_says_so(as_cuda) -> None:
    assert "torch.cuda.CUDAGraph" in as_cuda.missing() or hasattr(torch.maca, "CUDAGraph")
    for name in as_cuda.missing():
        with pytest.raises(NotImplementedError, match=f"{name} has no counterpart"):
            getattr(torch.cuda, name.rpartition(".")[2])()


@pytest.mark.parametrize("spelling", ["cuda", "cuda:0", torch.device("cuda"), torch.device("cuda", 0)])
def test_devices(as_cuda, spelling) -> None:
    assert torch.ones(2, device=spelling).device.type == "maca"
    assert torch.ones(2).to(spelling).device.type == "maca"
    assert torch.ones(2).to(device=spelling, dtype=torch.float64).dtype == torch.float64
    assert torch.ones(2).cuda(spelling).device.type == "maca"
    assert torch.device(spelling).type == "maca"
    assert torch.nn.Linear(2, 2).to(spelling).weight.device.type == "maca"
    assert torch.nn.Linear(2, 2, device=spelling).weight.device.type == "maca"
    assert torch.empty_like(torch.ones(2), device=spelling).device.type == "maca"


def test_tensor_and_module_methods(as_cuda) -> None:
    x = torch.ones(2).cuda(non_blocking=True)
    assert x.is_cuda and x.cuda() is x and not x.cpu().is_cuda
    assert torch.ones(2).cuda(0).is_cuda and torch.ones(2).cuda(None).is_cuda
    module = torch.nn.Linear(2, 2)
    weight = module.weight
    assert module.cuda() is module and module.weight is weight and weight.is_cuda
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2, 1)]).cuda()
    assert packed.data.is_cuda
    with pytest.raises(RuntimeError, match="invalid device ordinal 1"):
        torch.ones(1).cuda(1)
    with pytest.raises(RuntimeError, match="invalid device ordinal 1"):
        torch.ones(1, device="cuda:1")


def test_tensor_types(as_cuda) -> None:
    x = torch.cuda.FloatTensor([1, 2])
    assert x.is_cuda and isinstance(x, torch.cuda.FloatTensor) and not isinstance(x, torch.cuda.HalfTensor)
    assert torch.cuda.LongTensor(2, 3).shape == (2, 3)
    assert torch.ones(2).type(torch.cuda.HalfTensor).dtype == torch.float16
    assert torch.ones(2).type("torch.cuda.LongTensor").is_cuda
    assert torch.ones(2).type("torch.LongTensor").dtype == torch.int64
    torch.set_default_tensor_type(torch.cuda.DoubleTensor)
    try:
        assert torch.ones(2).is_cuda and torch.ones(2).dtype == torch.float64
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)


def test_module_functions(as_cuda) -> None:
    assert torch.cuda.device_count() == 1 and torch.cuda.current_device() == 0
    torch.cuda.set_device("cuda:0")
    with torch.cuda.device("cuda:0"):
        torch.cuda.synchronize("cuda")
    assert torch.cuda.get_device_name("cuda:0") == torch.maca.get_device_name()
    assert torch.cuda.get_device_properties(0).total_memory > 0
    assert torch.cuda.memory_allocated("cuda") == torch.maca.memory_allocated()
    torch.cuda.manual_seed(3)
    first = torch.rand(2, device="cuda").cpu()
    torch.cuda.manual_seed_all(3)
    state = torch.cuda.get_rng_state()
    assert torch.equal(torch.rand(2, device="cuda").cpu(), first)
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.rand(2, device="cuda").cpu(), first)
    from torch.cuda.random import manual_seed

    assert manual_seed is torch.maca.manual_seed


def test_streams_and_events(as_cuda) -> None:
    stream = torch.cuda.Stream()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.stream(stream):
        start.record()
        x = torch.ones(10, device="cuda") * 3
        end.record()
    torch.cuda.current_stream().wait_stream(stream)
    stream.synchronize()
    assert x.sum().item() == 30 and start.elapsed_time(end) >= 0
    with torch.cuda.nvtx.range("step"):
        torch.cuda.nvtx.range_push("inner")
        torch.cuda.nvtx.range_pop()


def test_mixed_precision_arguments(as_cuda) -> None:
    assert torch.autocast("cuda").device == "maca"
    assert torch.amp.autocast(device_type="cuda", dtype=torch.bfloat16).device == "maca"
    with pytest.warns(FutureWarning):
        assert torch.cuda.amp.autocast().device == "maca"
    with pytest.warns(FutureWarning):
        assert torch.cuda.amp.GradScaler().is_enabled()
    for scaler in (torch.amp.GradScaler("cuda"), torch.amp.GradScaler(), torch.GradScaler(device="cuda")):
        assert scaler.is_enabled() and scaler._device == "maca"
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert torch.is_autocast_enabled("cuda") and torch.is_autocast_enabled("maca")
        assert torch.get_autocast_dtype("cuda") is torch.bfloat16


def test_backends(as_cuda) -> None:
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.deterministic
    assert cudnn.is_available() and torch.backends.cuda.is_built()
    cudnn.benchmark, cudnn.deterministic = True, True
    assert cudnn.benchmark and cudnn.deterministic
    cudnn.benchmark, cudnn.deterministic = before
    with cudnn.flags(enabled=True, benchmark=not before[0], deterministic=not before[1]):
        assert (cudnn.benchmark, cudnn.deterministic) == (not before[0], not before[1])
    assert (cudnn.benchmark, cudnn.deterministic) == before
    torch.backends.disable_global_flags()  # as PyTorch's test suite does
    try:
        held = cudnn.set_flags(False)  # as torch.export does
        assert not cudnn.enabled
        cudnn.set_flags(*held)
        assert cudnn.enabled
    finally:
        vars(torch.backends)["__allow_nonbracketed_mutation_flag"] = True


@pytest.mark.parametrize(
    "location",
    ["cuda", "cuda:0", torch.device("cuda:0"), {"cpu": "cuda:0"}, lambda storage, _: storage.cuda(0)],
)
def test_load(as_cuda, location) -> None:
    file = io.BytesIO()
    torch.save({"weight": torch.arange(3.0)}, file)
    file.seek(0)
    loaded = torch.load(file, map_location=location)["weight"]
    assert loaded.is_cuda and loaded.tolist() == [0, 1, 2]


def test_default_device(as_cuda) -> None:
    torch.set_default_device("cuda")
    try:
        assert torch.get_default_device().type == "maca"
        assert torch.ones(2).is_cuda
    finally:
        torch.set_default_device(None)
    with torch.device("cuda"):
        assert torch.ones(2).is_cuda
    assert not torch.ones(2).is_cuda


def test_generators(as_cuda) -> None:
    generator = torch.Generator(device="cuda").manual_seed(1)
    assert isinstance(generator, torch.Generator) and generator.device.type == "maca"
    assert torch.Generator().device.type == "cpu" and torch.cuda.nccl.version() == torch.maca.nccl.version()
    x = torch.rand(3, device="cuda", generator=generator)
    again = torch.rand(3, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    assert torch.equal(x.cpu(), again.cpu())


def test_threads_see_the_redirection(as_cuda) -> None:
    found: list[torch.device] = []
    thread = threading.Thread(target=lambda: found.append(torch.ones(1, device="cuda").device))
    thread.start()
    thread.join()
    assert [d.type for d in found] == ["maca"]


def test_own_backward_and_hooks_see_the_redirection(as_cuda) -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, grad):
            return grad * torch.full((), 2.0, device="cuda")

    x = torch.ones(2, device="cuda", requires_grad=True)
    x.register_hook(lambda grad: grad + torch.ones(2, device="cuda"))
    Double.apply(x).sum().backward()
    assert x.grad.tolist() == [3, 3]
    (again,) = torch.autograd.grad(Double.apply(x).sum(), x)
    assert again.tolist() == [3, 3]


@pytest.mark.parametrize("workers", [0, 1])
def test_data_loader_pins(as_cuda, workers: int) -> None:
    data = torch.utils.data.TensorDataset(torch.arange(4.0))
    batches = [
        b for (b,) in torch.utils.data.DataLoader(data, batch_size=2, pin_memory=True, num_workers=workers)
    ]
    assert all(b.is_pinned() for b in batches)
    assert torch.cat([b.cuda(non_blocking=True) for b in batches]).tolist() == [0, 1, 2, 3]


def test_factories_pin(as_cuda) -> None:
    for make in (torch.empty, torch.zeros, torch.randn):
        made = make(3, pin_memory=True)
        assert made.is_pinned() and made.device.type == "cpu" and type(made) is torch.Tensor
    learned = torch.ones(3, pin_memory=True, requires_grad=True)
    assert learned.is_pinned() and learned.is_leaf and learned.requires_grad
    assert torch.zeros_like(torch.ones(2), pin_memory=True).is_pinned()
    assert not torch.zeros(3, pin_memory=False).is_pinned()
    with pytest.raises(RuntimeError):
        torch.empty(3, device="cuda", pin_memory=True)


def test_data_parallel(as_cuda) -> None:
    model = torch.nn.DataParallel(torch.nn.Linear(3, 2)).cuda()
    out = model(torch.ones(4, 3))
    out.sum().backward()
    assert out.is_cuda and out.shape == (4, 2)
    assert next(iter(model.state_dict())) == "module.weight"


NETWORK = """
import torch
torch.manual_seed(0)
torch.set_grad_enabled(False)
network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.MaxPool2d(2))
x = torch.rand(2, 3, 10, 10)
for form in (torch.contiguous_format, torch.channels_last):
    x = x.to(memory_format=form)
    host = network(x)
    for spell in (lambda t: t.cuda(), lambda t: t.to("cuda"), lambda t: t.to(torch.device("cuda:0"))):
        ours = spell(network)(spell(x))
        assert ours.is_cuda and spell(x).stride() == x.stride() and ours.stride() == host.stride(), (form, ours.stride())
    network.cpu()
"""


def test_strides_are_those_of_the_script() -> None:
    run_python(
        "import macatensor.as_cuda\n" + NETWORK + "\nassert ours.contiguous().view(2, -1).shape == (2, 64)"
    )


@pytest.mark.supports("macatensor.as_cuda.report")
def test_channels_last_is_asked_for() -> None:
    run_python(
        """
        import torch
        from macatensor import as_cuda, maca
        x = torch.rand(2, 3, 4, 5)
        assert x.cuda().stride() == x.to("cuda").stride() == x.stride()
        as_cuda.enable(layout="nhwc")
        assert x.cuda().stride() == x.to("cuda").stride() == (60, 1, 15, 3)
        with as_cuda.redirect(layout="nchw"):
            assert x.cuda().stride() == x.stride()
        as_cuda.disable()
        assert maca(x).stride() == (60, 1, 15, 3)
        as_cuda.enable()
        assert x.to("cuda").stride() == x.stride() and "torch.cuda.synchronize" in as_cuda.report().replace("\\n", " ")
        try:
            as_cuda.enable(layout="nwhc")
        except ValueError:
            pass
        else:
            raise AssertionError
        """
    )


def test_the_banner_is_a_line() -> None:
    done = run_python("import macatensor.as_cuda")
    assert len(done.stderr.splitlines()) == 1 and "as_cuda.report()" in done.stderr


def test_unknown_switches_go_on_to_pytorch(as_cuda) -> None:
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.allow_tf32 = True
    assert torch.backends.maca.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    assert isinstance(before, str) and isinstance(torch.backends.cudnn.benchmark_limit, int)
    assert torch._C._cuda_get_cudnn_benchmark_limit() == torch.backends.cudnn.benchmark_limit


def test_without_it_the_error_names_it() -> None:
    for use in (
        lambda: torch.ones(1).cuda(),
        lambda: torch.ones(1, device="cuda"),
        lambda: torch.ones(1).to("cuda"),
    ):
        with pytest.raises(AssertionError, match=r"not compiled with CUDA.*import macatensor\.as_cuda"):
            use()
