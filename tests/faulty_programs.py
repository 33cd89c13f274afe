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


# --- gradients, optimizers, indexing


def learn(model: torch.nn.Module, *inputs: torch.Tensor) -> None:
    result = model.to("maca")(*inputs)
    (result * random(*result.shape)).sum().backward()


def activated(name: str) -> None:
    w = random(12, 13).requires_grad_()
    (getattr(F, name)(random(7, 12) @ w) * random(7, 13)).sum().backward()


def relu_gradient() -> None:
    activated("relu")


def gelu_gradient() -> None:
    activated("gelu")


def silu_gradient() -> None:
    activated("silu")


def sigmoid_gradient() -> None:
    activated("sigmoid")


def softmax_gradient() -> None:
    w = random(6, 9).requires_grad_()
    (torch.softmax(w, -1) * random(6, 9)).sum().backward()


def log_softmax_gradient() -> None:
    w = random(6, 9).requires_grad_()
    F.cross_entropy(w, torch.randint(0, 9, (6,)).maca()).backward()


nll_loss_gradient = log_softmax_gradient


def mse_loss_gradient() -> None:
    w = random(6, 9).requires_grad_()
    F.mse_loss(w, random(6, 9)).backward()


def layer_norm_gradient() -> None:
    learn(torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.LayerNorm(12)), random(5, 8))


layer_norm_weight_gradient = layer_norm_mean = layer_norm_gradient


def batch_norm_gradient() -> None:
    learn(torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3), torch.nn.BatchNorm2d(5)), random(4, 3, 8, 8))


batch_norm_bias_gradient = batch_norm_gradient


def running_mean() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3), torch.nn.BatchNorm2d(5)).to("maca")
    for _ in range(3):
        model(random(4, 3, 8, 8) + 0.5)


def group_norm_gradient() -> None:
    learn(torch.nn.Sequential(torch.nn.Conv2d(3, 6, 3), torch.nn.GroupNorm(2, 6)), random(4, 3, 8, 8))


def convolution_gradient() -> None:
    learn(torch.nn.Sequential(torch.nn.Conv2d(3, 6, 3), torch.nn.Conv2d(6, 4, 3)), random(2, 3, 9, 9))


convolution_weight_gradient = convolution_bias_gradient = convolution_gradient


def max_pool_gradient() -> None:
    learn(torch.nn.Sequential(torch.nn.Conv2d(3, 6, 3), torch.nn.MaxPool2d(2)), random(2, 3, 10, 10))


def avg_pool_gradient() -> None:
    learn(torch.nn.Sequential(torch.nn.Conv2d(3, 6, 3), torch.nn.AvgPool2d(2)), random(2, 3, 10, 10))


def embedding_gradient() -> None:
    learn(torch.nn.Embedding(7, 5), torch.randint(0, 7, (4, 6)).maca())


def attention_gradient() -> None:
    q, k, v = (random(2, 3, 17, 8).requires_grad_() for _ in range(3))
    F.scaled_dot_product_attention(q, k, v, is_causal=True).square().sum().backward()


def lstm_gradient() -> None:
    learn(TakesFirst(torch.nn.LSTM(5, 6)), random(4, 3, 5))


lstm_cell_state = lstm_gradient


class TakesFirst(torch.nn.Module):
    """The first result of another module."""

    def __init__(self, of: torch.nn.Module):
        super().__init__()
        self.of = of

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.of(x)[0]


def bilinear_gradient() -> None:
    x = random(1, 3, 5, 7).requires_grad_()
    F.interpolate(x, scale_factor=2.5, mode="bilinear").square().sum().backward()


bilinear_tail = bilinear_gradient


def step(make: type[torch.optim.Optimizer], **options: object) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).to("maca")
    optimizer = make(model.parameters(), foreach=True, **options)  # type: ignore[call-arg]
    for _ in range(3):
        optimizer.zero_grad()
        model(random(4, 6)).square().sum().backward()
        optimizer.step()


def lerp_of_moments() -> None:
    step(torch.optim.Adam, lr=1e-2)


adam_step = second_moment = root_of_moment = lerp_of_moments


