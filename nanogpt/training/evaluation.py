"""The loss of a model on a text, without dropout, gradients or caches."""

import torch
from torch import Tensor

from ..data import random_batch, send, windows
from ..fitting import EVAL_BATCH, EVAL_SEED
from ..model import LanguageModel
from ..replica import replica

Batches = list[tuple[Tensor, Tensor]]  # windows and their targets, 2 × (B, T) each


@torch.no_grad()
def mean_loss(model: LanguageModel, batches: Batches) -> Tensor:
    """Mean cross-entropy in nats over (B, T) pairs, regardless of the model's mode and caches."""
    # A copy of the modules that shares the weights, in eval mode and without caches: the model
    # itself keeps its mode, which training depends on.
    copied = replica(model)
    # A batch's loss is a mean over its characters, so larger batches weigh more. Sum in float64:
    # thousands of terms in float32 would lose digits that are printed.
    losses = [copied(x, y)[1].double() * y.numel() for x, y in batches]
    return torch.stack(losses).sum() / sum(y.numel() for _, y in batches)


def fixed_batches(data: Tensor, block_size: int, n: int, device: torch.device) -> Batches:
    """n pairs (EVAL_BATCH, block_size) of windows at random positions, with their own seed."""
    # The seed is a constant, not the run's: losses of different runs can then be compared.
    generator = torch.Generator().manual_seed(EVAL_SEED)
    drawn = [random_batch(data, block_size, EVAL_BATCH, generator) for _ in range(n)]
    return [(send(x, device), send(y, device)) for x, y in drawn]


def full_loss(model: LanguageModel, data: Tensor, every: int = 1) -> float:
    """The loss in nats over `data`, or over every n-th of its non-overlapping windows with every=n.

    A loss depends on the block size: compare only losses at the same block_size.
    """
    T = model.config.block_size
    device = model.device
    # Windows side by side: each character is predicted once, except the few left at the end.
    starts = torch.arange(0, len(data) - T, T * every)
    pairs = (windows(data, some, T) for some in starts.split(EVAL_BATCH))
    return float(mean_loss(model, [(send(x, device), send(y, device)) for x, y in pairs]))
