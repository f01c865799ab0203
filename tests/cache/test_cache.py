"""Caches against a plain list of rows: what went in comes out, at its position, or nothing changes."""

import hypothesis.strategies as st
import pytest
import torch
from conftest import CACHES, FORMS, name, seeded, tiny_model, tokens
from hypothesis import given

from nanogpt.cache.tinytorch import LayerCaches
from nanogpt.cache.attach import kv_cache, measured_bytes
from nanogpt.cache.dynamic import DynamicCache
from nanogpt.cache.static import StaticCache
from nanogpt.config import GPTConfig
from nanogpt.model.attention import visible

ROOM = 16
layouts = st.sampled_from([(1,), (3,), (2, 3)])  # (B, T, hs) and (B, H, T, hs), without T and hs


@st.composite
def chunkings(draw):
    """Ascending positions, with gaps or without, cut into chunks."""
    places = sorted(draw(st.sets(st.integers(0, ROOM - 1), min_size=1)))
    places = draw(st.sampled_from([places, list(range(len(places)))]))
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(places) - 1)))))
    edges = [0, *[cut for cut in cuts if cut < len(places)], len(places)]
    return [torch.tensor(places[a:b]) for a, b in zip(edges, edges[1:], strict=False)]


def rows(layout, pos, hs=4, seed=0, **kwargs):
    k = torch.randn(*layout, len(pos), hs, generator=seeded(seed), **kwargs)
    return k, -k, pos


def snapshot(cache):
    """All that a cache knows, in copies."""
    tensors = [None if t is None else t.clone() for t in (cache.k, cache.v, cache.pos)]
    rest = {key: value for key, value in vars(cache).items() if not isinstance(value, torch.Tensor)}
    return tensors, rest


def assert_unchanged(cache, before):
    tensors, rest = snapshot(cache)
    assert rest == before[1]
    for now, then in zip(tensors, before[0], strict=True):
        assert (now is None and then is None) or (
            now.dtype == then.dtype and torch.equal(now, then)
        )


@pytest.mark.parametrize("design", CACHES, ids=name)
@given(chunks=chunkings(), layout=layouts, dtype=st.sampled_from([torch.float32, torch.float64]))
def test_every_row_comes_back_at_its_position(design, chunks, layout, dtype):
    cache, expected = design(ROOM), {}
    for i, pos in enumerate(chunks):
        new_k, new_v, _ = rows(layout, pos, seed=i, dtype=dtype)
        k, v, k_pos = cache.update(new_k, new_v, pos)
        expected |= {int(p): (new_k[..., j, :], new_v[..., j, :]) for j, p in enumerate(pos)}
        assert k.dtype == v.dtype == dtype
        assert k.shape == v.shape == (*layout, len(k_pos), 4)
        held = [p for p in k_pos.tolist() if p >= 0]
        assert sorted(held) == sorted(expected), "each position once, none lost, none made up"
        for j, p in enumerate(k_pos.tolist()):
            if p >= 0:
                assert torch.equal(k[..., j, :], expected[p][0])
                assert torch.equal(v[..., j, :], expected[p][1])


@given(chunks=chunkings(), layout=layouts)
def test_static_slots_not_yet_written_are_zero_and_seen_by_nobody(chunks, layout):
    cache = StaticCache(ROOM)
    written = set()
    for pos in chunks:
        k, v, k_pos = cache.update(*rows(layout, pos))
        written |= set(pos.tolist())
        empty = torch.tensor([p not in written for p in range(ROOM)])
        assert not k[..., empty, :].any()
        assert not v[..., empty, :].any()
        assert not visible(torch.arange(100), k_pos)[:, empty].any()


@given(chunks=chunkings(), layout=layouts)
def test_both_designs_show_a_query_the_same_rows(chunks, layout):
    dynamic, static = DynamicCache(ROOM), StaticCache(ROOM)
    for pos in chunks:
        seen = []
        for cache in (dynamic, static):
            k, _, k_pos = cache.update(*rows(layout, pos))
            assert k_pos.dtype == pos.dtype
            shown = visible(pos[-1:], k_pos)[0]
            seen.append({int(p): k[..., j, :] for j, p in enumerate(k_pos) if shown[j]})
        assert list(seen[0]) == list(seen[1])
        assert all(torch.equal(seen[0][p], seen[1][p]) for p in seen[0])


@pytest.mark.parametrize("design", CACHES, ids=name)
def test_a_cache_keeps_rows_of_its_own(design):
    """What the caller does to its tensors afterwards is no business of the cache."""
    cache, pos = design(ROOM), torch.arange(3)
    k, v, _ = rows((2,), pos)
    cache.update(k.clone(), v.clone(), pos)
    more = rows((2,), torch.tensor([3]), seed=1)
    cache.update(*more)
    k_before = cache.k[..., :4, :].clone()
    more[0].zero_()
    assert torch.equal(cache.k[..., :4, :], k_before)
    assert cache.pos[:4].tolist() == [0, 1, 2, 3]


