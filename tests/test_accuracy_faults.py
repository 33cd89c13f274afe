"""Planted faults of gradients, optimizers, indexing, memory, order and random numbers: each is found, with a repro."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from running import run_python

import macatensor

PROGRAMS = Path(__file__).parent / "faulty_programs.py"
TARGET = macatensor.device.library_info()["path"]

# fault -> the operator that it spoils; the kind of finding is "bound" but for those below
FAULTS = {
    "relu_gradient": "threshold_backward", "gelu_gradient": "gelu_backward", "silu_gradient": "silu_backward",
    "sigmoid_gradient": "sigmoid_backward", "softmax_gradient": "_softmax_backward_data",
    "log_softmax_gradient": "_log_softmax_backward_data", "layer_norm_gradient": "native_layer_norm_backward",
    "layer_norm_weight_gradient": "native_layer_norm_backward", "batch_norm_gradient": "native_batch_norm_backward",
    "batch_norm_bias_gradient": "native_batch_norm_backward", "group_norm_gradient": "native_group_norm_backward",
    "convolution_gradient": "convolution_backward", "convolution_weight_gradient": "convolution_backward",
    "convolution_bias_gradient": "convolution_backward", "max_pool_gradient": "max_pool2d_with_indices_backward",
    "avg_pool_gradient": "avg_pool2d_backward", "embedding_gradient": "embedding_dense_backward",
    "nll_loss_gradient": "nll_loss_backward", "mse_loss_gradient": "mse_loss_backward",
    "attention_gradient": "sdpa_backward", "lstm_gradient": "mkldnn_rnn_layer_backward",
    "bilinear_gradient": "upsample_bilinear2d_backward", "lerp_of_moments": "_foreach_lerp_.Scalar",
    "adam_step": "_foreach_addcdiv_.ScalarList", "second_moment": "_foreach_addcmul_.Scalar",
    "weight_decay": "_foreach_mul_.Scalar", "momentum_of_last_parameter": "_foreach_add_.List",
    "root_of_moment": "_foreach_sqrt", "gradient_norm": "linalg_vector_norm", "index_put_last": "index_put_",
    "gather_shifted": "gather", "index_select_shifted": "index_select", "index_add_half": "index_add",
    "sort_last_two": "sort", "topk_positions": "topk", "cumsum_anew": "cumsum", "cat_last": "cat", "int64_sum": "sum",
    "biased_variance": "var.correction", "exp_flushes": "exp", "layer_norm_mean": "native_layer_norm",
    "bilinear_tail": "upsample_bilinear2d", "addmm_bias": "addmm", "bmm_tail": "bmm",
    "lstm_cell_state": "mkldnn_rnn_layer", "add_writes_operand": "add.Tensor", "mm_writes_weight": "mm",
    "mul_writes_past_end": "mul.Tensor", "tanh_writes_before_start": "tanh", "exp_writes_whole_vectors": "exp",
    "softmax_writes_operand": "_softmax", "sum_writes_operand": "sum.dim_IntList",
    "sum_writes_past_end": "sum.dim_IntList", "mm_writes_whole_vectors": "mm", "softmax_writes_before_start": "_softmax",
    "convolution_writes_past_end": "convolution", "first_launch": "exp",
    "second_stream": "tanh", "unaligned_operand": "mul.Tensor", "some_launches": "sub.Tensor", "stale_packing": "mm",
    "uniform_other_offset": "uniform_", "uniform_biased": "uniform_", "normal_wide": "normal_",
    "bernoulli_same_seed": "bernoulli_.float", "dropout_other_offset": "native_dropout",
    "running_mean": "native_batch_norm",
}  # fmt: skip
KINDS = {fault: "memory" for fault in FAULTS if "_writes_" in fault} | {"some_launches": "race"}
# in what circumstance the call is wrong that is right by itself
CIRCUMSTANCES = {"first_launch": "FIRST", "second_stream": "STREAM", "stale_packing": "REWRITTEN"}

# Every fault in turn in one process; the repros run in others.
DRIVER = """
import ctypes, json, os, sys
import torch, macatensor
from macatensor.runtime import plan_caches
from macatensor.accuracy.local.bisection import bisect_script
torch.set_num_threads(1)
library = ctypes.CDLL(os.environ["MACA_LIBRARY"])
found = {}
for fault in json.loads(sys.argv[3]):
    assert library.interposer_fault(fault.encode()), fault
    plan_caches.drop_plans()
    folder = os.path.join(sys.argv[2], fault)
    result = bisect_script(sys.argv[1], [fault], output_dir=folder, seconds=0.5, try_repro=False)
    finding = result.finding
    found[fault] = finding and {
        "op": finding.op, "kind": finding.kind, "text": str(finding), "repro": str(finding.repro),
        "circumstance": finding.call.circumstance.name,
    }
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(interposer: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    folder = tmp_path_factory.mktemp("repros")
    done = run_python(
        DRIVER, str(PROGRAMS), str(folder), json.dumps(list(FAULTS)), MACA_LIBRARY=interposer,
        MACA_INTERPOSER_TARGET=TARGET, timeout=400,
    )  # fmt: skip
    return json.loads(done.stdout)


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_named(fault: str, found: dict[str, dict[str, str]]) -> None:
    one = found[fault]
    assert one is not None
    expected = FAULTS[fault], KINDS.get(fault, "bound"), CIRCUMSTANCES.get(fault, "ALONE")
    assert (one["op"], one["kind"], one["circumstance"]) == expected, one["text"]
    assert Path(one["repro"]).is_file(), one["text"]


# One of every form that a repro has; `make long` runs them all.
TRIED = ("gelu_gradient", "topk_positions", "int64_sum", "mul_writes_past_end", "sum_writes_past_end", "second_stream", "unaligned_operand",
         "some_launches", "stale_packing", "uniform_biased", "first_launch")  # fmt: skip
if os.environ.get("HYPOTHESIS_PROFILE") in ("wide", "long"):
    TRIED = tuple(FAULTS)


@pytest.mark.parametrize("fault", TRIED)
def test_repros_tell_faulty_libraries_from_right_ones(
    fault: str, found: dict[str, dict[str, str]], interposer: Path
) -> None:
    plain = {k: v for k, v in os.environ.items() if not k.startswith("MACA_INTERPOSER")}
    faulty = {
        **plain,
        "MACA_LIBRARY": str(interposer),
        "MACA_INTERPOSER_TARGET": str(TARGET),
        "MACA_INTERPOSER_FAULT": fault,
    }
    status = [
        subprocess.run([sys.executable, found[fault]["repro"]], env=env, capture_output=True).returncode
        for env in (faulty, plain)
    ]
    assert status == [1, 0], found[fault]["text"]
