"""Shared keys, windows, sinks, rings: cached tokens equal uncached ones, and a text has no end."""

import pytest
import torch
from checkpoint_fixtures import meta_of
from conftest import name, seeded
from model_fixtures import all_logits

from nanogpt.cache.attach import cache_owners, kv_cache, measured_bytes
from nanogpt.cache.dynamic import DynamicCache
from nanogpt.cache.paged import PagedCache
from nanogpt.cache.rolling import RollingCache
from nanogpt.cache.static import StaticCache
from nanogpt.cache.tinytorch import LayerCaches
from nanogpt.config import GPTConfig
from nanogpt.decoding.generate import complete
from nanogpt.engines.eager import Batched, Flat, PerHead
from nanogpt.model.attention import visible
from nanogpt.model.checkpoint import load_checkpoint, save_checkpoint
from nanogpt.model.exact import exact
from nanogpt.model.gpt import GPT, CausalSelfAttention
from nanogpt.verify.compare import compare

WINDOW = 6
SHARED = {"MHA": {}, "GQA": {"n_kv_head": 2}, "MQA": {"n_kv_head": 1}}
PLACES = {"table": {}, "rope": {"rope": True}, "rope, n-grams": {"rope": True, "ngrams": 3}}
MASKS = {
    "full": {},
    "window": {"window": WINDOW},
    "mixed": {"window": WINDOW, "full_every": 2},
    "sinks": {"window": WINDOW, "sinks": 2},
    "window of 1": {"window": 1},
}
CACHES = [DynamicCache, StaticCache, RollingCache, PagedCache]


def build(dtype=torch.float32, **changes) -> GPT:
    shape = {
        "vocab_size": 13,
        "block_size": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_embd": 32,
        "per_head": False,
    }
    model = GPT(GPTConfig(**(shape | changes)), generator=seeded(3)).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 2:
                p.mul_(25)
    return model.to(dtype)


def text(length, batch=1):
    return torch.randint(13, (batch, length), generator=seeded(7))


@pytest.mark.slow
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("shared", SHARED)
def test_cached_tokens_are_the_uncached_ones(shared, mask):
    """Each mask with each sharing of keys, at one kind of positions: all pairs of the three."""
    places = list(PLACES)[(list(SHARED).index(shared) + list(MASKS).index(mask)) % len(PLACES)]
    model = build(**SHARED[shared], **PLACES[places], **MASKS[mask])
    for length in (WINDOW - 1, 3 * WINDOW):
        prompt, n_new = text(length, 2), 8
        expected = complete(model, prompt, n_new, cache=None, generator=seeded(1))
        for cache in CACHES:
            got = complete(model, prompt, n_new, cache=cache, generator=seeded(1))
            assert torch.equal(got, expected), (cache.__name__, length)


@pytest.mark.parametrize("chunk", [1, WINDOW - 1, WINDOW, WINDOW + 1, 32])
@pytest.mark.parametrize("mask", MASKS)
def test_any_chunking_gives_the_logits_of_the_whole(mask, chunk):
    model = build(torch.float64, rope=True, **MASKS[mask])
    idx = text(32, 2)
    whole = all_logits(model, idx)
    for cache in CACHES:
        torch.testing.assert_close(all_logits(model, idx, cache, chunk), whole, rtol=0, atol=1e-9)


@pytest.mark.parametrize("sinks", [0, 1, 3])
@pytest.mark.parametrize("window", [1, 2, 5, 8])
def test_a_ring_gives_what_is_visible_over_many_wraps(window, sinks):
    """Against a list: chunks of random sizes, until the ring has turned ten times."""
    ring, rows, start, sizes = (
        RollingCache(window, sinks),
        [],
        0,
        torch.Generator().manual_seed(window),
    )
    while start < 10 * window + 20:
        T = int(torch.randint(1, 2 * window + 3, (), generator=sizes))
        pos = torch.arange(start, start + T)
        new = torch.randn(2, T, 3, generator=sizes)
        rows.append(new)
        k, v, k_pos = ring.update(new, -new, pos)
        mask = visible(pos, k_pos, window, sinks)
        whole = torch.cat(rows, dim=-2)
        for query, row in zip(pos.tolist(), mask, strict=True):
            expected = [p for p in range(query + 1) if p > query - window or p < sinks]
            at = [k_pos.tolist().index(p, 0) for p in expected]
            assert sorted(k_pos[row].tolist()) == expected
            assert torch.equal(k[:, at], whole[:, expected])
            assert torch.equal(v[:, at], -whole[:, expected])
        start += T
    assert ring.nbytes == 2 * (window + sinks) * 2 * 3 * 4


