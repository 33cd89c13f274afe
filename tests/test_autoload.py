"""``import torch`` alone makes the device maca exist, and loads nothing of it before it is used."""

from __future__ import annotations

import pytest
from running import run_python
from test_cpu_untouched import CPU_PROGRAM

# one process imports PyTorch; each first use has a child of its own, so that it is the first
FORKED = """
import os, sys, warnings
import torch
assert "macatensor" not in sys.modules
uses = {uses!r}
failed = []
for use in uses:
    child = os.fork()
    if child == 0:
        try:
            exec(use, {{"torch": torch, "sys": sys}})
        except BaseException as error:
            print(use, "->", type(error).__name__, error, flush=True)
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        failed.append(use)
assert not failed, failed
"""

FIRST_USES = [
    "assert torch.device('maca').type == 'maca'",
    "assert torch.ones(2, device='maca').tolist() == [1, 1]",
    "assert torch.tensor([1.0], device='maca').is_maca and not torch.ones(1).is_maca",
    "assert torch.ones(2).to('maca').device.type == 'maca'",
    "assert torch.ones(2).maca().device.type == 'maca'",
    "m = torch.nn.Linear(2, 2); w = m.weight; m.to('maca'); assert m.weight is w and w.is_maca",
    "m = torch.nn.Linear(2, 2); w = m.weight; m.maca(); assert m.weight is w and w.is_maca",
    "m = torch.nn.Linear(2, 2, device='meta').to_empty(device='maca'); assert m.weight.is_maca",
    "torch.set_default_device('maca'); assert torch.ones(1).is_maca",
    "assert torch.maca.is_available() and torch.maca.device_count() == 1",
    "from torch.maca import Stream; Stream()",
    "import torch.maca as m; assert m.current_device() == 0",
    "assert torch.accelerator.is_available() and torch.accelerator.device_count() == 1",
    "torch.accelerator.synchronize()",
    "assert torch.get_device_module() is not None; torch.ones(1).maca(); assert torch.get_device_module() is torch.maca",
    "torch.backends.maca.matmul.allow_tf32 = True; assert torch.backends.maca.matmul.allow_tf32",
    "torch.manual_seed(3); a = torch.rand(9, device='maca'); torch.manual_seed(3)\n"
    "assert torch.equal(a.cpu(), torch.rand(9, device='maca').cpu())",
    "with torch.autocast('maca', dtype=torch.bfloat16):\n"
    "    assert (torch.ones(2, 2).maca() @ torch.ones(2, 2).maca()).dtype == torch.bfloat16",
    "assert torch.amp.GradScaler('maca').is_enabled()",
    "assert torch.UntypedStorage(4, device='maca').device.type == 'maca'",
    "assert torch.ones(3).pin_memory().is_pinned()",
    "import io; f = io.BytesIO(); torch.save(torch.ones(2), f); f.seek(0)\n"
    "assert torch.load(f, map_location='maca').is_maca",
    "with torch.inference_mode(): assert torch.ones(2, device='maca').is_inference()",
    "from torch._subclasses import FakeTensorMode\n"
    "with FakeTensorMode(): assert torch.ones(2, device='maca').device.type == 'maca'\n"
    "assert torch.ones(2, device='maca').tolist() == [1, 1]",
    "x = torch.ones(3, requires_grad=True); (x * 2).sum().backward()\n"
    "y = torch.ones(3, requires_grad=True); (y.to('maca') * 2).sum().cpu().backward(); assert y.grad.tolist() == [2] * 3",
    "m = torch.nn.Linear(2, 2); o = torch.optim.SGD(m.parameters(), lr=0.1); m.to('maca')\n"
    "before = m.bias.clone(); m(torch.ones(1, 2, device='maca')).sum().backward(); o.step()\n"
    "assert not torch.equal(before, m.bias)",
    "from macatensor import maca; assert maca(torch.ones(2)).is_maca",
    "import threading; made = []\n"
    "threads = [threading.Thread(target=lambda: made.append(torch.ones(2, device='maca'))) for _ in range(4)]\n"
    "[t.start() for t in threads]; [t.join() for t in threads]; assert len(made) == 4",
    "import torch.distributed as dist\n"
    "store = dist.HashStore(); dist.init_process_group('mccl', store=store, rank=0, world_size=1)\n"
    "x = torch.ones(2, device='maca'); dist.all_reduce(x); dist.destroy_process_group()",
]

