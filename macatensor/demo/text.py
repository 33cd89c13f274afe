"""A character GPT on the source text of Python's own standard library."""

from __future__ import annotations

import math
import string
import sysconfig
import time
from pathlib import Path

import torch
import torch.nn.functional as F

from macatensor.demo.models import GPT, GPTConfig
from macatensor.demo.training import Report, Training, silent

LOSS_BAR = (
    2.0  # nats per character on unseen modules; a uniform guess has 4.6, character frequencies alone 3.3
)
ALPHABET = "\n" + string.printable[:95]  # letters, digits, punctuation, space; all else is written as "?"
LAYERS, WIDTH, HEADS, CONTEXT = 4, 128, 4, 64
BATCH = 32
STEPS = 1200  # at most
EVERY = 50  # steps between evaluations


def corpus(context: int = CONTEXT) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Tokens (int64) for training and for validation, and the number of modules.

    The modules at the top of the standard library in order of their names; every tenth is for validation.
    """
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    index = {c: i for i, c in enumerate(ALPHABET)}
    unknown = index["?"]
    parts: tuple[list[int], list[int]] = ([], [])
    for i, file in enumerate(files):
        text = file.read_text(encoding="utf-8", errors="replace").expandtabs(4).replace("\r", "")
        parts[i % 10 == 9].extend([index.get(c, unknown) for c in text])
    for name, part in zip(("training", "validation"), parts):
        if len(part) <= context:
            raise RuntimeError(
                f"the standard library in {sysconfig.get_path('stdlib')} has {len(files)} source files, too few for "
                f"{name} text; the demo needs a Python with its .py files"
            )
    return torch.tensor(parts[0]), torch.tensor(parts[1]), len(files)


def windows(tokens: torch.Tensor, count: int, context: int, generator: torch.Generator) -> torch.Tensor:
    """``count`` random windows of ``context`` + 1 tokens."""
    starts = torch.randint(len(tokens) - context, (count, 1), generator=generator)
    return tokens[starts + torch.arange(context + 1)]


def learning_rate(step: int, steps: int, peak: float = 3e-3) -> float:
    """Linear warm-up over 50 steps, then a cosine to a tenth."""
    if step < 50:
        return peak * (step + 1) / 50
    return peak * (0.55 + 0.45 * math.cos(math.pi * min(1.0, (step - 50) / max(1, steps - 50))))


def train(
    device: str = "maca",
    seed: int = 0,
    steps: int = STEPS,
    bar: float = LOSS_BAR,
    report: Report = silent,
    every: int = EVERY,
    config: GPTConfig | None = None,
) -> Training:
    """Trains until the validation loss falls to ``bar``, ``steps`` at most."""
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(seed)
    config = config or GPTConfig(len(ALPHABET), LAYERS, WIDTH, HEADS, CONTEXT)
    context = config.context
    training, validation, modules = corpus(context)
    unseen = (
        windows(validation, 4 * BATCH, context, torch.Generator().manual_seed(seed + 1))
        .to(device)
        .split(BATCH)
    )
    model = GPT(config).to(device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=3e-3, betas=(0.9, 0.99), weight_decay=0.1, fused=True
    )
    run = Training(
        "GPT on Python's standard library",
        "validation loss",
        bar,
        False,
        parameters=sum(p.numel() for p in model.parameters()),
        facts={
            "data": f"{modules} modules, {len(training) / 1e6:.1f} M characters; every tenth module is for validation",
            "model": f"{config.layers} layers, width {config.width}, {config.heads} heads, context {context}",
            "batch": f"{BATCH} windows of {context} characters",
            "optimizer": "fused AdamW, warm-up and cosine learning rate up to 0.003",
        },
    )

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    def step(batch: torch.Tensor) -> torch.Tensor:
        loss = loss_of(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def evaluate() -> float:
        model.eval()
        with torch.inference_mode():
            mean = torch.stack([loss_of(batch) for batch in unseen]).mean().item()
        model.train()
        return mean

    start = time.perf_counter()
    batch = windows(training, BATCH, context, draw).to(device)
    for i in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(i, steps)
        loss = step(batch).item()
        batch = windows(training, BATCH, context, draw).to(device)
        run.steps = i + 1
        run.losses.append((run.steps, loss))
        if run.steps % every == 0 or run.steps == steps:
            run.metrics.append((run.steps, evaluate()))
            if run.met:
                break
        reached = f"validation {run.value:.3f}" if run.metrics else ""
        report(run.steps, steps, f"loss {loss:.3f}  {reached}")
    run.seconds = time.perf_counter() - start
    report(run.steps, run.steps, f"validation loss {run.formatted(run.value)} after {run.steps} steps")
    run.sample = write(model, "def ", 240, seed)
    run.step = lambda: step(batch)
    return run


@torch.inference_mode()
def write(model: GPT, prompt: str, length: int, seed: int, temperature: float = 0.6) -> str:
    """Lets the model continue ``prompt`` by ``length`` characters."""
    context = model.config.context
    device = next(model.parameters()).device
    draw = torch.Generator().manual_seed(seed)
    tokens = [ALPHABET.index(c) for c in prompt]
    model.eval()
    for _ in range(length):
        seen = tokens[-context:]
        # padded on the right to one shape: attention is causal, so the padding changes nothing to its left
        padded = torch.tensor([seen + [0] * (context - len(seen))]).to(device)
        logits = model(padded)[0, len(seen) - 1].cpu()
        tokens.append(int(torch.multinomial((logits / temperature).softmax(0), 1, generator=draw)))
    model.train()
    return "".join(ALPHABET[t] for t in tokens)
