"""What is known of a training step before its graph becomes a forward and a backward."""

from __future__ import annotations

import torch
from torch import fx

from macatensor.runtime.boxed import Value

aten = torch.ops.aten
_BATCH_NORM_BACKWARD = aten.native_batch_norm_backward.default
_RUNNING = slice(3, 5)  # of its arguments: mean and variance, which it reads in inference alone
_IS_TRAINING = 7


def partition(module: fx.GraphModule, inputs: Value, **how: Value) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Forward and backward of a joint graph; what no operator reads is not kept between them."""
    from torch._functorch.partitioners import default_partition

    for node in module.graph.find_nodes(op="call_function", target=_BATCH_NORM_BACKWARD):
        if node.args[_IS_TRAINING] is True:
            arguments = list(node.args)
            arguments[_RUNNING] = [None, None]
            node.args = tuple(arguments)
    return default_partition(module, inputs, **how)
