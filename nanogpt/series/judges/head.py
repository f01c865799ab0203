"""The judge of Head."""

from __future__ import annotations

import torch
import torch.nn as nn
from torch import Tensor

from ...cache import DynamicCache, StaticCache, cache_owners, kv_cache
from ...config import GPTConfig
from ...model import GPT
from ...model import Head as PackageHead
from .common import Objection, drawn, first_match, near, need, objects, shape_of, untouched

HIDDEN = float("-inf")
LONG = 300  # tokens of the longest text that a head reads here


@objects
def Head(head) -> None:
    """The lecture's head, with a cache: alone, with each cache, in training."""
    need(
        isinstance(head, type) and issubclass(head, nn.Module),
        "Head must be a class: class Head(nn.Module).",
    )
    _check_alone(head)
    _check_learns(head)
    _check_dropout(head)
    _check_cached(head)
    _check_training(head)


def _pair(head, **changes) -> tuple[nn.Module, nn.Module]:
    """A head of theirs and one of the package, of the same weights, in float64, in eval mode."""
    shape = {"vocab_size": 11, "block_size": LONG, "n_layer": 1, "n_head": 3, "n_embd": 15}
    config = GPTConfig(**(shape | changes))
    shipped = PackageHead(config)
    for seed, weight in enumerate(shipped.parameters()):
        weight.data = drawn(*weight.shape, seed=seed) / 3
    theirs = head(config)
    shapes = _shapes(theirs)
    wanted = _shapes(shipped)
    need(
        [*shapes] == [*wanted],
        f"a head has the weights {', '.join(wanted)}; yours has {', '.join(shapes) or 'none'}.",
    )
    for name, size in wanted.items():
        need(
            shapes[name] == size,
            f"with n_embd {config.n_embd} and head_size {config.head_size}, {name} is {size}, and "
            f"yours {shapes[name]}: config says how large, and nn.Linear takes what comes in "
            "first.",
        )
    need(
        "cache" in vars(theirs) and theirs.cache is None,
        "a new head needs self.cache = None, in __init__: kv_cache(model) sets and removes it.",
    )
    theirs.load_state_dict(shipped.state_dict(), strict=False)  # buffers are its own
    return theirs.double().eval(), shipped.double().eval()


def _shapes(head: nn.Module) -> dict[str, tuple]:
    """The shape of each weight of a head, by name."""
    return {name: tuple(weight.shape) for name, weight in sorted(head.named_parameters())}


def _check_alone(head) -> None:
    """Without a cache, in eval mode: the numbers of the lecture's head."""
    theirs, shipped = _pair(head, dropout=0.5)
    x = drawn(4, 7, 15, dtype=torch.float64)
    pos = torch.arange(7)
    right = shipped(x, pos)
    out = untouched(lambda *given: _guarded(theirs, *given), x=x, pos=pos)
    need(
        isinstance(out, Tensor) and out.shape == right.shape,
        f"for x {tuple(x.shape)} it should return {tuple(right.shape)}, not {shape_of(out)}.",
    )
    need(out.dtype == x.dtype, f"x is {x.dtype}, and the output {out.dtype}: keep the dtype.")
    need(
        torch.equal(out, theirs(x, pos)),
        "two equal calls differ: dropout belongs to training alone, and nothing is kept of a call.",
    )
    need(
        near(theirs(x[:, :3], pos[:3]), out[:, :3]),
        "without a cache, a token's output depends on those after it: the mask lets the future in.",
    )
    if not near(out, right):
        by = f"without a cache it is off by {(out - right).abs().max():.1e}"
        small = "something is kept or computed in a smaller dtype: leave the dtype that comes in."
        rounded = near(out, right, 1e-2)
        raise Objection(f"{by}: {small if rounded else _head_mistake(shipped, x, pos, out)}")
    for text in range(len(x)):
        alone = theirs(x[text : text + 1], pos)
        need(near(alone, right[text : text + 1]), "a text alone is not what it is among others.")
    long = drawn(2, LONG, 15, dtype=torch.float64)
    places = torch.arange(LONG)
    off = (theirs(long, places) - shipped(long, places)).abs().amax((0, 2))  # (T,)
    late = (off > 1e-9).nonzero()
    if len(late):
        raise Objection(f"a text is right up to token {int(late[0])}, and wrong from there on.")


