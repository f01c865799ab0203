"""Notebook 04, blank 8: FixedAttention."""

import torch
import torch.nn as nn

from ..page import Blank


class FixedAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("k", torch.zeros(1, 32, 16))
        self.register_buffer("v", torch.zeros(1, 32, 16))

    def forward(self, q, k, v, pos):
        """One step of attention, over slots 0 … pos.  (1, 1, 16) three times, (1,) -> (1, 1, 16)"""
        self.k.index_copy_(1, pos, k)
        self.v.index_copy_(1, pos, v)
        scores = (q @ self.k.mT * 0.25).masked_fill(torch.arange(32) > pos, float("-inf"))
        return scores.softmax(-1) @ self.v


BLANK = Blank(
    number="04.8",
    solution=FixedAttention,
    method="forward",
    cases=[],
    mistakes={},
    hints=(
        "Which shapes of GrowingAttention change from one token to the next? What could keep a length of 32, and how would the empty slots lose their weight?",
        '`self.k.index_copy_(1, pos, k)` writes rows into slots. A mask of fixed length hides the others: `torch.arange(32) > pos` is True for those not written yet, and `masked_fill(…, float("-inf"))` removes their weight. A slice like `self.k[:, :pos + 1]` would have a different shape at every step.',
        'self.k.index_copy_(1, pos, k), self.v likewise; then scores = (q @ self.k.mT * 0.25).masked_fill(torch.arange(32) > pos, float("-inf")), and return scores.softmax(-1) @ self.v',
    ),
    advice={
        "the shape of": "It is (1, 1, 16), a mean of values.",
        "the first output": "The first token sees only slot 0: hide the empty ones. Are the scores multiplied by 0.25?",
        "an output is NaN": "Slot pos itself is visible.",
        "the output of call": "The first token is right. Is each key in its own slot? Are slots 0 to pos visible?",
        "more than one graph": "Keep 32 slots, and hide with a mask made of tensors.",
        "compiled, the": "Compiled code must not depend on Python state.",
    },
    axes=[("text", "token", "number")],
)
