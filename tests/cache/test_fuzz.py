"""Anything at all: the right result, or our own error that names what was wrong."""

import hypothesis.strategies as st
import pytest
import torch
from fuzz_fixtures import examples
from hypothesis import assume
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nanogpt.cache.tinytorch import LayerCaches
from nanogpt.cache.dynamic import DynamicCache
from nanogpt.cache.static import StaticCache

ROOM, LAYOUTS = 10, [(1,), (3,), (2, 2)]


def known(cache) -> dict:
    """All that a cache knows, in copies."""
    return {key: v.clone() if isinstance(v, torch.Tensor) else v for key, v in vars(cache).items()}


def unchanged(cache, before: dict) -> bool:
    now = vars(cache)
    return now.keys() == before.keys() and all(
        torch.equal(v, before[key]) and v.dtype == before[key].dtype
        if isinstance(v, torch.Tensor) and isinstance(before[key], torch.Tensor)
        else v is before[key] or v == before[key]
        for key, v in now.items()
    )


class Rows(RuleBasedStateMachine):
    """One cache beside a list of rows; each row that is ever made is another number."""

    @initialize(design=st.sampled_from([DynamicCache, StaticCache]))
    def begin(self, design):
        self.cache, self.design, self.made = design(ROOM), design, 0
        self.forget()

    def forget(self):
        self.held: dict[int, float] = {}  # position: the number that fills its row
        self.form = None  # the layout and the dtype, from the first update on

    def rows(self, layout, T, hs=2, dtype=torch.float32):
        numbers = torch.arange(self.made, self.made + T, dtype=dtype)
        self.made += T
        return numbers[:, None].expand(*layout, T, hs).clone()

    @property
    def last(self):
        return max(self.held, default=-1)

    def refuse(self, k, v, pos, words):
        before = known(self.cache)
        with pytest.raises(ValueError, match=words):
            self.cache.update(k, v, pos)
        assert unchanged(self.cache, before)

    @rule(
        gaps=st.lists(st.sampled_from([1, 1, 1, 2, 5]), max_size=4),
        layout=st.sampled_from(LAYOUTS),
        dtype=st.sampled_from([torch.float32, torch.float64, torch.float16]),
    )
    def append(self, gaps, layout, dtype):
        layout, dtype = self.form or (layout, dtype)
        places = [self.last + sum(gaps[: i + 1]) for i in range(len(gaps))]
        first, k, pos = (
            self.made,
            self.rows(layout, len(gaps), dtype=dtype),
            torch.tensor(places).long(),
        )
        if self.design is StaticCache and places and places[-1] >= ROOM:
            self.refuse(k, -k, pos, f"position {places[-1]} does not fit")
            return
        self.form = layout, dtype
        self.held |= {place: float(first + i) for i, place in enumerate(places)}
        returned = self.cache.update(k.clone(), -k, pos.clone())
        now = (self.cache.k, self.cache.v, self.cache.pos)
        assert all(torch.equal(r, n) for r, n in zip(returned, now, strict=True))

    @rule(back=st.integers(0, 12), more=st.integers(0, 2))
    def an_old_or_negative_position(self, back, more):
        layout, dtype = self.form or ((3,), torch.float32)
        k = self.rows(layout, 1 + more, dtype=dtype)
        start = self.last - back
        self.refuse(
            k, -k, torch.arange(start, start + 1 + more), f"position {start} must come after"
        )

    @rule(
        what=st.sampled_from(
            ["v shape", "v rows", "v dtype", "few positions", "many positions", "2-d"]
        )
    )
    def parts_that_do_not_belong_together(self, what):
        layout, dtype = self.form or ((3,), torch.float32)
        k, next_ = self.rows(layout, 2, dtype=dtype), self.last + 1
        pos, v = torch.arange(next_, next_ + 2), -k
        if what.startswith("v"):
            v = {"v shape": v[..., :1], "v rows": v[..., :1, :], "v dtype": v.to(torch.bfloat16)}[
                what
            ]
        else:
            pos = {
                "few positions": pos[:1],
                "many positions": torch.arange(next_, next_ + 3),
                "2-d": pos[None],
            }[what]
        self.refuse(k, v, pos, "must be")

    @precondition(lambda self: self.form)
    @rule(
        layout=st.sampled_from([*LAYOUTS, (3, 2), ()]),
        hs=st.integers(1, 3),
        dtype=st.sampled_from([torch.float32, torch.float64, torch.float16]),
    )
    def rows_of_another_text(self, layout, hs, dtype):
        assume((layout, dtype) != self.form or hs != 2)
        k = self.rows(layout, 1, hs, dtype)
        self.refuse(k, -k, torch.tensor([self.last + 1]), "must be alike")

    @rule()
    def reset(self):
        self.cache.reset()
        self.forget()

    @invariant()
    def the_same_rows(self):
        if not self.form:
            assert (self.cache.k, self.cache.v, self.cache.pos, self.cache.length) == (
                None,
                None,
                None,
                0,
            )
            return
        (layout, dtype), cache = self.form, self.cache
        assert (cache.length, cache.last) == (len(self.held), self.last)
        places = cache.pos.tolist()
        if self.design is StaticCache:
            assert places == [p if p in self.held else -1 for p in range(ROOM)]
        else:
            assert places == sorted(self.held)
        numbers = torch.tensor([self.held.get(p, 0.0) for p in places], dtype=dtype)
        expected = numbers[:, None].expand(*layout, len(places), 2)
        assert cache.k.dtype == cache.v.dtype == dtype
        assert torch.equal(cache.k, expected)
        assert torch.equal(cache.v, -expected)
        assert cache.nbytes == 2 * expected.numel() * dtype.itemsize


