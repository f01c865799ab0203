"""A cache that forgets is never called sound, however little the logits show of it.

Each row is a model behind which a broken cache hides, or one that shows it. The verdict on the
broken cache is a bug or undecided, and undecided names its reason. With a sound cache it is never a
bug.
"""

import math

import pytest
import torch
from other_library import HEADS, LAYERS, VOCAB, WIDTH, Adapter, Net, Session, Store
from rows import quick

from nanogpt.kv_referee import referee
from nanogpt.kv_referee.report import Verdict


class Forgets(Store):
    """Each call sees its own tokens alone."""

    def put(self, layer, k, v):
        super().put(layer, k, v)
        return k, v

    def key_positions(self, pos):
        return pos + self.length


class ForgetfulSession(Session):
    store = Forgets


def padded(fill):
    """A vocabulary of which the second half is padding."""

    def finish(self, x):
        logits = Net.finish(self, x)
        return torch.where(torch.arange(VOCAB) < VOCAB // 2, logits, fill)

    return {"finish": finish}


def added(fill):
    def finish(self, x):
        logits = Net.finish(self, x)
        return logits + torch.where(torch.arange(VOCAB) < VOCAB // 2, 0.0, fill)

    return {"finish": finish}


def zeroed(*names):
    def __init__(self, seed=0):
        Net.__init__(self, seed)
        with torch.no_grad():
            for name, p in self.named_parameters():
                if name.split(".")[0] in names:
                    p.zero_()

    return {"__init__": __init__}


def scaled(name, factor):
    def __init__(self, seed=0):
        Net.__init__(self, seed)
        with torch.no_grad():
            for key, p in self.named_parameters():
                if key.split(".")[0] == name:
                    p.mul_(factor)

    return {"__init__": __init__}


def finished(change):
    return {"finish": lambda self, x: change(Net.finish(self, x))}


BUG = Verdict.BUG
UNDECIDED = Verdict.UNDECIDED
# The model, the verdict on a cache that forgets, and a part of the report.
HIDING = {
    "nothing hides it": ({}, BUG, "forgotten"),
    "padding of -inf": (padded(-math.inf), BUG, "forgotten"),
    "-1e4 added to padding": (added(-1e4), BUG, "forgotten"),
    "a constant of 1e6": (finished(lambda x: x + 1e6), BUG, "forgotten"),
    "a softcap": (finished(lambda x: 5 * (x / 5).tanh()), BUG, "forgotten"),
    "log-probabilities": (finished(lambda x: x.log_softmax(-1)), BUG, "forgotten"),
    "small logits": (scaled("head", 1e-6), BUG, "forgotten"),
    "large logits": (scaled("head", 1e4), BUG, "forgotten"),
    "one token that always wins": (
        finished(lambda x: x + 500 * (torch.arange(VOCAB) == 3)),
        BUG,
        "forgotten",
    ),
    "projections of zero": (zeroed("proj"), UNDECIDED, "weights are zero: proj.0.weight"),
    "a head of zero": (zeroed("head"), UNDECIDED, "weights are zero: head.weight"),
    "logits of zero": (finished(lambda x: 0 * x), UNDECIDED, "all tokens have the same logit"),
    "attention that is off": (
        {"mask": lambda self, q, k: k == q[:, None]},
        UNDECIDED,
        "do not depend on what the cache holds",
    ),
}


def adapter(net, session=Session, **declared):
    """An adapter of a changed library."""
    net_type = type("Net", (Net,), net)
    return type("Adapter", (Adapter,), {"net_type": net_type, "session_type": session} | declared)()


QUICK = {"tokens": 0}
# One row of each kind: nothing, padding, another scale, one winner, zeros, attention that is off.
ALWAYS = ["nothing hides it", "padding of -inf", "log-probabilities", "large logits"]
ALWAYS += ["one token that always wins", "projections of zero", "attention that is off"]


@pytest.mark.parametrize("how", quick(HIDING, *ALWAYS))
def test_a_cache_that_forgets_everything_is_never_sound(how):
    net, verdict, words = HIDING[how]
    report = referee(adapter(net, ForgetfulSession), **QUICK)
    assert report.verdict is verdict, report
    assert words in str(report)


@pytest.mark.parametrize("how", quick(HIDING, *ALWAYS))
def test_a_sound_cache_behind_it_is_no_bug(how):
    net, verdict, _ = HIDING[how]
    report = referee(adapter(net), **QUICK)
    assert not report.bugs, report
    assert report.verdict.sound == (verdict is BUG), report


def altered(put):
    """A session whose store gives other keys and values than it was given.  (layer, k, v)"""

    class Altered(Store):
        def put(self, layer, k, v):
            first = layer not in self.keys
            k, v = super().put(layer, k, v)
            return (k, v) if first else put(self, layer, k, v)

    return type("AlteredSession", (Session,), {"store": Altered})


def without(x, at):
    return torch.cat([x[:, :, :at] * 0, x[:, :, at:]], 2)


# Caches that lose less than everything: what each hands to the attention after the first call.
FORGETFUL = {
    "the first value": lambda self, layer, k, v: (k, without(v, 1)),
    "the second head": lambda self, layer, k, v: (k * torch.tensor([1.0, 0])[:, None, None], v),
    "the last layer": lambda self, layer, k, v: (k, v * (layer < LAYERS - 1)),
    "the order": lambda self, layer, k, v: (k, v.roll(1, 2)),
    "the batch": lambda self, layer, k, v: (k.roll(1, 0), v.roll(1, 0)),
    "the last bits": lambda self, layer, k, v: (k.bfloat16().to(k.dtype), v),
}


@pytest.mark.parametrize(
    "what",
    quick(
        FORGETFUL, "the first value", "the second head", "the order", "the batch", "the last bits"
    ),
)
def test_a_cache_that_loses_a_part_is_a_bug(what):
    report = referee(adapter({}, altered(FORGETFUL[what])), **QUICK)
    assert report.verdict is BUG, report


def spoiled(value):
    """A session that gives token 5 this logit in every pass but the first."""

    class Spoiled(Session):
        def read(self, ids):
            first = not self.held.length
            logits = super().read(ids)
            if not first:
                logits = torch.where(torch.arange(VOCAB) == 5, value, logits)
            return logits

    return Spoiled


@pytest.mark.parametrize("value", [-math.inf, math.nan, math.inf])
def test_a_logit_that_is_no_number_is_a_bug(value):
    report = referee(adapter({}, spoiled(value)), **QUICK)
    assert report.verdict is BUG, report


def test_damages_are_counted():
    report = referee(Adapter(), **QUICK)
    assert len(report.damages) == 6
    assert all(damage.seen for damage in report.damages)
    assert "6 of 6 faults that the referee planted were found" in str(report)
    assert "texts of up to 24 tokens" in str(report)
    hidden = referee(adapter(zeroed("proj")), **QUICK)
    assert not all(damage.seen for damage in hidden.damages)
    assert "faults that the referee planted were found; not: its cache, " in str(hidden)


def test_a_damage_that_a_lossy_cache_may_do_is_not_detected():
    report = referee(adapter({}, expects=10.0), **QUICK)
    assert report.verdict is UNDECIDED
    assert "was declared" in str(report)


def test_a_part_of_the_weights_is_zero():
    """The other layers show the cache, so the verdict stands; what is hidden is named."""

    def __init__(self, seed=0):
        Net.__init__(self, seed)
        self.proj[0].weight.data.zero_()

    report = referee(adapter({"__init__": __init__}), **QUICK)
    assert report.verdict.sound, report
    assert "1 weights are zero (proj.0.weight): a mistake behind them would not show" in str(report)
    assert HEADS * 8 == WIDTH


class AnotherModel(Adapter):
    """In float64 it is a model of other weights."""

    def to(self, dtype):
        other = AnotherModel(seed=5 if dtype == torch.float64 else 0)
        other.net.to(dtype)
        return other


def test_a_float64_copy_that_is_another_model_proves_nothing():
    report = referee(AnotherModel(), **QUICK)
    assert report.verdict is UNDECIDED, report
    assert "the float64 copy is another model: float32 moves logits by" in str(report)
    broken = type("Broken", (AnotherModel,), {"session_type": ForgetfulSession})
    assert not referee(broken(), **QUICK).verdict.sound
