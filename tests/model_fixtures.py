"""Plain ways to get the tokens and logits that every other way is compared with."""

import torch
from conftest import seeded

from nanogpt.cache.attach import kv_cache


@torch.no_grad()
def plain_text(model, prompt, n_new, seed):
    """Karpathy's generate, as it stands in the lecture, but with a generator."""
    generator, text = seeded(seed), prompt
    for _ in range(n_new):
        probs = model(text[:, -model.config.block_size :])[0][:, -1].softmax(-1)
        text = torch.cat([text, torch.multinomial(probs.float(), 1, generator=generator)], dim=1)
    return text


@torch.no_grad()
def all_logits(model, idx, cache=None, chunks=1, capacity=None):
    """The logits at every position: from one call, or from a cache that is fed chunk by chunk.

    `chunks` is the size of all chunks, or a list of sizes.
    """
    if cache is None:
        return model(idx)[0]
    with kv_cache(model, cache, capacity):
        parts = torch.arange(idx.shape[1]).split(chunks)
        return torch.cat([model(idx[:, pos], pos=pos)[0] for pos in parts], dim=1)
