"""Calls that killed or hung the process: each gets an error, or what the CPU gives, in a process of its own."""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest
import torch
from running import run_python
from torch._C import _dispatch_has_kernel_for_dispatch_key as has_kernel

import macatensor
from op_table import TABLE
from op_table.consultation import CHECKING, TRUSTING, cpu_checks


class Call(NamedTuple):
    """An expression of ``aten``, ``torch`` and tensors made by ``o`` (ones), ``i`` (int64 zeros) and ``odd`` (a strided
    int8 ``out=``), and its outcome: an exception's name, or the sizes of the result."""

    expression: str
    outcome: str


_CONVOLUTION = "[1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, True]"
_IMAGES = "o(1, 2, 3, 3), o(1, 2, 3, 3), o(2, 2, 1, 1)"
_SLOW = "o(1, 2, 3, 3), o(1, 2, 3, 3), o(2, 2, 1, 1), [1, 1], [0, 0], [0, 0]"
_NESTED = "torch.nested.nested_tensor([torch.ones(2, 3)], device='maca').requires_grad_()"
_LSTM = "None, None, o(2, 3), o(2, 3), None"

CALLS = [
    # a dimension of a number
    Call("torch.slice_scatter(o(), o(), 0, 0, 1, 1)", "IndexError"),
    Call("torch.select_scatter(o(), o(), 0, 0)", "IndexError"),
    Call("aten.slice_backward(o(), [], 0, 0, 1, 1)", "RuntimeError"),
    Call("aten.select_backward(o(), [], 0, 0)", "RuntimeError"),
    Call("aten.diagonal_backward(o(), [], 0, 0, 0)", "RuntimeError"),
    Call("torch.roll(o(), 1, 0)", "IndexError"),
    # dtypes that no loop reads
    Call("aten.native_dropout_backward(o(3).bool(), o(3) + 0j, 2.0)", "(3,)"),
    Call("aten.native_dropout_backward(o(3), o(3).to(torch.complex128), 2.0)", "(3,)"),
    Call("aten.rrelu_with_noise(o(3), o(3) + 0j, 0.1, 0.3, True)", "RuntimeError"),
    Call("aten._fused_sgd_.tensor_lr([], [], [], weight_decay=0, momentum=0, lr=o() + 0j, dampening=0, nesterov=False, maximize=False, is_first_step=True)", "RuntimeError"),
    Call("aten._amp_update_scale_(o(0), i(0).int(), o() + 0j, 2.0, 0.5, 1)", "RuntimeError"),
    # what PyTorch's own ends the process with
    Call("aten._saturate_weight_to_fp16(o(3))", "NotImplementedError"),
    # sizes that are arguments
    Call(f"aten.convolution_backward({_IMAGES}, [], {_CONVOLUTION})", "RuntimeError"),
    Call(f"aten.convolution_backward({_IMAGES}, [7], {_CONVOLUTION})", "RuntimeError"),
    Call(f"aten.convolution_backward.out({_IMAGES}, [], {_CONVOLUTION}, out0=o(0), out1=o(0), out2=o(0))", "RuntimeError"),
    Call("aten.fractional_max_pool2d_backward(o(), o(2, 2, 3, 3), [1, 2], [], i(3, 3))", "RuntimeError"),
    Call("aten.fractional_max_pool3d_backward(o(), o(2, 3, 4), [1], [], i(1))", "RuntimeError"),
    # loops over rows that hold nothing
    Call("torch.tril_indices(2**63 - 1, 0, device='maca')", "(2, 0)"),
    Call("torch.triu_indices(2**63 - 1, 0, device='maca')", "(2, 0)"),
    Call("torch.tril_indices(2**40, 1, 5 - 2**40, device='maca')", "(2, 5)"),
    Call("torch.triu_indices(2**40, 3, 2, device='maca')", "(2, 1)"),
    Call("torch.triu_indices(5, 3, 2**63 - 1, device='maca')", "(2, 0)"),
    Call("torch.tril_indices(5, 3, -2**63, device='maca')", "(2, 0)"),
    Call("torch.range(0, 0.5, 0.5, dtype=torch.int64, device='maca')", "RuntimeError"),
    Call("torch.range(2**62, -2**63, -1, dtype=torch.int64, device='maca')", "RuntimeError"),
    Call("torch.range(0, 4, 2, dtype=torch.int64, device='maca')", "(3,)"),
    # nested tensors
    Call("torch.nested.as_nested_tensor([o(2, 3).requires_grad_()])", "NotImplementedError"),
    Call("torch.nested.nested_tensor([o(2, 3)])", "NotImplementedError"),
    Call(f"{_NESTED}.cpu()", "NotImplementedError"),
    Call(f"{_NESTED} + 1", "NotImplementedError"),
    # CPU kernels that trust their operands or their out=
    Call("aten._logcumsumexp.out(o(3, 4), 0, out=odd)", "RuntimeError"),
    Call("aten._slow_conv2d_backward.output_mask(" + _SLOW + ", [True] * 3)", "NotImplementedError"),
    Call("aten._slow_conv2d_forward(o(3), o(2, 3), [1, 1], None, [0, 0], [0, 0])", "NotImplementedError"),
    Call("aten._convert_indices_from_csr_to_coo(i(0), i(3))", "RuntimeError"),
    Call("aten._convert_indices_from_csr_to_coo(i(2, 3), i(3))", "RuntimeError"),
    Call("aten._convert_indices_from_csr_to_coo(i(4) - 3, i(3))", "(2, 3)"),
    Call("aten._convert_indices_from_coo_to_csr(i(3), -1)", "RuntimeError"),
    Call("aten._convert_indices_from_coo_to_csr(o(3), 2)", "RuntimeError"),
    Call("aten._cummin_helper(o(0, 3), o(0, 3), i(0, 3), 1)", "NotImplementedError"),
    Call("aten._transform_bias_rescale_qkv(o(1, 2, 3), o(3), 0)", "RuntimeError"),
    Call("aten._transform_bias_rescale_qkv(o(1, 2, 3), o(1), 1)", "RuntimeError"),
    Call("aten._dyn_quant_matmul_4bit(o(1), o(1), 1, 1, 1)", "RuntimeError"),
    Call("aten.batch_norm_update_stats(o(2, 3, 4), None, o(0), 1.0)", "RuntimeError"),
    # a buffer past whose end PyTorch's own kernel writes
    Call("aten.log_sigmoid_forward.output(o(2, 3), output=o(2, 3), buffer=o(2, 1).expand(2, 3))[0]", "(2, 3)"),
    Call("aten._log_softmax.out(o(1, 8, 3), 1, False, out=o(1, 1, 3).expand(1, 8, 3))", "RuntimeError"),
    Call("aten._cdist_backward(o(7, 2), o(7, 2), o(7, 2), 1.0, o(7, 7).bool())", "RuntimeError"),
    Call("aten.batch_norm_elemt(o(2, 6), None, o(2, 3), o(6), o(6), 0.1)", "RuntimeError"),
    Call("aten.lu_unpack(o(2, 3, 4), i(0).int())", "RuntimeError"),
    Call("aten._fft_c2c(o(2, 3) + 0j, [9], 0, True)", "Error"),
    Call("aten._fft_r2c(o(2, 3), [-7], 0, True)", "Error"),
    Call("aten._fft_c2r(o(2, 3) + 0j, [], 0, 4)", "Error"),
    # meta kernels that read past the end of a list
    Call("aten._stack.out([], 0, out=o(3, 0))", "RuntimeError"),
    Call("aten._foreach_copy([o(3)], [o(3), o(3)])", "RuntimeError"),
    Call("aten._foreach_copy_([o(3)], [o(3), o(3)])", "RuntimeError"),
    Call("aten._foreach_copy.out([], [o(3)], out=[o(3)])", "RuntimeError"),
    # composites of PyTorch's own
    Call(f"aten._thnn_differentiable_lstm_cell_backward({_LSTM}, None, o(2, 3), o(2, 3))", "RuntimeError"),
    Call("aten._thnn_differentiable_gru_cell_backward(o(2, 3), o(2, 3), o(2, 3), o(2, 3), None, None)", "RuntimeError"),
    Call(
        "aten._batch_norm_impl_index_backward(2, o(0), o(0), None, None, None, None, None, True, 1.0, [True] * 3, o(0))",
        "RuntimeError",
    ),
    Call("aten._remove_batch_dim(o(3), 1, 3, 5)", "IndexError"),
    Call("aten._scaled_dot_product_attention_math(*[o(0, 1, 2)] * 3, is_causal=True, enable_gqa=True)", "RuntimeError"),
    Call("torch.as_strided_scatter(torch.ones(3), o(2), (2,), (1,))", "RuntimeError"),
    Call("aten._new_zeros_with_same_feature_meta(o(2), o(3), self_num_batch_dims=2**62)", "RuntimeError"),
    Call("aten._new_zeros_with_same_feature_meta(o(2), o(3), self_num_batch_dims=-1)", "RuntimeError"),
    Call("aten._new_zeros_with_same_feature_meta(o(2), o(3), self_num_batch_dims=1)", "(2, 3)"),
    Call("aten._new_zeros_with_same_feature_meta.out(o(2), o(3), self_num_batch_dims=9, out=o(3))", "RuntimeError"),
    Call("aten._thnn_differentiable_lstm_cell_backward(None, None, o(2, 3), o(), None, None, o(), o())", "RuntimeError"),
    Call("aten._nnpack_spatial_convolution(o(1, 2, 4, 4), o(2, 2, 3, 3), None, [0, 0])", "NotImplementedError"),
    Call("aten.choose_qparams_optimized(o(0, 3), 0, 8, 0.1, 8)", "RuntimeError"),
    Call("aten.choose_qparams_optimized(o(2, 3), 7, 8, 0.1, 8)", "RuntimeError"),
    Call("aten.choose_qparams_optimized(o(2, 3).t(), 6, 8, 0.1, 8)[0]", "(1,)"),
    Call("aten.choose_qparams_optimized(o(2, 3), 6, -1, 0.5, 8)", "RuntimeError"),
    Call("aten.choose_qparams_optimized(o(2, 3), 6, 8, 1e300, 8)", "RuntimeError"),
    Call("aten._fused_rms_norm_backward(*[o(7, 2, 0, 4)] * 2, [1, 3], o(7, 2, 0, 1), None, [True] * 2)", "RuntimeError"),
    Call("aten._fused_rms_norm_backward(o(3, 4), o(3, 4), [4], o(3, 1), None, [True, False])[0]", "(3, 4)"),
    Call("aten.quantized_lstm_cell(" + ", ".join(["o(3)", "[]", *["o(3)"] * 8, "1, 1, 1, 1"]) + ")", "RuntimeError"),
]  # fmt: skip

