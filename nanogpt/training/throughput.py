"""How fast a training run is: characters a second, and the share of the device's arithmetic."""

from __future__ import annotations

import re
import time

import torch

from ..config.shapes import GPTConfig
from ..system.device import Device

# Operations a second of the matrix units at most, from the makers' data sheets: without sparsity,
# in the 16-bit type that the card multiplies fastest. A name must match as a whole word: an RTX
# A1000 is not an A100, an L40 not an L4.
PEAKS = {
    "H200": 989e12,
    "H100": 989e12,
    "A100": 312e12,
    "V100": 125e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10G": 70e12,
    "A10": 125e12,
    "T4": 65e12,
}


def flops_per_token(config: GPTConfig) -> int:
    """Floating-point operations of one training step for each token, forward and backward.

    6 for each weight of a matrix and 12 L C T for attention (PaLM, arXiv 2204.02311, appendix B).
    Look-up tables compute nothing and do not count.
    """
    windows = (config.window_of(layer) or config.block_size for layer in range(config.n_layer))
    keys = sum(min(window, config.block_size) for window in windows)
    return 6 * config.matrix_weights + 12 * config.n_embd * keys


def peak_flops(device: Device) -> float | None:
    """Operations a second at most: for a GPU from PEAKS (None if not there), on a CPU measured."""
    if device.device.type == "cuda":
        name = torch.cuda.get_device_name(device.device)
        return next((peak for part, peak in PEAKS.items() if re.search(rf"\b{part}\b", name)), None)
    a = torch.ones(512, 512)
    best = float("inf")
    for _ in range(4):  # the first one warms up; the shortest is the least disturbed
        before = time.perf_counter()
        a @ a
        best = min(best, time.perf_counter() - before)
    return 2 * 512**3 / best


class Meter:
    """A clock of training, without evaluation; it begins when the run begins or resumes."""

    def __init__(self, config: GPTConfig, device: Device, processes: int = 1):
        self.device, self.per_token = device.device, flops_per_token(config)
        peak = peak_flops(device)
        self.peak = peak and peak * processes
        self.tokens, self.seconds, self.last = 0, 0.0, time.perf_counter()

    def lap(self, trained: bool) -> None:
        """The time since the last lap, which counts if it was spent on training.

        Waits for a GPU's queue.
        """
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        self.seconds += trained * (now - self.last)
        self.last = now

    def summary(self) -> dict:
        """Seconds of training, characters a second, model FLOP utilisation."""
        speed = self.tokens / self.seconds if self.tokens and self.seconds else None
        return {
            "seconds": round(self.seconds, 3),
            "chars_per_second": speed and round(speed),
            "mfu": speed and self.peak and round(speed * self.per_token / self.peak, 4),
        }

    def __str__(self) -> str:
        now = self.summary()
        used = f", MFU {now['mfu']:.1%}" if now["mfu"] else ""
        return f"{now['chars_per_second'] or 0:,} chars/s{used}"
