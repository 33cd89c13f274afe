"""Alignment, distances, verdicts and reports of two recorded runs."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from accuracy_records import Record

from macatensor.accuracy.comparison.align import align, matched
from macatensor.accuracy.comparison.compare import compare
from macatensor.accuracy.comparison.distance import of_tensors
from macatensor.accuracy.comparison.report import gen_report, make_report
from macatensor.accuracy.records import Call, read

NAN, INF = math.nan, math.inf


def names(pairs):
    return [(p.left and p.left.number, p.right and p.right.number) for p in pairs]


def calls(*ops, start=0):
    return [Call(start + i, "api", f"{op}.{i}.fwd", op) for i, op in enumerate(ops)]


# -- sequences ----------------------------------------------------------------------------------------------------
def longest(a, b):
    best = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            best[i + 1][j + 1] = best[i][j] + 1 if x == y else max(best[i][j + 1], best[i + 1][j])
    return best[-1][-1]


def test_matched_is_increasing_equal_and_nearly_longest():
    rng = random.Random(0)
    short = whole = 0
    for _ in range(500):
        a = [rng.randrange(5) for _ in range(rng.randrange(14))]
        b = [rng.randrange(5) for _ in range(rng.randrange(14))]
        pairs = matched(a, b)
        assert all(a[i] == b[j] for i, j in pairs)
        assert all(p[0] < q[0] and p[1] < q[1] for p, q in zip(pairs, pairs[1:]))
        short, whole = short + len(pairs), whole + longest(a, b)
    assert short > 0.9 * whole  # anchors may cost a pair


@pytest.mark.parametrize("period", [200, 100_000])
def test_matched_is_nearly_linear(period):
    a = [i % period for i in range(100_000)]
    b = [x for i, x in enumerate(a) if i % 997]
    assert len(matched(a, b)) == len(b)


def test_inserted_missing_and_reordered_calls():
    left = calls("conv", "relu", "drop", "linear", "softmax")
    right = calls("conv", "scale", "relu", "linear", "softmax")
    assert names(align(left, right)) == [(0, 0), (None, 1), (1, 2), (2, None), (3, 3), (4, 4)]
    left = [Call(i, "api", f"op.{i}.fwd", "op", module=m) for i, m in enumerate("abcd")]
    right = [Call(i, "api", f"op.{i}.fwd", "op", module=m) for i, m in enumerate("bcda")]
    pairs = align(left, right)
    assert [(p.left.module, p.right.module, p.moved) for p in pairs] == [
        ("a", "a", True),
        ("b", "b", False),
        ("c", "c", False),
        ("d", "d", False),
    ]


def test_wrapper_paths_and_backward_follow_the_forward_call():
    left = [Call(0, "api", "f.0.fwd", "f", module="x"), Call(1, "api", "f.1.fwd", "f", module="y")]
    left += [
        Call(2, "api", "f.1.bwd", "f", "bwd", forward=1),
        Call(3, "api", "f.0.bwd", "f", "bwd", forward=0),
    ]
    right = [
        Call(0, "api", "f.0.fwd", "f", module="module.x"),
        Call(1, "api", "f.1.fwd", "f", module="module.y"),
    ]
    right += [
        Call(2, "api", "f.0.bwd", "f", "bwd", forward=0),
        Call(3, "api", "f.1.bwd", "f", "bwd", forward=1),
    ]
    assert {(p.left.number, p.right.number) for p in align(left, right)} == {(0, 0), (1, 1), (2, 3), (3, 2)}


def test_dataflow_tells_equal_calls_apart(tmp_path):
    """Two branches of the same operators, run in the other order: who made the inputs decides."""
    x, w = torch.ones(2), torch.ones(3)
    for name, order in (("a", "sc"), ("b", "cs")):
        record = Record(tmp_path / name, device=name)
        made = {}
        for kind in order:
            made[kind] = (torch.sin if kind == "s" else torch.cos)(x)
            record.call(f"torch.{'sin' if kind == 's' else 'cos'}", {"0": x}, {"0": made[kind]})
        for kind in order:
            record.call("torch.exp", {"0": made[kind]}, {"0": made[kind].exp()})
        record.call("torch.neg", {"0": w}, {"0": -w})
        record.close()
    runs = read(tmp_path / "a"), read(tmp_path / "b")
    found = compare(*runs)
    assert found.verdict == "pass", [c.judged for c in found.calls]
    assert found.counts("api")["paired"] == 5 and found.counts("api")["moved"] >= 1


def test_aten_calls_are_aligned_below_their_api_call():
    left = [
        Call(0, "api", "sdpa.0.fwd", "sdpa"),
        Call(1, "aten", "aten.flash.0.fwd", "aten.flash.default", parent=0),
    ]
    left += [
        Call(2, "api", "add.0.fwd", "add"),
        Call(3, "aten", "aten.add.0.fwd", "aten.add.Tensor", parent=2),
    ]
    right = [Call(0, "api", "sdpa.0.fwd", "sdpa")]
    right += [Call(1, "aten", "aten.add.0.fwd", "aten.add.Tensor", parent=0)]  # of the composite
    right += [
        Call(2, "api", "add.0.fwd", "add"),
        Call(3, "aten", "aten.add_.0.fwd", "aten.add_.Tensor", parent=2),
    ]
    assert names(align(left, right)) == [(0, 0), (1, None), (None, 1), (2, 2), (3, 3)]


# -- distances ----------------------------------------------------------------------------------------------------
def test_distance_by_formula():
    b, o = torch.tensor([1.0, -2.0, 4.0, 0.0]), torch.tensor([1.0, -2.001, 4.01, 0.5])
    found = of_tensors(b, o)
    d = (o.double() - b.double()).abs()
    assert found.max_abs == 0.5 and found.max_rel == pytest.approx(0.0025, rel=1e-3)
    assert found.diff1 == pytest.approx(float(d.sum()) / 7)
    assert found.diff2 == pytest.approx(float(d.norm() / b.double().norm()))
    assert found.cosine == pytest.approx(float(torch.cosine_similarity(b.double(), o.double(), dim=0)))
    assert found.within_5_1000 == 0.75 and not found.identical


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_ulp(dtype):
    one = torch.tensor([1.0, -1.0, 0.0], dtype=dtype)
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    up = (one.view(bits) + 1).view(dtype)
    found = of_tensors(one, up)
    assert (found.max_ulp, found.mean_ulp) == (1.0, 1.0)
    assert of_tensors(-one[2:], one[2:]).max_ulp == 0  # zeros of both signs
    assert of_tensors(torch.tensor([-1.0], dtype=dtype), torch.tensor([1.0], dtype=dtype)).max_ulp > 1000


def test_distance_of_every_kind_of_tensor():
    base = torch.tensor([1.0, NAN, INF, -INF, 2.0])
    assert of_tensors(base, base.clone()).identical
    assert of_tensors(base, torch.tensor([1.0, 0.0, INF, -INF, 2.0])).nan_against_number
    found = of_tensors(base, torch.tensor([1.0, NAN, -INF, -INF, 2.0]))
    assert (
        found.inf_against_number
        and not found.nan_against_number
        and found.nonfinite == 1
        and found.diff2 == 0
    )
    assert of_tensors(torch.empty(0, 3), torch.empty(0, 3)).identical
    assert of_tensors(torch.tensor(2.0), torch.tensor(3.0)).diff2 == 0.5
    x = torch.randn(6, 4)
    assert of_tensors(x.t()[::2], x.t()[::2].contiguous()).identical
    assert not of_tensors(torch.tensor([2**53]), torch.tensor([2**53 + 1])).identical
    assert of_tensors(torch.tensor([True, False]), torch.tensor([True, True])).unequal == 0.5
    assert of_tensors(torch.tensor([3 + 4j]), torch.tensor([3 + 4.5j])).diff2 == pytest.approx(0.1)
    with pytest.raises(ValueError, match="no distance"):
        of_tensors(torch.ones(2), torch.ones(3))


# -- verdicts -----------------------------------------------------------------------------------------------------
def judged(tmp_path: Path, op, inputs, outputs, level=2, devices=("cpu", "maca"), **more):
    """The verdict of one call; inputs and outputs are pairs for the two runs."""
    for side, device in enumerate(devices):
        record = Record(tmp_path / str(side), level, device)
        a, b = ({str(i): p[side] for i, p in enumerate(pairs)} for pairs in (inputs, outputs))
        record.call(op, a, b, **more)
        record.close()
    found = compare(read(tmp_path / "0"), read(tmp_path / "1"))
    return found.calls[0].judged


def both(x):
    return x, x.clone()


X = torch.randn(50, 20, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize(
    "value, other, rule",
    [(1.0, NAN, "NaN"), (NAN, 1.0, "NaN"), (INF, 1.0, "infinity"), (1.0, -INF, "infinity")],
)
def test_nonfinite_against_a_number_is_an_error(tmp_path, level, value, other, rule):
    a, b = X.clone(), X.clone()
    a[3, 4], b[3, 4] = value, other
    found = judged(tmp_path, "torch.exp", [both(X)], [(a, b)], level)
    assert found.verdict == "error" and rule in found.rule


@pytest.mark.parametrize(
    "dtype, small, large",
    [
        (torch.float64, 1e-13, 1e-8),
        (torch.float32, 1e-6, 1e-3),
        (torch.float16, 1e-3, 0.3),
        (torch.bfloat16, 8e-3, 0.6),
    ],
)
def test_error_from_equal_inputs_by_dtype(tmp_path, dtype, small, large):
    x = X.to(dtype)
    noise = torch.randn(X.shape, generator=torch.Generator().manual_seed(1))
    for name, size, verdict in (("a", small, "pass"), ("b", large, "error")):
        y = (x.double() * (1 + size * noise.double())).to(dtype)
        assert judged(tmp_path / name, "torch.exp", [both(x)], [(x, y)]).verdict == verdict


def test_one_row_a_thousandth_off_is_found(tmp_path):
    wrong = X.clone()
    wrong[-1] *= 1.001
    found = judged(tmp_path, "torch.exp", [both(X)], [(X, wrong)])
    assert found.verdict == "error" and "from equal inputs" in found.rule


def test_inherited_error_raises_nothing_and_growth_does(tmp_path):
    noise = 1e-4 * torch.randn(X.shape, generator=torch.Generator().manual_seed(1))
    inputs = [(X, X + noise)]
    assert judged(tmp_path / "a", "torch.exp", inputs, [(X, X + 5 * noise)]).verdict in ("pass", "warning")
    assert judged(tmp_path / "b", "torch.exp", inputs, [(X, X + 40 * noise)]).verdict == "warning"
    found = judged(tmp_path / "c", "torch.exp", inputs, [(X, X + 1000 * noise)])
    assert found.verdict == "error" and "inputs that differ by 0.0001 make it 0.01 at most" in found.rule


def test_gradient_that_is_zero_but_for_rounding(tmp_path):
    """A bias in front of a batch norm: both sides sum a gradient whose sum is 0, and get other rounding."""
    g = X - X.mean(0)
    inputs, outputs = [(g, g * (1 + 1e-7))], [(g.sum(0), g.flip(0).sum(0) + 1e-7)]
    found = judged(tmp_path / "a", "aten.sum.dim_IntList", inputs, outputs, direction="bwd")
    assert found.verdict == "pass", found
    wrong = [(g.sum(0), g.sum(0) + 1)]
    assert judged(tmp_path / "b", "aten.sum.dim_IntList", inputs, wrong, direction="bwd").verdict == "error"


def test_gradient_of_relu_may_flip_single_elements(tmp_path):
    x = torch.linspace(-1, 1, 100_001)
    g = torch.ones_like(x)
    y = x + 1e-6
    found = judged(
        tmp_path, "aten.threshold_backward.default", [both(g), (x, y)], [(g * (x > 0), g * (y > 0))]
    )
    assert found.verdict == "pass", found


def test_integers_ties_and_flips(tmp_path):
    i = torch.arange(1000)
    j = i.clone()
    j[:3] = j[[1, 2, 0]]
    x = torch.rand(1000)
    assert judged(tmp_path / "a", "torch.topk", [both(x)], [(i, j)]).verdict == "warning"  # ties
    assert judged(tmp_path / "b", "aten.add.Tensor", [both(i)], [(i, j)]).verdict == "error"
    assert judged(tmp_path / "c", "torch.argsort", [(x, x + 1e-6)], [(i, j)]).verdict == "pass"
    assert judged(tmp_path / "d", "torch.argsort", [(x, x + 1e-6)], [(i, i.flip(0))]).verdict == "error"


def test_structure_random_and_uninitialized(tmp_path):
    half = X.half()
    for level in (0, 1, 2):
        assert "dtype" in judged(tmp_path / f"d{level}", "torch.exp", [both(X)], [(X, half)], level).rule
        found = judged(tmp_path / f"s{level}", "torch.exp", [both(X)], [(X, X[:3])], level)
        assert found.verdict == "error" and "shape" in found.rule
        assert judged(tmp_path / f"o{level}", "torch.exp", [both(X)], [both(X)], level).verdict == "pass"
    assert judged(tmp_path / "r", "aten.native_dropout.default", [both(X)], [(X, X * 0)]).verdict == "warning"
    assert judged(tmp_path / "e", "aten.empty_like.default", [both(X)], [(X, X * NAN)]).verdict == "pass"


def test_mixed_precision_of_two_devices_is_a_warning(tmp_path):
    """PyTorch's autocast lists of the CPU and of accelerators differ."""
    low, inputs = X.bfloat16(), [both(X), both(X.bfloat16())]
    found = judged(tmp_path / "a", "torch.log_softmax", inputs, [(low.float(), low)])
    assert found.verdict == "warning" and "autocast" in found.rule
    same = judged(tmp_path / "b", "torch.log_softmax", inputs, [(low.float(), low)], devices=("maca", "maca"))
    assert same.verdict == "error"