# ------------------------------------------------------------------ what does not belong

WRONG = {
    "batch": (lambda: rows((3, 2), torch.tensor([4])), "must be alike"),
    "number of heads": (lambda: rows((2, 3), torch.tensor([4])), "must be alike"),
    "layout": (lambda: rows((2,), torch.tensor([4])), "must be alike"),
    "head size": (lambda: rows((2, 2), torch.tensor([4]), hs=5), "must be alike"),
    "dtype": (
        lambda: rows((2, 2), torch.tensor([4]), dtype=torch.float64),
        "must be alike",
    ),
    "device": (
        lambda: [t.to("meta") for t in rows((2, 2), torch.tensor([4]))],
        "must be alike",
    ),
    "an old position": (lambda: rows((2, 2), torch.tensor([3])), "cached already"),
    "the first position again": (lambda: rows((2, 2), torch.tensor([0])), "cached already"),
    "a chunk that overlaps": (lambda: rows((2, 2), torch.tensor([3, 4])), "cached already"),
    "more positions than rows": (
        lambda: one_row(pos=torch.tensor([4, 5])),
        "must be",
    ),
    "positions of two dimensions": (
        lambda: one_row(pos=torch.tensor([[4]])),
        "must be",
    ),
    "values of another shape": (
        lambda: one_row(v=torch.zeros(2, 2, 1, 5)),
        "must be",
    ),
    "values of another dtype": (
        lambda: one_row(v=torch.zeros(2, 2, 1, 4).double()),
        "must be alike",
    ),
    "values on another device": (
        lambda: one_row(v=torch.zeros(2, 2, 1, 4).to("meta")),
        "must be alike",
    ),
}


def one_row(v=None, pos=None):
    """The row that would come next, with one part of it swapped."""
    k, good_v, good_pos = rows((2, 2), torch.tensor([4]))
    return k, good_v if v is None else v, good_pos if pos is None else pos


@pytest.mark.parametrize("design", CACHES, ids=name)
@pytest.mark.parametrize("what", WRONG)
def test_rows_that_do_not_belong_are_refused_and_change_nothing(design, what):
    make, message = WRONG[what]
    cache = design(ROOM)
    cache.update(*rows((2, 2), torch.arange(4)))
    before = snapshot(cache)
    with pytest.raises(ValueError, match=message):
        cache.update(*make())
    assert_unchanged(cache, before)
    cache.update(*rows((2, 2), torch.tensor([4])))  # and it still works


@pytest.mark.parametrize("design", CACHES, ids=name)
def test_a_position_cached_after_a_gap_is_not_taken_twice(design):
    cache = design(ROOM)
    cache.update(*rows((1,), torch.tensor([5, 9])))
    before = snapshot(cache)
    for again in (9, 5, 2):
        with pytest.raises(ValueError, match=f"position {again} must come after position 9"):
            cache.update(*rows((1,), torch.tensor([again])))
        assert_unchanged(cache, before)


@pytest.mark.parametrize("design", CACHES, ids=name)
def test_reset_makes_room_for_a_text_of_another_batch_and_dtype(design):
    cache = design(ROOM)
    cache.update(*rows((2, 2), torch.arange(4)))
    cache.reset()
    assert (cache.k, cache.v, cache.pos, cache.length, cache.nbytes) == (None, None, None, 0, 0)
    k, _, k_pos = cache.update(*rows((5,), torch.arange(2), dtype=torch.float64))
    assert k.dtype == torch.float64
    assert [p for p in k_pos.tolist() if p >= 0] == [0, 1], "no position of the first text"


@pytest.mark.parametrize("first", [[16], [0, 16], [99]])
def test_a_full_static_cache_says_how_much_it_needs(first):
    cache = StaticCache(ROOM)
    before = snapshot(cache)
    with pytest.raises(
        ValueError, match=f"position {first[-1]} does not fit.*at least {first[-1] + 1}"
    ):
        cache.update(*rows((1,), torch.tensor(first)))
    assert_unchanged(cache, before)
    cache.update(*rows((1,), torch.arange(16)))  # exactly full is fine
    before = snapshot(cache)
    with pytest.raises(ValueError, match="does not fit"):
        cache.update(*rows((1,), torch.tensor([16])))
    assert_unchanged(cache, before)


def test_a_static_cache_without_a_length_says_so():
    with pytest.raises(ValueError, match=r"StaticCache\(256\)"):
        StaticCache().update(*rows((1,), torch.arange(2)))


