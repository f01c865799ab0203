"""The checks of Head, without a cache and with one."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from ...config import GPTConfig
from .caches import GrowingCache, cat_all
from .comparing import alike
from .exercise import Answer, Case, Exercise, Pairs
from .observing import Arguments, form, gradient, numbers
from .weights import HIDDEN, STEP_MISTAKES, attention_weights, weights_by

WIDTH = 30  # n_embd: 3 heads of 10
SHARE = 0.25  # share of the weights that dropout drops
LONG = 300  # positions
NAMES = ("keys", "values", "positions")


def visible(pos: Tensor, k_pos: Tensor) -> Tensor:
    """True where a query may look.  (T,), (S,) -> (T, S)"""
    return (k_pos[None, :] <= pos[:, None]) & (k_pos[None, :] >= 0)


STEPS: dict[str, Any] = {
    "project": lambda head, x: [head.query(x), head.key(x), head.value(x)],
    "cached": lambda head: head.cache is not None and not head.training,
    "update": lambda cache, q, k, v, pos: cache.update(k, v, pos),
    "mask": visible,
    "weigh": lambda q, k, mask, p: attention_weights(q, k, mask),
    "drops": lambda head: head.training,
    "mix": lambda w, k, v, p: F.dropout(w, p) @ v,
}


class RightHead(nn.Module):
    """The reference solution. Each step can be replaced, which is how mistakes are made."""

    def __init__(self, config: GPTConfig, **steps: Any) -> None:
        super().__init__()
        self.key = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.query = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.value = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.dropout = config.dropout
        self.cache = None
        self.step = SimpleNamespace(**STEPS | steps)

    def forward(self, x: Tensor, pos: Tensor) -> Tensor:
        """(B, T, C), (T,) -> (B, T, hs)"""
        q, k, v = self.step.project(self, x)
        k_pos = pos
        if self.step.cached(self):
            k, v, k_pos = self.step.update(self.cache, q, k, v, pos)
        p = self.dropout if self.step.drops(self) else 0.0
        weights = self.step.weigh(q, k, self.step.mask(pos, k_pos), p)
        mixed: Tensor = self.step.mix(weights, k, v, p)
        return mixed


# ------------------------------------------------------------------ drivers


def new_head(answer: Answer, dropout: float = 0.0) -> tuple[Any, dict[str, Tensor]]:
    """The answer's head, filled with numbers, and its weights by name."""
    config = GPTConfig(vocab_size=11, n_embd=WIDTH, n_head=3, block_size=LONG, dropout=dropout)
    head = answer(config).double()
    weights: dict[str, Tensor] = dict(sorted(head.named_parameters()))
    for seed, weight in enumerate(weights.values()):
        weight.data = (
            numbers(*weight.shape, seed=seed) / 5
        )  # small, so that the softmax spreads over many keys
    return head, weights


def run_new(answer: Answer) -> Pairs:
    """A newly built head."""
    head, weights = new_head(answer)
    sizes = ", ".join(f"{name} {tuple(weight.shape)}" for name, weight in weights.items())
    yield f"the weights of a head with n_embd {WIDTH} and head_size {WIDTH // 3}", sizes
    yield "a new head has no self.cache = None", vars(head).get("cache", "none") is not None


def run_head(
    answer: Answer,
    B: int = 3,
    T: int = 7,
    dropout: float = 0.0,
    factor: float = 1.0,
    modes: tuple[str, ...] = ("eval", "eval"),
) -> Pairs:
    """One text in each mode, without a cache."""
    head, _ = new_head(answer, dropout)
    pos = torch.arange(T)
    for turn, mode in enumerate(modes):
        head.train(mode == "training")
        given = Arguments(x=factor * numbers(B, T, WIDTH, seed=10 + turn), pos=pos.clone())
        text = f"in {mode} mode, without a cache" + ", for a second text" * turn
        out = head(*given.tensors.values())
        yield from given.changes()
        yield f"the shape of the output {text}", form(out)
        if mode == "eval":
            x = given.before["x"]
            again = head(x, pos)
            yield "two equal calls differ in eval mode", not alike(again, out)
            yield from independence(head, x, out)
        yield f"the output {text}", out