def _guarded(theirs, x, pos):
    try:
        return theirs(x, pos)
    except AttributeError as error:
        if "NoneType" not in str(error):
            raise
        raise Objection(
            "in eval mode without a cache it asks self.cache, which is None, to keep something: "
            "the "
            "guard must ask both, is there a cache, and is this not training?"
        ) from None


def _head_mistake(shipped, x: Tensor, pos: Tensor, out: Tensor) -> str:
    """Which mistake gives this output of a head without a cache."""
    q = shipped.query(x)
    k = shipped.key(x)
    v = shipped.value(x)  # (B, T, hs)
    hs = q.shape[-1]
    T = len(pos)
    mask = pos[None, :] <= pos[:, None]
    hidden = (q @ k.mT * hs**-0.5).masked_fill(~mask, HIDDEN)

    def mixed(scores: Tensor, values: Tensor = v) -> Tensor:
        return scores.masked_fill(~mask, HIDDEN).softmax(-1) @ values

    mistakes = {
        "the scores are not divided by √hs": mixed(q @ k.mT),
        "the scores are divided by hs, not by its square root √hs": mixed(q @ k.mT / hs),
        "the scores are divided by √T, the number of tokens": mixed(q @ k.mT * T**-0.5),
        "the scores are divided twice by √hs": mixed(q @ k.mT / hs),
        "queries and keys are exchanged": mixed(k @ q.mT * hs**-0.5),
        "the keys are mixed, where the values should be": mixed(q @ k.mT * hs**-0.5, k),
        "keys and values are exchanged": mixed(q @ v.mT * hs**-0.5, k),
        "the softmax is missing": hidden.masked_fill(~mask, 0) @ v,
        "these are logarithms of weights: softmax, not log_softmax": hidden.log_softmax(
            -1
        ).nan_to_num(neginf=0)
        @ v,
        "the softmax runs over the texts": hidden.softmax(0) @ v,
        "every text gets the output of the first one": mixed(q @ k.mT * hs**-0.5)[:1].expand_as(
            out
        ),
        "a query does not see its own token": _strict(q, k, v, pos),
    }
    words = first_match(out, mistakes)
    return f"{words}." if words else "√hs, the mask, or k and v mixed up?"


def _strict(q: Tensor, k: Tensor, v: Tensor, pos: Tensor) -> Tensor:
    mask = pos[None, :] < pos[:, None]
    mask[0, 0] = True
    return (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~mask, HIDDEN).softmax(-1) @ v


def _check_learns(head) -> None:
    """In training, without dropout: the gradients of the lecture's head."""
    both = []
    for one in _pair(head):
        x = drawn(3, 7, 15, seed=1, dtype=torch.float64).requires_grad_()
        given = {"x": x, **dict(sorted(one.named_parameters()))}
        out = one.train()(x, torch.arange(7))
        need(out.requires_grad, "no gradient flows through your head: it would learn nothing.")
        total = (out * drawn(3, 7, 5, seed=2, dtype=torch.float64)).sum()
        gradients = torch.autograd.grad(total, [*given.values()], allow_unused=True)
        both.append(dict(zip(given, gradients, strict=True)))
    theirs, right = both
    for name, gradient in right.items():
        need(
            theirs[name] is not None and near(theirs[name], gradient),
            f"in training the gradient of {name} is not the one of the lecture's head: something "
            "on "
            "the way is detached, or computed otherwise in training.",
        )


SHARE = 0.25  # of the weights that are dropped below
TEXTS = 60


