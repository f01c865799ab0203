"""The arithmetic of a training step, and the peak of a device."""

from __future__ import annotations

import re
import time

import torch

from ..config import GPTConfig
from ..decoder.config import DecoderConfig, decoder_config
from ..device import Device

# Peak operations per second of the matrix units, from the vendors' data sheets: without sparsity,
# in the card's fastest 16-bit type. A name must match as a whole word: an RTX A1000 is not an A100,
# nor is an L40 an L4. Beside each card stands who has one.
PEAKS = {
    "H200": 989e12,  # outputs/gpu
    "H100": 989e12,  # the same chip with other memory
    "A100": 312e12,  # Karpathy's, and Colab's best
    "L4": 121e12,  # Colab
    "T4": 65e12,  # Colab's free one
}


def flops_per_token(config: GPTConfig | DecoderConfig, block: int | None = None) -> int:
    """Floating-point operations of one training step per token, forward and backward.

    Windows are `block` characters long; None: block_size.

    6 per matrix weight, and 12 L C T for attention (PaLM, arXiv 2204.02311, appendix B). Embedding
    tables compute nothing and do not count.
    """
    block = block or config.block_size
    c = decoder_config(config)
    windows = (c.window_of(layer) or block for layer in range(c.n_layer))
    keys = sum(min(window, block) for window in windows)
    return 6 * c.matrix_weights + 12 * c.n_head * c.head_size * keys


def peak_flops(device: Device) -> float | None:
    """Peak operations per second: from PEAKS for a GPU (None if unknown), measured on a CPU."""
    if device.device.type == "cuda":
        name = torch.cuda.get_device_name(device.device)
        for part, peak in PEAKS.items():
            if re.search(rf"\b{part}\b", name):
                return peak
        return None
    a = torch.ones(256, 256)
    best = float("inf")
    for _ in range(32):  # other load disturbs most of them, but not the shortest
        before = time.perf_counter()
        a @ a
        best = min(best, time.perf_counter() - before)
    return 2 * 256**3 / best


def share_text(share: float) -> str:
    """A share of a measured limit, in percent; "unknown" if it is above 1, which is impossible."""
    return f"{100 * share:.3g}%" if share <= 1 else "unknown: the limit was measured while busy"
