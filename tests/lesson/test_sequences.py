"""Random sequences of calls: a cache against a plain dict of its tokens."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from nanogpt.cache import DynamicCache, StaticCache
from nanogpt.caches.paged import PagedCache


class Pages(PagedCache):
    page = 3


ROOM = 10
LAYOUTS = [(1,), (3,), (2, 2)]
DTYPES = [torch.float32, torch.float64, torch.float16]


def filled(k, v, pos):
    """Without the empty slots: a static cache returns none behind the newest token."""
    return k[..., pos >= 0, :], v[..., pos >= 0, :], pos[pos >= 0]


class Tokens(RuleBasedStateMachine):
    """One cache beside a dict from positions to numbers; no number is used twice."""

    @initialize(kind=st.sampled_from([DynamicCache, StaticCache, Pages]))
    def begin(self, kind):
        self.cache = kind(ROOM)
        self.made = 0
        self.held = {}  # layout and dtype, from the first update on
        self.form = None

    def new(self, layout, T, dtype):
        numbers = torch.arange(self.made, self.made + T, dtype=dtype)
        self.made += T
        return numbers[:, None].expand(*layout, T, 2).clone()

    @property
    def last(self):
        return max(self.held, default=-1)

    def refuse(self, k, v, pos, words):
        with pytest.raises(ValueError, match=words):
            self.cache.update(k, v, pos)  # the invariant says that nothing changed

    @rule(
        gaps=st.lists(st.sampled_from([1, 1, 1, 2, 5]), max_size=4),
        layout=st.sampled_from(LAYOUTS),
        dtype=st.sampled_from(DTYPES),
    )
    def append(self, gaps, layout, dtype):
        layout, dtype = self.form or (layout, dtype)
        places = [self.last + sum(gaps[: i + 1]) for i in range(len(gaps))]
        first = self.made
        pos = torch.tensor(places).long()
        k = self.new(layout, len(gaps), dtype)
        if places and places[-1] >= ROOM and isinstance(self.cache, StaticCache):
            self.refuse(k, -k, pos, "not fit.*of at least")
            return
        self.form = layout, dtype
        self.held |= {place: float(first + i) for i, place in enumerate(places)}
        returned = self.cache.update(k.clone(), -k, pos.clone())
        now = (*self.cache.tensors(), self.cache.pos)
        for part, kept in zip(filled(*returned), filled(*now), strict=True):
            assert torch.equal(part, kept)

    @rule(back=st.integers(0, 12), more=st.integers(0, 2))
    def an_old_or_negative_position(self, back, more):
        layout, dtype = self.form or ((3,), torch.float32)
        k = self.new(layout, 1 + more, dtype)
        start = self.last - back
        words = f"position {start} must come after"
        self.refuse(k, -k, torch.arange(start, start + 1 + more), words)

    @rule(layout=st.sampled_from([*LAYOUTS, (3, 2), ()]), dtype=st.sampled_from(DTYPES))
    def a_token_of_another_text(self, layout, dtype):
        if self.form and (layout, dtype) != self.form:
            k = self.new(layout, 1, dtype)
            self.refuse(k, -k, torch.tensor([self.last + 1]), "must match")

    @rule(n=st.integers(0, 4))
    def rewind(self, n):
        if n > len(self.held):
            with pytest.raises(ValueError, match=f"rewind={n}"):
                self.cache.rewind(n)
            return
        self.cache.rewind(n)
        for place in sorted(self.held)[len(self.held) - n :]:
            del self.held[place]
        self.form = self.form if self.held else None

    @rule()
    def reset(self):
        self.cache.reset()
        self.held = {}
        self.form = None

    @invariant()
    def the_same_tokens(self):
        cache = self.cache
        assert (cache.length, cache.last) == (len(self.held), self.last)
        if not self.form:
            assert cache.k is cache.v is cache.pos is None
            return
        layout, dtype = self.form
        places = sorted(self.held)
        if isinstance(cache, StaticCache):
            places = [p if p in self.held else -1 for p in range(ROOM)]
        assert cache.pos.tolist() == places
        numbers = torch.tensor([self.held.get(p, 0.0) for p in places], dtype=dtype)
        expected = numbers[:, None].expand(*layout, len(places), 2)
        k, v = cache.tensors()
        assert k.dtype == v.dtype == dtype
        assert torch.equal(k, expected)
        assert torch.equal(v, -expected)
        if not isinstance(cache, Pages):
            assert cache.nbytes == 2 * expected.numel() * dtype.itemsize


TestTokens = Tokens.TestCase
TestTokens.settings = settings(max_examples=100, stateful_step_count=15)
