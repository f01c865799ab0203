"""What it costs that a row of a product is the same bits in any batch.

The matrix products of a step, by the kernel of serving/native.cpp, against torch.mm, which promises
no such thing. Seconds of all matrices of all blocks, one after another, so that they come from
memory as in a step.

    python -c "from nanogpt.benchmarks.invariance import report; print(report('small'))"
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..config.shapes import SIZES
from ..serving.native import library, panels
from .timing import summary, summary_text, time_in_turns


def cost(size: str, rows: Sequence[int] = (1, 8, 32, 64, 128), repeats: int = 9) -> list[dict]:
    """Seconds of the kernel over those of torch.mm, for each number of rows; float32, one thread.

    `size` names a shape. Raises CannotBuild, and KeyError for an unknown shape.
    """
    c = SIZES[size]
    lib = library(c.n_embd, c.n_head, c.vocab_size)
    shapes = [(3 * c.n_embd, c.n_embd), (c.n_embd, c.n_embd)]
    shapes += [(4 * c.n_embd, c.n_embd), (c.n_embd, 4 * c.n_embd)]
    weights = [torch.randn(shape) for shape in shapes * c.n_layer]
    packed = [panels(weight, lib.lanes()) for weight in weights]
    return [{"rows": n, "ratio": summary(_ratios(lib, weights, packed, n, repeats))} for n in rows]


def _ratios(lib, weights: list, packed: list, n: int, repeats: int) -> list[float]:
    inputs = {K: torch.randn(n, K) for K in {weight.shape[1] for weight in weights}}
    outputs = [torch.empty(n, -(-len(weight) // 16) * 16) for weight in weights]

    def ours():
        for weight, panel, out in zip(weights, packed, outputs, strict=True):
            K = weight.shape[1]
            x = inputs[K].data_ptr()
            lib.multiply(panel.data_ptr(), K, x, n, out.data_ptr(), len(weight))

    def torchs():
        for weight, out in zip(weights, outputs, strict=True):
            torch.mm(inputs[weight.shape[1]], weight.T, out=out[:, : len(weight)])

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        seconds, _ = time_in_turns({"ours": ours, "torch": torchs}, repeats)
    finally:
        torch.set_num_threads(threads)
    return [a / b for a, b in zip(seconds["ours"], seconds["torch"], strict=True)]


def report(size: str, **settings) -> str:
    """The result of `cost` as lines of text."""
    rows = cost(size, **settings)
    return "\n".join(
        f"{size}, {row['rows']:4} rows: {summary_text(row['ratio'], 2)} of torch.mm" for row in rows
    )
