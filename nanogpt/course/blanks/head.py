"""Notebook 02, blank 3: Head, causal self-attention with a cache of its own."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from ...config import GPTConfig
from ..comparing import alike
from ..drivers import Arguments, form, gradient, numbers
from ..page import Blank, Case
from .attention_weights import attention_weights
from .kv_cache import KVCache
from .visible import visible


class Head(nn.Module):
    """One head of causal self-attention, with its own KV cache."""

    def __init__(self, config):
        super().__init__()
        self.key = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.query = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.value = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.dropout = config.dropout
        self.cache = None  # set and removed by kv_cache(model)

    def forward(self, x, pos):
        """(B, T, C), (T,) -> (B, T, hs)"""
        q = self.query(x)  # (B, T, hs)
        k = self.key(x)
        v = self.value(x)
        k_pos = pos  # (T,)
        if self.cache is not None and not self.training:
            k, v, k_pos = self.cache.update(k, v, pos)  # (B, S, hs), (S,)
        weights = attention_weights(q, k, visible(pos, k_pos))  # (B, T, S)
        return F.dropout(weights, self.dropout, self.training) @ v  # (B, T, hs)


# ------------------------------------------------------------------ what a check runs

WIDTH = 30  # n_embd: 3 heads of 10
LONG = 300  # positions
SHARE = 0.25  # of the weights, in the case that measures dropout


class Recording(KVCache):
    """A cache that records what it is given."""

    def __init__(self, capacity=None):
        super().__init__()
        self.given = []

    def update(self, k, v, pos):
        self.given.append((k, v, pos))
        return super().update(k, v, pos)


class Slots(Recording):
    """A cache with 40 empty slots, which hold zeros at position -1."""

    def update(self, k, v, pos):
        k, v, pos = super().update(k, v, pos)
        return F.pad(k, (0, 0, 0, 40)), F.pad(v, (0, 0, 0, 40)), F.pad(pos, (0, 40), value=-1)


class Backwards(Recording):
    """A cache that returns the newest token first, so that only positions say which is which."""

    def update(self, k, v, pos):
        k, v, pos = super().update(k, v, pos)
        return k.flip(1), v.flip(1), pos.flip(0)


def new_head(answer, dropout=0.0):
    """The answer's head, filled with numbers, and its weights by name."""
    config = GPTConfig(vocab_size=11, n_embd=WIDTH, n_head=3, block_size=LONG, dropout=dropout)
    head = answer(config).double()
    weights = dict(sorted(head.named_parameters()))
    for seed, weight in enumerate(weights.values()):
        # Small, so that the softmax spreads over many keys.
        weight.data = numbers(*weight.shape, seed=seed) / 5
    return head, weights


def run_new(answer):
    """A new head: its weights, and its cache."""
    head, weights = new_head(answer)
    sizes = ", ".join(f"{name} {tuple(weight.shape)}" for name, weight in weights.items())
    yield f"the weights of a head with n_embd {WIDTH} and head_size {WIDTH // 3}", sizes
    yield "self.cache of a new head", found(head)


def found(head):
    """What a new head has as its cache, and where: kv_cache(model) looks among its attributes."""
    if "cache" in vars(head):
        return str(head.cache)
    if hasattr(type(head), "cache"):
        return "an attribute of the class"
    return "an entry of the module" if hasattr(head, "cache") else "nothing of that name"


def run_head(answer, B=3, T=7, dropout=0.0, factor=1.0, modes=("eval", "eval")):
    """A text in each mode, without a cache."""
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
            yield "two equal calls differ in eval mode", not alike(head(x, pos), out)
            yield from independence(head, x, out)
        yield f"the output {text}", out


def independence(head, x, out):
    """What a token's output must not depend on."""
    early = head(x[:, :3], torch.arange(3))
    same = torch.allclose(early, out[:, :3], 1e-4, 1e-4, equal_nan=True)
    yield "a token's output depends on those after it: the mask lets the future in", not same
    alone = head(x[-1:], torch.arange(x.shape[1]))
    same = torch.allclose(alone, out[-1:], 1e-4, 1e-4, equal_nan=True)
    yield "a text's output is different alone than in a batch", not same


