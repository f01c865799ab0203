"""Notebook 04, blank 1: MaskedHead, whose mask compares positions, with or without a cache."""

import torch
import torch.nn as nn

from ...attention import attend
from ..drivers import numbers
from ..page import Blank, Case
from .head import (
    WIDTH,
    Backwards,
    Head,
    Recording,
    Slots,
    new_head,
    run_cached,
    run_gradients,
    run_head,
)
from .visible import visible


class MaskedHead(Head):
    def forward(self, x, pos):
        """Causal attention, with or without self.cache.  (B, T, C), (T,) -> (B, T, hs)"""
        q = self.query(x)
        k = self.key(x)
        v = self.value(x)
        k_pos = pos
        if self.cache is not None and not self.training:
            k, v, k_pos = self.cache.update(k, v, pos)
        return attend(q, k, v, visible(pos, k_pos))


# ------------------------------------------------------------------ what a check runs


def run_inherited(answer):
    """Is forward the answer's own, or that of the class above it?"""
    above = answer.__mro__[1] if isinstance(answer, type) else nn.Module
    inherited = []

    class Above(above):
        def forward(self, x, pos):
            inherited.append(above)
            return super().forward(x, pos)

    if above is not nn.Module:
        head, _ = new_head(type(answer.__name__, (answer, Above), {}))
        head.eval()(numbers(2, 3, WIDTH), torch.arange(3))
        head.cache = Recording()
        head(numbers(2, 3, WIDTH), torch.arange(3))
    yield "the work is left to the forward of Head", bool(inherited)


# ------------------------------------------------------------------ what people write

MASK = "visible(pos, k_pos)"
ONES = "torch.ones(len(pos), len(k_pos)).bool()"
UPDATE = "k, v, k_pos = self.cache.update(k, v, pos)"
FORWARD = """
class MaskedHead(Head):
    def forward(self, x, pos):
        return """
BLANK = Blank(
    number="04.1",
    minutes=5,
    solution=MaskedHead,
    method="forward",
    # In training mode no cache is on here, so a head may or may not check the mode.
    cases=[
        Case(run_head, dropout=0.5),
        Case(run_cached, pieces=[1, 1, 1, 1, 1]),
        Case(run_cached, pieces=[9, 1, 1, 1]),
        Case(run_cached, pieces=[5, 4, 3], texts=2),
        Case(run_cached, pieces=[9, 1, 1, 2], cache=Slots),
        Case(run_cached, pieces=[5, 4, 1], cache=Backwards),
        Case(run_gradients),
        Case(run_head, factor=1000.0),  # exp() overflows
        Case(run_cached, pieces=[40, 1, 1, 200], B=1),
        Case(run_inherited),
    ],
    mistakes={
        "with a cache, the prompt is read without a mask: its first tokens see its last ones, so "
        "there is something to hide.": [f"{MASK} -> {MASK} | (self.cache is not None)"],
        "the mask is a triangle aligned top left, like is_causal=True or None: in a decode step the "
        "query sees only the first key, but must see all.": (
            [f"{MASK} -> {ONES}.tril()"],
            [f"{MASK} -> None"],
            [f"{MASK} -> {MASK} if len(pos) > 1 else None"],
        ),
        "the mask is a triangle aligned bottom right: that is wrong if a cache has empty slots. "
        "Compare positions, not shapes.": [f"{MASK} -> {ONES}.tril(len(k_pos) - len(pos))"],
        "a piece of several tokens that comes later, after others, gets a wrong mask or none: each "
        "of its tokens sees all keys up to its own position. Compare positions, not shapes.": (
            [f"{MASK} -> {MASK} if len(pos) == len(k_pos) else {ONES}"],
            [f"{MASK} -> {ONES}.tril() if len(pos) > 1 else {ONES}"],
        ),
        "the mask is inverted or transposed: it has a row for each query, and is True where that one "
        "may attend, to the keys up to its own position.": [f"{MASK} -> ~{MASK}"],
        "the keys or the queries are numbered from 0 in each call: update returns each key's "
        "position, and `pos` has the queries'.": (
            [f"{MASK} -> visible(pos, torch.arange(k.shape[1]))"],
            [f"{MASK} -> visible(torch.arange(len(pos)), k_pos)"],
        ),
        "the work is left to the forward of Head: write it here, with attend and a mask made of "
        "positions.": [f"{FORWARD}super().forward(x, pos)\n"],
    },
    wrong=[
        "update(k, v, pos) -> update(q, v, pos)",
        "return -> x = x * 2\n        return self.value(x) +",
        "k, v, visible(pos, k_pos) -> k.detach(), v, visible(pos, k_pos)",
        f"{MASK} -> {MASK}, self.dropout",
        f"{UPDATE} -> {UPDATE}; {UPDATE}",
    ],
    right=[
        """
class MaskedHead(Head):
    def forward(self, x, pos):
        q, new_k, new_v = self.query(x), self.key(x), self.value(x)
        if self.cache is None or self.training:
            all_k, all_v, at = new_k, new_v, pos
        else:
            all_k, all_v, at = self.cache.update(new_k, new_v, pos)
        allowed = torch.stack([(at <= p) & (at >= 0) for p in pos])
        return attend(q, all_k, all_v, allowed)
""",
        """
class MaskedHead(Head):
    def forward(self, x, pos):
        q = self.query(x)
        k = self.key(x)
        v = self.value(x)
        seen = pos
        if not self.training and self.cache:
            k, v, seen = self.cache.update(k, v, pos)
        return attention_weights(q, k, visible(pos, seen)) @ v
""",
        """
class MaskedHead(Head):
    def forward(self, x, pos):
        k, v, at = self.key(x), self.value(x), pos
        if self.cache is not None:
            k, v, at = self.cache.update(k, v, pos)
        ok = torch.logical_and(at.unsqueeze(0) <= pos.unsqueeze(1), at.unsqueeze(0) != -1)
        return F.scaled_dot_product_attention(self.query(x), k, v, attn_mask=ok)
""",
    ],
    hints=(
        "Which keys may the prompt's first character see, and which must the newest one see in a decode step?",
        "The prompt's first character must not see the second. A query may attend to a key if the key's position is not after its own. Which function of notebook 02 expresses that, for any T and S?",
        "k_pos = pos; with a cache k, v, k_pos = self.cache.update(k, v, pos); then return attend(q, k, v, visible(pos, k_pos))",
    ),
    advice={
        "the future in": "visible(pos, k_pos) says what a query sees.",
        "a second text": "Nothing may be carried over from one text to the next.",
        "that the cache gets": "update(k, v, pos) takes this head's keys and values, unchanged.",
        "with a cache": "A cache must not change the output: does the mask use positions, the keys' "
        "own?",
        "NoneType": "Without a cache self.cache is None: check `self.cache is not None` first.",
        "must match the size": "The mask has a row for each query and a column for each key, (T, S): "
        "visible(pos, k_pos).",
    },
    axes=[("text", "token", "number")],
)