def test_divergence_starts_innermost_and_later_calls_inherit(tmp_path):
    noise = 0.1 * torch.randn(X.shape, generator=torch.Generator().manual_seed(1))
    for name, wrong in (("cpu", 0), ("maca", 1)):
        record = Record(tmp_path / name, device=name)
        record.stack(0, "train.py:3 step", "model.py:7 forward")
        y = X * 2 + wrong * noise
        z = y * 3
        record.call("torch.nn.Linear", {"0": X}, {"0": y}, module="layer", stack=0)
        record.call("aten.addmm.default", {"0": X}, {"0": y}, parent=0, stack=0)
        record.call("torch.nn.functional.gelu", {"0": y}, {"0": z}, stack=0)
        record.close()
    report = make_report(tmp_path / "cpu", tmp_path / "maca", tmp_path / "out")
    assert report.first.call.name == "aten.addmm.default.0.fwd"
    verdicts = {row.call.op: row.judged.verdict for row in report.comparison.calls}
    assert verdicts == {
        "torch.nn.Linear": "error",
        "aten.addmm.default": "error",
        "torch.nn.functional.gelu": "pass",
    }
    assert report.first.stacks == (["train.py:3 step", "model.py:7 forward"],) * 2


def test_arguments_that_differ_are_told(tmp_path):
    for name, eps in (("cpu", 1e-5), ("maca", 1e-3)):
        record = Record(tmp_path / name, device=name)
        record.call("torch.nn.functional.batch_norm", {"0": X}, {"0": X}, values={"eps": eps, "device": name})
        record.close()
    (row,) = compare(read(tmp_path / "cpu"), read(tmp_path / "maca")).calls
    assert (row.judged.verdict, row.judged.rule) == ("warning", "argument eps: 1e-05 against 0.001")