def _check_dropout(head) -> None:
    """In training each weight is dropped by a draw of its own, and those that stay become larger.

    One head, wider than its text is long: then its weights can be computed from its output.
    """
    theirs, shipped = _pair(head, dropout=SHARE, n_head=1)
    pos = torch.arange(6)
    x = drawn(1, len(pos), 15, seed=3, dtype=torch.float64).expand(TEXTS, -1, -1).contiguous()
    whole = torch.linalg.pinv(shipped.value(x))  # (B, hs, T)
    seen = torch.ones(len(pos), len(pos)).tril().bool()
    weights = (shipped(x, pos) @ whole)[:, seen]  # (B, 21)
    factors = []
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        for _ in range(2):
            out = theirs.train()(x, pos)
            mixed = out @ whole
            need(
                near(mixed @ shipped.value(x), out, 1e-6),
                "in training single numbers are dropped: dropout belongs on the weights, before "
                "they meet v.",
            )
            factors.append(mixed[:, seen] / weights)
    _check_factors(*factors, factors[0] * weights, seen)


def _check_factors(first: Tensor, again: Tensor, shares: Tensor, seen: Tensor) -> None:
    """The factors of the weights in two calls, and the weights after one.  (B, 21) each"""
    factor = 1 / (1 - SHARE)
    need(
        not near(first, torch.ones_like(first), 1e-6),
        "in training nothing is dropped: config.dropout is the share of weights to set to 0.",
    )
    rows = torch.zeros(len(first), *seen.shape, dtype=first.dtype)
    rows[:, seen] = shares
    total = rows.sum(-1)  # (B, T)
    need(
        not (((total - 1).abs() < 1e-6) | (total.abs() < 1e-6)).all(),
        "in training each row of weights still sums to 1: dropout comes after the softmax, and the "
        "rest is not divided again.",
    )
    dropped = first.abs() < 1e-6
    need(
        (dropped | ((first - factor).abs() < 1e-6)).all(),
        f"in training the weights that stay must become 1 / (1 - p) = {factor:.3f} times as large.",
    )
    _check_draws(dropped, again.abs() < 1e-6, seen)
    need(
        abs(dropped.double().mean() - SHARE) < 0.06,
        f"in training {dropped.double().mean():.0%} of the weights are dropped; config.dropout is "
        f"{SHARE:.0%}.",
    )


def _check_draws(dropped: Tensor, again: Tensor, seen: Tensor) -> None:
    """Raise Objection unless each weight had a draw of its own, in each of two calls.  (B, 21)"""
    square = torch.zeros(len(dropped), *seen.shape)
    square[:, seen] = dropped.float()
    last = square[:, -1]  # (B, T): the row that sees all
    for alike, words in (
        (square.std(0).max() == 0, "all texts drop the same weights"),
        (last.std(-1).max() == 0, "a query drops all of its weights or none"),
        (all(square[:, i:, i].std(-1).max() == 0 for i in range(4)), "all queries drop one key"),
    ):
        need(not alike, f"in training {words}: each weight has a draw of its own.")
    need(
        not torch.equal(dropped, again),
        "in training two calls drop the same weights: leave the random numbers to go on.",
    )


def _model(head, dropout: float = 0.0) -> GPT:
    """Two layers of three of their heads, with large weights, in float64, in eval mode."""
    shape = {"vocab_size": 11, "block_size": LONG, "n_layer": 2, "n_head": 3, "n_embd": 15}
    config = GPTConfig(**shape, dropout=dropout)
    shipped = GPT(config, generator=torch.Generator().manual_seed(0)).double().eval()
    for weight in shipped.parameters():
        weight.data *= 9 if weight.ndim > 1 else 1  # so that a wrong mask shows
    model = GPT(config, head=head).double().eval()
    model.load_state_dict(shipped.state_dict())
    return model


