"""Records as mcPyTorch's maca_tools and msprobe write them, written without either."""

from __future__ import annotations

import json
import pickle
import sys
import types
from pathlib import Path

import torch

X = torch.arange(6.0).reshape(2, 3)
STACK = [
    '  File "train.py", line 3, in step\n    loss(x)\n',
    '  File "model.py", line 7, in forward\n    relu(x)\n',
]


def maca_tools_module(monkeypatch):
    """The two functions of maca_tools that its pickles name, as far as pickling needs them."""
    module = types.ModuleType("maca_tools.accuracy.record")
    for name in ("rebuild_tensor_wrapper", "build_summary_wapper"):
        function = types.FunctionType((lambda *args: None).__code__, {}, name)
        function.__module__, function.__qualname__ = module.__name__, name
        setattr(module, name, function)
    for name in ("maca_tools", "maca_tools.accuracy"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


class Folder:
    """Writes files as maca_tools does: protocol 5, its own rebuild functions, a list of names that grows."""

    def __init__(self, folder: Path, module, monkeypatch, level=2):
        folder.mkdir(parents=True)
        self.folder, self.module, self.patch, self.level = folder, module, monkeypatch, level
        self.names: list[str] = []

    def save(self, name: str, content: dict) -> None:
        self.names.append(name)
        torch.save(self.names, self.folder / "files_seqs.pt", pickle_protocol=pickle.HIGHEST_PROTOCOL)
        with self.patch.context() as patch:
            if self.level == 2:
                patch.setattr(torch._utils, "_rebuild_tensor_v2", self.module.rebuild_tensor_wrapper)
            else:
                for kind in (torch.Tensor, torch.nn.Parameter):
                    patch.setattr(kind, "__reduce_ex__", lambda tensor, protocol: self.summary(tensor))
            torch.save(content, self.folder / name, pickle_protocol=pickle.HIGHEST_PROTOCOL)

    def summary(self, tensor):
        numbers = (tensor.min().item(), tensor.max().item()) if tensor.numel() else (None, None)
        return self.module.build_summary_wapper, (
            tensor.dtype,
            tuple(tensor.size()),
            tensor.stride(),
            *numbers,
        )


def recorded(folder, module, monkeypatch, level=2, wrong=0.0):
    out = Folder(folder, module, monkeypatch, level)
    layer = torch.nn.Linear(3, 2)
    with torch.no_grad():
        layer.weight.fill_(0.5), layer.bias.zero_()
        y = layer(X) + wrong
    args = (X.t().contiguous().t(), 2, slice(1, None), ..., torch.float32, torch.device("cpu"))
    out.save(
        "torch.nn.Linear.0.fwd.input.pt",
        {"module": layer, "args": args, "kwargs": {"out": None}, "stack": STACK},
    )
    out.save("torch.nn.Linear.0.fwd.output.pt", {"res": y, "stack": STACK})
    out.save("torch.Tensor.max.1.fwd.input.pt", {"args": (y,), "kwargs": {"dim": 0}})
    out.save("torch.Tensor.max.1.fwd.output.pt", {"res": (y.max(0).values, y.max(0).indices)})
    out.save("torch.nn.Linear.0.bwd.input.pt", {"grad_out": (torch.ones(2, 2),)})
    out.save(
        "torch.nn.Linear.0.bwd.output.pt", {"grad_in": (torch.ones(2, 3), None, torch.ones(2).bfloat16())}
    )
    return folder


class Harm:
    def __init__(self, function, *args):
        self.what = function, args

    def __reduce__(self):
        return self.what


def described(tensor, name=None):
    values = tensor.double()
    held = {
        "type": "torch.Tensor",
        "dtype": str(tensor.dtype),
        "shape": list(tensor.shape),
        "requires_grad": False,
    }
    held |= {"Max": values.max().item(), "Min": values.min().item(), "Mean": values.mean().item()}
    held |= {"Norm": values.norm().item()}
    return held | ({"data_name": name} if name else {})


def dumped(folder: Path, tensors=False, wrong=0.0, old_stack=False):
    folder.mkdir(parents=True)
    relu, module, backward = (
        "Functional.relu.0.forward",
        "Module.net.act.ReLU.forward.0",
        "Functional.relu.0.backward",
    )
    y = X.relu() + wrong
    names = {"in": f"{relu}.input.0.pt", "out": f"{relu}.output.0.pt"} if tensors else {}
    if tensors:
        (folder / "dump_tensor_data").mkdir()
        torch.save(X, folder / "dump_tensor_data" / names["in"])
        torch.save(y, folder / "dump_tensor_data" / names["out"])
    inputs = [
        described(X, names.get("in")),
        None,
        [{"type": "int", "value": 2}],
        {"type": "torch.dtype", "value": "f"},
    ]
    data = {
        relu: {"input_args": inputs, "input_kwargs": {"inplace": {"type": "bool", "value": False}}}
        | {"output": [described(y, names.get("out"))]},
        module: {"input_args": [described(X)], "input_kwargs": {}, "output": [described(y)]}
        | {"parameters": {"weight": described(X)}},
        backward: {"input": [described(X)], "output": [described(X)]},
        "Module.net.act.ReLU.parameters_grad.0": {"weight": [described(X)]},
    }
    head = {"task": "tensor" if tensors else "statistics", "level": "mix", "framework": "pytorch"}
    (folder / "dump.json").write_text(json.dumps(head | {"dump_data_dir": None, "data": data}))
    (folder / "construct.json").write_text(json.dumps({relu: module, module: None, backward: None}))
    frames = ["File model.py, line 7, in forward, \n relu(x)", "File train.py, line 3, in step, \n model(x)"]
    stack = {relu: frames} if old_stack else {"0": [[relu, module], frames]}
    (folder / "stack.json").write_text(json.dumps(stack))
    return folder
