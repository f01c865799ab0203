"""Notebook 06, blank 1: step_bytes, what one decode step reads."""

from ..drivers import calls
from ..page import Blank


def step_bytes(n_weights, n_layer, n_head, head_size, tokens, itemsize=4) -> int:
    """Bytes that one decode step reads: all weights, and the cache of `tokens` tokens."""
    cache = 2 * n_layer * n_head * head_size * tokens
    return (n_weights + cache) * itemsize


# ------------------------------------------------------------------ what a check runs

NAMES = "n_weights n_layer n_head head_size tokens itemsize"


# ------------------------------------------------------------------ what people write

BLANK = Blank(
    number="06.1",
    minutes=5,
    solution=step_bytes,
    cases=calls(
        NAMES,
        (1000, 3, 5, 10, 7, 4),
        (1000, 3, 5, 10, 7, 2),
        (1000, 2, 3, 5, 7),
        (100, 2, 3, 5, 6.5, 4),
    ),
    mistakes={
        "the weights are counted once for each token: a step reads them once, however long the text is.": [
            "(n_weights + cache) -> (n_weights * tokens + cache)"
        ],
        "the weights are counted once per layer: n_weights already includes all layers.": [
            "(n_weights + cache) -> (n_weights * n_layer + cache)"
        ],
        "one token too many is counted: the cache holds `tokens`.": ["* tokens -> * (tokens + 1)"],
        "this counts bits: a byte has 8 of them, and itemsize is in bytes.": [
            "* itemsize -> * itemsize * 8"
        ],
    },
    wrong=[
        "* itemsize -> * itemsize / 1e6",
        "itemsize=4 -> itemsize=2",
        "* itemsize -> * 4",
    ],
    right=[
        """
def step_bytes(n_weights, n_layer, n_head, head_size, tokens, itemsize=4):
    numbers = n_weights
    for _layer in range(n_layer):
        for _head in range(n_head):
            numbers += tokens * head_size  # keys
            numbers += tokens * head_size  # values
    return int(numbers * itemsize)
""",
        """
def step_bytes(n_weights, n_layer, n_head, head_size, tokens, itemsize=4):
    cache = torch.ones(2, n_layer, n_head, head_size) * tokens
    return (n_weights + cache.sum()) * itemsize
""",
    ],
    hints=(
        "What does a step read once, however long the text is, and what does it read for each token so far?",
        "Count numbers first, then multiply by `itemsize` once. For each token, each layer and head keeps one key and one value of `head_size` numbers.",
        "return (n_weights + 2 * n_layer * n_head * head_size * tokens) * itemsize",
    ),
    advice={
        "the number": "n_weights and 2 · n_layer · n_head · head_size · tokens numbers, of itemsize bytes each.",
    },
)