def _check_cached(head) -> None:
    """With a cache, in pieces of many lengths, up to the last position: the plain logits."""
    ids = torch.randint(11, (2, LONG), generator=torch.Generator().manual_seed(2))
    model = _model(head, dropout=0.5)  # which is off, cache or not, in eval mode
    ways = [(2, (0, 9, 10, 11, 29, 30, 161, 162, LONG)), (1, (0, 1, 2, 7, 250, 251, LONG))]
    with torch.no_grad():
        plain = _model(PackageHead)(ids)[0]
        _check_updates(model, ids)
        for cache in (DynamicCache, StaticCacheWithEmptySlots, Backwards):
            for texts, cuts in ways:
                logits = _in_pieces(model, ids[:texts], cache, cuts)
                off = (logits - plain[:texts]).abs().amax((0, 2))  # (T,)
                late = (~(off <= 1e-9)).nonzero()
                if len(late):
                    t = int(late[0])
                    last = max(cut for cut in cuts if cut <= t)
                    raise Objection(
                        f"with {cache.__name__} the logits differ from those without a cache: "
                        "first "
                        f"at token {t}, by {off[t]:.1e}, in a call that began at position {last}."
                    )
        need(near(model(ids[:, :9])[0], plain[:, :9]), "after a cached text it is another head.")
        with torch.enable_grad():
            logits = _in_pieces(model, ids[:, :12], DynamicCache, (0, 5, 6, 12))
        need(near(logits, plain[:, :12]), "with a cache it is another head where gradients are on.")


def _check_updates(model: GPT, ids: Tensor) -> None:
    """In one pass the cache of a head gets the keys and values of that head, once."""
    updates: list[tuple[Tensor, Tensor]] = []

    class Noting:
        def __init__(self, capacity):
            pass

        def update(self, k, v, pos):
            updates.append((k, v))
            return k, v, pos

    head = model.blocks[0].sa.heads[0]
    read = []
    hook = head.register_forward_pre_hook(lambda module, args: read.append(args[0]))
    with kv_cache(model, Noting), hook:
        model(ids[:, :5], pos=torch.arange(5))
    times = len(updates) / len(cache_owners(model))
    need(times == 1, f"one pass makes {times:g} updates in each head: one is enough.")
    layers = head.key, head.value
    for name, part, layer in zip(("keys", "values"), updates[0], layers, strict=True):
        right = layer(read[0])
        shapes = f"{tuple(part.shape)}, and the head has {tuple(right.shape)}: keep what it uses"
        order = "that are not the head's: update(k, v, pos), in this order"
        words = order if part.shape == right.shape else shapes
        need(near(part, right), f"the cache gets {name} {words}.")


class StaticCacheWithEmptySlots(StaticCache):
    """Gives all its slots: the mask must hide those that are empty."""

    def store(self, k, v, pos):
        super().store(k, v, pos)
        return self.k, self.v, self.pos


class Backwards(DynamicCache):
    """Gives the newest token first: a mask must go by positions, not by places."""

    def store(self, k, v, pos):
        k, v, pos = super().store(k, v, pos)
        return k.flip(-2), v.flip(-2), pos.flip(0)


def _in_pieces(model: GPT, ids: Tensor, cache, cuts: tuple[int, ...]) -> Tensor:
    """The logits of a text that is read in the pieces between the cuts.  (B, T) -> (B, T, V)"""
    with kv_cache(model, cache):
        pieces = zip(cuts, cuts[1:], strict=False)
        read = [model(ids[:, a:b], pos=torch.arange(a, b))[0] for a, b in pieces]
    return torch.cat(read, dim=1)


def _check_training(head) -> None:
    """In training mode a cache that is on is neither written nor read."""
    model = _model(head, dropout=0.2).train()
    ids = torch.arange(14)[None] % 11
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        plain = model(ids)[0]
        with kv_cache(model, DynamicCache):
            torch.manual_seed(0)
            out = model(ids)[0]
            held = [owner.cache.length for owner in cache_owners(model)]
    need(
        not any(held),
        "in training mode the head used its cache: the guard must ask for both, is there a cache, "
        "and is this not training?",
    )
    need(
        near(out, plain),
        "in training mode it is another head while a cache is on: that changes nothing, and "
        "dropout neither.",
    )
    with torch.no_grad():
        after = _in_pieces(model.eval(), ids, DynamicCache, (0, 9, 10, 14))
        need(near(after, model(ids)[0]), "in eval mode after training its cache is not used.")
