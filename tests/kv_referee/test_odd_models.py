"""Sound models of other libraries that return, take or refuse something unusual: no bug is found.

A row changes the adapter, the session or the network of tests/other_library.py, and names what the
report says about it.
"""

import copy
from types import SimpleNamespace

import pytest
import torch
from other_library import LONGEST, VOCAB, Adapter, Net, Session, Store
from rows import quick

from nanogpt.kv_referee import referee


def refuse(if_, error=ValueError, words="refused"):
    """Raise this error where `if_` is true."""
    if if_:
        raise error(words)


def adapter(net=None, session=None, store=None, declared=None, **methods):
    """An adapter of a library that differs in these methods."""
    net_type = type("Net", (Net,), net or {})
    store_type = type("Store", (Store,), store or {})
    session_type = type("Session", (Session,), {"store": store_type} | (session or {}))
    names = {"net_type": net_type, "session_type": session_type} | methods | (declared or {})
    return type("Odd", (Adapter,), names)()


def returning(form, last=False):
    """Logits in another form, from the plain pass and from the session."""

    def plain(self, ids):
        logits = Adapter.plain(self, ids)
        return form(logits[:, -1:] if last else logits)

    def read(self, ids):
        logits = Session.read(self, ids)
        return form(logits[:, -1:] if last else logits)

    return {"plain": plain, "session": {"read": read}}


def refusing(when, error=ValueError, words="refused"):
    """A network that refuses a pass where when(ids, store) is true; a plain pass has no store."""

    def forward(self, ids, store=None):
        refuse(when(ids, store), error, words)
        return Net.forward(self, ids, store)

    return {"net": {"forward": forward}}


class Output(SimpleNamespace):
    """What transformers returns, more or less."""


class ReturnsNothing(Adapter):
    """`to` changes the object and returns None."""

    def to(self, dtype):
        self.net.to(dtype)


class OneDtype(Adapter):
    """Hides its module, and has no `to`."""

    def __init__(self):
        super().__init__()
        self.hidden = [self.net]
        del self.net

    def plain(self, ids):
        return self.hidden[0](ids)

    def start(self, rows):
        return Session(self.hidden[0], rows)


class Narrow(Store):
    """Buffers of float32, whatever the weights are."""

    def put(self, layer, k, v):
        k, v = super().put(layer, k.float(), v.float())
        return k, v


class Ring(Store):
    """Writes into buffers of all positions, allocated at the first call."""

    def put(self, layer, k, v):
        end = self.length + k.shape[2]
        if layer not in self.keys:
            shape = (*k.shape[:2], LONGEST, k.shape[3])
            self.keys[layer] = k.new_zeros(shape)
            self.values[layer] = v.new_zeros(shape)
        self.keys[layer][:, :, self.length : end] = k
        self.values[layer][:, :, self.length : end] = v
        return self.keys[layer][:, :, :end], self.values[layer][:, :, :end]


class RingSession(Session):
    """Its buffers stay as they are when tokens are taken back."""

    store = Ring
    fork = None

    def rewind(self, n):
        self.held.length -= n


class Int8(Store):
    """Keys and values in 8 bits, a scale for each row."""

    def put(self, layer, k, v):
        def rounded(x):
            scale = x.abs().amax(-1, keepdim=True) / 127
            return (x / scale).round() * scale

        return super().put(layer, rounded(k), rounded(v))


class OnlyReads:
    """A session that can read and nothing else."""

    def __init__(self, net, rows):
        self.session = Session(net, rows)

    def read(self, ids):
        return self.session.read(ids)