_PROGRAM = """
import json, sys, warnings
warnings.simplefilter("ignore")
import torch
import macatensor

aten = torch.ops.aten
o = lambda *size: torch.ones(size).maca()
i = lambda *size: torch.zeros(size, dtype=torch.int64).maca()
odd = torch.zeros(6, 8, dtype=torch.int8).maca()[::2, ::2]
outcomes = []
for expression in json.loads(sys.argv[1]):
    print(expression, flush=True)
    try:
        with macatensor.fallback("silent"):
            result = eval(expression)
        torch.maca.synchronize()
        outcomes.append(str(tuple(result.shape)))
    except Exception as error:
        outcomes.append(type(error).__name__)
print(json.dumps(outcomes))
"""


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    """Of every call, all in one process; when it dies, its output ends with the call."""
    calls = [call.expression for call in CALLS]
    return dict(zip(calls, json.loads(run_python(_PROGRAM, json.dumps(calls)).stdout.splitlines()[-1])))


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.expression.partition("(")[0])
def test_an_error_or_what_the_cpu_gives(outcomes: dict[str, str], call: Call) -> None:
    assert outcomes[call.expression].endswith(call.outcome)


def test_the_guards_let_through_what_is_right() -> None:
    aten, state, gates = torch.ops.aten, torch.randn(2, 3), torch.randn(2, 12)
    for name, args in {
        "_thnn_differentiable_lstm_cell_backward": (state, state, gates, gates, None, None, state, state),
        "_thnn_differentiable_gru_cell_backward": (state, gates[:, :9], gates[:, 3:], state, None, None),
        "_batch_norm_impl_index_backward": (
            0, state, state, state[0], None, None, state[0], state[1], True, 1e-5, [True] * 3, state.new_empty(0),
        ),
    }.items():  # fmt: skip
        theirs = getattr(aten, name)(*args)
        ours = getattr(aten, name)(*(a.maca() if isinstance(a, torch.Tensor) else a for a in args))
        for mine, host in zip(ours, theirs):
            assert (mine is None) == (host is None)
            if host is not None:
                torch.testing.assert_close(mine.cpu(), host)


