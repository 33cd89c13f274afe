"""Names of torch.cuda that are small: each does what its namesake documents, and bad input has PyTorch's error."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from running import run_python

backend: Any = torch.backends.maca

# parameters that differ: PyTorch's own defaults name CUDA, or are those of a C++ type
DIFFER = {"get_rng_state", "set_rng_state", "device", "OutOfMemoryError", "Stream", "Event", "ExternalStream"}


def test_parameters_and_docstrings_are_those_of_the_namesake() -> None:
    compared = 0
    for name in torch.maca.__all__:
        theirs, ours = getattr(torch.cuda, name, None), getattr(torch.maca, name)
        if theirs is None or not callable(theirs) or inspect.ismodule(theirs) or name in DIFFER:
            continue
        assert ours.__doc__ and ours.__doc__.strip(), name
        if inspect.isfunction(theirs) and inspect.isfunction(ours):
            expected = [(p.name, p.default) for p in inspect.signature(theirs).parameters.values()]
            got = [(p.name, p.default) for p in inspect.signature(ours).parameters.values()]
            assert got == expected, name
            compared += 1
    assert compared > 50


@pytest.mark.supports("torch.maca: device_count is_available memory_reserved max_memory_reserved")
def test_small_answers() -> None:
    assert torch.maca.device_count() == 1 and torch.maca.is_available() is True
    kept = torch.ones(1000, device="maca")
    torch.maca.reset_peak_memory_stats()
    assert (
        torch.maca.max_memory_reserved() == torch.maca.memory_reserved() >= torch.maca.memory_allocated() > 0
    )
    del kept


@pytest.mark.supports("torch.maca.memory._snapshot")
def test_snapshot() -> None:
    assert {"segments", "device_traces"} <= set(torch.maca.memory._snapshot())


@pytest.mark.supports("torch.TypedStorage")
def test_typed_storage() -> None:
    typed = torch.TypedStorage([1, 2], dtype=torch.float32).maca()
    assert typed.is_maca and typed.tolist() == [1.0, 2.0] and typed.cpu().tolist() == [1.0, 2.0]


@pytest.mark.supports("torch.accelerator: device_index reset_accumulated_memory_stats")
def test_accelerator_of_one_device() -> None:
    with torch.accelerator.device_index(0):
        assert torch.accelerator.current_device_index() == 0
    with torch.accelerator.device_index(None):
        pass
    torch.accelerator.reset_accumulated_memory_stats()
    assert torch.accelerator.memory_stats()["num_ooms"] == 0


@pytest.mark.refuses(
    "torch.accelerator.Graph",
    reason="PyTorch makes it from a class of C++ that a device registers; `torch.maca.MacaGraph` captures",
)
def test_no_graph() -> None:
    if not hasattr(torch.accelerator, "Graph"):
        pytest.xfail("this PyTorch has no torch.accelerator.Graph")
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.accelerator.Graph()


@pytest.mark.supports(
    "torch.backends.maca: conv.allow_tf32 fft_plan_cache enable_math_sdp enable_mem_efficient_sdp",
    "torch.use_deterministic_algorithms torch.set_float32_matmul_precision torch.backends.opt_einsum",
)
def test_flags_change_what_is_computed() -> None:
    a, b = torch.full((1, 1, 2, 2), 1 + 2.0**-11, device="maca"), torch.ones(1, 1, 1, 1, device="maca")
    before = torch.nn.functional.conv2d(a, b)
    backend.conv.allow_tf32 = True
    try:
        rounded = torch.nn.functional.conv2d(a, b)
    finally:
        backend.conv.allow_tf32 = False
    assert before[0, 0, 0, 0].item() == 1 + 2.0**-11 and rounded[0, 0, 0, 0].item() == 1.0
    backend.fft_plan_cache.clear()
    torch.fft.fft(torch.rand(8, device="maca"))
    assert backend.fft_plan_cache.size >= 1 and backend.fft_plan_cache[0].max_size > 0
    for switch, asked in (
        (backend.enable_math_sdp, torch.backends.cuda.math_sdp_enabled),
        (backend.enable_mem_efficient_sdp, torch.backends.cuda.mem_efficient_sdp_enabled),
    ):
        switch(False)
        assert not asked()
        switch(True)
        assert asked()
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.are_deterministic_algorithms_enabled()
        total = torch.zeros(3, device="maca").index_add_(
            0, torch.tensor([0, 0, 2]).maca(), torch.ones(3).maca()
        )
        assert total.tolist() == [2, 0, 1]
    finally:
        torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision("high")
    assert backend.matmul.allow_tf32
    torch.set_float32_matmul_precision("highest")
    assert not backend.matmul.allow_tf32
    enabled, torch.backends.opt_einsum.enabled = torch.backends.opt_einsum.enabled, False
    x = torch.rand(2, 3, device="maca")
    torch.testing.assert_close(torch.einsum("ij,kj->ik", x, x), x @ x.T)
    torch.backends.opt_einsum.enabled = enabled


def test_cuda_flags_under_as_cuda() -> None:
    """``torch.backends.cuda.matmul.allow_tf32`` and cudnn's flags act on maca, and only as long as it is enabled."""
    run_python(
        """
        import torch, macatensor, macatensor.as_cuda as as_cuda
        x = torch.full((1, 1), 1 + 2.0**-11, device="cuda")
        one = torch.ones(1, 1, device="cuda")
        assert (x @ one).item() == 1 + 2.0**-11
        torch.backends.cuda.matmul.allow_tf32 = True
        assert torch.backends.maca.matmul.allow_tf32 and (x @ one).item() == 1.0
        torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.deterministic = True
        assert torch.backends.maca.conv.allow_tf32 and torch.backends.maca.deterministic
        torch.backends.cuda.matmul.allow_tf32 = False
        assert not torch.backends.maca.matmul.allow_tf32
        as_cuda.disable()
        torch.backends.cuda.matmul.allow_tf32 = True
        assert not torch.backends.maca.matmul.allow_tf32
        """
    )


