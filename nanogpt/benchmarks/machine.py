"""How fast this machine is, measured in about a second, to choose how much work a run does."""

from __future__ import annotations

import time
from statistics import median

import torch

from ..config.rows import REFERENCE, Speed
from ..config.shapes import SIZES
from ..decoding.generate import generate
from ..model.convert import pack_heads
from ..model.gpt import GPT

TURNS = 5
TOKENS = 10  # decoded in one turn


def measure_speed() -> Speed:
    """Two kinds of work on one thread, in turns: what a run's notebooks consist of.

    A training step is mostly arithmetic, a decoded token mostly the calls of small operations.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _measured()
    finally:
        torch.set_num_threads(threads)


def _measured() -> Speed:
    model = GPT(SIZES["small"], generator=torch.Generator().manual_seed(0)).eval()
    packed = pack_heads(model).train()
    x = torch.zeros(4, model.config.block_size, dtype=torch.int64)

    def train() -> None:
        packed(x, x)[1].backward()
        packed.zero_grad()

    def decode() -> None:
        list(generate(model, x[:1, :1], TOKENS))

    kinds = {"arithmetic": train, "calls": decode}
    seconds = {name: [] for name in kinds}
    for turn in range(1 + TURNS):
        for name, work in kinds.items():
            before = time.perf_counter()
            work()
            if turn:  # the first one warms up
                seconds[name].append(time.perf_counter() - before)
    took = {name: median(values) for name, values in seconds.items()}
    return Speed(
        calls=REFERENCE["calls"] * TOKENS / took["calls"],
        arithmetic=REFERENCE["arithmetic"] / took["arithmetic"],
    )
