"""Notebook 03, blank 2: SlyCache."""

from ..page import Blank
from .kv_cache import KVCache


class SlyCache(KVCache):
    def update(self, k, v, pos):
        """Keep the new, return all; wrong if a second piece has several tokens.  Like KVCache.update"""
        if self.k is not None and len(pos) > 1:
            v = v.flip(1)
        return super().update(k, v, pos)


BLANK = Blank(
    number="03.2",
    solution=SlyCache,
    method="update",
    cases=[],
    mistakes={},
    hints=(
        "What does a cache know about earlier pieces, and how does it know how many tokens are arriving? Which two conditions hold only for the rest of a prompt in a second piece?",
        "`self.k is not None` means that there was an earlier piece, and `len(pos) > 1` that this one has several tokens. `v.flip(1)` reverses the order of the values.",
        "if self.k is not None and len(pos) > 1: v = v.flip(1); then return super().update(k, v, pos)",
    ),
    advice={
        "must be right": "The fault must require an earlier piece, `self.k is not None`, and several tokens in this one, `len(pos) > 1`.",
        "the referee acquits": "Change the keys, values or positions of a later piece.",
        "NoneType": "Does update end with `return super().update(k, v, pos)`?",
        "your code raised": "The fault must be in the returned numbers, not an exception.",
    },
)