def test_ranks_are_paired(tmp_path):
    for name in ("cpu", "maca"):
        for rank in (0, 1) if name == "cpu" else (1, 0, 2):
            record = Record(tmp_path / name, device=name, rank=rank)
            record.call("torch.exp", {"0": X}, {"0": X + rank})
            record.close()
    found = compare(read(tmp_path / "cpu"), read(tmp_path / "maca"))
    assert found.verdict == "pass" and {row.rank for row in found.calls} == {0, 1}
    assert any("rank 2" in note for note in found.notes)


# -- reports ------------------------------------------------------------------------------------------------------
def pair(tmp_path: Path, level=2, wrong=0.0):
    for name in ("cpu", "maca"):
        record = Record(tmp_path / name, level, name)
        y = X * 2 + (wrong if name == "maca" else 0)
        record.stack(0, "=cmd() model.py:7 <forward>")
        record.call("torch.nn.Linear", {"0": X}, {"0": y}, module="a", stack=0)
        record.call("torch.relu", {"0": y}, {"0": y.relu()}, stack=0)
        if name == "maca":
            record.call("torch.sin", {"0": X}, {"0": X.sin()})
        record.close()
    return tmp_path / "cpu", tmp_path / "maca"


def test_report_files(tmp_path, capsys):
    from openpyxl import load_workbook

    report = gen_report(*pair(tmp_path, wrong=0.5), tmp_path / "out")
    assert "first divergence: torch.nn.Linear.0.fwd in a" in capsys.readouterr().out
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        f"accuracy_report.{k}" for k in ("csv", "html", "xlsx")
    }
    book = load_workbook(report.paths["xlsx"])
    sheet = book["tensors"]
    assert sheet.freeze_panes == "A2" and sheet.auto_filter.ref.startswith("A1:")
    heads = [c.value for c in sheet[1]]
    verdicts = {c.value: c.fill.start_color.rgb for c in list(sheet.columns)[heads.index("verdict")][1:]}
    assert verdicts["error"].endswith("FECACA") and verdicts["pass"].endswith("D1FAE5")
    assert all(c.data_type != "f" for row in sheet.rows for c in row)
    assert any(str(c.value).startswith("=cmd()") for row in sheet.rows for c in row)
    rows = report.rows
    assert len(rows) == 5 and {r["alignment"] for r in rows} == {"paired", "only in run 1"}
    assert [r["diff2"] for r in rows if r["run 0"] == "torch.nn.Linear.0.fwd" and r["role"] == "output"][
        0
    ] > 0.1
    html = report.paths["html"].read_text()
    assert (
        "<svg" in html
        and "=cmd() model.py:7 &lt;forward&gt;" in html
        and "http" not in html.replace("http-equiv", "")
    )
    again = gen_report(tmp_path / "cpu", tmp_path / "maca", tmp_path / "out")
    assert again.paths["csv"].name == "accuracy_report_2.csv" and report.paths["csv"].exists()


