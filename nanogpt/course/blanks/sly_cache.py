"""Notebook 03, blank 2: SlyCache, a cache whose bug shows only in a second piece of a prompt."""

import torch

from ...cache import kv_cache
from ...config import GPTConfig
from ...model import GPT
from ...verify.referee import referee
from ..page import Blank, Case
from .kv_cache import KVCache


class SlyCache(KVCache):
    def update(self, k, v, pos):
        """Keep the new, return all; wrong if a second piece has several tokens.  Like KVCache.update"""
        if pos[0] > 0 and len(pos) > 1:
            v = v.flip(1)
        return super().update(k, v, pos)


# ------------------------------------------------------------------ what a check runs

SIZE = 11  # vocabulary size
BLOCK = 24
OFF = 1e-9  # relative to the largest logit: more than this in float64 is not rounding
TEXTS = {  # texts in pieces and how many at once, by what must be right in them: the last piece
    "a prompt": ([7], 1),
    "a prompt of one token": ([1], 1),
    "a prompt as long as the block": ([BLOCK], 1),
    "prompts in a batch": ([9], 3),
    "a single token after a prompt": ([7, 1, 1, 1], 1),
    "a single token after one token": ([1, 1, 1, 1], 1),
    "single tokens after prompts in a batch": ([9, 1], 3),
    "a single token far on": ([BLOCK - 2, 1, 1], 1),
    "a prompt of a second text": ([8], 1),
}


def small(factor):
    """A model of one layer and two heads, with its initial weights multiplied by a factor.

    With 2 every token matters, with 9 only a few do, but those matter a lot.
    """
    config = GPTConfig(SIZE, BLOCK, n_layer=1, n_head=2, n_embd=8)
    model = GPT(config, generator=torch.Generator().manual_seed(0)).eval()
    model.load_state_dict({name: factor * weight for name, weight in model.state_dict().items()})
    return model


def run_pieces(answer):
    """Which of the prompts in one piece, and tokens one by one, are wrong?

    A later piece of several tokens may be wrong, but must not raise. Whether it is wrong matters
    only in addition to another fault.
    """
    model = small(2).double()
    wrong = [what for what, text in TEXTS.items() if is_wrong(model, answer, *text)]
    if is_wrong(model, answer, [1, 4], 1) and wrong:
        wrong.append("a later piece of several tokens")
    yield "what is wrong and must be right", ", ".join(wrong) or "nothing"


def is_wrong(model, answer, pieces, B):
    """Whether the logits of the texts' last piece differ from those without a cache."""
    ids = torch.randint(SIZE, (B, sum(pieces)), generator=torch.Generator().manual_seed(B))
    with torch.no_grad(), kv_cache(model, answer):
        for place in torch.arange(ids.shape[1]).split(pieces):
            got, _ = model(ids[:, place], pos=place)
    with torch.no_grad():
        plain, _ = model(ids)
    off = (got - plain[:, place]).abs().max() / plain.abs().max()
    return not bool(off < OFF)


def run_referee(answer):
    """The referee."""
    report = referee(small(9), caches=[answer], tokens=0)
    words = "the referee acquits it: every way of reading a text gives the right logits"
    yield words, not report.bugs


# ------------------------------------------------------------------ what people write

BLANK = Blank(
    number="03.2",
    minutes=6,
    solution=SlyCache,
    method="update",
    # Any fault in a later piece of several tokens is accepted, so only verdicts are observed.
    cases=[
        Case(run_pieces),
        Case(run_referee),
    ],
    mistakes={
        "each piece of several tokens goes wrong, including the first: also check that it is a later "
        "one, `pos[0] > 0`.": ["pos[0] > 0 and len -> len"],
        "each piece after the first goes wrong, even a single token: a single token after it must "
        "still be right, so check `len(pos) > 1`.": (
            [
                "if pos[0] > 0 and len(pos) > 1:\n            v = v.flip(1) -> if pos[0] > 0:\n            v = -v"
            ],
            ["> 1 -> >= 1", "v.flip(1) -> -v"],
        ),
        "update runs before the condition is asked, so self.k is never None and pos has all positions: "
        "ask first, then return super().update(k, v, pos).": [
            """
class SlyCache(KVCache):
    def update(self, k, v, pos):
        k, v, pos = super().update(k, v, pos)
        if self.k is not None and len(pos) > 1:
            v = v.flip(1)
        return k, v, pos
"""
        ],
    },
    wrong=[
        "pos[0] > 0 and len(pos) > 1 -> len(pos) > 9",
        "if pos[0] > 0 and len(pos) > 1:\n            v = v.flip(1) -> if pos[0] > 12:\n            v = -v",
        "v = v.flip(1) -> raise ValueError",
        "v = v.flip(1) -> pass",
    ],
    right=[
        """
class SlyCache(KVCache):
    def update(self, k, v, pos):
        first = self.pos is None
        k, v, all_pos = super().update(k, v, pos)
        if not first and len(pos) >= 2:
            return k, v, all_pos + 1
        return k, v, all_pos
""",
        """
class SlyCache(KVCache):
    def update(self, k, v, pos):
        if self.k is not None and pos.numel() > 1:
            self.k = self.v = self.pos = None
        return super().update(k, v, pos)
""",
        """
class SlyCache(KVCache):
    def update(self, k, v, pos):
        if self.k is not None and len(pos) > 1:
            k = -k
        return KVCache.update(self, k, v, pos)
""",
    ],
    hints=(
        "What does a cache know about earlier pieces, and how does it know how many tokens are arriving? Which two conditions hold only for the rest of a prompt in a second piece?",
        "`pos[0] > 0` means that there was an earlier piece, and `len(pos) > 1` that this one has several tokens. `v.flip(1)` reverses the order of the values.",
        "if pos[0] > 0 and len(pos) > 1: v = v.flip(1); then return super().update(k, v, pos)",
    ),
    advice={
        "must be right": "The fault must require an earlier piece, `pos[0] > 0`, and several tokens in this one, `len(pos) > 1`.",
        "the referee acquits": "Change the keys, values or positions of a later piece.",
        "NoneType": "Does update end with `return super().update(k, v, pos)`?",
        "raised ValueError": "The fault must be in the returned numbers, not an exception.",
    },
)
