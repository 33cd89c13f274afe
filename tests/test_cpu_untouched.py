"""Importing macatensor changes nothing for code that stays on the host."""

from __future__ import annotations

import torch
from running import run_python

CPU_PROGRAM = """
import sys, torch, warnings
warnings.simplefilter("error")
if sys.argv[1] == "with":
    import macatensor
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 2))
weights = [id(p) for p in model.parameters()]
optimizer = torch.optim.Adam(model.parameters())
data = torch.utils.data.TensorDataset(torch.rand(16, 3, 8, 8), torch.arange(16) % 2)
loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2, pin_memory=False)
for images, labels in loader:
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item(), sum(p.double().sum().item() for p in model.parameters()))
model.double().float()
print([id(p) for p in model.parameters()] == weights)
print(torch.rand(3).tolist(), torch.randperm(5).tolist())
x = torch.rand(2, 3, 4, 5)
print(x.to(torch.float64).stride(), x.contiguous().stride(), x.to("cpu") is x, x.cpu() is x, repr(x[0, 0, 0]))
print(type(x), type(x + 1), type(model[0].weight), type(torch.empty(2)), torch.get_default_device())
print(torch.__future__.get_swap_module_params_on_conversion(), torch.get_num_threads(), torch.get_default_dtype())
import io, copy, pickle
file = io.BytesIO(); torch.save(model.state_dict(), file); file.seek(0)
print(list(torch.load(file, weights_only=True)))
pickle.loads(pickle.dumps(x)); copy.deepcopy(model)
with torch.autocast("cpu", dtype=torch.bfloat16):
    print(model(images).dtype)
print(torch.func.vmap(torch.func.grad(lambda v: (v * v).sum()))(torch.ones(2, 2)).tolist())
try:
    x + torch.rand(7)
except RuntimeError as error:
    print(error)
parallel = torch.nn.DataParallel(torch.nn.Linear(2, 2))  # moves its module to a device, where there are some
print(parallel.device_ids, parallel(torch.ones(3, 2)).device, parallel.module.weight.device)
"""


def test_a_host_program_prints_the_same() -> None:
    assert run_python(CPU_PROGRAM, "without").stdout == run_python(CPU_PROGRAM, "with").stdout


def test_pinned_memory_of_a_host_loader() -> None:
    done = run_python(
        """
        import torch, macatensor
        data = torch.utils.data.TensorDataset(torch.arange(8.0))
        for workers in (0, 2):
            total = 0.0
            for (batch,) in torch.utils.data.DataLoader(data, batch_size=4, pin_memory=True, num_workers=workers):
                assert batch.is_pinned() and type(batch) is torch.Tensor
                total += batch.sum().item()
            assert total == 28.0
        x = torch.ones(3)
        assert not x.is_pinned() and x.pin_memory().is_pinned() and not x.is_pinned()
        """
    )
    assert "Error" not in done.stderr


def test_compile_on_the_host() -> None:
    """Inductor itself needs a compiler; the graph and its autograd do not."""
    done = run_python(
        """
        import shutil, torch, macatensor
        def f(x, w):
            return (torch.relu(x @ w) * 2).sum()
        x, w = torch.rand(4, 3), torch.rand(3, 2, requires_grad=True)
        for backend in ["eager", "aot_eager"] + (["inductor"] if shutil.which("g++") else []):
            torch._dynamo.reset()
            w.grad = None
            compiled = torch.compile(f, backend=backend)
            compiled(x, w).backward()
            want, = torch.autograd.grad(f(x, w), w)
            torch.testing.assert_close(w.grad, want)
        print("compiled")
        """,
        timeout=280,
    )
    assert done.stdout == "compiled\n"


def test_nothing_that_host_code_calls_is_replaced() -> None:
    done = run_python(
        """
        import torch
        names = ["Tensor.to", "Tensor.__add__", "Tensor.__repr__", "add", "empty", "zeros", "tensor", "nn.Module.__call__",
                 "nn.Module.to", "save", "load", "nn.functional.conv2d", "nn.functional.linear", "Tensor.backward", "matmul"]
        def get(name):
            value = torch
            for part in name.split("."):
                value = getattr(value, part)
            return value
        before = {n: get(n) for n in names}
        import macatensor
        assert all(get(n) is before[n] or get(n) == before[n] for n in names), [n for n in names if get(n) is not before[n]]
        """
    )
    assert done.stderr == ""
    assert torch.rand(1).device.type == "cpu"
