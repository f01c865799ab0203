"""Right both ways: what people brought that was convicted without reason, or acquitted.

Each row of SOUND and WRONG is a case that somebody met. A sound row is no bug; the same with a
cache that forgets is one where a test below says so.
"""

import threading

import numpy as np
import pytest
import torch
from other_library import LAYERS, LONGEST, SIZE, VOCAB, Adapter, Net, Session, Store
from rows import quick
from torch import nn

from nanogpt.kv_referee import NotOffered, Verdict, referee
from nanogpt.kv_referee.report import Mistake, ScenarioKind


def adapter(net=None, session=None, store=None, **declared):
    """An adapter of a library that differs in these methods."""
    net_type = type("Net", (Net,), net or {})
    store_type = type("Store", (Store,), store or {})
    session_type = type("Session", (Session,), {"store": store_type} | (session or {}))
    names = {"net_type": net_type, "session_type": session_type} | declared
    return type("Brought", (Adapter,), names)()


# ------------------------------------------------------------------ sound


class Trained(Adapter):
    """Given in train mode, with a layer that then drops."""

    def __init__(self):
        super().__init__()
        self.net.drop = nn.Dropout(0.3)
        self.net.train()

    class net_type(Net):
        def finish(self, x):
            return super().finish(self.drop(x))


class Four(Net):
    """A prompt needs four tokens."""

    def forward(self, ids, store=None):
        if ids.shape[1] < 4 and (store is None or store.length == 0):
            raise ValueError("at least four tokens")
        return super().forward(ids, store)


class Sparse(Net):
    """Each query reads the three keys that fit best, and all places are alike."""

    def __init__(self, seed=0):
        super().__init__(seed)
        self.places.weight.data.zero_()

    def forward(self, ids, store=None):
        store = store or Store()
        b, t = ids.shape
        x = self.tokens(ids)
        for layer in range(LAYERS):
            q, k, v = self.qkv[layer](x).view(b, t, 3, 2, SIZE).permute(2, 0, 3, 1, 4)
            k, v = store.put(layer, k, v)
            see = torch.arange(k.shape[2]) <= torch.arange(store.length, store.length + t)[:, None]
            # A value of its own for each place: among equal keys it matters which one is read.
            v = v + torch.arange(k.shape[2])[:, None].to(v.dtype) / 9
            scores = (q @ k.mT).masked_fill(~see, -torch.inf)
            # In a cache, the newest keys are the first ones in memory.
            order = torch.arange(k.shape[2]).flip(0) if store.length else slice(None)
            best = scores[..., order].topk(min(3, k.shape[2]))
            weights = torch.zeros_like(scores).scatter(-1, best.indices, best.values.softmax(-1))
            weights = weights[..., order] if store.length else weights
            y = weights.nan_to_num() @ v
            x = x + self.proj[layer](y.transpose(1, 2).reshape(b, t, -1))
        store.length += t
        return self.finish(x)


class Short(Net):
    """A table of 27 places, of which the adapter says nothing."""

    def __init__(self, seed=0):
        super().__init__(seed)
        self.places = nn.Embedding.from_pretrained(self.places.weight.data[:27])


class InNumPy(Store):
    """Keys and values in arrays of float32, whatever the model computes in."""

    def put(self, layer, k, v):
        arrays = [np.asarray(x.detach().numpy(), dtype=np.float32) for x in (k, v)]
        return super().put(layer, *(torch.from_numpy(x).to(k.dtype) for x in arrays))


class WholeInNumPy(Session):
    """All of the arithmetic in NumPy, the head in float32."""

    def read(self, ids):
        kept = {}
        with torch.no_grad():
            finish = type(self.net).finish
            type(self.net).finish = lambda net, x: kept.setdefault("x", x)
            try:
                super().read(ids)
            finally:
                type(self.net).finish = finish
        x = kept["x"].numpy()
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        head = self.net.head.weight.detach().numpy().astype(np.float32)
        return (x.astype(np.float32) @ head.T).astype(x.dtype)


class Attached(Session):
    """The cache is an attribute of the model while it reads: one thread at a time."""

    def read(self, ids):
        self.net.cache = self.held
        return self.net(ids, self.net.cache)


class Locked(Attached):
    """The same behind a lock."""

    lock = threading.Lock()

    def read(self, ids):
        with self.lock:
            return super().read(ids)


class Unsupported(Exception):
    """A library's own class for what it does not do."""


def refusing(error):
    def method(self, *arguments):
        raise error

    return {"reorder": method, "fork": method}