def run_gradients(answer, B=3, T=7):
    """In training, without dropout: the output and its gradients."""
    head, weights = new_head(answer)
    x = numbers(B, T, WIDTH, seed=10).requires_grad_()
    out = head.train()(x, torch.arange(T))
    yield "no gradient flows through your head, so it would learn nothing", not out.requires_grad
    yield "the output in training mode, without dropout", out
    total = (out * numbers(B, T, WIDTH // 3, seed=20)).sum()
    for name, part in gradient(total, {"x": x, **weights}).items():
        yield f"in training the gradient of {name}", part


def run_cached(answer, pieces, cache=Recording, B=2, dropout=0.0, learn=False, texts=1):
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
                out = head(x[:, place], place.clone())
                made = head.cache.given[calls:]
                yield f"the number of updates{call}", len(made)
                for name, part in zip(("keys", "values", "positions"), made[0], strict=True):
                    yield f"the {name} that the cache gets{call}", part
                yield f"the shape of the output{call}", form(out)
                yield f"the output with a cache{call}", out
        head.cache = None
        plain = head(x[:, :5], torch.arange(5))
        yield f"the output without a cache again, after a text with one{again}", plain


def run_training(answer):
    """A cache that is on is ignored in training mode, and used in eval mode afterwards."""
    head, _ = new_head(answer)
    head.cache = Recording(LONG)
    x = numbers(2, 9, WIDTH, seed=12)
    pos = torch.arange(9)
    out = head.train()(x, pos)
    yield "the number of updates in training mode", len(head.cache.given)
    yield "the output in training mode while a cache is on", out
    head.eval()
    with torch.no_grad():
        for place in pos.split([6, 1, 2]):
            begin = f"in eval mode after training, at position {int(place[0])}"
            yield f"the output with a cache {begin}", head(x[:, place], place)


def run_dropout(answer, cached=False, texts=4000):
    """One text many times in training, so that dropout shows in the mean and in the spread.

    The spread is the covariance of all numbers of a text. It distinguishes dropped weights from
    dropped values or outputs, and weights that share a random draw from those that do not.
    """
    head, _ = new_head(answer, SHARE)
    head.train()
    x = numbers(1, 3, WIDTH, seed=30).expand(texts, -1, -1).contiguous()
    pos = torch.arange(3)
    head.cache = Recording(LONG) if cached else None
    on = " while a cache is on" if cached else ""
    with torch.no_grad():
        out = head(x, pos)
        again = head(x, pos)
    yield f"in training two calls drop the same weights{on}, or none", torch.equal(out, again)
    yield f"the spread of outputs in training{on}", out.flatten(1).T.cov()
    yield f"the mean of outputs in training{on}", out.mean(0)


# ------------------------------------------------------------------ what people write

GUARD = "the guard must check both whether there is a cache and whether this is training."
BLANK = Blank(
    number="02.3",
    minutes=10,
    solution=Head,
    method="forward",
    cases=[
        Case(run_new),
        Case(run_head),
        Case(run_head, B=4, T=5, dropout=0.5),
        Case(run_gradients),
        Case(run_cached, pieces=[9, 1, 1, 1]),
        Case(run_training),
        Case(run_cached, pieces=[5, 4, 3], texts=2),
        Case(run_cached, pieces=[9, 1, 1, 1], cache=Slots, dropout=0.5),
        Case(run_cached, pieces=[5, 4, 3], cache=Backwards),
        Case(run_cached, pieces=[9, 1, 2], learn=True),
        Case(run_cached, pieces=[40, *[1] * 30, 200, 30], B=1),
        Case(run_head, B=1, T=LONG, factor=1000.0),  # exp() overflows
        Case(run_dropout, tolerance=0.12),
        Case(run_dropout, tolerance=0.12, cached=True),
    ],
    mistakes={
        "self.cache is registered with the module, so it is no plain attribute: write self.cache = None.": [
            'self.cache = None -> self.register_buffer("cache", None)'
        ],
        "the layers have biases: pass bias=False to nn.Linear.": ["bias=False -> bias=True"],
        "dropout runs in eval mode: F.dropout needs self.training as its third argument.": [
            "self.dropout, self.training -> self.dropout"
        ],
        "a cache is used if there is one and this is not training, whether or not gradients are on: "
        "the guard must check both, self.cache is not None and not self.training.": (
            ["self.cache is not None and not self.training -> not self.training"],
            ["self.cache is not None and not self.training -> self.cache is not None"],
        ),
        "update takes this head's keys, values and positions, once a call, and returns all of them, "
        "in this order: yours are others, or swapped.": (
            ["k, v, k_pos = self.cache -> v, k, k_pos = self.cache"],
            [
                "k = self.key(x)\n        v = self.value(x) -> k = v = x",
                "        weights = ->         k = self.key(k)\n        v = self.value(v)\n        weights =",
            ],
        ),
        "the keys' positions are ignored: visible(pos, pos) uses the queries' positions for both. "
        "update returns k_pos.": ["visible(pos, k_pos) -> visible(pos, pos)"],
        "the mask goes by index, like is_causal: a cache may have empty slots or return its keys in "
        "another order, and one query must see many keys. Use positions, visible(pos, k_pos).": (
            ["visible(pos, k_pos) -> torch.ones(len(pos), len(k_pos)).tril().bool()"],
            [
                "visible(pos, k_pos) -> torch.ones(len(pos), len(k_pos)).tril(len(k_pos) - len(pos)).bool()"
            ],
        ),
        "dropout belongs on the weights, between the softmax and the product with v: here it is "
        "elsewhere, or missing.": (
            ["F.dropout(weights, self.dropout, self.training) -> weights"],
            [
                "F.dropout(weights, self.dropout, self.training) @ v -> F.dropout(weights @ v, self.dropout, self.training)"
            ],
        ),
    },
    wrong=[
        "visible(pos, k_pos) -> visible(pos, k_pos) & (k_pos[None] > pos[:, None] - 161)",
        "self.value(x) -> self.value(x).detach()",
        "not self.training: -> not torch.is_grad_enabled():",
        "visible(pos, k_pos) -> torch.ones(len(pos), len(k_pos)).bool()",
        "visible(pos, k_pos) -> visible(pos, torch.arange(len(k_pos)))",
    ],
    right=[
        """
class Head(nn.Module):
    def __init__(self, config):
        super().__init__()
        for name in ("key", "query", "value"):
            setattr(self, name, nn.Linear(config.n_embd, config.head_size, bias=False))
        self.p, self.cache = config.dropout, None

    def forward(self, x, pos):
        new = self.key(x), self.value(x), pos
        use = self.cache is not None and not self.training
        k, v, k_pos = self.cache.update(*new) if use else new
        p = self.p if self.training else 0.0
        mask = visible(pos, k_pos)
        return F.scaled_dot_product_attention(self.query(x), k, v, attn_mask=mask, dropout_p=p)
""",
        """
class Head(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.key = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.query = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.value = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(config.block_size, config.block_size)))
        self.dropout = nn.Dropout(config.dropout)
        self.cache = None

    def forward(self, x, pos):
        k, q, v, k_pos = self.key(x), self.query(x), self.value(x), pos
        if not self.training and self.cache is not None:
            k, v, k_pos = self.cache.update(k, v, pos)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        seen = (self.tril[pos][:, k_pos] == 1) & (k_pos >= 0)
        wei = F.softmax(wei.masked_fill(~seen, float("-inf")), dim=-1)
        return self.dropout(wei) @ v
""",
    ],
    hints=(
        "With a cache there are more keys than queries. Which positions do the keys have then, and what knows them?",
        "Begin with the lecture's `forward`. Without a cache, the keys have the queries' positions: `k_pos = pos`. Three lines add the cache: `self.cache = None`, the condition `if self.cache is not None and not self.training`, and the `update`.",
        "if self.cache is not None and not self.training: k, v, k_pos = self.cache.update(k, v, pos); then attention_weights(q, k, visible(pos, k_pos))",
    ),
    advice={
        "a second text": "Nothing may be carried over from one text to the next.",
        "the future in": "visible(pos, k_pos) says what a query sees.",
        "shape of the output": "Return the weights times the values, with a row for each new token: visible(pos, k_pos) has the queries first, and pos stays theirs.",
        "the number of updates in training": f"In training a cache is not used: {GUARD}",
        "the number of updates": "In eval mode each pass calls cache.update once, however many tokens it has.",
        "that the cache gets": "update(k, v, pos) takes this head's keys and values, unchanged.",
        "while a cache is on": "In training mode a cache that is on must change nothing, not even dropout.",
        "after training": "In eval mode after training the cache is used again.",
        "with a cache": "A cache must not change the output: does the mask use positions, the keys' own?",
        "spread of": "Is each weight dropped by its own random draw, with probability config.dropout?",
        "NoneType": f"Without a cache self.cache is None: {GUARD}",
        "the output in eval": "Is √hs wrong, or the mask, or are k and v mixed up?",
    },
    axes=[("text", "token", "number")],
)
