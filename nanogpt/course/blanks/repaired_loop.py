"""Notebook 04, blank 2: repaired_loop."""

import torch

from ...cache import kv_cache
from ..page import Blank
from ..traps import places
from .kv_cache import KVCache
from .sample import sample


def repaired_loop(model, prompt, noise):
    """One new token per row of noise, with a cache.  (1, T), (n, 1, V) -> (1, n)"""
    x = prompt
    start = 0
    out = []
    with kv_cache(model, KVCache):
        for row in noise:
            logits, _ = model(x, pos=places(start, x.shape[1], x))
            start += x.shape[1]
            x = sample(logits[:, -1], row)
            out.append(x)
    return torch.cat(out, dim=1)


BLANK = Blank(
    number="04.2",
    solution=repaired_loop,
    cases=[],
    mistakes={},
    hints=(
        "What do the prefill's last logits predict, and what does the trap do with them? How often does it read the prompt's last token?",
        "Count the tokens in the cache after the first turn of the loop. How many did the prompt have? The loop needs no separate prefill: let the first `x` be the whole prompt.",
        "x = prompt; start = 0; in the loop: logits, _ = model(x, pos=places(start, x.shape[1], x)); start += x.shape[1]; x = sample(logits[:, -1], row)",
    ),
    advice={
        "what is returned": "Return the n new tokens, (1, n), without the prompt.",
        "the number of tokens that": "`model` itself must read each token once, and the last new one never.",
        "the positions that": "The token sampled in turn t (from 0) is at position T + t.",
        "without a cache": "Put the loop inside `with kv_cache(model, KVCache):`.",
        "still on": "Use `with kv_cache(model, KVCache):`.",
        "the tokens returned": "A pass's last logits, with their own row of noise, give the next token.",
        "the tokens that the model reads": "The prompt's tokens come first, then the new ones.",
    },
    axes=[("text", "token"), ("token",)],
)
