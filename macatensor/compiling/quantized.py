"""Weights of few bits stay so in inference: what a program makes of them is larger, and is not kept.

torchao's layers of which the weight alone is quantized multiply by a weight that was just made floats. A product with one of
int8 reads it as it is stored; other numbers are made floats at each call, as without compilation. Layers that round their
rows, too, have an operator of higher order for the product, which a tape takes as ``_int_mm``.
"""

from __future__ import annotations

import torch
from torch import fx
from torch._higher_order_ops import out_dtype

aten = torch.ops.aten
_MOST_BITS = 8  # of numbers that are quantized


def widens(node: fx.Node) -> bool:
    """Does it make a larger copy of numbers of few bits?"""
    if node.target is not aten._to_copy.default:
        return False
    source, result = _value(node.args[0]), _value(node)
    return (
        source is not None
        and result is not None
        and source.dtype is not torch.bool
        and source.dtype.itemsize * 8 <= _MOST_BITS
        and result.dtype.itemsize > source.dtype.itemsize
    )


def read_weights_as_stored(module: fx.GraphModule) -> None:
    """Products with weights [n, k] of int8 that are made floats for that become products with what is stored."""
    graph = module.graph
    for node in graph.find_nodes(op="call_function", target=aten.mm.default):
        rows, factor = node.args
        weight = _stored(factor)
        if weight is None:
            continue
        numbers, floats = weight.meta["val"], rows.meta["val"]
        with graph.inserting_before(node):
            ones = graph.call_function(
                aten.ones.default, ([numbers.shape[0]],), {"dtype": floats.dtype, "device": floats.device}
            )
            ones.meta["val"] = floats.new_empty([numbers.shape[0]])
            product = graph.call_function(aten._weight_int8pack_mm.default, (rows, weight, ones))
        product.meta = dict(node.meta)
        node.replace_all_uses_with(product)
        graph.erase_node(node)
    graph.eliminate_dead_code()


def multiply_int8(module: fx.GraphModule) -> None:
    """Products of int8 with results of int32 are ``_int_mm``, as PyTorch has them on CUDA."""
    for node in module.graph.find_nodes(op="call_function", target=out_dtype):
        operator, result, *factors = node.args
        if operator is not aten.mm.default or result is not torch.int32:
            continue
        values = [_value(f) for f in factors]
        if all(v is not None and v.dtype is torch.int8 and v.device.type == "maca" for v in values):
            with module.graph.inserting_before(node):
                product = module.graph.call_function(aten._int_mm.default, tuple(factors))
            product.meta = dict(node.meta)
            node.replace_all_uses_with(product)
            module.graph.erase_node(node)


def _value(node: object) -> torch.Tensor | None:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def _stored(factor: fx.Node) -> fx.Node | None:
    """The row-major int8 matrix [n, k] of which ``factor`` [k, n] is the transposed one in another dtype."""
    node, turns, is_cast = factor, 0, False
    while node.target in (aten.t.default, aten._to_copy.default):
        is_cast |= widens(node)
        turns += node.target is aten.t.default
        node = node.args[0]  # type: ignore[assignment]
    numbers, last = _value(node), _value(factor)
    if numbers is None or last is None or not is_cast or turns % 2 == 0:
        return None
    is_product = numbers.dtype is torch.int8 and last.dtype in (torch.float32, torch.bfloat16, torch.float16)
    return node if is_product and numbers.dim() == 2 and numbers.is_contiguous() else None