def test_a_text_has_no_end_and_the_ring_does_not_grow():
    model = build(rope=True, window=WINDOW, sinks=1, n_kv_head=2)
    prompt, n = text(3), 200
    long = complete(model, prompt, n, cache=RollingCache, generator=seeded(1))
    assert torch.equal(long, complete(model, prompt, n, cache=None, generator=seeded(1)))
    with kv_cache(model, RollingCache, capacity=10_000):
        sizes = set()
        for places in torch.arange(60).split(7):
            model(text(60)[:, places], pos=places)
            sizes.add(measured_bytes(model))
    # K and V, layers, heads of keys, rows, size, bytes
    assert sizes == {2 * 2 * 2 * (WINDOW + 1) * 8 * 4}


def test_only_layers_with_a_window_get_a_ring():
    model = build(window=WINDOW, full_every=2)
    with kv_cache(model, RollingCache):
        assert [owner.cache.capacity for owner in cache_owners(model)] == [WINDOW, 32]
    with kv_cache(model, StaticCache):
        assert [owner.cache.capacity for owner in cache_owners(model)] == [32, 32]


@torch.no_grad()
@pytest.mark.parametrize("mask", MASKS)
def test_a_ring_forgets_nothing_that_is_still_seen(mask):
    """In a text longer than the caches were built for: right, or an error that says what to do."""
    model, idx = build(torch.float64, rope=True, **MASKS[mask]), text(40)
    if mask in ("full", "mixed"):
        with pytest.raises(ValueError, match=r"StaticCache\(32\) holds positions.*at least"):
            all_logits(model, idx, RollingCache, 5)
    else:
        torch.testing.assert_close(
            all_logits(model, idx, RollingCache, 5), all_logits(model, idx), rtol=0, atol=1e-9
        )
    torch.testing.assert_close(
        all_logits(model, idx, RollingCache, 5, capacity=40),
        all_logits(model, idx),
        rtol=0,
        atol=1e-9,
    )


def test_layers_of_rings_are_refused_where_all_rows_are_promised():
    with pytest.raises(ValueError, match="RollingCache forgets tokens"):
        LayerCaches(2, RollingCache, 8)


def test_a_report_past_the_block_gives_its_caches_room():
    model = build(rope=True, window=WINDOW)
    assert compare(model, text(30), 20, None, StaticCache).equal


def test_the_last_token_needs_no_row():
    model = build(rope=True)
    with exact(model):
        assert torch.equal(
            complete(model, text(32), 1, cache=StaticCache, generator=seeded(1)),
            complete(model, text(32), 1, cache=None, generator=seeded(1)),
        )


def test_a_window_as_long_as_the_text_is_full_attention():
    idx, full = text(32, 2), build(rope=True)
    wide = build(rope=True, window=32)
    wide.load_state_dict(full.state_dict())
    with exact(full):
        assert torch.equal(wide(idx)[0], full(idx)[0])


@torch.no_grad()
def test_as_many_heads_of_keys_as_of_queries_is_plain_attention():
    idx, plain = text(32, 2), build()
    same = build(n_kv_head=4)
    same.load_state_dict(plain.state_dict())
    assert torch.equal(same(idx)[0], plain(idx)[0])


@torch.no_grad()
@pytest.mark.parametrize("n_kv_head", [1, 2])
def test_shared_keys_are_plain_attention_with_equal_keys(n_kv_head):
    """Written out: every head of queries with the weights of the keys that it shares."""
    shared, plain = build(torch.float64, n_kv_head=n_kv_head), build(torch.float64)
    state = shared.state_dict()
    for layer in range(2):
        weight = state[f"blocks.{layer}.sa.qkv.weight"]
        q, k, v = weight.split([32, 8 * n_kv_head, 8 * n_kv_head])
        k, v = (
            x.view(n_kv_head, 8, 32).repeat_interleave(4 // n_kv_head, 0).reshape(32, 32)
            for x in (k, v)
        )
        state[f"blocks.{layer}.sa.qkv.weight"] = torch.cat([q, k, v])
    plain.load_state_dict(state)
    idx = text(32, 2)
    torch.testing.assert_close(shared(idx)[0], plain(idx)[0], rtol=0, atol=1e-10)


@torch.no_grad()
def test_what_lies_before_the_window_moves_nothing():
    model = build(window=WINDOW, n_layer=1)
    idx = text(32)
    other = idx.clone()
    other[0, 10] = (other[0, 10] + 1) % 13
    moved = (model(idx)[0] != model(other)[0]).any(-1)[0]
    assert moved.nonzero()[:, 0].tolist() == list(range(10, 10 + WINDOW))


@torch.no_grad()
def test_with_rotary_positions_only_distances_count():
    model, idx = build(torch.float64, rope=True, window=WINDOW, n_kv_head=2), text(20)
    pos = torch.arange(20)
    torch.testing.assert_close(
        model(idx, pos=pos)[0], model(idx, pos=pos + 5000)[0], rtol=0, atol=1e-9
    )


@pytest.mark.slow
@pytest.mark.parametrize("design", [DynamicCache, StaticCache, PagedCache])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=name)
def test_in_exact_mode_the_bits_are_the_same(design, dtype):
    model = build(dtype, rope=True, window=WINDOW, sinks=1, full_every=2, n_kv_head=2)
    idx = text(32, 2)
    with exact(model):
        for chunk in (1, 5, 32):
            assert torch.equal(all_logits(model, idx, design, chunk), all_logits(model, idx))


