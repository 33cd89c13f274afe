"""torchvision's operators on maca, against plain float64 computations of what they are and numerical gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from running import run_python

torchvision = pytest.importorskip("torchvision")
OPS: Any = torchvision.ops


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def boxes(count: int, size: float, seed: int = 0) -> torch.Tensor:
    """[count, 4], some of them partly outside, one of no size."""
    generator = torch.Generator().manual_seed(seed)
    corners = torch.rand(count, 2, generator=generator, dtype=torch.float64) * size - 1
    sizes = torch.rand(count, 2, generator=generator, dtype=torch.float64) * size * 0.8
    sizes[-1] = 0
    return torch.cat([corners, corners + sizes], 1)


ROIS = torch.cat([torch.tensor([[0.0], [1], [1], [0], [1]], dtype=torch.float64), boxes(5, 9)], 1)


def sample(plane: torch.Tensor, y: float, x: float) -> torch.Tensor:
    height, width = plane.shape
    if not (-1 <= y <= height and -1 <= x <= width):
        return plane.new_zeros(())
    y, x = max(y, 0.0), max(x, 0.0)
    top, left = min(int(y), height - 1), min(int(x), width - 1)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    dy, dx = (0.0 if top == height - 1 else y - top), (0.0 if left == width - 1 else x - left)
    upper = plane[top, left] * (1 - dx) + plane[top, right] * dx
    lower = plane[bottom, left] * (1 - dx) + plane[bottom, right] * dx
    return upper * (1 - dy) + lower * dy


def aligned(
    x: torch.Tensor,
    rois: torch.Tensor,
    size: tuple[int, int],
    scale: float,
    ratio: int,
    shift: bool,
    own: bool,
) -> torch.Tensor:
    """roi_align, and with ``own`` channels of each bin ps_roi_align."""
    rows, columns = size
    channels = x.shape[1] // (rows * columns) if own else x.shape[1]
    result = x.new_zeros(len(rois), channels, rows, columns)
    for k, (image, x1, y1, x2, y2) in enumerate(rois.tolist()):
        left, top = x1 * scale - 0.5 * shift, y1 * scale - 0.5 * shift
        w, h = (x2 - x1) * scale, (y2 - y1) * scale
        w, h = (w, h) if shift else (max(w, 1.0), max(h, 1.0))
        grid_h, grid_w = (ratio or math.ceil(h / rows)), (ratio or math.ceil(w / columns))
        for c in range(channels):
            for i in range(rows):
                for j in range(columns):
                    plane = x[int(image), (c * rows + i) * columns + j if own else c]
                    total = plane.new_zeros(())
                    for a in range(grid_h):
                        for b in range(grid_w):
                            y_at = top + (i + (a + 0.5) / grid_h) * h / rows
                            total = total + sample(plane, y_at, left + (j + (b + 0.5) / grid_w) * w / columns)
                    result[k, c, i, j] = total / max(grid_h * grid_w, 1)
    return result


def pooled(
    x: torch.Tensor, rois: torch.Tensor, size: tuple[int, int], scale: float, own: bool
) -> torch.Tensor:
    """roi_pool, and with ``own`` channels of each bin the mean of ps_roi_pool."""
    rows, columns = size
    height, width = x.shape[2] - own, x.shape[3] - own
    channels = x.shape[1] // (rows * columns) if own else x.shape[1]
    result = x.new_zeros(len(rois), channels, rows, columns)

    def away(v: float) -> int:
        return int(math.copysign(math.floor(abs(v) + 0.5), v))

    for k, (image, *corners) in enumerate(rois.tolist()):
        left, top, right, bottom = (away(v * scale) for v in corners)
        w, h = max(right - left + (not own), 1), max(bottom - top + (not own), 1)
        for i in range(rows):
            for j in range(columns):
                ys = [
                    min(max(f(n * (h / rows)) + top, 0), height)
                    for f, n in ((math.floor, i), (math.ceil, i + 1))
                ]
                xs = [
                    min(max(f(n * (w / columns)) + left, 0), width)
                    for f, n in ((math.floor, j), (math.ceil, j + 1))
                ]
                if ys[1] <= ys[0] or xs[1] <= xs[0]:
                    continue
                for c in range(channels):
                    part = x[
                        int(image), (c * rows + i) * columns + j if own else c, ys[0] : ys[1], xs[0] : xs[1]
                    ]
                    result[k, c, i, j] = part.mean() if own else part.amax()
    return result


OPERATORS: dict[str, tuple[int, Callable[..., torch.Tensor], Callable[..., torch.Tensor]]] = {
    "roi_align": (
        3,
        lambda x, r: OPS.roi_align(x, r, (2, 3), 0.7, 2, False),
        lambda x, r: aligned(x, r, (2, 3), 0.7, 2, False, False),
    ),
    "roi_align adaptive": (
        3,
        lambda x, r: OPS.roi_align(x, r, (2, 2), 1.0, -1, True),
        lambda x, r: aligned(x, r, (2, 2), 1.0, 0, True, False),
    ),
    "ps_roi_align": (
        12,
        lambda x, r: OPS.ps_roi_align(x, r, (2, 3), 0.9, 2),
        lambda x, r: aligned(x, r, (2, 3), 0.9, 2, True, True),
    ),
    "roi_pool": (
        3,
        lambda x, r: OPS.roi_pool(x, r, (2, 3), 0.8),
        lambda x, r: pooled(x, r, (2, 3), 0.8, False),
    ),
    "ps_roi_pool": (
        12,
        lambda x, r: OPS.ps_roi_pool(x, r, (2, 3), 0.8),
        lambda x, r: pooled(x, r, (2, 3), 0.8, True),
    ),
}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("name", OPERATORS)
def test_pooled_boxes_and_gradients_agree(name: str, layout: torch.memory_format) -> None:
    channels, ours, reference = OPERATORS[name]
    x = drawn(2, channels, 7, 9).to(memory_format=layout)
    host = x.clone().requires_grad_()
    leaf = x.to("maca").requires_grad_()
    found, expected = ours(leaf, ROIS.maca()), reference(host, ROIS)
    assert found.device.type == "maca" and found.is_contiguous()
    assert torch.allclose(found.cpu(), expected, 1e-12, 1e-14)
    weights = drawn(*expected.shape, seed=3)
    (found * weights.maca()).sum().backward()
    (expected * weights).sum().backward()
    assert leaf.grad is not None and host.grad is not None
    assert torch.allclose(leaf.grad.cpu(), host.grad, 1e-11, 1e-13)
    single = ours(x.float().maca(), ROIS.float().maca())
    assert torch.allclose(
        single.cpu().double(), reference(x.float().double(), ROIS.float().double()), 1e-4, 1e-4
    )


@pytest.mark.parametrize("name", OPERATORS)
def test_pooled_boxes_pass_gradcheck(name: str) -> None:
    channels, ours, _ = OPERATORS[name]
    x = drawn(2, channels, 4, 5).maca().requires_grad_()
    assert torch.autograd.gradcheck(lambda t: ours(t, ROIS[:2].maca()), (x,))


@pytest.mark.parametrize("name", OPERATORS)
def test_no_boxes_and_halves(name: str) -> None:
    channels, ours, reference = OPERATORS[name]
    x = drawn(2, channels, 7, 9).maca().requires_grad_()
    nothing = ours(x, ROIS[:0].maca())
    assert nothing.shape[0] == 0
    nothing.sum().backward()
    assert x.grad is not None and not x.grad.any()
    half = x.detach().half()
    expected = reference(half.cpu().double(), ROIS.half().double())
    found = ours(half, ROIS.half().maca())
    assert found.dtype == torch.float16
    assert "pool" in name or torch.allclose(found.cpu().double(), expected, atol=4e-3)
    with torch.autocast("maca"):
        assert ours(half, ROIS.float().maca()).dtype == torch.float16


def suppressed(candidates: torch.Tensor, scores: torch.Tensor, threshold: float) -> list[int]:
    kept: list[int] = []
    for i in scores.argsort(descending=True, stable=True).tolist():
        overlaps = (
            OPS.box_iou(candidates[i : i + 1], candidates[kept])[0] if kept else candidates.new_zeros(0)
        )
        if not (overlaps > threshold).any():
            kept.append(i)
    return kept


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 7, 60])
@pytest.mark.parametrize("threshold", [0.0, 0.3, 1.0])
def test_nms_keeps_what_the_definition_keeps(dtype: torch.dtype, count: int, threshold: float) -> None:
    candidates = boxes(count + 1, 9, seed=count)[:count].to(dtype)
    scores = drawn(count, seed=1).round(decimals=1).to(dtype)  # some are equal
    found = OPS.nms(candidates.maca(), scores.maca(), threshold)
    assert found.dtype == torch.int64 and found.tolist() == suppressed(candidates, scores, threshold)
    strided = torch.stack([candidates, candidates], 2).maca()[..., 1]
    assert torch.equal(OPS.nms(strided, scores.maca(), threshold), found)
    groups = (torch.arange(count) % 3).maca()
    batched = OPS.batched_nms(candidates.maca(), scores.maca(), groups, threshold).tolist()
    if dtype is torch.float64:  # the groups are moved apart, which float32 rounds
        members = [torch.arange(count)[groups.cpu() == g] for g in range(3)]
        each = [m[suppressed(candidates[m], scores[m], threshold)].tolist() for m in members]
        assert sorted(batched) == sorted(i for group in each for i in group)


def test_nms_of_nothing_and_of_nan() -> None:
    assert OPS.nms(torch.zeros(0, 4).maca(), torch.zeros(0).maca(), 0.5).shape == (0,)
    candidates = torch.tensor([[0.0, 0, 1, 1], [0, 0, 1, 1], [math.nan] * 4]).maca()
    kept = OPS.nms(candidates, torch.tensor([0.1, math.nan, math.inf]).maca(), 0.5)
    assert kept.tolist() == [1, 2]


def test_wrong_boxes_are_errors() -> None:
    x, good = torch.ones(1, 2, 4, 4).maca(), torch.tensor([[0.0, 0, 0, 2, 2]])
    for image in (1.0, -1.0, math.nan, math.inf, 1e30):
        bad = good.clone()
        bad[0, 0] = image
        for operator in (OPS.roi_align, OPS.roi_pool):
            with pytest.raises(IndexError, match="of image"):
                operator(x, bad.maca(), (2, 2)).cpu()
    for corner in (math.nan, math.inf, 1e30, -1e30):
        bad = good.clone()
        bad[0, 3] = corner
        OPS.roi_pool(x, bad.maca(), (2, 2)).cpu()
        OPS.roi_align(x, bad.maca(), (2, 2), 1.0, 2).cpu()
    huge = torch.tensor([[0, 0, 0, 1e9, 1e9]]).maca()
    with pytest.raises(RuntimeError, match="give a sampling_ratio"):
        OPS.roi_align(x, huge, (2, 2)).cpu()
    with pytest.raises(RuntimeError, match="same type"):
        torch.ops.torchvision.roi_align(x, good.double().maca(), 1.0, 2, 2, 2, False)
    with pytest.raises(RuntimeError, match="multiple of pooling"):
        OPS.ps_roi_align(torch.ones(1, 3, 4, 4).maca(), good.maca(), (2, 2))
    with pytest.raises(RuntimeError, match="boxes should be a 2d tensor, got 1D"):
        OPS.nms(torch.ones(4).maca(), torch.ones(4).maca(), 0.5)


def deformed(
    x: torch.Tensor, weight: torch.Tensor, offset: torch.Tensor, mask: torch.Tensor | None, bias: torch.Tensor,
    stride: int, padding: int, dilation: int,
) -> torch.Tensor:  # fmt: skip
    """Each sample by itself, by its definition."""
    batch, channels, height, width = x.shape
    outputs, per_group, rows, columns = weight.shape
    taps, groups = rows * columns, channels // per_group
    apart = channels // (offset.shape[1] // (2 * taps))
    result = bias.view(1, -1, 1, 1).expand(batch, outputs, *offset.shape[2:]).clone()
    for n in range(batch):
        for i in range(offset.shape[2]):
            for j in range(offset.shape[3]):
                values = x.new_zeros(channels, rows, columns)
                for c in range(channels):
                    for t in range(taps):
                        at = c // apart * taps + t
                        y = i * stride - padding + t // columns * dilation + offset[n, 2 * at, i, j]
                        z = j * stride - padding + t % columns * dilation + offset[n, 2 * at + 1, i, j]
                        total = x.new_zeros(())
                        for h in (int(y.floor()), int(y.floor()) + 1):
                            for w in (int(z.floor()), int(z.floor()) + 1):
                                if 0 <= h < height and 0 <= w < width:
                                    total = total + x[n, c, h, w] * (1 - (y - h).abs()) * (1 - (z - w).abs())
                        values[c, t // columns, t % columns] = total * (
                            1 if mask is None else mask[n, at, i, j]
                        )
                for o in range(outputs):
                    first = o // (outputs // groups) * per_group
                    result[n, o, i, j] = (
                        result[n, o, i, j] + (values[first : first + per_group] * weight[o]).sum()
                    )
    return result


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("stride,padding,dilation", [(1, 0, 1), (2, 1, 2)])
def test_deformed_convolutions_and_gradients_agree(
    masked: bool, stride: int, padding: int, dilation: int
) -> None:
    x, weight, bias = drawn(2, 4, 6, 7), drawn(6, 2, 2, 3, seed=1), drawn(6, seed=2)
    rows = (6 + 2 * padding - dilation - 1) // stride + 1
    columns = (7 + 2 * padding - 2 * dilation - 1) // stride + 1
    offset = drawn(2, 2 * 2 * 6, rows, columns, seed=3)
    mask = drawn(2, 2 * 6, rows, columns, seed=4) if masked else None
    host = [None if t is None else t.clone().requires_grad_() for t in (x, weight, offset, mask, bias)]
    expected = deformed(*host, stride, padding, dilation)  # type: ignore[arg-type]
    leaves = [None if t is None else t.maca().requires_grad_() for t in (x, weight, offset, mask, bias)]
    found = OPS.deform_conv2d(
        leaves[0],
        leaves[2],
        leaves[1],
        leaves[4],
        stride=stride,
        padding=padding,
        dilation=dilation,
        mask=leaves[3],
    )
    assert torch.allclose(found.cpu(), expected, 1e-10, 1e-11)
    found.sin().sum().backward()
    expected.sin().sum().backward()
    for ours, theirs in zip(leaves, host):
        if ours is not None and theirs is not None:
            assert ours.grad is not None and theirs.grad is not None
            assert torch.allclose(ours.grad.cpu(), theirs.grad, 1e-8, 1e-9)
    layer = OPS.DeformConv2d(4, 6, (2, 3), stride, padding, dilation).double().maca()
    assert layer(leaves[0], leaves[2].detach()).shape == found.shape  # type: ignore[union-attr]


@pytest.mark.parametrize("name", OPERATORS)
def test_compiled_programs_are_one_graph(name: str) -> None:
    channels, ours, _ = OPERATORS[name]
    x, rois = drawn(2, channels, 7, 9).maca(), ROIS.maca()
    results = []
    for program in (ours, torch.compile(ours, fullgraph=True)):
        leaf = x.clone().requires_grad_()
        found = program(leaf, rois)
        found.square().sum().backward()
        results.append((found, leaf.grad))
    assert all(torch.equal(a, b) for a, b in zip(*results))


def test_compiled_and_exported_boxes_agree() -> None:
    taken, scores = boxes(30, 9).maca(), drawn(30).maca()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        kept = torch.compile(lambda b, s: OPS.nms(b, s, 0.3), fullgraph=True)(taken, scores)
    assert torch.equal(kept, OPS.nms(taken, scores, 0.3))

    class Net(torch.nn.Module):
        def forward(
            self, x: torch.Tensor, offset: torch.Tensor, weight: torch.Tensor, rois: torch.Tensor
        ) -> torch.Tensor:
            return OPS.roi_align(OPS.deform_conv2d(x, offset, weight), rois, (2, 2))

    operands = [t.maca() for t in (drawn(2, 3, 7, 9), drawn(2, 18, 5, 7), drawn(4, 3, 3, 3), ROIS)]
    exported = torch.export.export(Net(), tuple(operands)).module()
    assert torch.equal(exported(*operands), Net()(*operands))


def test_a_detection_model_trains() -> None:
    run_python(
        """
        import torch, macatensor
        from torchvision.models.detection import FasterRCNN
        from torchvision.models.detection.rpn import AnchorGenerator
        torch.manual_seed(0)
        body = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, 4, 1), torch.nn.ReLU())
        body.out_channels = 8
        model = FasterRCNN(body, num_classes=3, rpn_anchor_generator=AnchorGenerator(((16, 32),), ((1.0,),)),
            box_roi_pool=__import__("torchvision").ops.MultiScaleRoIAlign(["0"], 4, 2), min_size=64, max_size=64,
            rpn_pre_nms_top_n_train=100, rpn_post_nms_top_n_train=50).to("maca")
        images = [torch.rand(3, 64, 64).maca() for _ in range(2)]
        targets = [{"boxes": torch.tensor([[4.0, 4, 40, 40]]).maca(), "labels": torch.tensor([1]).maca()}] * 2
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(2):
            loss = sum(model(images, targets).values())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            assert torch.isfinite(loss) and loss.device.type == "maca"
        assert all(p.grad is not None for p in model.parameters())
        model.eval()
        found = model(images)
        assert found[0]["boxes"].device.type == "maca" and found[0]["boxes"].shape[1] == 4
        assert macatensor.counters()["fallbacks"] == 0, macatensor.counters()
        """,
        MACA_FALLBACK="error",
    )


def test_the_host_without_the_library_says_so() -> None:
    run_python(
        """
        import torch, torchvision
        if torchvision.extension._has_ops():
            raise SystemExit
        torch.compiler.set_stance("force_eager")  # else torchvision compiles it, for half a minute
        ones = torch.ones(1, 2, 4, 4)
        assert torchvision.ops.roi_align(ones, [torch.tensor([[0.0, 0, 2, 2]])], 2).device.type == "cpu"
        try:
            torchvision.ops.nms(torch.ones(1, 4), torch.ones(1), 0.5)
        except RuntimeError as error:
            assert "Couldn't load custom C++ ops" in str(error), error
        else:
            raise AssertionError
        """
    )