LOGITS = "logits"
ODD = {
    # ------------------------------------------------------------ what is returned
    "a tuple": (returning(lambda x: (x, None)), ""),
    "a dict": (returning(lambda x: {LOGITS: x, "loss": None}), ""),
    "an object": (returning(lambda x: Output(logits=x)), ""),
    "an array": (returning(lambda x: x.detach().numpy()), ""),
    "a pass that writes into its ids": (
        {"plain": lambda self, ids: (Adapter.plain(self, ids), ids.zero_())[0]},
        "",
    ),
    "logits with gradients": (returning(lambda x: x.clone().requires_grad_()), ""),
    "(T, V), and one text at a time": (
        {
            "plain": lambda self, ids: (refuse(len(ids) > 1), Net.forward(self.net, ids)[0])[1],
            "session": {
                "read": lambda self, ids: (refuse(len(ids) > 1), Session.read(self, ids)[0])[1]
            },
        },
        "two texts in a batch (refused)",
    ),
    "the last logits": (returning(lambda x: x, last=True), ""),
    # ------------------------------------------------------------ what is refused
    "a prompt of fewer than four": (
        refusing(lambda ids, store: (store is None or store.length == 0) and ids.shape[1] < 4),
        "a text of 2 tokens (refused)",
    ),
    "two texts": (
        refusing(lambda ids, store: len(ids) > 1, NotImplementedError, "batch of one"),
        "two texts in a batch (batch of one)",
    ),
    "several tokens after the prompt": (
        refusing(lambda ids, store: store is not None and store.length and ids.shape[1] > 1),
        "several tokens after a prompt (refused)",
    ),
    "everything but reading": ({"session_type": OnlyReads}, "it has no fork"),
    "a rewind": (
        {"session": {"rewind": lambda self, n: refuse(True, NotImplementedError, "no rewind")}},
        "no rewind",
    ),
    "beams": (
        {"session": {"reorder": lambda self, rows: refuse(True, NotImplementedError, "no beams")}},
        "its cache, beams that change places, of 24 tokens (no beams)",
    ),
    # ------------------------------------------------------------ how it is converted
    "to() that returns nothing": ({"class": ReturnsNothing}, ""),
    "one dtype": ({"class": OneDtype}, "only in float32"),
    "a cache that refuses float64": (
        {
            "store": {
                "put": lambda self, layer, k, v: (
                    refuse(k.dtype == torch.float64, RuntimeError, "expected float32"),
                    Store.put(self, layer, k, v),
                )[1]
            }
        },
        "not in float64: expected float32",
    ),
    "a cache of float32 under float64": (
        {"session": {"store": Narrow}, "net": {"finish": lambda self, x: Net.finish(self, x)}},
        "",
    ),
    # ------------------------------------------------------------ how it is cached
    "buffers of all positions": ({"session_type": RingSession}, ""),
    "declared int8": (
        {"session": {"store": Int8}, "declared": {"expects": 0.1}},
        "was declared",
    ),
    "a declared window": ({"declared": {"window": 48, "edges": (7,)}}, ""),
    "no longest text": ({"declared": {"longest": None, "vocab_size": VOCAB}}, ""),
}


def odd(how):
    """The adapter of a row, and a part of its report."""
    row, words = ODD[how]
    row = dict(row)
    kind = row.pop("class", None)
    if kind is not None:
        return kind(), words
    declared = dict(row.pop("declared", {}))
    parts = {name: row.pop(name) for name in ("net", "session", "store") if name in row}
    return adapter(**parts, declared=declared, **row), words


def stops(error):
    def start(self, rows):
        raise error

    return start


REFUSED = {
    "start stops": ({"start": stops(KeyError("no cache"))}, "fails on its first call"),
    "plain stops": (
        {"plain": lambda self, ids: refuse(True, RuntimeError, "no weights")},
        "fails on its first call .RuntimeError: no weights",
    ),
    "texts come second": (
        {"plain": lambda self, ids: Adapter.plain(self, ids).transpose(0, 1)},
        "plain.ids. returned .8, 1, 40. for 1 texts of 8 tokens",
    ),
}


@pytest.mark.parametrize("how", REFUSED)
def test_an_adapter_that_cannot_work_is_refused_in_a_line(how):
    methods, message = REFUSED[how]
    with pytest.raises(ValueError, match=message) as refused:
        referee(adapter(**methods))
    assert "\n" not in str(refused.value)


QUICK = {"tokens": 0}


# One row of each kind: what is returned, what is refused, conversion, cache.
ALWAYS = ["a tuple", "an array", "the last logits", "two texts", "a rewind"]
ALWAYS += ["to() that returns nothing", "one dtype", "buffers of all positions", "declared int8"]


@pytest.mark.parametrize("how", quick(ODD, *ALWAYS))
def test_a_sound_model_that_is_odd_is_no_bug(how):
    model, words = odd(how)
    report = referee(model, **QUICK)
    assert report.verdict.sound, report
    refused = [f"{one.way} ({one.reason})" for one in report.not_offered]
    assert words in "\n".join([str(report), *refused])


STORELESS = ("everything but reading",)
CHANGEABLE = [how for how in ODD if "class" not in ODD[how][0] and how not in STORELESS]


@pytest.mark.parametrize("how", quick(CHANGEABLE, "a tuple", "two texts", "declared int8"))
def test_a_model_that_is_odd_and_forgets_is_not_sound(how):
    """The same oddness hides no cache that hands out its new keys alone."""
    model, _ = odd(how)
    broken = copy.copy(model)
    usual = model.session_type

    class Forgetful(usual):
        def read(self, ids):
            self.held.keys.clear()
            self.held.values.clear()
            return super().read(ids)

    type(broken).session_type = Forgetful
    try:
        report = referee(broken, **QUICK)
    finally:
        type(broken).session_type = usual
    assert not report.verdict.sound, report