@pytest.mark.parametrize("mask", ["mixed", "sinks"])
@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("shared", ["MHA", "GQA"])
def test_a_checkpoint_brings_it_back(tmp_path, shared, places, mask):
    model = build(**SHARED[shared], **PLACES[places], **MASKS[mask])
    config = vars(model.config) | {"per_head": model.config.has_heads}
    save_checkpoint(tmp_path / "one", model, meta_of(model, config=config))
    found = load_checkpoint(tmp_path / "one").model
    assert found.config == model.config
    with torch.no_grad():
        assert torch.equal(found(text(9))[0], model(text(9))[0])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_kv_head": 3}, "n_head=4 must be a multiple of n_kv_head=3"),
        ({"n_kv_head": 8}, "n_head=4 must be a multiple of n_kv_head=8"),
        ({"n_kv_head": 0}, "n_kv_head=0"),
        ({"window": 0}, "window=0"),
        ({"window": 2.0}, "window=2.0"),
        ({"sinks": 2}, "need a window: set window"),
        ({"full_every": 2}, "need a window: set window"),
        ({"window": 4, "sinks": -1}, "sinks=-1"),
        ({"window": 4, "per_head": True}, "set per_head=False"),
        ({"n_kv_head": 1, "per_head": True}, "set per_head=False"),
    ],
)
def test_what_does_not_fit_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        build(**changes)


def test_engines_that_know_one_architecture_say_so():
    with pytest.raises(
        ValueError, match="Flat computes the lecture's architecture, .*n_kv_head=2, window=6"
    ):
        Flat(build(n_kv_head=2, window=6).config)


def test_an_engine_of_heads_says_that_there_are_none():
    model = build(n_kv_head=2)
    with pytest.raises(
        ValueError,
        match="PerHead decodes a list of Heads; with n_kv_head=2 there is none: use Batched",
    ):
        complete(model, text(3), 5, engine=PerHead)
    expected = complete(model, text(3), 5, cache=None, generator=seeded(1))
    assert torch.equal(complete(model, text(3), 5, engine=Batched, generator=seeded(1)), expected)


def test_a_ring_needs_its_size():
    with pytest.raises(ValueError, match="window=0"):
        RollingCache(0)
    with pytest.raises(ValueError, match="sinks=-1"):
        RollingCache(4, -1)


def test_an_attention_of_ones_own_brings_its_pattern_cached_and_uncached_and_no_engine_takes_it():
    class Near(CausalSelfAttention):
        visible = staticmethod(lambda q_pos, k_pos, window, sinks: visible(q_pos, k_pos, WINDOW))

    config = build(rope=True).config
    windowed = build(torch.float64, rope=True, window=WINDOW)
    own = GPT(config, attention=Near).double().eval()
    own.load_state_dict(windowed.state_dict())
    idx = text(20, 2)
    torch.testing.assert_close(all_logits(own, idx), all_logits(windowed, idx), rtol=0, atol=1e-12)
    assert (
        all_logits(own, idx) - all_logits(build(torch.float64, rope=True), idx)
    ).abs().max() > 0.01
    for cache in (DynamicCache, StaticCache):
        torch.testing.assert_close(
            all_logits(own, idx, cache, 3), all_logits(own, idx), rtol=0, atol=1e-9
        )
    with pytest.raises(ValueError, match="Near where"):
        complete(own, text(3), 4, engine=Batched)
