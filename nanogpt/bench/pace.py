"""Measure how fast this machine does a fixed piece of work."""

from __future__ import annotations

import time

import torch

from ..config import GPTConfig
from ..decoder.pack import pack_heads
from ..generation import generate
from ..model import GPT


def seconds_of_work() -> float:
    """Seconds for a training step and ten uncached tokens on one thread.

    The smallest CPU time of 8 runs with a 0.22M model: other load on the machine changes CPU time
    by less than half, but wall-clock time by a factor of two and more.
    """
    model = GPT(GPTConfig(), generator=torch.Generator().manual_seed(0)).eval()
    packed = pack_heads(model).train()
    x = torch.zeros(4, 256, dtype=torch.int64)

    def work() -> float:
        before = time.process_time()
        packed(x, x)[1].backward()
        packed.zero_grad()
        list(generate(model, x[:1, :1], 10))
        return time.process_time() - before

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return min(work() for _ in range(8))
    finally:
        torch.set_num_threads(threads)