def independence(head: Any, x: Tensor, out: Tensor) -> Pairs:
    """What a token's output must not depend on."""
    early = head(x[:, :3], torch.arange(3))
    same = torch.allclose(early, out[:, :3], 1e-4, 1e-4, equal_nan=True)
    yield "a token's output depends on those after it: the mask lets the future in", not same
    alone = head(x[-1:], torch.arange(x.shape[1]))
    same = torch.allclose(alone, out[-1:], 1e-4, 1e-4, equal_nan=True)
    yield "a text's output is different alone than in a batch", not same


def run_gradients(answer: Answer, B: int = 3, T: int = 7) -> Pairs:
    """In training, without dropout: the output and its gradients."""
    head, weights = new_head(answer)
    x = numbers(B, T, WIDTH, seed=10).requires_grad_()
    out = head.train()(x, torch.arange(T))
    yield "no gradient flows through your head, so it would learn nothing", not out.requires_grad
    yield "the output in training mode, without dropout", out
    total = (out * numbers(B, T, WIDTH // 3, seed=20)).sum()
    for name, found in gradient(total, {"x": x, **weights}).items():
        yield f"in training the gradient of {name}", found


def run_cached(
    answer: Answer,
    pieces: list[int],
    cache: Any = GrowingCache,
    B: int = 2,
    dropout: float = 0.0,
    learn: bool = False,
    texts: int = 1,
) -> Pairs:
    """A text in pieces with a cache, then the cache removed. learn: with gradients on."""
    head, _ = new_head(answer, dropout)
    head.eval()
    T = sum(pieces)
    grad = " with gradients on" if learn else ""
    for turn in range(texts):
        again = ", for a second text" * turn
        head.cache = cache(LONG)
        x = numbers(B, T, WIDTH, seed=10 + turn)
        with torch.set_grad_enabled(learn):
            for place in torch.arange(T).split(pieces):
                call = f"{grad}, in a call that begins at position {int(place[0])}{again}"
                calls = len(head.cache.given)
                given = Arguments(x=x[:, place], pos=place.clone())
                out = head(*given.tensors.values())
                made = head.cache.given[calls:]
                yield f"the number of updates{call}", len(made)
                for name, part in zip(NAMES, made[0] if made else (), strict=False):
                    yield f"the {name} that the cache gets{call}", part
                yield f"the shape of the output{call}", form(out)
                yield f"the output with a cache{call}", out
        head.cache = None
        plain = head(x[:, :5], torch.arange(5))
        yield f"the output without a cache again, after a text with one{again}", plain


def run_training(answer: Answer) -> Pairs:
    """A cache that is on is ignored in training mode, and used in eval mode afterwards."""
    head, _ = new_head(answer)
    head.cache = GrowingCache(LONG)
    x = numbers(2, 9, WIDTH, seed=12)
    pos = torch.arange(9)
    yield "the output in training mode while a cache is on", head.train()(x, pos)
    yield "the number of updates in training mode", len(head.cache.given)
    head.eval()
    with torch.no_grad():
        for place in pos.split([6, 1, 2]):
            begin = f"in eval mode after training, at position {int(place[0])}"
            yield f"the output with a cache {begin}", head(x[:, place], place)


def run_dropout(answer: Answer, cached: bool = False, texts: int = 4000) -> Pairs:
    """One text many times in training, so that dropout shows in the mean and in the spread.

    The spread is the covariance of all numbers of a text. It distinguishes dropped weights from
    dropped values or outputs, and weights that share a random draw from those that do not.
    """
    head, _ = new_head(answer, SHARE)
    head.train()
    x = numbers(1, 3, WIDTH, seed=30).expand(texts, -1, -1).contiguous()
    pos = torch.arange(3)
    head.cache = GrowingCache(LONG) if cached else None
    on = " while a cache is on" if cached else ""
    with torch.no_grad():
        out = head(x, pos)
        again = head(x, pos)
    yield f"in training two calls drop the same weights{on}, or none", torch.equal(out, again)
    yield f"the spread of outputs in training{on}", out.flatten(1).T.cov()
    yield f"the mean of outputs in training{on}", out.mean(0)


# ------------------------------------------------------------------ caches of another order


class Slots(GrowingCache):
    """A cache with 40 empty slots, which hold zeros at position -1."""

    def update(self, k: Tensor, v: Tensor, pos: Tensor) -> Any:
        k, v, pos = super().update(k, v, pos)
        return F.pad(k, (0, 0, 0, 40)), F.pad(v, (0, 0, 0, 40)), F.pad(pos, (0, 40), value=-1)


class Backwards(GrowingCache):
    """A cache that returns the newest token first, so a mask must use positions."""

    def update(self, k: Tensor, v: Tensor, pos: Tensor) -> Any:
        k, v, pos = super().update(k, v, pos)
        return k.flip(1), v.flip(1), pos.flip(0)


# ------------------------------------------------------------------ mistakes


def head_by(**steps: Any) -> Answer:
    """A head with one step replaced."""
    return partial(RightHead, **steps)


def weigh_by(weights: Any) -> Answer:
    return head_by(weigh=lambda q, k, mask, p: weights(q, k, mask))


def drop_scores(q: Tensor, k: Tensor, mask: Tensor, p: float) -> Tensor:
    scores = F.dropout(q @ k.mT * q.shape[-1] ** -0.5, p)
    return scores.masked_fill(~mask, HIDDEN).softmax(-1)


def one_draw(dim: int) -> Answer:
    """Dropout with one random draw for all weights along a dimension."""

    def mix(w: Tensor, k: Tensor, v: Tensor, p: float) -> Tensor:
        return w * F.dropout(torch.ones_like(w.narrow(dim, 0, 1)), p) @ v

    return head_by(mix=mix)


def same_draw(w: Tensor, k: Tensor, v: Tensor, p: float) -> Tensor:
    with torch.random.fork_rng(devices=[], enabled=p > 0):
        torch.manual_seed(1)
        return F.dropout(w, p) @ v


def detached(place: int) -> Answer:
    """Queries, keys and values, one of them detached."""

    def project(head: RightHead, x: Tensor) -> list[Tensor]:
        parts: list[Tensor] = STEPS["project"](head, x)
        parts[place] = parts[place].detach()
        return parts

    return head_by(project=project)


def sees(mask: Any) -> Answer:
    """A head with another mask, from the positions of queries (T, 1) and keys (1, S)."""
    return head_by(mask=lambda pos, k_pos: mask(pos[:, None], k_pos[None]))


def tril(pos: Tensor, k_pos: Tensor, diagonal: int = 0) -> Tensor:
    return torch.ones(len(pos), len(k_pos)).tril(diagonal).bool()


def first_text(head: RightHead, x: Tensor) -> list[Tensor]:
    q, k, v = STEPS["project"](head, x)
    return [q, k[:1].expand_as(k), v]


def update_by(*numbers_of: int, shift: int = 0) -> Answer:
    """A head that calls cache.update with these two of q, k, v (0, 1, 2), and positions + shift."""

    def update(cache: Any, q: Tensor, k: Tensor, v: Tensor, pos: Tensor) -> Any:
        parts = (q, k, v)
        return cache.update(*[parts[i] for i in numbers_of], pos + shift)

    return head_by(update=update)


def update_ignored(cache: Any, q: Tensor, k: Tensor, v: Tensor, pos: Tensor) -> Any:
    cache.update(k, v, pos)
    return k, v, pos


def update_twice(cache: Any, q: Tensor, k: Tensor, v: Tensor, pos: Tensor) -> Any:
    cache.update(k, v, pos)
    return cache.update(k, v, pos)


def update_and_add(cache: Any, q: Tensor, k: Tensor, v: Tensor, pos: Tensor) -> Any:
    return cat_all(cache.update(k, v, pos), (k, v, pos))


def update_exchanged(cache: Any, q: Tensor, k: Tensor, v: Tensor, pos: Tensor) -> Any:
    k, v, pos = cache.update(k, v, pos)
    return v, k, pos


def update_last(cache: Any, q: Tensor, k: Tensor, v: Tensor, pos: Tensor) -> Any:
    return cache.update(k[:, -1:], v[:, -1:], pos[-1:])


GUARD = "the guard must check both whether there is a cache and whether this is training."
PLAIN_MISTAKES: dict[str, Any] = {
    **{message: weigh_by(weights) for message, weights in STEP_MISTAKES.items()},
    "the scores are divided by √n_embd: hs is head_size.": weigh_by(
        weights_by(scale=lambda q, k: WIDTH**-0.5)
    ),
    "a query does not see its own token: <=, not <.": sees(
        lambda q, k: (k < q) | (k == 0) & (q == 0)
    ),
    "a query sees one token into the future: <= q_pos.": sees(lambda q, k: k <= q + 1),
    "the mask is inverted: a query sees what comes before it.": sees(lambda q, k: k >= q),
    "queries and keys are swapped.": head_by(
        project=lambda head, x: [head.key(x), head.query(x), head.value(x)]
    ),
    "keys and values are swapped: the scores use keys, the weights apply to values.": head_by(
        project=lambda head, x: [head.query(x), head.value(x), head.key(x)]
    ),
    "the weights are applied to the keys instead of the values.": head_by(
        mix=lambda w, k, v, p: F.dropout(w, p) @ k
    ),
    "every text in the batch attends to the first one's keys: each has its own.": head_by(
        project=first_text
    ),
    "dropout runs in eval mode: it belongs to training only.": head_by(drops=lambda head: True),
    "in training nothing is dropped: F.dropout(weights, self.dropout, self.training) is "
    "missing.": head_by(drops=lambda head: False),
    "dropout runs in eval mode and not in training: it is the other way round.": head_by(
        drops=lambda head: not head.training
    ),
    "elements of the output are dropped: dropout belongs on the weights, before the product "
    "with v.": head_by(mix=lambda w, k, v, p: F.dropout(w @ v, p)),
    "elements of the values are dropped: dropout belongs on the weights, before the product "
    "with v.": head_by(mix=lambda w, k, v, p: w @ F.dropout(v, p)),
    "scores are dropped: dropout comes after the softmax.": head_by(
        weigh=drop_scores, mix=lambda w, k, v, p: w @ v
    ),
    "in training the remaining weights must be scaled by 1 / (1 - p).": head_by(
        mix=lambda w, k, v, p: F.dropout(w, p) * (1 - p) @ v
    ),
    "in training each row of weights still sums to 1: do not normalise again after dropout.": (
        head_by(mix=lambda w, k, v, p: F.normalize(F.dropout(w, p), 1, -1, 1e-9) @ v)
    ),
    "in training all texts drop the same weights: each weight has its own random draw.": one_draw(
        0
    ),
    "in training all queries drop the same keys: each weight has its own random draw.": one_draw(1),
    "in training a query drops all of its weights or none: each has its own random draw.": (
        one_draw(2)
    ),
    "in training two calls drop the same weights: do not reset the random numbers.": head_by(
        mix=same_draw
    ),
    "in training the queries are detached: their gradient is lost.": detached(0),
    "in training the keys are detached: their gradient is lost.": detached(1),
    "in training the values are detached: their gradient is lost.": detached(2),
}
CACHE_MISTAKES: dict[str, Any] = {
    "what update returns is ignored: attend to all its keys, values and positions.": head_by(
        update=update_ignored
    ),
    f"in training mode the head used its cache: {GUARD}": head_by(
        cached=lambda head: head.cache is not None
    ),
    f"in eval mode without a cache it calls update on self.cache, which is None: {GUARD}": (
        head_by(cached=lambda head: not head.training)
    ),
    "the cache is not used: call self.cache.update(k, v, pos).": head_by(cached=lambda head: False),
    "the cache is used only if gradients are off: the guard must check self.training.": head_by(
        cached=lambda head: head.cache is not None and not torch.is_grad_enabled()
    ),
    "values are passed before keys: update(k, v, pos), in this order.": (update_by(2, 1)),
    "keys are cached in place of values: update(k, v, pos).": update_by(1, 1),
    "queries are cached in place of keys: update(k, v, pos).": (update_by(0, 2)),
    "the positions are one too large: the tokens are at `pos`.": update_by(1, 2, shift=1),
    "a pass makes 2 updates, so each token is kept twice: one is enough.": head_by(
        update=update_twice
    ),
    "the new tokens are appended to what update returns: it already contains them.": head_by(
        update=update_and_add
    ),
    "keys and values are swapped in the result of update: it is k, v, pos.": head_by(
        update=update_exchanged
    ),
    "only the last of several tokens is cached: cache all of them.": head_by(update=update_last),
    "the keys' positions are ignored: visible(pos, pos) uses the queries' positions for both. "
    "update returns k_pos.": head_by(mask=lambda pos, k_pos: visible(pos, pos)),
    "the keys are numbered from 0: update returns each key's position.": head_by(
        mask=lambda pos, k_pos: visible(pos, torch.arange(len(k_pos)))
    ),
    "the mask goes by index, like is_causal: a single query sees only key 0. Use positions, "
    "visible(pos, k_pos).": head_by(mask=tril),
    "the mask goes by index, aligned bottom right: that is wrong for a cache with empty slots, "
    "such as StaticCache. Use positions, visible(pos, k_pos).": head_by(
        mask=lambda pos, k_pos: tril(pos, k_pos, len(k_pos) - len(pos))
    ),
    "the mask goes by index, and a single query gets none: use visible(pos, k_pos).": (
        head_by(mask=lambda pos, k_pos: tril(pos, k_pos) | (len(pos) == 1))
    ),
    "a single query gets no mask, so it sees empty slots: use positions.": head_by(
        mask=lambda pos, k_pos: visible(pos, k_pos) | (len(pos) == 1)
    ),
    "empty slots, at position -1, are visible: hide them.": sees(lambda q, k: k <= q),
    "dropout runs in eval mode while a cache is on.": head_by(
        drops=lambda head: head.training or head.cache is not None
    ),
    "in training nothing is dropped while a cache is on: a cache must not change training, nor "
    "its dropout.": head_by(drops=lambda head: head.training and head.cache is None),
}
ADVICE = {
    "the weights of a head": "config has the sizes, and nn.Linear takes in_features first.",
    "self.cache = None": "Set it in __init__: kv_cache(model) sets and removes it.",
    "two equal calls": "Dropout belongs to training only, and a call must leave nothing behind.",
    "a second text": "Nothing may be carried over from one text to the next.",
    "alone than in a batch": "A text's output depends only on that text.",
    "the future in": "visible(pos, k_pos) says what a query sees.",
    "shape of the output": "Return the weights times the values.",
    "no gradient flows": "Use no detach() and no no_grad() on the way.",
    "in training the gradient": "Something on the way is detached, or computed differently.",
    "the number of updates in training": f"In training a cache is not used: {GUARD}",
    "the number of updates": (
        "In eval mode each pass calls cache.update once, however many tokens it has."
    ),
    "that the cache gets": "update(k, v, pos) takes this head's keys and values, unchanged.",
    "while a cache is on": (
        "In training mode a cache that is on must change nothing, not even dropout."
    ),
    "without dropout": "config.dropout is 0 here, so the output must equal eval mode's.",
    "after training": "In eval mode after training the cache is used again.",
    "without a cache again": "The head must keep nothing of a cached text.",
    "with a cache": (
        "A cache must not change the output: does the mask use positions, the keys' own?"
    ),
    "in training two calls": "Set no seed in a head: do not reset the random numbers.",
    "spread of": "Is each weight dropped by its own random draw, with probability config.dropout?",
    "mean of": "The remaining weights must be scaled by 1 / (1 - p).",
    "NoneType": f"Without a cache self.cache is None: {GUARD}",
    "the output in eval": "Is √hs wrong, or the mask, or are k and v mixed up?",
}
PLAIN_CASES = [
    Case(run_new),
    Case(run_head),
    Case(run_head, B=4, T=5, dropout=0.5),
    Case(run_gradients),
    Case(run_head, factor=1000.0),  # exp() overflows
    Case(run_head, B=2, T=LONG),
    Case(run_dropout, tolerance=0.12),
]
AXES = [("text", "token", "number")]
HEAD = Exercise(
    notebook="02",
    hints=(
        "With a cache there are more keys than queries. Which positions do the keys have then, "
        "and what knows them?",
        "Begin with the lecture's `forward`. Without a cache, the keys have the queries' "
        "positions: `k_pos = pos`. Three lines add the cache: `self.cache = None`, the "
        "condition `if self.cache is not None and not self.training`, and the `update`.",
        "if self.cache is not None and not self.training: k, v, k_pos = "
        "self.cache.update(k, v, pos); then attention_weights(q, k, visible(pos, "
        "k_pos))",
    ),
    method="forward",
    right=RightHead,
    cases=[
        *PLAIN_CASES[:-2],
        Case(run_cached, pieces=[9, 1, 1, 1]),
        Case(run_training),
        Case(run_cached, pieces=[5, 4, 3], texts=2),
        Case(run_cached, pieces=[9, 1, 1, 1], cache=Slots, dropout=0.5),
        Case(run_cached, pieces=[5, 4, 3], cache=Backwards),
        Case(run_cached, pieces=[9, 1, 2], learn=True),
        Case(run_cached, pieces=[40, *[1] * 30, 200, 30], B=1),
        *PLAIN_CASES[-2:],
        Case(run_dropout, tolerance=0.12, cached=True),
    ],
    mistakes=CACHE_MISTAKES | PLAIN_MISTAKES,
    advice=ADVICE,
    axes=AXES,
)
PLAIN_HEAD = replace(HEAD, cases=PLAIN_CASES, mistakes=PLAIN_MISTAKES)
