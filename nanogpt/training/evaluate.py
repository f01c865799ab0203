"""The loss of a model, measured so that no cache and no mode is left changed."""

from __future__ import annotations

import torch
from torch import Tensor

from ..data.batches import random_batch, windows
from ..decoding.decoder import replica
from ..model.gpt import GPT
from ..system.device import send

EVAL_SEED = 4242  # of the fixed evaluation windows: the same for every training seed
BATCH = 16  # windows of a batch


@torch.no_grad()
def mean_loss(model: GPT, batches: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Mean cross-entropy in nats over the (B, T) pairs given, in eval mode and without caches.

    The model's own modes and caches are neither used nor changed.
    """
    model = replica(model)
    losses = [model(x, y)[1].double() * y.numel() for x, y in batches]
    return torch.stack(losses).sum() / sum(y.numel() for _, y in batches)


def fixed_batches(data: Tensor, block_size: int, n: int, device) -> list:
    """n pairs (BATCH, block_size) of windows at places drawn from a seed of their own."""
    generator = torch.Generator().manual_seed(EVAL_SEED)
    drawn = [random_batch(data, block_size, BATCH, generator) for _ in range(n)]
    return [(send(x, device), send(y, device)) for x, y in drawn]


def full_loss(model: GPT, data: Tensor, every: int = 1) -> float:
    """The loss over all of `data` in non-overlapping windows of the model's block_size, in nats.

    With every=n the loss over each n-th of these windows.

    A loss depends on the block it is measured at: compare only losses of one block_size.
    """
    T, device = model.config.block_size, model.lm_head.weight.device
    starts = torch.arange(0, len(data) - T, T * every)
    pairs = (windows(data, some, T) for some in starts.split(BATCH))
    return float(mean_loss(model, [(send(x, device), send(y, device)) for x, y in pairs]))
