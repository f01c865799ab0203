"""Notebook 02, blank 5: generate_with_cache."""

import torch

from ...cache import kv_cache
from ..page import Blank
from .sample import sample


@torch.no_grad()
def generate_with_cache(model, prompt, noise, cache):
    """Yield one token per row of noise.  (B, T), (n, B, V) -> n × (B, 1)"""
    tokens = prompt  # prefill: the whole prompt
    pos = torch.arange(prompt.shape[1], device=prompt.device)
    with kv_cache(model, cache):
        for row in noise:
            logits, _ = model(tokens, pos=pos)  # T tokens once, then 1, 1, 1 …
            tokens = sample(logits[:, -1], row)
            yield tokens
            pos = pos[-1:] + 1  # decode: only the new token, one position further


BLANK = Blank(
    number="02.5",
    solution=generate_with_cache,
    cases=[],
    mistakes={},
    hints=(
        "Which tokens has the model not read yet, in the first pass and in each later one? At which positions are they?",
        "The prompt of T tokens takes positions 0 to T - 1. So the first new token, which is read at the second step, is at T, one after the last position: `pos[-1:] + 1`.",
        "in the loop: logits, _ = model(tokens, pos=pos); tokens = sample(logits[:, -1], row); yield tokens; pos = pos[-1:] + 1",
    ),
    advice={
        "not an iterator": "`yield` each token.",
        "without a cache": "Put the loop inside `with kv_cache(model, cache):`.",
        "for gradients": "Put @torch.no_grad() above the function.",
        "the number of caches built": "Use one with-block around all steps: kv_cache(model, cache).",
        "caches are still on": "`with kv_cache(model, cache):` removes them.",
        "leaves the caches on": "`with kv_cache(model, cache):` removes them.",
        "the positions that": "Every token but the last must be read once, at its own position.",
        "what is yielded": "Yield one token of shape (B, 1) per row of noise, for each text.",
        "before each": "`yield` each token as soon as it is sampled, and read it after that.",
        "before the first": "`yield` each token as soon as it is sampled, and read it after that.",
        "the result for": "Let the model's error propagate.",
        "left it in": "Leave the mode as it was.",
        "the tokens that are yielded": "The last logits decide, and each token needs the noise of its own step and text, as it comes.",
        "the tokens that the model reads": "First the whole prompt, then each new token.",
    },
    axes=[("text", "token"), ("token",)],
)
