"""A migrated script keeps its own layout; channels_last is asked for."""

from __future__ import annotations

from running import run_python

from macatensor.migrate.rewrite import rewrite
from macatensor.migrate.rules import Rules


def test_channels_last_is_asked_for() -> None:
    source = "import torch\nx = torch.ones(2, 3, 4, 5).cuda()\ny = x.view(2, -1), x.view(x.size(0), -1), x.view((2, -1))\n"
    dtypes = "z = x.view(torch.int32), a.view(np.uint8), x.view(dtype=torch.int32)\n"
    made = rewrite((source + dtypes).encode(), "a.py", Rules(nhwc=True)).code.decode()
    assert made.startswith("import macatensor\nimport torch\n") and dtypes in made
    assert "x.reshape(2, -1), x.reshape(x.size(0), -1), x.reshape((2, -1))" in made
    kept = rewrite(source.encode(), "a.py", Rules()).code.decode()
    assert "x.view(2, -1)" in kept and "import macatensor.nchw\n" in kept


def test_migrated_tensors_keep_the_layout() -> None:
    run_python(
        """
        import macatensor.nchw
        import torch
        network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.MaxPool2d(2)).maca()
        y = network(torch.rand(2, 3, 10, 10).maca())
        assert y.stride() == (64, 16, 4, 1) and y.view(2, -1).shape == (2, 64)
        """
    )


def test_programs_that_ask_torch_accelerator_keep_the_layout() -> None:
    source = """
import torch
device = torch.accelerator.current_accelerator()
network = torch.nn.Conv2d(3, 4, 3).to(device)
y = network(torch.rand(2, 3, 10, 10).to(device))
print(y.device.type, y.view(len(y), -1).shape)
"""
    made = rewrite(source.encode(), "a.py", Rules()).code.decode()
    assert "maca torch.Size([2, 256])" in run_python(made).stdout
