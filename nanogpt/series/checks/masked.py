"""The check of MaskedHead."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import solutions
from .exercise import Case, Exercise
from .head import (
    ADVICE,
    AXES,
    Backwards,
    RightHead,
    Slots,
    head_by,
    run_cached,
    run_gradients,
    run_head,
    sees,
    tril,
    update_by,
    update_exchanged,
    update_ignored,
    update_last,
    update_twice,
    visible,
)


def masked_by(mask: Any) -> Any:
    """A head with another mask, from the positions of queries (T,) and keys (S,)."""
    return head_by(mask=mask)


def ones(pos: Tensor, k_pos: Tensor) -> Tensor:
    return torch.ones(len(pos), len(k_pos), dtype=torch.bool)


class FirstHead(RightHead):
    """The trap's head: no mask with a cache."""

    def forward(self, x: Tensor, pos: Tensor) -> Tensor:
        mask = visible if self.cache is None else ones
        self.step.mask = mask
        return super().forward(x, pos)


def restarted(cache: Any, q: Tensor, k: Tensor, v: Tensor, pos: Tensor) -> Any:
    return cache.update(k, v, torch.arange(len(pos)))


MASKED_HEAD = Exercise(
    notebook="04",
    hints=(
        "Which keys may the prompt's first character see, and which must the newest one see in "
        "a decode step?",
        "The prompt's first character must not see the second. A query may attend to a key if "
        "the key's position is not after its own. Which function of notebook 02 expresses that, "
        "for any T and S?",
        "k_pos = pos; with a cache k, v, k_pos = self.cache.update(k, v, pos); then return "
        "attend(q, k, v, visible(pos, k_pos))",
    ),
    method="forward",
    right=solutions.MaskedHead,
    # In training mode no cache is on here, so a head may or may not check the mode.
    cases=[
        Case(run_head),
        Case(run_cached, pieces=[1, 1, 1, 1, 1]),
        Case(run_cached, pieces=[9, 1, 1, 1]),
        Case(run_cached, pieces=[5, 4, 3], texts=2),
        Case(run_cached, pieces=[9, 1, 1, 2], cache=Slots),
        Case(run_cached, pieces=[5, 4, 1], cache=Backwards, dropout=0.5),
        Case(run_gradients),
        Case(run_head, factor=1000.0),  # exp() overflows
        Case(run_cached, pieces=[40, *[1] * 20, 200], B=1),
    ],
    mistakes={
        "with a cache, the prompt is read without a mask: its first tokens see its last ones, "
        "so there is something to hide.": FirstHead,
        "there is no mask at all, with a cache or without: a token sees those after it.": (
            masked_by(ones)
        ),
        "the mask is a triangle aligned top left, like is_causal=True: in a decode step the "
        "query sees only the first key, but must see all.": masked_by(tril),
        "the mask is a triangle aligned bottom right: that is wrong if a cache has empty slots. "
        "Compare positions, not shapes.": masked_by(
            lambda pos, k_pos: tril(pos, k_pos, len(k_pos) - len(pos))
        ),
        "only the first piece is masked: in a later piece of several tokens the first sees the "
        "last. Compare positions, not shapes.": masked_by(
            lambda pos, k_pos: visible(pos, k_pos) if len(pos) == len(k_pos) else ones(pos, k_pos)
        ),
        "a single query gets no mask, so it sees empty slots: compare positions.": masked_by(
            lambda pos, k_pos: visible(pos, k_pos) | (len(pos) == 1)
        ),
        "empty slots, whose position is -1, are visible: visible(pos, k_pos) hides them.": sees(
            lambda q, k: k <= q
        ),
        "a query does not see its own token: <=, not <.": sees(
            lambda q, k: (k < q) & (k >= 0) | (k == 0) & (q == 0)
        ),
        "a query does not see its own token, and the first sees none at all: <=, not <.": sees(
            lambda q, k: (k < q) & (k >= 0)
        ),
        "the mask is inverted: a query sees what comes after it.": sees(lambda q, k: k >= q),
        "a query sees one token into the future.": sees(lambda q, k: (k <= q + 1) & (k >= 0)),
        "the queries' positions are used for the keys: visible(pos, pos). With a cache there "
        "are more keys, at k_pos.": masked_by(lambda pos, k_pos: visible(pos, pos)),
        "the mask is transposed: it has a row for each query, (T, S).": masked_by(
            lambda pos, k_pos: (
                visible(k_pos, pos) if len(pos) != len(k_pos) else visible(pos, k_pos)
            )
        ),
        "the keys are numbered from 0: update returns each key's position.": masked_by(
            lambda pos, k_pos: visible(pos, torch.arange(len(k_pos)))
        ),
        "the queries are numbered from 0 in each call: `pos` has their positions.": (
            masked_by(lambda pos, k_pos: visible(torch.arange(len(pos)), k_pos))
        ),
        "all queries get the last one's mask: each has its own row.": masked_by(
            lambda pos, k_pos: visible(pos[-1:].expand(len(pos)), k_pos)
        ),
        "what update returns is ignored: attend to all its keys and values.": head_by(
            update=update_ignored
        ),
        "the cache is not used: call self.cache.update(k, v, pos) if it is not None.": head_by(
            cached=lambda head: False
        ),
        "without a cache self.cache is None, but you call it anyway: check `self.cache is not "
        "None` first.": head_by(cached=lambda head: True),
        "values are passed before keys: update(k, v, pos).": update_by(2, 1),
        "queries are cached in place of keys: update(k, v, pos).": update_by(0, 2),
        "the cached positions begin at 0 in each call: pass `pos`.": head_by(update=restarted),
        "each token is cached twice: make one update per call.": head_by(update=update_twice),
        "keys and values are swapped in the result of update: it is k, v, k_pos.": head_by(
            update=update_exchanged
        ),
        "only the last of several tokens is cached: cache all of them.": head_by(
            update=update_last
        ),
        "queries and keys are swapped: the query is what a token looks for.": head_by(
            project=lambda head, x: [head.key(x), head.query(x), head.value(x)]
        ),
        "dropout runs in eval mode: attend(q, k, v, mask) has none.": head_by(
            drops=lambda head: True
        ),
    },
    advice=ADVICE,
    axes=AXES,
)
