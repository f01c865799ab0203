"""Notebook 01, blank 1: attention_weights."""

from ..page import Blank


def attention_weights(q, k, mask):
    """The weight of each value for each query.  (…, T, hs), (…, S, hs), (T, S) -> (…, T, S)"""
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5  # divided by √hs
    return scores.masked_fill(~mask, float("-inf")).softmax(-1)


BLANK = Blank(
    number="01.1",
    solution=attention_weights,
    cases=[],
    mistakes={},
    hints=(
        "For one query, which numbers measure how well each key matches, and what turns them into weights that sum to 1?",
        "`k.transpose(-2, -1)` is `k.T` for tensors with batch dimensions. `masked_fill(~mask, value)` writes a value where the mask is False. hs is `q.shape[-1]`.",
        'scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5, then scores.masked_fill(~mask, float("-inf")).softmax(-1)',
    ),
    advice={
        "in a second call": "The first call is right: keep nothing from one call to the next.",
        "the mask hides": "Before the softmax, hide it with -inf.",
        "must match the size": "k.transpose(-2, -1) swaps the last two dimensions of the keys.",
        "the shape of": "One row per query, one number per key: k.transpose(-2, -1).",
        "a gradient flows": "no gradient flows through your weights, so queries and keys would never learn: use no detach(), no_grad() or new torch.tensor(…) on the way.",
        "the gradient of": "The weights are right: something on the way is detached.",
    },
    axes=[("text", "query", "key"), ("text", "head", "query", "key"), ("query", "key")],
)