def test_indices_of_triangles_with_empty_first_rows() -> None:
    for size in ((5, 3, -3), (5, 3, 2), (3, 5, -9), (4, 4, 9), (2**33, 2, 3 - 2**33)):
        for make in (torch.tril_indices, torch.triu_indices):
            if size[0] > 5 and make is torch.triu_indices:
                continue
            assert torch.equal(make(*size, device="maca").cpu(), make(*size)), size


def test_the_table_knows_every_internal_cpu_kernel() -> None:
    assert not CHECKING & TRUSTING
    rows = {row.operator for row in TABLE.values()}
    unsaid = sorted(name for name in rows - CHECKING - TRUSTING if name.startswith("_") or "backward" in name)
    assert not unsaid
    known = {
        s.name.partition("::")[2] for s in torch._C._jit_get_all_schemas() if s.name.startswith("aten::")
    }
    assert not (CHECKING | TRUSTING) - known
    assert cpu_checks("add_") and cpu_checks("_foreach_add_") and not cpu_checks("_of_a_later_pytorch")
    assert all(row.cpu_checks == cpu_checks(row.operator) for row in TABLE.values())


def test_the_device_writes_out_without_a_row() -> None:
    name = "aten::adaptive_avg_pool2d.out"  # its kernel on the CPU would be handed the caller's tensor
    assert has_kernel(name, "CPU") and not has_kernel(name, "CompositeExplicitAutograd")
    image = torch.randn(1, 2, 4, 6)
    out = torch.empty(1, 2, 4, 4).maca()[..., ::2, ::2]
    result = torch.ops.aten.adaptive_avg_pool2d.out(image.maca(), [2, 2], out=out)
    assert result is out
    torch.testing.assert_close(out.cpu(), torch.nn.functional.adaptive_avg_pool2d(image, 2))


