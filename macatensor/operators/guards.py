"""Operators that PyTorch computes on the device in C++ of its own without a look at their arguments: checked here first.

They are its own, called by its autograd and its scripts, but anybody can call them, and with sizes that contradict each
other or pieces that are missing they read past the ends of lists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor
from torch._ops import OpOverload

from macatensor.dispatch.errors import not_strided
from macatensor.dispatch.meta_rules_recurrent import check_cell
from macatensor.dispatch.signature import read
from macatensor.operators.whole import overload, taken_apart, whole
from macatensor.runtime.boxed import Value
from macatensor.runtime.uncompiled import uncompiled

Check = Callable[..., None]
_CHECKS: dict[str, Check] = {}


def _check(*names: str) -> Callable[[Check], Check]:
    """Makes a function, called with an operator's arguments, its check: it raises, or the call goes on."""

    def register(function: Check) -> Check:
        _CHECKS.update(dict.fromkeys(names, function))
        return function

    return register


@_check("_thnn_differentiable_lstm_cell_backward")
def _lstm_cell(
    grad_hy: Tensor, grad_cy: Tensor, input_gates: Tensor, hidden_gates: Tensor, input_bias: Tensor | None, hidden_bias: Tensor | None, cx: Tensor, cy: Tensor
) -> None:  # fmt: skip
    check_cell(input_gates, hidden_gates, cx, input_bias, hidden_bias, 4)


@_check("_thnn_differentiable_gru_cell_backward")
def _gru_cell(
    grad_hy: Tensor,
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None,
    hidden_bias: Tensor | None,
) -> None:
    check_cell(input_gates, hidden_gates, hx, input_bias, hidden_bias, 3)


@_check("_batch_norm_impl_index_backward")
def _batch_norm(impl_index: int, input: Tensor, grad_output: Tensor, *rest: object) -> None:
    if impl_index != 0 or input.dim() < 2 or grad_output.shape != input.shape:
        raise RuntimeError(
            f"_batch_norm_impl_index_backward got impl_index={impl_index}, an input {list(input.shape)} and a gradient "
            f"{list(grad_output.shape)}; maca accepts impl_index=0, which its forward gives, and a gradient as large as "
            "the input, of two dimensions or more"
        )


@_check("_remove_batch_dim")
def _batch_dim(self: Tensor, level: int, batch_size: int, out_dim: int) -> None:
    # the tensor is expanded: batched gradients of an input that had no share
    if not 0 <= out_dim <= self.dim():
        raise IndexError(
            f"_remove_batch_dim got out_dim={out_dim} for a tensor of {self.dim()} dimensions; maca accepts 0 to "
            f"{self.dim()}"
        )


@_check("quantized_lstm_cell")
def _quantized_lstm_cell(input: Tensor, hx: Sequence[Tensor], *rest: object) -> None:
    if len(hx) != 2:
        raise RuntimeError(f"quantized_lstm_cell got {len(hx)} states; accepted: two, hidden and cell")


@_check("_scaled_dot_product_attention_math")
def _grouped_heads(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0, is_causal: bool = False,
    dropout_mask: Tensor | None = None, scale: float | None = None, enable_gqa: bool = False,
) -> None:  # fmt: skip
    if enable_gqa and any(t.dim() < 3 or not t.shape[-3] for t in (key, value)):
        raise RuntimeError(
            f"_scaled_dot_product_attention_math with enable_gqa got keys {list(key.shape)} and values {list(value.shape)}; "
            "accepted: one head or more, along the third dimension from the last"
        )


# PyTorch's own calls itself without end, on the CPU as well.
@_check("_saturate_weight_to_fp16")
def _endless(*args: Value) -> None:
    raise NotImplementedError(
        "_saturate_weight_to_fp16 prepares a weight for a library of the host's; use weight.clamp(-65504, 65504) on maca"
    )


@_check("_nnpack_spatial_convolution")
def _host_library(*args: Value) -> None:
    raise NotImplementedError(
        "_nnpack_spatial_convolution reads memory of the host; use torch.nn.functional.conv2d on maca"
    )


# They would make nested tensors around memory of the device, of which PyTorch asks sizes where it cannot raise.
@_check(
    "_nested_tensor_from_tensor_list", "_nested_tensor_from_mask", "_nested_from_padded", "_nested_view_from_buffer",
)  # fmt: skip
def _nested(*args: Value) -> None:
    raise not_strided("torch.nested", "nested")


@uncompiled
class _Guarded:
    """What the dispatcher calls for an overload on tensors of the device."""

    def __init__(self, func: OpOverload):
        self.func = func
        self.signature = read(func)
        self.check = _CHECKS[func._schema.name.partition("::")[2]]

    def __call__(self, *args: Value, **kwargs: Value) -> Value:
        self.check(*self.signature.fill(args, kwargs))
        return taken_apart(self.func, *args, **kwargs)


for _name in _CHECKS:
    whole(f"{_name}.default")(_Guarded(overload(f"{_name}.default")))
