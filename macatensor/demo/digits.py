"""A small ResNet on the 1,797 handwritten digits that come with scikit-learn."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from macatensor.demo.models import digits_resnet
from macatensor.demo.training import Report, Training, silent

if TYPE_CHECKING:
    from numpy import ndarray

ACCURACY_BAR = 0.97
BATCH = 64
EPOCHS = 30  # at most; the bar is usually met within 5


def load(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Training images (N, 3, 8, 8) in [-1, 1] and labels, then the test set's: one fifth, stratified.

    The gray value stands in three channels: with one channel NHWC and NCHW are the same memory, and the first layers
    would not show which of them the network runs in.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    x_train, x_test, y_train, y_test = train_test_split(
        digits.images, digits.target, test_size=0.2, random_state=seed, stratify=digits.target
    )

    def images(array: ndarray) -> torch.Tensor:
        return (torch.from_numpy(array).float() / 8 - 1).unsqueeze(1).repeat(1, 3, 1, 1)

    return images(x_train), torch.from_numpy(y_train), images(x_test), torch.from_numpy(y_test)


def accuracy(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """Share of right answers, with running statistics."""
    model.eval()
    with torch.inference_mode():
        right = float((model(x).argmax(1) == y).float().mean().item())
    model.train()
    return right


def train(
    device: str = "maca",
    seed: int = 0,
    epochs: int = EPOCHS,
    bar: float = ACCURACY_BAR,
    report: Report = silent,
) -> Training:
    """Trains until the test accuracy reaches ``bar``, ``epochs`` at most."""
    torch.manual_seed(seed)
    shuffle = torch.Generator().manual_seed(seed)
    x_train, y_train, x_test, y_test = (t.to(device) for t in load(seed))
    model = digits_resnet().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    per_epoch = len(x_train) // BATCH
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.1, total_steps=EPOCHS * per_epoch, pct_start=0.2
    )
    run = Training(
        "ResNet on handwritten digits",
        "test accuracy",
        bar,
        True,
        parameters=sum(p.numel() for p in model.parameters()),
        facts={
            "data": f"scikit-learn's digits: {len(x_train)} training and {len(x_test)} test images, 3x8x8",
            "layout": "channels_last (NHWC)",
            "batch": str(BATCH),
            "optimizer": "SGD, Nesterov momentum 0.9, one-cycle learning rate up to 0.1",
        },
    )

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    start = time.perf_counter()
    for _ in range(epochs):
        order = torch.randperm(len(x_train), generator=shuffle).to(device)
        for i in range(per_epoch):
            chosen = order[i * BATCH : (i + 1) * BATCH]
            loss = step(x_train[chosen], y_train[chosen]).item()
            schedule.step()
            run.steps += 1
            run.losses.append((run.steps, loss))
            reached = f"test accuracy {100 * run.value:.1f} %" if run.metrics else ""
            report(run.steps, epochs * per_epoch, f"loss {loss:.3f}  {reached}")
        run.metrics.append((run.steps, accuracy(model, x_test, y_test)))
        if run.met:
            break
    run.seconds = time.perf_counter() - start
    report(run.steps, run.steps, f"test accuracy {run.formatted(run.value)} after {run.steps} steps")
    run.step = lambda: step(x_train[:BATCH], y_train[:BATCH])
    return run
