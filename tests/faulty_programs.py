"""Programs that a planted fault of ``tests/interposer/faults.c`` spoils: ``faulty_programs.py FAULT``."""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F

import macatensor  # noqa: F401


def random(*size: int) -> torch.Tensor:
    return torch.randn(*size).to("maca")


def batch_norm_epsilon() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU()).to("maca")
    model(random(4, 3, 8, 8) * 0.1).sum().backward()


def sum_in_float16() -> None:
    (random(64, 33).relu() * 3).sum().item()


def padding_off_by_one() -> None:
    F.pad(random(2, 3, 8, 8), (2, 1, 1, 2), mode="reflect").tanh()


def swapped_strides() -> None:
    x = random(12, 12)
    (x.t().contiguous() @ x).tanh()


def division_gives_nan() -> None:
    (random(40).relu() / 3.0).exp()


def tanh_backward_formula() -> None:
    w = random(16, 16).requires_grad_()
    (random(8, 16) @ w).tanh().square().sum().backward()


def lost_update() -> None:
    places = torch.randint(0, 10, (50,)).to("maca")
    for _ in range(8):
        torch.zeros(10, device="maca").scatter_add(0, places, random(50))


def softmax_tail() -> None:
    torch.softmax(random(4, 17), -1).log()


def alpha_dropped() -> None:
    x = random(30)
    y = torch.add(x, random(30))
    torch.sub(torch.add(x, y, alpha=0.5), 1)


def stale_element() -> None:
    F.relu(random(5, 7)).sum()


def cast_truncates() -> None:
    with torch.autocast("maca", torch.bfloat16):
        random(8, 8) @ random(8, 8)


def cast_rounds() -> None:
    (random(50) * 10).to(torch.int64)


def index_off_by_one() -> None:
    table = torch.nn.Embedding(20, 8).to("maca")
    table(torch.randint(0, 20, (3, 5)).to("maca")).sum().backward()


def matmul_transposed() -> None:
    random(9, 16) @ random(16, 16)


def pooling_pads_with_zero() -> None:
    F.max_pool2d(-random(2, 3, 8, 8).abs(), 3, 2, 1)


def coarse_sigmoid() -> None:
    torch.sigmoid(random(3, 40)).mean()


if __name__ == "__main__":
    torch.manual_seed(0)
    globals()[sys.argv[1]]()