def test_gloo_alone_refuses_tensors_on_maca() -> None:
    run_python(
        """
        import os, tempfile, torch, macatensor
        import torch.distributed as dist
        place = "file://" + tempfile.mktemp()
        dist.init_process_group("gloo", init_method=place, rank=0, world_size=1)
        for call in (lambda: dist.all_reduce(torch.ones(2, device="maca")),
                     lambda: torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2).to("maca"))):
            try:
                call()
            except Exception as error:
                assert isinstance(error, (RuntimeError, ValueError, NotImplementedError)), type(error)
                assert "maca" in str(error) or "privateuseone" in str(error).lower(), error
            else:
                raise SystemExit("not refused")
        dist.destroy_process_group()
        """
    )


BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "event without timing": (
        lambda: torch.maca.Event().elapsed_time(torch.maca.Event()), ValueError, "enable_timing=True"
    ),
    "stream of the host": (
        lambda: torch.maca.set_stream(torch.Stream(device="cpu")), RuntimeError, "device type cpu"
    ),
    "negative fraction": (
        lambda: torch.maca.set_per_process_memory_fraction(-0.5), ValueError, "Invalid fraction value: -0.5"
    ),
    "unknown flag": (lambda: setattr(backend, "allow_tf23", True), AttributeError, "allow_tf23"),
    "unknown flag of products": (lambda: backend.matmul.allow_int4, AttributeError, "allow_int4"),
    "flag of another type": (lambda: setattr(backend, "benchmark", "no"), TypeError, "expects a bool, got str"),
    "device there is not": (lambda: torch.maca.set_device(7), RuntimeError, "invalid device ordinal 7"),
    "device of another type": (lambda: torch.maca.synchronize("cpu"), ValueError, "Expected a maca device"),
    "state of another size": (
        lambda: torch.maca.set_rng_state(torch.zeros(3, dtype=torch.uint8)), RuntimeError, "wrong size"
    ),
    "address never given": (lambda: torch.maca.caching_allocator_delete(64), RuntimeError, "invalid device pointer"),
    "unknown debug mode": (lambda: torch.maca.set_sync_debug_mode("loud"), RuntimeError, "invalid value of debug_mode"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str) -> None:
    call, error, says = BAD[name]
    with pytest.raises(error, match=says):
        call()