class Layers(RuleBasedStateMachine):
    """LayerCaches beside one list of numbers for each layer."""

    @initialize(design=st.sampled_from([DynamicCache, StaticCache]), n=st.integers(1, 3))
    def begin(self, design, n):
        self.caches, self.design, self.made = LayerCaches(n, design, ROOM), design, 0
        self.held, self.done = [[] for _ in range(n)], 0
        self.begun = [False] * n  # had an update, were it of no row

    def refuse(self, call, words):
        before, length = [known(cache) for cache in self.caches.caches], self.caches.length
        with pytest.raises(ValueError, match=words):
            call()
        assert all(unchanged(c, b) for c, b in zip(self.caches.caches, before, strict=True))
        assert self.caches.length == length

    @rule(
        layer=st.sampled_from([0, 0, 1, 1, 2, 3, -1]),
        T=st.sampled_from([1, 1, 2, 5, 0]),
        hs=st.sampled_from([2, 2, 2, 3]),
    )
    def update(self, layer, T, hs):
        numbers = torch.arange(self.made, self.made + T, dtype=torch.float32)
        k = numbers[:, None].expand(2, T, hs).clone()
        self.made += T

        def call():
            self.caches.update(layer, k, -k)

        if not 0 <= layer < len(self.held):
            self.refuse(call, f"layer {layer} does not exist")
        elif len(self.held[layer]) > self.done:
            self.refuse(call, "call advance")
        elif hs == 3 and self.begun[layer]:
            self.refuse(call, "must be alike")
        elif T and self.design is StaticCache and self.done + T > ROOM:
            self.refuse(call, "has room for")
        elif hs == 2:
            call()
            self.held[layer] += numbers.tolist()
            self.begun[layer] = True

    @rule(layer=st.integers(-2, 4))
    def get_what_is_not_there(self, layer):
        if not 0 <= layer < len(self.held) or not self.begun[layer]:
            self.refuse(lambda: self.caches.get(layer), "does not exist|holds nothing yet")

    @rule(n=st.integers(-2, 4))
    def advance(self, n):
        if {len(numbers) for numbers in self.held} == {self.done + n}:
            self.caches.advance(n)
            self.done += n
        else:
            self.refuse(lambda: self.caches.advance(n), rf"advance\({n}\) from {self.done}")

    @rule()
    def advance_as_it_should(self):
        if len({len(numbers) for numbers in self.held}) == 1:
            self.advance(len(self.held[0]) - self.done)

    @rule()
    def reset(self):
        self.caches.reset()
        self.held, self.done = [[] for _ in self.held], 0
        self.begun = [False] * len(self.held)

    @invariant()
    def the_same_rows(self):
        assert self.caches.length == self.done
        for layer, numbers in enumerate(self.held):
            if self.begun[layer]:
                expected = torch.tensor(numbers)[:, None].expand(2, len(numbers), 2)
                k, v = self.caches.get(layer)
                assert torch.equal(k, expected)
                assert torch.equal(v, -expected)
        used = self.caches.get_memory_usage()
        assert used["cache_tensors"] == 2 * sum(self.begun)
        reserved = [ROOM if self.design is StaticCache else len(numbers) for numbers in self.held]
        rows = sum(n for n, begun in zip(reserved, self.begun, strict=True) if begun)
        assert used["total_bytes"] == rows * 2 * 2 * 2 * 4


TestRows = Rows.TestCase


TestRows.settings = examples(80, stateful_step_count=20)


TestLayers = Layers.TestCase


TestLayers.settings = examples(80, stateful_step_count=20)


PLACES = {
    "that descend": [5, 3],
    "twice in a chunk": [5, 5],
    "past the room, but for the last": [99, 3],
    "negative within a chunk": [5, -2, 7],
    "of floats": [5.0, 6.0],
    "half-way": [5.5],
    "of complex numbers": [5j],
}


@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("design", [DynamicCache, StaticCache])
def test_positions_that_do_not_ascend_are_refused_and_change_nothing(design, places):
    cache, k = design(ROOM), torch.ones(2, len(places), 4)
    cache.update(k[:, :1], k[:, :1], torch.tensor([0]))
    before = known(cache)
    try:
        with pytest.raises(ValueError, match="position"):
            cache.update(k, k, torch.tensor(places))
    finally:
        assert unchanged(cache, before)


BAD_CACHES = {
    "rows of one dimension": lambda: DynamicCache().update(
        torch.ones(4), torch.ones(4), torch.tensor(0)
    ),
    "no tensors": lambda: DynamicCache().update([[1.0]], [[1.0]], [0]),
    "half a row of room": lambda: StaticCache(2.5).update(
        *[torch.ones(1, 4)] * 2, torch.tensor([0])
    ),
    "a layer by name": lambda: LayerCaches(2).update("a", torch.ones(1, 4), torch.ones(1, 4)),
    "half a layer": lambda: LayerCaches(2).update(0.5, torch.ones(1, 4), torch.ones(1, 4)),
    "a layer's rows of one dimension": lambda: LayerCaches(2).update(
        0, torch.ones(4), torch.ones(4)
    ),
    "an advance by name": lambda: LayerCaches(2).advance("a"),
}


@pytest.mark.parametrize("call", BAD_CACHES.values(), ids=BAD_CACHES)
def test_what_is_no_row_no_room_and_no_layer_is_refused(call):
    with pytest.raises(ValueError, match="row|room|layer|advance"):
        call()