SOUND = {
    "given in train mode": lambda: Trained(),
    "a prompt of four, and drafts": lambda: type(
        "F", (Adapter,), {"net_type": Four, "shortest": 4}
    )(),
    "a prompt of four, undeclared": lambda: type("F", (Adapter,), {"net_type": Four})(),
    "ties of topk where tokens repeat": lambda: type("S", (Adapter,), {"net_type": Sparse})(),
    "a block size of 27, undeclared": lambda: type(
        "B", (Adapter,), {"net_type": Short, "longest": None, "vocab_size": VOCAB}
    )(),
    "a cache in NumPy's float32": lambda: adapter(session={"store": InNumPy}),
    "a pass in NumPy": lambda: type(
        "N", (Adapter,), {"session_type": WholeInNumPy, "threads": False}
    )(),
    "one thread at a time, declared": lambda: adapter(
        session={"read": Attached.read}, threads=False
    ),
    "a lock around the model": lambda: type("L", (Adapter,), {"session_type": Locked})(),
    "an exception of its own class, declared": lambda: adapter(
        session=refusing(Unsupported("no beams")), not_offered=(Unsupported,)
    ),
    "the package's class": lambda: adapter(session=refusing(NotOffered("no beams"))),
    "NotImplementedError": lambda: adapter(session=refusing(NotImplementedError())),
    "a full cache": lambda: adapter(session=refusing(MemoryError("no room"))),
}
SAID = {
    "given in train mode": "it was given in train mode, and judged in eval mode",
    "ties of topk where tokens repeat": "if a text repeats a token, so no text does",
    "a block size of 27, undeclared": "texts of up to 27 tokens",
    "one thread at a time, declared": "it declares threads=False",
    "an exception of its own class, declared": "no beams",
}


@pytest.mark.parametrize("how", SOUND)
def test_a_sound_model_is_acquitted(how):
    model = SOUND[how]()
    report = referee(model, tokens=8_000)
    assert report.verdict.sound, report
    assert SAID.get(how, "") in str(report)
    if how == "given in train mode":
        assert model.net.training, "it is left as it was"


# ------------------------------------------------------------------ wrong


class FirstIsWrong(Session):
    """The first session of a model reads while its table of positions is being made."""

    def __init__(self, net, rows):
        super().__init__(net, rows)
        self.early = not getattr(net, "warm", False)
        net.warm = True

    def read(self, ids):
        logits = super().read(ids)
        return logits.flip(-1) if self.early else logits


class FirstPromptKept(Session):
    """The model keeps the keys of its first prompt for ever, and takes others for it by length."""

    def read(self, ids):
        if self.held.length == 0 and len(ids) == 1 and ids.shape[1] > 4:
            kept = vars(self.net).setdefault("first_prompt", ids)
            if kept.shape == ids.shape:
                ids = torch.cat([kept[:, :-1], ids[:, -1:]], 1)
        return super().read(ids)


class LongerTwin(Session):
    """A prompt longer than what another session has read so far shares that session's keys."""

    alive = {}

    def read(self, ids):
        if self.held.length == 0 and len(ids) == 1:
            other = self.alive.get(ids.dtype)
            n = 0 if other is None or not hasattr(other, "ids") else other.ids.shape[1]
            self.alive[ids.dtype] = self
            if 4 < n < ids.shape[1] and torch.equal(other.ids, ids[:, :n]):
                self.held.keys, self.held.values = other.held.keys, other.held.values
                self.held.length = n
                self.ids = ids
                new = super().read(ids[:, n:])
                return torch.cat([self.net(ids[:, :n]), new], 1)
        self.ids = torch.cat([getattr(self, "ids", ids[:, :0]), ids], 1)
        return super().read(ids)

    fork = reorder = keep = None

    def rewind(self, n):
        raise NotOffered("no drafts")


class CoarseInt8(Store):
    """8 bits, with a floor of the scale that is far too large."""

    floor = 0.2

    def put(self, layer, k, v):
        def rounded(x):
            scale = (x.abs().amax(-1, keepdim=True) / 127).clamp(min=self.floor)
            return (x / scale).round() * scale

        return super().put(layer, rounded(k), rounded(v))


class Scratch(Net):
    """A buffer that all passes share."""

    def finish(self, x):
        self.buffer = x
        x = self.buffer
        return super().finish(x)


