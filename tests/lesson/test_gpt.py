"""The model: forward pass, positions, initialisation, caches switched on and off."""

import pytest
import torch
from conftest import (
    CACHES,
    FORMS,
    count_updates,
    has_cache,
    name,
    seeded,
    state_of,
    tiny_model,
    tokens,
)
from decoding_fixtures import build

from nanogpt.cache import DynamicCache, cache_owners, enable_kv_cache, kv_cache
from nanogpt.config import GPTConfig
from nanogpt.decoder.pack import build_model
from nanogpt.model import GPT
from nanogpt.training.recipes import MODERN


@pytest.fixture(params=FORMS, ids=name)
def model(request):
    return tiny_model(request.param)


# ------------------------------------------------------------------ the forward pass


def test_logits_do_not_depend_on_later_tokens(model):
    idx = tokens(2, 12)
    for one in (model, build(**MODERN)):
        before = one(idx)[0]
        for t in range(12):
            changed = idx.clone()
            changed[:, t] = (changed[:, t] + 1) % 13
            after = one(changed)[0]
            assert torch.equal(before[:, :t], after[:, :t]), f"token {t} moved a logit before it"
            assert not torch.isclose(before[:, t], after[:, t], atol=1e-3).all()


def test_positions_begin_at_0_by_default(model):
    idx = tokens(2, 9)
    assert torch.equal(model(idx)[0], model(idx, pos=torch.arange(9))[0])
    assert not torch.isclose(model(idx)[0], model(idx, pos=torch.arange(9) + 1)[0], atol=1e-2).all()


def test_positions_may_have_gaps(model):
    """Positions 0, 1 and 5, with and without a cache."""
    idx = tokens(1, 3)
    pos = torch.tensor([0, 1, 5])
    whole = model(idx, pos=pos)[0]
    with torch.no_grad(), kv_cache(model):
        parts = [model(idx[:, i : i + 1], pos=pos[i : i + 1])[0] for i in range(3)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-5)


def test_positions_of_each_text_in_a_batch():
    """Other decoders: tests/decoder/test_step.py."""
    idx = tokens(3, 4)
    pos = torch.tensor([[0, 1, 2, 3], [5, 6, 9, 10], [20, 21, 22, 23]])
    for per_head in FORMS:
        model = build(per_head=per_head)
        alone = [model(idx[i : i + 1], pos=pos[i])[0] for i in range(3)]
        together = model(idx, pos=pos)[0]
        torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("pos", "message"),
    [
        ([0, 1], r"pos has shape \(2,\): 3 tokens need one"),
        ([[0, 1, 2], [0, 1, 2]], "one position each"),
        ([[0, 2, 1]], "do not ascend"),
        ([[22, 23, 24]], "positions 22 to 24, but the model has 0 to 23"),
        ([-1, 0, 1], "positions -1 to 1"),
        ([1, 1, 2], "do not ascend"),
    ],
)
@pytest.mark.parametrize("cached", [False, True])
def test_invalid_positions_are_refused_and_cache_nothing(model, pos, message, cached):
    if cached:
        enable_kv_cache(model)
    with pytest.raises(ValueError, match=message):
        model(tokens(1, 3), pos=torch.tensor(pos))
    caches = [owner.cache for owner in cache_owners(model) if cached]
    assert all(cache.k is None for cache in caches), "a refused token was cached"


def test_a_text_longer_than_the_position_table_is_refused(model):
    assert model(tokens(1, 24))[0].shape == (1, 24, 13)
    with pytest.raises(ValueError, match="25 tokens > block_size 24"):
        model(tokens(1, 25))
    elsewhere = build_model(model.config).to("meta")  # as on a GPU: nobody looks at positions
    with pytest.raises(ValueError, match="25 tokens > block_size 24"):
        elsewhere(tokens(1, 25).to("meta"), pos=torch.arange(25, device="meta"))


def test_dropout_is_on_only_in_training_and_covers_attention_weights(model):
    idx = tokens(2, 9)
    x = torch.randn(1, 6, 16)
    pos = torch.arange(6)
    assert torch.equal(model(idx)[0], model(idx)[0])
    model.train()
    assert not torch.equal(model(idx)[0], model(idx)[0])
    attention = model.blocks[0].sa
    attention.dropout.p = 0.0  # what is left is no module, and would be missed by a search
    torch.manual_seed(1)
    assert not torch.equal(attention(x, pos), attention(x, pos))


