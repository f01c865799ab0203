"""The heart of the series: with a cache or without, the same tokens, and logits equal but for rounding.

Every path is compared with a plain loop written here, which knows no cache, no positions and no
noise: the whole text through the per-Head model, then torch.multinomial.
"""

import hypothesis.strategies as st
import pytest
import torch
from conftest import CACHES, DESIGNS, FORMS, name, seeded, tiny_model, tokens
from hypothesis import given

from nanogpt.cache.attach import kv_cache
from nanogpt.decoding.generate import complete
from nanogpt.verify.compare import forced_logits

BLOCK, NEW = 24, 12
CLOSE = {torch.float32: 2e-4, torch.float64: 1e-10}
DTYPES = list(CLOSE)


@torch.no_grad()
def plain_text(model, prompt, n_new, seed):
    """Karpathy's generate, as it stands in the lecture, but with a generator."""
    generator, text = seeded(seed), prompt
    for _ in range(n_new):
        probs = model(text[:, -model.config.block_size :])[0][:, -1].softmax(-1)
        text = torch.cat([text, torch.multinomial(probs.float(), 1, generator=generator)], dim=1)
    return text


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("prompt_len", [1, 2, 9, BLOCK - NEW])
@pytest.mark.parametrize("design", DESIGNS, ids=name)
@pytest.mark.parametrize("per_head", FORMS, ids=name)
def test_same_logits_and_same_tokens(per_head, design, prompt_len, batch, dtype):
    model = tiny_model(per_head, dtype)
    prompt = tokens(batch, prompt_len)
    text = plain_text(tiny_model(True, dtype), prompt, NEW, seed=42)
    # First the sensitive quantity: every logit on the way, both fed the same text.
    with torch.no_grad():
        expected = tiny_model(True, dtype)(text[:, :-1])[0][:, prompt_len - 1 :].transpose(0, 1)
    logits = forced_logits(model, text, prompt_len, design)
    torch.testing.assert_close(logits, expected, rtol=0, atol=CLOSE[dtype])
    # Then the visible one.
    assert torch.equal(complete(model, prompt, NEW, cache=design, generator=seeded(42)), text)


@pytest.mark.parametrize("design", DESIGNS, ids=name)
@pytest.mark.parametrize("per_head", FORMS, ids=name)
@pytest.mark.parametrize("n_new", [BLOCK - 9 - 1, BLOCK - 9, BLOCK - 9 + 1])
def test_same_tokens_up_to_the_last_row_of_the_position_table(per_head, design, n_new):
    model, prompt = tiny_model(per_head), tokens(1, 9)
    text = complete(model, prompt, n_new, cache=design, generator=seeded(42))
    assert torch.equal(text, plain_text(tiny_model(), prompt, n_new, seed=42))


@pytest.mark.filterwarnings("ignore:past block_size")
@pytest.mark.parametrize("design", DESIGNS, ids=name)
@pytest.mark.parametrize("per_head", FORMS, ids=name)
@pytest.mark.parametrize("prompt_len", [1, BLOCK, BLOCK + 5])
def test_same_tokens_when_the_window_slides(per_head, design, prompt_len):
    model, prompt = tiny_model(per_head), tokens(2, prompt_len)
    text = complete(
        model, prompt, BLOCK + 6, cache=design, generator=seeded(42), past_block="slide"
    )
    assert torch.equal(text, plain_text(tiny_model(), prompt, BLOCK + 6, seed=42))


# ------------------------------------------------------------------ any chunks, not only prefill and ones


@torch.no_grad()
def chunked_logits(model, idx, chunks, design):
    with kv_cache(model, design):
        out, start = [], 0
        for T in chunks:
            pos = torch.arange(start, start + T)
            out.append(model(idx[:, pos], pos=pos)[0])
            start += T
    return torch.cat(out, dim=1)


@pytest.mark.parametrize(
    "chunks", [[24], [12, 12], [5] * 4 + [4], [1] * 24, [9, 1, 1, 1, 7, 1, 4], [1, 23], [23, 1]]
)
@pytest.mark.parametrize("design", CACHES, ids=name)
@pytest.mark.parametrize("per_head", FORMS, ids=name)
def test_a_text_in_chunks_gives_the_logits_of_the_text_in_one(per_head, design, chunks):
    for dtype, close in CLOSE.items():
        model, idx = tiny_model(per_head, dtype), tokens(3, BLOCK)
        logits = chunked_logits(model, idx, chunks, design)
        torch.testing.assert_close(logits, model(idx)[0].detach(), rtol=0, atol=close)


@given(
    per_head=st.booleans(),
    design=st.sampled_from(CACHES),
    cuts=st.sets(st.integers(1, BLOCK - 1)),
    heads=st.sampled_from([1, 2, 4]),
    batch=st.integers(1, 3),
)
def test_any_way_to_cut_a_text_gives_the_same_logits(per_head, design, cuts, heads, batch):
    model, idx = tiny_model(per_head, torch.float64, n_head=heads), tokens(batch, BLOCK)
    edges = [0, *sorted(cuts), BLOCK]
    chunks = [b - a for a, b in zip(edges, edges[1:], strict=False)]
    logits = chunked_logits(model, idx, chunks, design)
    torch.testing.assert_close(logits, model(idx)[0].detach(), rtol=0, atol=1e-10)


@pytest.mark.parametrize("design", CACHES, ids=name)
@pytest.mark.parametrize("per_head", FORMS, ids=name)
def test_a_text_of_a_batch_is_decoded_as_it_is_alone(per_head, design):
    model, text = tiny_model(per_head, torch.float64), tokens(3, 20)
    together = forced_logits(model, text, 9, design)
    for row in range(3):
        alone = forced_logits(model, text[row : row + 1], 9, design)
        torch.testing.assert_close(together[:, row : row + 1], alone, rtol=0, atol=1e-10)
