"""The lecture's training loop: random batches, AdamW, and a periodic train and validation loss.

`fit` is the loop to read, and the baseline to compare with. The folder training/ has the fast
trainer, `nanogpt.train`: recipes, Muon, schedules, checkpoints, resuming, several processes.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from .config import check_int, check_positive, check_type
from .data import CharTokenizer, Corpus, random_batch, send, split
from .device import forked_random_state, pick_device
from .model import GPT

EVAL_SEED = 4242  # every evaluation reads the same windows, so two losses can be compared
EVAL_BATCH = 16  # windows in an evaluation batch


def fit(
    model: GPT,
    corpus: Corpus,
    *,
    steps: int = 5000,
    batch_size: int = 16,
    lr: float = 1e-3,
    eval_every: int = 500,
    eval_batches: int = 4,
    seed: int = 1337,
) -> dict[str, list[float]]:
    """Train the model in place. Returns its history: step, train, val and batch_loss as lists.

    Moves the model to a GPU if available. The defaults are those of the lecture's gpt-dev; the same
    seed gives bit-identical results. Raises ValueError if the vocabulary size differs from the
    text's, and if a split of the text is shorter than a window.
    """
    check_type("model", model, GPT)
    check_type("corpus", corpus, Corpus)
    sizes = {
        "steps": steps,
        "batch_size": batch_size,
        "eval_every": eval_every,
        "eval_batches": eval_batches,
    }
    for name, size in sizes.items():
        check_int(name, size, 1, 2**31 - 1)
    check_positive("lr", lr)
    check_int("seed", seed, 0, 2**63 - 1)
    if model.device.type == "meta":
        raise ValueError("the model is on the meta device, without numbers: build it on the CPU")
    tokenizer = CharTokenizer(corpus.text)
    vocab_size = model.config.vocab_size
    n = len(tokenizer)
    if vocab_size != n:
        raise ValueError(
            f"the model has {vocab_size} characters, the text {n}: "
            f"build the model with GPTConfig(vocab_size={n})"
        )

    # 1. the text as numbers: the first 90 % for training, the rest for validation
    device = pick_device()
    block_size = model.config.block_size
    train, val = split(tokenizer.encode(corpus.text), block_size)

    # 2. the optimizer, created after the model has moved: it holds the weights that it updates
    model.to(device.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)

    # 3. the loop. Batches use a generator of their own; dropout uses the global one.
    generator = torch.Generator().manual_seed(seed)
    history: dict[str, list[float]] = {"step": [], "train": [], "val": [], "batch_loss": []}
    began = time.perf_counter()
    with forked_random_state(device), _mode_restored(model):
        torch.manual_seed(seed)
        # One iteration more than there are updates: the last one only evaluates.
        for step in range(steps + 1):
            # Evaluate before the update: the loss of both splits, on fixed windows.
            if step % eval_every == 0 or step == steps:
                losses = {
                    "train": estimate_loss(model, train, eval_batches),
                    "val": estimate_loss(model, val, eval_batches),
                }
                for name, value in {"step": step, **losses}.items():
                    history[name].append(value)
                line = f"step {step:5d} of {steps}"
                line += f" | train {losses['train']:.4f} | val {losses['val']:.4f}"
                if 0 < step < steps:
                    left = (time.perf_counter() - began) / step * (steps - step)
                    line += f" | {left:.0f} s left"
                print(line, flush=True)
            if step == steps:
                break
            # Update. Windows at random offsets, with targets shifted by one character: a window of
            # T characters is T examples at once, one for each position.
            model.train()
            x, y = random_batch(train, block_size, batch_size, generator)  # 2 × (B, T)
            _, loss = model(send(x, device.device), send(y, device.device))
            # The gradient says how the loss changes with each weight: step against it. Clear the
            # old gradients first, because PyTorch adds new ones to them.
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            history["batch_loss"].append(loss.item())
    return history


@contextmanager
def _mode_restored(model: GPT) -> Iterator[None]:
    """A with-block after which the model is in train or eval mode as before, also after Ctrl-C."""
    was_training = model.training
    try:
        yield
    finally:
        model.train(was_training)


@torch.no_grad()
def estimate_loss(model: GPT, data: Tensor, n_batches: int) -> float:
    """The mean loss on n_batches fixed batches, without dropout.  (N,) -> nats"""
    # No dropout, and the same windows at every evaluation: only the model changes.
    model.eval()
    generator = torch.Generator().manual_seed(EVAL_SEED)
    total = 0.0
    for _ in range(n_batches):
        x, y = random_batch(data, model.config.block_size, EVAL_BATCH, generator)
        _, loss = model(send(x, model.device), send(y, model.device))
        total += loss.item()
    return total / n_batches