WRONG = {
    "the first session": lambda: type("F", (Adapter,), {"session_type": FirstIsWrong})(),
    "the first prompt is kept": lambda: type("P", (Adapter,), {"session_type": FirstPromptKept})(),
    "a twin with a longer prompt": lambda: type("T", (Adapter,), {"session_type": LongerTwin})(),
    "a floor of an 8-bit scale": lambda: adapter(session={"store": CoarseInt8}, expects=0.1),
    "a buffer of two threads": lambda: type("B", (Adapter,), {"net_type": Scratch})(),
    "one thread at a time, undeclared": lambda: adapter(session={"read": Attached.read}),
}
SHOWN_BY = {
    "the first session": ScenarioKind.FIRST,
    "a twin with a longer prompt": ScenarioKind.INTERLEAVED,
    "a buffer of two threads": ScenarioKind.THREADS,
    "one thread at a time, undeclared": ScenarioKind.THREADS,
}


@pytest.mark.parametrize("how", WRONG)
def test_a_wrong_cache_is_convicted(how):
    report = referee(WRONG[how](), tokens=0)
    assert report.verdict is Verdict.BUG, report
    assert SHOWN_BY.get(how, report.bugs[0].kind) in {bug.kind for bug in report.bugs}
    assert all(bug.code for bug in report.bugs)


def test_the_same_8_bits_without_the_floor_are_sound():
    model = adapter(session={"store": type("Int8", (CoarseInt8,), {"floor": 0.0})}, expects=0.1)
    report = referee(model, tokens=0)
    assert report.verdict.sound, report
    assert "of their spread, where 1.0e-01 was declared" in str(report)


# ------------------------------------------------------------------ no report is lost


class OwnError(Exception):
    """A library's class that its adapter does not declare."""


ERRORS = [OwnError, OSError, StopIteration, SystemExit]


@pytest.mark.parametrize("error", quick(ERRORS, OwnError, StopIteration), ids=str)
@pytest.mark.parametrize("method", ["reorder", "read"])
def test_an_exception_of_the_model_is_a_finding(error, method):
    def stops(self, argument):
        if method == "read" and self.held.length < 15:
            return Session.read(self, argument)
        raise error("out of the blue, for its pool has no capacity and is not supported")

    report = referee(adapter(session={method: stops}), tokens=0)
    assert report.verdict is Verdict.BUG
    assert f"it fails with {error.__name__}: " in str(report)
    assert all(bug.code for bug in report.bugs)


def test_a_plain_pass_that_stops_later_is_a_finding():
    class Stops(Adapter):
        count = 0

        def plain(self, ids):
            Stops.count += 1
            if Stops.count > 16:
                raise OwnError("no more")
            return super().plain(ids)

    report = referee(Stops(), tokens=0)
    assert not report.verdict.sound
    assert "no more" in str(report)


@pytest.mark.release
def test_an_interrupt_ends_it():
    def stops(self, rows):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        referee(adapter(session={"reorder": stops}), tokens=0)


# ------------------------------------------------------------------ the plain pass


class Dropping(Net):
    """Two experts, each of which takes half of the tokens of a pass and drops the rest."""

    def finish(self, x):
        n = x.shape[1]
        if n > 2:
            chosen = (x[..., 0] > 0).long()  # (B, T)
            place = torch.where(chosen > 0, chosen.cumsum(1), (1 - chosen).cumsum(1))
            x = torch.where((place <= n // 2)[..., None], x + x.roll(1, -1).tanh(), x)
        return super().finish(x)


def test_a_plain_pass_that_drops_tokens_is_not_held_against_the_cache():
    report = referee(type("D", (Adapter,), {"net_type": Dropping})(), tokens=0)
    assert report.verdict is Verdict.UNDECIDED, report
    assert "only some tokens move, as with experts that drop tokens" in str(report)


def test_a_plain_pass_that_starts_a_session_is_noted():
    class Again(Adapter):
        def plain(self, ids):
            return self.start(len(ids)).read(ids)

    report = referee(Again(), tokens=0)
    assert "its plain pass starts a session: a mistake that both share does not show" in str(report)


# ------------------------------------------------------------------ known bugs


def test_known_bugs_never_make_a_cache_sound():
    class Forgetful(Session):
        def read(self, ids):
            self.held.keys.clear()
            self.held.values.clear()
            return super().read(ids)

    model = type("Broken", (Adapter,), {"session_type": Forgetful})
    convicted = referee(model(), tokens=0)
    assert convicted.bugs[0].mistake is Mistake.LOST_TOKEN
    all_known = referee(model(), tokens=0, known=[bug.name for bug in convicted.bugs])
    assert not all_known.verdict.sound
    assert referee(model(), tokens=0, known=["its cache"]).verdict is Verdict.BUG


def test_texts_are_as_long_on_every_machine():
    assert LONGEST == 64
    first, second = (referee(Adapter(), seconds=seconds) for seconds in (100, 1000))
    assert first.tokens == second.tokens
    assert [f.way for f in first.findings] == [f.way for f in second.findings]
