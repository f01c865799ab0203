"""Notebook 04, blank 1: MaskedHead."""

from ...attention import attend
from ..page import Blank
from .head import Head
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


BLANK = Blank(
    number="04.1",
    solution=MaskedHead,
    method="forward",
    cases=[],
    mistakes={},
    hints=(
        "Which keys may the prompt's first character see, and which must the newest one see in a decode step?",
        "The prompt's first character must not see the second. A query may attend to a key if the key's position is not after its own. Which function of notebook 02 expresses that, for any T and S?",
        "k_pos = pos; with a cache k, v, k_pos = self.cache.update(k, v, pos); then return attend(q, k, v, visible(pos, k_pos))",
    ),
    advice={
        "the weights of a head": "config has the sizes, and nn.Linear takes in_features first.",
        "self.cache = None": "Set it in __init__: kv_cache(model) sets and removes it.",
        "two equal calls": "Dropout belongs to training only, and a call must leave nothing behind.",
        "a second text": "Nothing may be carried over from one text to the next.",
        "alone than in a batch": "A text's output depends only on that text.",
        "the future in": "visible(pos, k_pos) says what a query sees.",
        "shape of the output": "Return the weights times the values.",
        "no gradient flows": "Use no detach() and no no_grad() on the way.",
        "in training the gradient": "Something on the way is detached, or computed differently.",
        "the number of updates in training": "In training a cache is not used: the guard must check both whether there is a cache and whether this is training.",
        "the number of updates": "In eval mode each pass calls cache.update once, however many tokens it has.",
        "that the cache gets": "update(k, v, pos) takes this head's keys and values, unchanged.",
        "while a cache is on": "In training mode a cache that is on must change nothing, not even dropout.",
        "without dropout": "config.dropout is 0 here, so the output must equal eval mode's.",
        "after training": "In eval mode after training the cache is used again.",
        "without a cache again": "The head must keep nothing of a cached text.",
        "with a cache": "A cache must not change the output: does the mask use positions, the keys' own?",
        "in training two calls": "Set no seed in a head: do not reset the random numbers.",
        "spread of": "Is each weight dropped by its own random draw, with probability config.dropout?",
        "mean of": "The remaining weights must be scaled by 1 / (1 - p).",
        "NoneType": "Without a cache self.cache is None: the guard must check both whether there is a cache and whether this is training.",
        "the output in eval": "Is √hs wrong, or the mask, or are k and v mixed up?",
    },
    axes=[("text", "token", "number")],
)
