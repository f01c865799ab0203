"""Notebook 06, blank 1: step_bytes."""

from ..page import Blank


def step_bytes(n_weights, n_layer, n_head, head_size, tokens, itemsize=4) -> int:
    """Bytes that one decode step reads: all weights, and the cache of `tokens` tokens."""
    cache = 2 * n_layer * n_head * head_size * tokens
    return (n_weights + cache) * itemsize


BLANK = Blank(
    number="06.1",
    solution=step_bytes,
    cases=[],
    mistakes={},
    hints=(
        "What does a step read once, however long the text is, and what does it read for each token so far?",
        "Count numbers first, then multiply by `itemsize` once. For each token, each layer and head keeps one key and one value of `head_size` numbers.",
        "return (n_weights + 2 * n_layer * n_head * head_size * tokens) * itemsize",
    ),
    advice={
        "the number": "n_weights and 2 · n_layer · n_head · head_size · tokens numbers, of itemsize bytes each."
    },
)
