"""Notebook 02, blank 4: sample."""

from ..page import Blank


def sample(logits, noise):
    """Sample one token per row.  (B, V), (B, V) -> (B, 1)"""
    probs = logits.softmax(-1)
    return (probs / noise).argmax(-1, keepdim=True)


BLANK = Blank(
    number="02.4",
    solution=sample,
    cases=[],
    mistakes={},
    hints=(
        "In the race each token rings after noise / probability seconds, and the first to ring is the sample. Which token is that?",
        "Softmax along the last dimension, one division, `argmax`.",
        "return (logits.softmax(-1) / noise).argmax(-1, keepdim=True)",
    ),
    advice={
        "the shape of": "Each row needs one token: (B, 1).",
        "the dtype of": "A token is an integer, the index returned by argmax.",
        "the token of": "Use the noise as it is: the largest probability / noise wins.",
        "is never sampled": "All race.",
        "the shares": "Is it a softmax, and the noise used as it is?",
        "the tokens": "All candidates race, each row with its own unmodified noise, at temperature 1. Only differences of logits count.",
    },
    axes=[("row", "token")],
)