def test_parameter_names_and_initial_weights_match_the_lecture():
    """Weights are drawn one after another, in this order, from one generator."""
    config = GPTConfig(vocab_size=13, block_size=8, n_layer=1, n_head=2, n_embd=4)
    model = GPT(config, generator=seeded(7))
    heads = [f"blocks.0.sa.heads.{h}.{part}" for h in (0, 1) for part in ("key", "query", "value")]
    linear = ["blocks.0.sa.proj", "blocks.0.ffwd.net.0", "blocks.0.ffwd.net.2", "lm_head"]
    tables = ["token_embedding_table", "position_embedding_table"]
    drawn = [f"{layer}.weight" for layer in (*tables, *heads, *linear)]
    biases = [f"{layer}.bias" for layer in linear]
    norms = ["blocks.0.ln1", "blocks.0.ln2", "ln_f"]
    norms = [f"{layer}.{part}" for layer in norms for part in ("weight", "bias")]
    state = model.state_dict()
    generator = seeded(7)
    assert sorted(state) == sorted([*drawn, *biases, *norms])
    for key in drawn:
        expected = torch.empty_like(state[key]).normal_(std=0.02, generator=generator)
        assert torch.equal(state[key], expected), key
    assert not any(state[key].any() for key in biases)


def test_initialisation_uses_its_own_generator(ambient_rng):
    config = GPTConfig(vocab_size=5, block_size=4, n_embd=8, n_head=2, n_layer=1)
    models = [GPT(config, generator=seed and seeded(seed)) for seed in (None, None, 1337, 1)]
    first, *rest = [torch.cat([p.flatten() for p in m.parameters()]) for m in models]
    assert [torch.equal(first, other) for other in rest] == [True, True, False]


# ------------------------------------------------------------------ caches come and go


@pytest.mark.parametrize("design", CACHES, ids=name)
def test_kv_cache_gives_each_head_a_cache_and_removes_it(model, design):
    before = state_of(model)
    names = list(model.state_dict())
    with torch.no_grad(), kv_cache(model, design) as same:
        assert same is model
        assert model.caching
        caches = [owner.cache for owner in cache_owners(model)]
        assert len(set(map(id, caches))) == len(caches) == (4 if isinstance(model, GPT) else 2)
        assert all(type(cache) is design and cache.capacity == 24 for cache in caches)
        model(tokens(1, 5), pos=torch.arange(5))
        assert list(model.state_dict()) == names
        assert not list(model.named_buffers())
    assert not model.caching
    assert state_of(model) == before


def test_kv_cache_is_removed_after_an_error_and_does_not_nest(model):
    built = []

    def design(capacity):
        built.append(DynamicCache(capacity))
        if len(built) == 2:
            raise MemoryError
        return built[-1]

    with pytest.raises(MemoryError), kv_cache(model, design):
        pass
    assert not has_cache(model), "the first module kept the cache that was built before the failure"
    with kv_cache(model):
        with pytest.raises(ValueError, match="already on"), kv_cache(model):
            pass
        assert model.caching, "the inner attempt took the outer caches away"
    with pytest.raises(KeyboardInterrupt), kv_cache(model):
        raise KeyboardInterrupt
    assert not has_cache(model)


def test_a_cached_call_without_pos_is_refused(model):
    with kv_cache(model):
        calls = count_updates(model)
        with pytest.raises(ValueError, match="pass pos"):
            model(tokens(1, 5))
        assert calls == []
    model(tokens(1, 5))


# ------------------------------------------------------------------ training never meets a cache


@pytest.mark.parametrize("design", CACHES, ids=name)
def test_training_neither_reads_nor_writes_a_cache(model, design):
    x = tokens(4, 9)
    y = tokens(4, 9, seed=1)
    model.train()
    losses = []
    for on in (False, True):
        if on:
            enable_kv_cache(model, design)
            calls = count_updates(model)
        torch.manual_seed(5)  # dropout
        for pos in (None, torch.arange(9)):
            loss = model(x, y, pos=pos)[1]
            loss.backward()
            losses.append(loss.item())
    assert losses[:2] == losses[2:]
    assert calls == []
    assert all(owner.cache.k is None for owner in cache_owners(model))


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([[]], r"tokens \(1, 0\), torch.*: pass \(B, T\)"),
        ([1, 2], r"tokens \(2,\), torch.int64: pass \(B, T\)"),
    ],
)
def test_invalid_tokens_are_refused(model, tokens, message):
    with pytest.raises(ValueError, match=message):
        model(torch.tensor(tokens, dtype=torch.long))
