"""nanoVLM's loop of prefill and decode over our model: the same tokens, in the caller's cache."""

import pytest
import torch
from conftest import seeded, tiny_model, tokens

from nanogpt.cache.attach import cache_owners, kv_cache
from nanogpt.cache.dynamic import DynamicCache
from nanogpt.cache.nanovlm import forward
from nanogpt.config import MODERN, GPTConfig
from nanogpt.decoding.generate import complete
from nanogpt.decoding.sampling import draw_noise, sample
from nanogpt.model.gpt import GPT


@torch.no_grad()
def their_loop(model, prompt, noise):
    """As in nanoVLM's generate: the cache and the position go in, the cache comes back."""
    logits, caches = forward(model, prompt)
    text = prompt
    for i, row in enumerate(noise):
        token = sample(logits[:, -1], row)
        text = torch.cat([text, token], dim=1)
        if i < len(noise) - 1:
            logits, caches = forward(model, token, caches, start_pos=text.shape[1] - 1)
    return text, caches


@pytest.mark.parametrize(
    ("per_head", "length", "changes"),
    [(True, 1, {}), (False, 6, {}), (True, 6, {**MODERN, "ngrams": 3})],
    ids=["heads", "batched", "n-grams"],
)
def test_its_tokens_are_the_uncached_ones(per_head, length, changes):
    model, prompt = tiny_model(per_head=per_head, **changes), tokens(3, length)
    noise = draw_noise(12, 3, model.config.vocab_size, seeded(1))
    text, caches = their_loop(model, prompt, noise)
    assert torch.equal(text, complete(model, prompt, 12, cache=None, noise=noise))
    assert {held["key"].shape[-2] for held in caches} == {length + 11}
    assert not model.caching


def test_shared_keys_are_held_once():
    shape = {"vocab_size": 13, "block_size": 8, "n_layer": 2, "n_head": 2, "n_embd": 8}
    model = GPT(GPTConfig(**shape, n_kv_head=1, per_head=False)).eval()
    _, caches = forward(model, tokens(2, 5) % 13)
    assert {held["value"].shape[1] for held in caches} == {1}


def test_a_cache_of_ours_that_is_on_stays_as_it_is():
    model = tiny_model()
    with kv_cache(model, DynamicCache):
        forward(model, tokens(1, 5))
        assert all(owner.cache.length == 0 for owner in cache_owners(model))


def test_a_cache_of_another_length_or_model_is_refused():
    model = tiny_model()
    _, caches = forward(model, tokens(1, 5))
    with pytest.raises(ValueError, match=r"start_pos=4, but the cache holds \[5\] tokens"):
        forward(model, tokens(1, 1), caches, start_pos=4)
    with pytest.raises(ValueError, match="has 1 dictionaries, the model [0-9]+ modules"):
        forward(model, tokens(1, 1), caches[:1], start_pos=5)
    with pytest.raises(ValueError, match="position table"):
        forward(model, tokens(1, 60))
    with pytest.raises(ValueError, match="in training mode"):
        forward(model.train(), tokens(1, 5))