@pytest.mark.parametrize("design", CACHES, ids=name)
def test_caches_work_where_numbers_cannot_be_looked_at(design):
    """On a GPU a look at a position would stop the queue; the meta device has no numbers at all."""
    cache = design(ROOM)
    for start, T in ((0, 3), (3, 1), (4, 2)):
        k = torch.empty(2, T, 4, device="meta")
        k_out, _, k_pos = cache.update(k, k, torch.arange(start, start + T, device="meta"))
        assert len(k_pos) == k_out.shape[-2] == (ROOM if design is StaticCache else start + T)
    if design is StaticCache:
        k = torch.empty(2, 11, 4, device="meta")
        with pytest.raises(ValueError, match="does not fit"):
            cache.update(k, k, torch.arange(6, 17, device="meta"))


# ------------------------------------------------------------------ bytes


@pytest.mark.parametrize("per_head", FORMS, ids=name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("design", CACHES, ids=name)
@pytest.mark.parametrize("batch", [1, 3])
def test_predicted_bytes_are_the_measured_ones(per_head, dtype, design, batch):
    model = tiny_model(per_head, dtype, n_layer=3, n_head=4, n_embd=8)
    idx = tokens(batch, 9)
    with torch.no_grad(), kv_cache(model, design, capacity=20):
        assert measured_bytes(model) == 0
        for pos in (torch.arange(7), torch.tensor([7]), torch.tensor([8])):
            model(idx[:, pos], pos=pos)
            kept = 20 if design is StaticCache else int(pos[-1]) + 1  # static: reserved at once
            assert measured_bytes(model) == model.cache_bytes(kept, batch)
            assert measured_bytes(model) == 2 * 3 * 8 * kept * batch * dtype.itemsize
    assert measured_bytes(model) == 0


# ------------------------------------------------------------------ all layers behind one object


@pytest.mark.parametrize("design", CACHES, ids=name)
def test_layer_caches_give_back_what_each_layer_was_given(design):
    caches, given = LayerCaches(3, design, ROOM), [[], [], []]
    for step, T in enumerate((4, 1, 1, 2)):
        for layer in range(3):
            k, v, _ = rows((1, 2), range(T), seed=10 * step + layer)
            caches.update(layer, k, v)
            given[layer].append(k)
            keys, values = caches.get(layer)
            assert torch.equal(keys, torch.cat(given[layer], dim=-2))
            assert torch.equal(values, -keys)
        caches.advance(T)
    assert caches.length == 8


@pytest.mark.parametrize("design", CACHES, ids=name)
def test_layer_caches_decode_what_the_model_computes_without(design):
    model = tiny_model(per_head=False)
    text = tokens(1, 9)
    whole, _ = model(text)
    caches = LayerCaches(2, design, 24)
    with kv_cache(model, DynamicCache):  # the same rows by the model's own road
        model(text[:, :6], pos=torch.arange(6))
        for layer, block in enumerate(model.blocks):
            caches.update(layer, block.sa.cache.k, block.sa.cache.v)
        caches.advance(6)
        held = [block.sa.cache for block in model.blocks]
    for layer, cache in enumerate(held):
        keys, values = caches.get(layer)
        assert torch.equal(keys, cache.k)
        assert torch.equal(values, cache.v)
    assert whole.shape == (1, 9, 13)


def test_layer_caches_hold_the_bytes_that_were_predicted():
    for design, length in ((DynamicCache, 5), (StaticCache, ROOM)):
        caches = LayerCaches(2, design, ROOM)
        assert caches.get_memory_usage()["total_bytes"] == 0
        for layer in range(2):
            caches.update(layer, *rows((3, 2), range(5))[:2])
        usage = caches.get_memory_usage()
        predicted = GPTConfig(n_layer=2, n_head=2, n_embd=8).cache_bytes(length, batch=3)
        assert usage["total_bytes"] == predicted
        assert usage["total_mb"] == 2 * usage["per_layer_mb"] == predicted / 1e6
        assert usage["cache_tensors"] == 4


def test_layer_caches_start_another_text_after_a_reset():
    caches = LayerCaches(1, StaticCache, ROOM)
    caches.update(0, *rows((1,), range(3))[:2])
    caches.advance(3)
    caches.reset()
    assert caches.length == 0
    caches.update(0, *rows((2,), range(2), seed=1)[:2])  # of another batch, too
    assert torch.equal(caches.get(0)[0], rows((2,), range(2), seed=1)[0])


def test_layer_caches_say_what_was_forgotten():
    caches = LayerCaches(2, StaticCache, ROOM)
    with pytest.raises(ValueError, match="layer 0 holds nothing yet"):
        caches.get(0)
    caches.update(0, *rows((1,), range(2))[:2])
    with pytest.raises(ValueError, match=r"layers hold \[2, 0\] rows: update each layer once"):
        caches.advance(2)
    with pytest.raises(ValueError, match=r"layer 0 has rows up to 2 already: call advance"):
        caches.update(0, *rows((1,), range(1))[:2])
    with pytest.raises(ValueError, match="layer 2 does not exist: there are 2, 0 to 1"):
        caches.update(2, *rows((1,), range(1))[:2])
    with pytest.raises(ValueError, match="n_layer=0"):
        LayerCaches(0)