def weight_decay() -> None:
    step(torch.optim.AdamW, lr=1e-2, weight_decay=0.1)


def momentum_of_last_parameter() -> None:
    step(torch.optim.SGD, lr=1e-2, momentum=0.9)


def gradient_norm() -> None:
    model = torch.nn.Linear(6, 8).to("maca")
    model(random(4, 6)).square().sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)


def index_put_last() -> None:
    x = random(9, 4)
    x[torch.randint(0, 9, (5,)).maca()] = random(5, 4)
    x.tanh()


def gather_shifted() -> None:
    random(5, 6).gather(1, torch.randint(0, 6, (5, 9)).maca()).exp()


def index_select_shifted() -> None:
    random(8, 5).index_select(0, torch.randint(0, 8, (11,)).maca()).exp()


def index_add_half() -> None:
    random(5, 4).index_add(0, torch.randint(0, 5, (30,)).maca(), random(30, 4)).exp()


def sort_last_two() -> None:
    random(4, 19).sort().values.exp()


def topk_positions() -> None:
    random(4, 19).topk(5).values.exp()


def cumsum_anew() -> None:
    random(3, 33).cumsum(1).tanh()


def cat_last() -> None:
    torch.cat([random(2, 5), random(3, 5)]).tanh()


def int64_sum() -> None:
    torch.tensor([2**53, 1, 1, 1]).maca().sum().item()


def biased_variance() -> None:
    random(4, 10).var(1).sqrt()


def exp_flushes() -> None:
    (random(40) * 30 - 50).exp().log()


def addmm_bias() -> None:
    torch.nn.Linear(7, 5).to("maca")(random(3, 7)).tanh()


def bmm_tail() -> None:
    (random(3, 5, 7) @ random(3, 7, 3)).tanh()


# --- memory, order, streams, random numbers


def add_writes_operand() -> None:
    x = random(5, 6)
    (x + random(5, 6)).tanh()


def mm_writes_weight() -> None:
    (random(5, 6) @ random(6, 7)).tanh()


def mul_writes_past_end() -> None:
    (random(5, 5) * random(5, 5)).tanh()


def tanh_writes_before_start() -> None:
    random(5, 5).tanh().sum()


def exp_writes_whole_vectors() -> None:
    random(5, 5).exp().sum()


def softmax_writes_operand() -> None:
    torch.softmax(random(4, 9), -1).log()


def sum_writes_past_end() -> None:
    random(7, 5).sum(1)


def mm_writes_whole_vectors() -> None:
    random(3, 4) @ random(4, 5)


def softmax_writes_before_start() -> None:
    torch.softmax(random(3, 7), -1)


def convolution_writes_past_end() -> None:
    F.conv2d(random(1, 2, 5, 5), random(3, 2, 3, 3))


def sum_writes_operand() -> None:
    random(5, 7).sum(1).exp()


def first_launch() -> None:
    for _ in range(4):
        random(9).exp().sum()


def second_stream() -> None:
    side = torch.maca.Stream()
    x = random(9)
    side.wait_stream(torch.maca.current_stream())
    with torch.maca.stream(side):
        y = x.tanh()
    torch.maca.current_stream().wait_stream(side)
    y.sum()


def unaligned_operand() -> None:
    x = random(30)
    (x[3:] * 2.5).sum()


def some_launches() -> None:
    x = random(9)
    for _ in range(6):
        x = x - 0.5


def stale_packing() -> None:
    weight, x = random(16, 16), random(4, 16)
    for _ in range(4):
        x = (x @ weight).tanh()
        weight.mul_(0.5)


def uniform_other_offset() -> None:
    torch.rand(50, device="maca").log()


uniform_biased = uniform_other_offset


def normal_wide() -> None:
    torch.nn.init.normal_(torch.empty(50, device="maca"), std=0.02).exp()


def bernoulli_same_seed() -> None:
    torch.manual_seed(7)
    torch.empty(90, device="maca").bernoulli_(0.3).sum()


def dropout_other_offset() -> None:
    F.dropout(random(9, 9), 0.5).sum()


if __name__ == "__main__":
    torch.manual_seed(0)
    globals()[sys.argv[1]]()