def run(*args):
    command = [sys.executable, "-W", "ignore", "-m", "macatensor", "accuracy", "compare", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_command_line(tmp_path):
    done = run(*pair(tmp_path / "a", 1, wrong=0.5), "-o", tmp_path / "out", "--json")
    facts = json.loads(done.stdout)
    assert done.returncode == 1 and facts["verdict"] == "error", done.stderr
    assert facts["first_divergence"]["run 0"] == "torch.nn.Linear.0.fwd"
    done = run(*pair(tmp_path / "b"), "-o", tmp_path / "out2")
    assert done.returncode == 0 and "Without a counterpart" in done.stdout, done.stderr
    done = run(tmp_path / "b" / "cpu", tmp_path / "none", "-o", tmp_path / "out3")
    assert done.returncode == 2 and "does not" in done.stderr and not (tmp_path / "out3").exists()


# -- what is refused ----------------------------------------------------------------------------------------------
def refused(left, right, output, match):
    with pytest.raises(ValueError, match=match):
        make_report(left, right, output)
    assert not output.exists()


def test_itself_copies_and_cpu_against_cpu_are_refused(tmp_path):
    import shutil

    left, right = pair(tmp_path)
    out = tmp_path / "out"
    refused(left, left, out, "with itself")
    shutil.copytree(left, tmp_path / "copy")
    refused(left, tmp_path / "copy", out, "copy of")
    other = Record(tmp_path / "other", device="cpu")
    other.call("torch.nn.Linear", {"0": X}, {"0": X * 2}, module="a")
    other.close()
    refused(left, tmp_path / "other", out, "CPU only.*cpu-against-cpu")
    assert make_report(left, tmp_path / "other", out, cpu_against_cpu=True).verdict == "warning"


def test_different_models_empty_and_damaged_records_are_refused(tmp_path):
    left, right = pair(tmp_path)
    out = tmp_path / "out"
    other = Record(tmp_path / "other", device="maca")
    for i in range(5):
        other.call(f"torch.op{i}", {"0": X}, {"0": X})
    other.close()
    refused(left, tmp_path / "other", out, "different programs.*of 2 calls.*5.*only 0")
    Record(tmp_path / "empty", device="maca").close()
    refused(left, tmp_path / "empty", out, "no call")
    (tmp_path / "plain").mkdir()
    refused(left, tmp_path / "plain", out, "holds no record")
    left, right = pair(tmp_path / "wrong", wrong=1)  # files are read where the hashes differ
    next(right.glob("process-*/tensors/*")).write_bytes(b"cut")
    refused(left, right, out, "cannot read")
    (left / "dump.json").write_text("{}")
    refused(left, right, out, "mixed")


def test_a_cut_off_run_is_compared_so_far(tmp_path):
    left, right = pair(tmp_path)
    lines = next(right.glob("process-*/calls.jsonl"))
    text = lines.read_text()
    lines.write_text(text[: text.index("torch.relu") + 20])
    report = make_report(left, right, tmp_path / "out")
    assert any("cut off" in note for note in report.comparison.notes) and report.verdict == "warning"
