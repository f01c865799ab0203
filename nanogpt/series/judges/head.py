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
    names = [sorted(name for name, _ in one.named_parameters()) for one in (theirs, shipped)]
    need(
        names[0] == names[1],
        f"a head has the weights {', '.join(names[1])}; yours has {', '.join(names[0]) or 'none'}.",
    )
    need(
        "cache" in vars(theirs) and theirs.cache is None,
        "a new head needs self.cache = None, in __init__: kv_cache(model) sets and removes it.",
    )
    theirs.load_state_dict(shipped.state_dict(), strict=False)  # buffers are its own
    return theirs.double().eval(), shipped.double().eval()


def _check_alone(head) -> None:
    """Without a cache, in eval mode: the numbers of the lecture's head."""
    theirs, shipped = _pair(head, dropout=0.5)
    x, pos = drawn(4, 7, 15, dtype=torch.float64), torch.arange(7)
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
        raise Objection(f"{by}: {_head_mistake(shipped, x, pos, out)}")
    long, places = drawn(2, LONG, 15, dtype=torch.float64), torch.arange(LONG)
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
    q, k, v = shipped.query(x), shipped.key(x), shipped.value(x)  # (B, T, hs)
    hs, T = q.shape[-1], len(pos)
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
        found = torch.autograd.grad(total, [*given.values()], allow_unused=True)
        both.append(dict(zip(given, found, strict=True)))
    theirs, right = both
    for name, gradient in right.items():
        need(
            theirs[name] is not None and near(theirs[name], gradient),
            f"in training the gradient of {name} is not the one of the lecture's head: something "
            "on "
            "the way is detached, or computed otherwise in training.",
        )


def _check_dropout(head) -> None:
    """A text of one token has one weight, 1: dropout makes it 0 or 1 / (1 - p), for all of v."""
    share = 0.25
    theirs, shipped = _pair(head, dropout=share)
    x, pos = drawn(800, 1, 15, seed=3, dtype=torch.float64), torch.arange(1)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        ratio = (theirs.train()(x, pos) / shipped(x, pos))[:, 0]  # (B, hs)
    dropped = (ratio == 0).double()
    need(
        dropped.mean() > 0,
        "in training nothing is dropped: config.dropout is the share of weights to set to 0.",
    )
    need(
        (dropped.mean(1) % 1 == 0).all(),
        "in training single numbers are dropped: dropout belongs on the weights, before they meet "
        "v.",
    )
    kept = ratio[dropped[:, 0] == 0]
    need(
        near(kept, torch.full_like(kept, 1 / (1 - share))),
        f"in training the weights that stay must become 1 / (1 - p) = {1 / (1 - share):.3f} times "
        "as large.",
    )
    need(
        abs(dropped.mean() - share) < 0.08,
        f"in training {dropped.mean():.0%} of the weights are dropped; config.dropout is "
        f"{share:.0%}.",
    )


def _model(head) -> GPT:
    """Two layers of three of their heads, with large weights, in float64, in eval mode."""
    config = GPTConfig(vocab_size=11, block_size=LONG, n_layer=2, n_head=3, n_embd=15)
    model = GPT(config, head=head, generator=torch.Generator().manual_seed(0)).double().eval()
    for weight in model.parameters():
        weight.data *= 9 if weight.ndim > 1 else 1  # so that a wrong mask shows
    return model


def _check_cached(head) -> None:
    """With a cache, in pieces of many lengths, up to the last position: the plain logits."""
    ids = torch.randint(11, (2, LONG), generator=torch.Generator().manual_seed(2))
    model = _model(head)
    with torch.no_grad():
        plain = _model(PackageHead)(ids)[0]
        for cache in (DynamicCache, StaticCache, Backwards):
            for cuts in ((0, 9, 10, 11, 29, 30, 161, 162, LONG), (0, 1, 2, 7, 250, 251, LONG)):
                off = (_in_pieces(model, ids, cache, cuts) - plain).abs().amax((0, 2))  # (T,)
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
    model = _model(head).train()
    ids = torch.arange(14)[None] % 11
    with torch.no_grad():
        plain = model(ids)[0]
        with kv_cache(model, DynamicCache):
            out = model(ids)[0]
            held = [owner.cache.length for owner in cache_owners(model)]
    need(
        not any(held) and near(out, plain),
        "in training mode the head used its cache: the guard must ask for both, is there a cache, "
        "and is this not training?",
    )