# nothing of it asks for the device
HOST_USES = [
    "torch.manual_seed(0); torch.seed(); torch.get_rng_state()",
    "x = torch.ones(3, requires_grad=True); (x * 2).sum().backward()",
    "torch.nn.Linear(2, 2).double().to('cpu')(torch.ones(1, 2, dtype=torch.float64))",
    "assert not torch.ones(3).is_pinned() and torch.accelerator.current_accelerator().type == 'maca'",
    "import unittest, inspect, warnings; inspect.getmodule(inspect); warnings.warn('seen')",
    "import io; f = io.BytesIO(); torch.save(torch.ones(2), f); f.seek(0); torch.load(f)",
    "with torch.autocast('cpu', dtype=torch.bfloat16): torch.ones(2, 2) @ torch.ones(2, 2)",
    "torch.UntypedStorage(4); torch.UntypedStorage(4, device='cpu'); torch.ones(2).share_memory_()",
    "import torch.distributed as dist\n"
    "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
    "x = torch.ones(2); dist.all_reduce(x); dist.destroy_process_group()",
    "import os\n"
    "x = torch.ones(3, requires_grad=True); (x * 2).sum().backward(); child = os.fork()\n"
    "if child == 0: (x * 2).sum().backward(); os._exit(0)\n"
    "assert os.waitpid(child, 0)[1] == 0",
]


def test_first_uses_load_the_device() -> None:
    run_python(FORKED.format(uses=FIRST_USES), OMP_NUM_THREADS="1")


def test_host_programs_load_nothing() -> None:
    never = [use + "\nassert 'macatensor' not in sys.modules" for use in HOST_USES]
    run_python(FORKED.format(uses=never), OMP_NUM_THREADS="1")


def test_a_host_program_prints_the_same() -> None:
    off = run_python(CPU_PROGRAM, "without", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert run_python(CPU_PROGRAM, "without", TORCH_DEVICE_BACKEND_AUTOLOAD="1").stdout == off.stdout


def test_the_switch_of_pytorch_turns_it_off() -> None:
    run_python(
        """
        import torch
        assert not hasattr(torch, "maca") and torch.accelerator.current_accelerator() in (None, torch.device("cuda"))
        try:
            torch.device("maca")
        except RuntimeError:
            import macatensor
            assert torch.ones(1, device="maca").is_maca
        else:
            raise AssertionError
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )


def test_without_a_library_it_is_not_available() -> None:
    run_python(
        """
        import torch, warnings
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            assert not torch.maca.is_available() and not torch.accelerator.is_available()
            assert torch.accelerator.device_count() == 0
        assert "/nowhere.so" in str(seen[0].message), seen
        try:
            torch.ones(1, device="maca")
        except ImportError as error:
            assert "MACA_LIBRARY" in str(error)
        else:
            raise AssertionError
        assert torch.ones(1).tolist() == [1]
        """,
        MACA_LIBRARY="/nowhere.so",
    )


def test_another_package_may_have_the_device() -> None:
    run_python(
        """
        import torch, sys
        torch.utils.rename_privateuse1_backend("other")
        import maca_autoload
        maca_autoload.register()
        assert not hasattr(torch, "maca") and torch.device("other").type == "other"
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )


@pytest.mark.parametrize("first", ["import torch, macatensor", "import macatensor, torch"])
def test_either_import_may_come_first(first: str) -> None:
    run_python(first + "\nassert torch.maca is macatensor.device and torch.ones(1).maca().is_maca")


def test_beside_a_gpu_the_accelerator_stays() -> None:
    run_python(
        """
        import torch, maca_autoload
        maca_autoload._GPUS = ("/",)
        torch.backends.cuda.is_built = lambda: False
        maca_autoload.register()
        assert hasattr(torch, "maca")  # a PyTorch for the CPU has no use for that GPU
        maca_autoload.withdraw()
        torch.backends.cuda.is_built = lambda: True
        maca_autoload.register()
        assert not hasattr(torch, "maca")
        """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