def test_out_of_what_an_internal_operator_allocates() -> None:
    results = []
    for device in ("cpu", "maca"):
        grad, image, out = torch.ones(1, 2, 2, 2), torch.ones(1, 4, 4, 4), torch.zeros(1, 4, 4, 4)
        torch.ops.aten.adaptive_avg_pool3d_backward(
            grad.to(device), image.to(device), grad_input=(made := out.to(device))
        )
        results.append(made.cpu())
    assert torch.equal(*results) and results[0].any()


def test_triangles_are_written_into_permuted_batches() -> None:
    x = torch.randn(3, 17, 1, 4, 3)
    for function in (torch.tril, torch.triu):  # the CPU's would write past the end of such an out=
        out = torch.empty_strided(x.shape, (204, 3, 51, 51, 1), device="maca")
        assert function(x.maca(), out=out) is out
        assert torch.equal(out.cpu(), function(x))


def test_out_whose_decomposition_calls_another_overload() -> None:
    x, out = torch.ones(2, 3).maca(), torch.ones(2, 3).maca()
    assert torch.ops.aten._new_zeros_with_same_feature_meta.out(x, x, out=out) is out
    assert not out.any()


def test_gradients_of_lanczos_interpolation() -> None:
    gradients = []
    for device in ("cpu", "maca"):
        image = torch.arange(32.0).view(1, 2, 4, 4).to(device).requires_grad_()
        with macatensor.fallback("silent"):
            torch.ops.aten._upsample_lanczos2d_aa(image, [3, 2], False).square().sum().backward()
        gradients.append(image.grad.cpu())
    torch.testing.assert_close(*gradients)
