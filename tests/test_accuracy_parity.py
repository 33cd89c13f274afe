"""Local and inherited errors, operator by operator, on maca and on the CPU."""

from __future__ import annotations

import json
import math
import threading

import pytest
import torch

from macatensor import accuracy, maca
from macatensor.accuracy.local.local_error import distance
from macatensor.accuracy.local.shadow import Shadows
from macatensor.dispatch.signature import find_row
from macatensor.parity.watch import Seen, written_by
from macatensor.runtime.tensor import MacaTensor


def by_name(report, op: str):
    return [c for c in report.calls if c.op == op]


@pytest.mark.parametrize("device", ["maca", "cpu"])
def test_forward_backward_and_optimizer_are_judged(device: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(4, 6).to(device)

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()

    report = accuracy.parity(step)
    assert not report.failures, str(report)
    names = {c.op for c in report.calls}
    assert {"addmm", "tanh", "tanh_backward", "mm"} <= names
    backward = by_name(report, "tanh_backward")[0]
    assert backward.direction == "bwd" and backward.node == "TanhBackward0"
    assert backward.line.startswith(f"{__file__}:") and backward.line.endswith(" step")
    assert by_name(report, "addmm")[0].direction == "fwd"
    assert any(
        c.op.startswith(("_foreach_", "add", "lerp")) and c.line.endswith(" step") for c in report.calls[-20:]
    )
    assert all(0 <= c.local < 1e-6 and c.share <= 4 for c in report.calls if c.local is not None)


def test_inherited_errors_are_told_from_local_ones() -> None:
    x = torch.linspace(1, 2, 64).maca()

    def chain() -> None:
        y = x * 3.1  # rounds: the next ones inherit it
        z = y - 3.1  # cancels: what was 6e-8 of y is more of z
        z.exp()

    report = accuracy.parity(chain)
    mul, sub, exp = report.calls
    assert mul.inherited == 0 and mul.total == mul.local > 0
    assert sub.input_error == mul.total
    assert sub.inherited > 1.2 * mul.total and sub.amplification > 1.2
    assert exp.inherited > exp.local and math.isclose(exp.total, exp.inherited, rel_tol=0.5)
    assert [c.op for c in report.worst("inherited", 1)] == ["exp"]


def test_shadows_follow_views_and_writes_through_them() -> None:
    shadows = Shadows()
    x = torch.full((4,), 0.1).maca()
    exact = 0.1

    def run(func, *args) -> None:
        from macatensor.parity.transport import host_copy, replace, tensors

        seen = Seen(func, find_row(func)[0], "", args, {}, tensors(args), written_by(func, None, args, {}))
        seen.copies = replace((args, {}), host_copy)
        arguments = shadows.arguments(seen)
        seen.outcome = func(*args)
        seen.results = tensors(seen.outcome)
        shadows.follow(seen, arguments)

    shadows.put(x, torch.full((4,), exact, dtype=torch.float64))
    view = x[1:3]
    run(torch.ops.aten.mul_.Tensor, view, 3.0)
    assert shadows.of(x).tolist() == [exact, exact * 3, exact * 3, exact]
    run(torch.ops.aten.add_.Tensor, x.view(2, 2), x.view(2, 2))
    assert shadows.of(x).tolist() == [2 * exact, 6 * exact, 6 * exact, 2 * exact]
    del view
    key = id(x._payload[0])
    assert key in shadows.memory
    del x
    assert key not in shadows.memory


def test_random_numbers_and_integers_come_from_the_device() -> None:
    x = torch.rand(50).maca()
    report = accuracy.parity(lambda: torch.nn.functional.dropout(torch.bernoulli(x) + x, 0.5).argmax())
    assert by_name(report, "bernoulli")[0].verdict == "pass"
    assert by_name(report, "native_dropout")[0].verdict == "pass"
    assert by_name(report, "argmax")[0].local is None and not report.failures
    assert accuracy.parity(lambda: torch.multinomial(x, 3)).unjudged["multinomial"] == "random"


def test_nan_infinity_empty_and_zero_dim() -> None:
    strange = torch.tensor([float("nan"), float("inf"), -0.0, 1e-45]).maca()
    report = accuracy.parity(
        lambda: [(t * 2).sum() for t in (strange, strange[:0], strange[3], strange[::2])]
    )
    assert len(report.calls) >= 8 and not report.failures
    assert distance(torch.tensor([1.0, float("nan")]), torch.tensor([1.0, 2.0])) == math.inf
    assert distance(torch.tensor([float("nan")]), torch.tensor([float("nan")])) == 0
    assert distance(torch.tensor([3.0]), torch.tensor([0.0])) == 3.0
    assert distance(torch.tensor([1]), torch.tensor([2])) is None


def test_wrong_kernels_are_local_and_later_calls_inherit(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(8, 8).maca()
    plain = MacaTensor.__dict__["__torch_dispatch__"]

    def wrong(func, types, args=(), kwargs=None):
        result = plain(func, types, args, kwargs)
        if func is torch.ops.aten.tanh.default:
            return plain(torch.ops.aten.mul.Tensor, types, (result, 1.01), None)
        return result

    type.__setattr__(MacaTensor, "__torch_dispatch__", staticmethod(wrong))
    try:
        report = accuracy.parity(lambda: (x.tanh() @ x).relu())
    finally:
        type.__setattr__(MacaTensor, "__torch_dispatch__", plain)
    tanh, mm, relu = report.calls
    assert report.first is tanh and report.failures == [tanh]
    assert tanh.local == pytest.approx(0.01, rel=0.01) and tanh.inherited == 0
    assert mm.local < 1e-6 and mm.inherited == pytest.approx(0.01, rel=0.01)
    assert relu.local == 0 and relu.total == pytest.approx(0.01, rel=0.01)


def test_context_manager_with_threads_and_chosen_operators() -> None:
    x = torch.rand(4).maca()
    with accuracy.parity(op_list=["exp"], device="maca", shadows=False) as report:
        thread = threading.Thread(target=lambda: (x + 1).exp())
        thread.start()
        thread.join()
        x.cpu().exp()
    assert [c.op for c in report.calls] == ["exp"]
    assert report.calls[0].inherited is None
    json.dumps(report.as_dicts())
    assert "exp" in report._repr_html_() and "1 judged" in str(report)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_attention_is_judged(kind: torch.dtype) -> None:
    q, k, v = (torch.randn(1, 2, 5, 4).to(kind).maca().requires_grad_() for _ in range(3))
    attention = torch.nn.functional.scaled_dot_product_attention
    report = accuracy.parity(lambda: attention(q, k, v, is_causal=True).sum().backward())
    assert {"sdpa_forward", "sdpa_backward"} <= {c.op for c in report.calls}
    assert not report.failures, str(report)


def test_operators_that_inference_mode_launches_whole_are_judged() -> None:
    layer, norm = torch.nn.Linear(4, 6).to("maca"), torch.nn.LayerNorm(6).to("maca")
    x = torch.randn(2, 5, 4).maca()

    def step() -> None:
        with torch.inference_mode():
            y = norm(layer(x))
            torch.nn.functional.scaled_dot_product_attention(y, y, y).reshape(-1)

    step()  # made plans, which the next must not use
    report = accuracy.parity(step)
    assert {"addmm", "native_layer_norm", "scaled_dot_product_attention"} <= {c.op for c in report.calls}, (
        str(report)
    )
    assert not report.failures, str(report)


def test_strided_operands_and_out() -> None:
    x, out = torch.rand(4, 6).maca().t()[::2], torch.empty(3, 4).maca()
    report = accuracy.parity(lambda: (torch.exp(x, out=out), torch.cat([x, x]), maca([x, x])))
    assert not report.failures and {"exp.out", "cat"} <= {c.op for c in report.calls}


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="no operator 'tanhh'; near it: .*tanh"):
        accuracy.parity(op_list=["tanhh"])
    with pytest.raises(ValueError, match="device got 'npu'; accepted: maca, cuda, cpu"):
        accuracy.parity(device="npu")
    with pytest.raises(KeyError), accuracy.parity():
        raise KeyError("the program's own")
    assert not torch.is_anomaly_enabled()
