"""The kind of a mistake is named, its text is short, and its script runs without this project."""

import functools
import math
import os
import re
import subprocess
import sys
import textwrap

import pytest
import torch
from other_library import LONGEST, Adapter, Net, Session, Store
from rows import quick

from nanogpt import referee
from nanogpt.files import ROOT
from nanogpt.kv_referee.report import CachedRun, Verdict
from nanogpt.kv_referee.texts import total

QUICK = {"seconds": math.inf, "length": 30, "requests": 4}


class PlacedNet(Net):
    """Its plain pass takes positions."""

    def placed(self, ids, pos):
        store = Store()
        store.positions = lambda _: pos
        return self(ids, store)


class Placed(Adapter):
    net_type = PlacedNet

    def placed(self, ids, pos):
        return self.net.placed(ids, pos)


def shifted(n):
    """Positions of all calls but the first."""
    return {"positions": lambda self, pos: (pos + n * (self.length > 0)).clamp(0, LONGEST - 1)}


class Pool(Session):
    """Buffers that all requests share, of which row 2 is written too late."""

    class store(Store):
        pool = {}

        def put(self, layer, k, v):
            key = (layer, k.dtype, len(k))
            shape = (*k.shape[:2], LONGEST, k.shape[3])
            held = self.pool.setdefault(key, [k.new_zeros(shape), v.new_zeros(shape)])
            end = self.length + k.shape[2]
            found = []
            for buffer, new in zip(held, (k, v), strict=True):
                old = buffer[:, :, 2].clone()
                buffer[:, :, self.length : end] = new
                written = buffer[:, :, 2].clone()
                if self.length <= 2 < end:
                    buffer[:, :, 2] = old
                found.append(buffer[:, :, :end].clone())
                buffer[:, :, 2] = written
            return found

    def rewind(self, n):
        self.held.length -= n


class KeysForValues(Store):
    def put(self, layer, k, v):
        if layer in self.keys:
            k = torch.cat([self.keys[layer], k], 2)
            v = torch.cat([self.values[layer], v], 2)
        self.keys[layer] = k
        self.values[layer] = k.clone()
        return k, v


class OffByOne(Session):
    """After the prompt it returns the logits that it returned before."""

    last = None

    def read(self, ids):
        logits = super().read(ids)
        if self.last is not None:
            logits, self.last = torch.cat([self.last, logits[:, :-1]], 1), logits[:, -1:]
        else:
            self.last = logits[:, -1:]
        return logits


class Shuffled(Session):
    """The texts of a batch are moved by one after the prompt."""

    def read(self, ids):
        logits = super().read(ids)
        return logits.roll(1, 0) if self.held.length > ids.shape[1] else logits


class Neighbour(Session):
    """In a batch, a text reads the keys of its neighbour."""

    class store(Store):
        def put(self, layer, k, v):
            first = layer not in self.keys
            k, v = super().put(layer, k, v)
            return (k, v) if first else (k.roll(1, 0), v)


def remembering(read):
    """A session that recomputes what it is given in another way.  (texts so far, new tokens)"""

    class Recomputes(Session):
        def __init__(self, net, rows):
            super().__init__(net, rows)
            self.texts = torch.zeros(rows, 0, dtype=torch.long)

        def read(self, ids):
            logits = read(self.net, self.texts, ids)
            self.texts = torch.cat([self.texts, ids], 1)
            return logits[:, -ids.shape[1] :]

        def rewind(self, n):
            self.texts = self.texts[:, :-n]

        reorder = keep = fork = None

    return {"session_type": Recomputes}


def joined(net, old, new):
    return net(torch.cat([old, new], 1))


def forgets_first(net, old, new):
    return joined(net, old[:, 1:], new)


def doubles_last(net, old, new):
    return joined(net, torch.cat([old, old[:, -1:]], 1), new)


def loses_last(net, old, new):
    return joined(net, old[:, :-1] if old.shape[1] > 2 else old, new)


def swaps(net, old, new):
    if old.shape[1] > 2:
        old = torch.cat([old[:, 1:2], old[:, :1], old[:, 2:]], 1)
    return joined(net, old, new)


def forgets(net, old, new):
    return net(new)


def looks_ahead(self, q_pos, k_pos):
    """The mask of several tokens behind others lets each see all of them."""
    seen = k_pos <= q_pos[:, None]
    return seen if q_pos[0] == 0 else seen | True


# What is broken, and a part of the words that name it.
MISTAKES = {
    "everything forgotten": (remembering(forgets), "is forgotten"),
    "the first token lost": (remembering(forgets_first), "token 0 is missing|forgotten"),
    "the last token lost": (remembering(loses_last), r"token \d+ is missing"),
    "the last token twice": (remembering(doubles_last), r"token \d+ is in the cache twice"),
    "two tokens exchanged": (remembering(swaps), "tokens 0 and 1 are swapped"),
    "positions one too high": (
        {"store": shifted(1), "base": Placed},
        r"positions are shifted by \+1 from token",
    ),
    "positions two too high": (
        {"store": shifted(2), "base": Placed},
        r"positions are shifted by \+2 from token",
    ),
    "positions that begin again": (
        {"store": {"positions": lambda self, pos: pos - self.length}, "base": Placed},
        "positions restart at 0|positions are shifted by -1",
    ),
    "a mask that looks ahead": (
        {"net": {"mask": looks_ahead}},
        "the mask is wrong: the logits of token 1 depend on the later token 2",
    ),
    "keys kept as values": (
        {"session_type": type("K", (Session,), {"store": KeysForValues})},
        "the same numbers as keys and as values",
    ),
    "rows of logits off by one": ({"session_type": OffByOne}, "rows of logits are off by one"),
    "texts of a batch moved": (
        {"session_type": Shuffled},
        r"row \d has the logits of row \d",
    ),
    "a neighbour's keys": ({"session_type": Neighbour}, r"row \d depends on row \d"),
    "a stale row": (
        {"session_type": Pool},
        "rows of the previous request are left in the cache: its tokens? .*2 still count",
    ),
}


def broken(how):
    """The adapter with this mistake."""
    change, _ = MISTAKES[how]
    change = dict(change)
    base = change.pop("base", Adapter)
    net = change.pop("net", None)
    store = change.pop("store", None)
    if net:
        change["net_type"] = type("Net", (base.net_type,), net)
    if store:
        store_type = type("Store", (Store,), store)
        change["session_type"] = type("Session", (Session,), {"store": store_type})
    return type("Broken", (base,), change)()


@functools.cache
def judged(how):
    """The report on one of the mistakes."""
    return referee(broken(how), **QUICK)


@pytest.mark.parametrize("how", MISTAKES)
def test_the_kind_of_a_mistake_is_named(how):
    report = judged(how)
    words = MISTAKES[how][1]
    assert report.verdict is Verdict.BUG, report
    causes = [bug.cause for bug in report.bugs if bug.cause]
    assert any(re.search(words, cause) for cause in causes), (causes, str(report))
    assert re.search(words, str(report))


@pytest.mark.parametrize("how", MISTAKES)
def test_the_text_that_shows_it_is_short(how):
    report = judged(how)
    runs = [bug.how for bug in report.bugs if bug.code and isinstance(bug.how, CachedRun)]
    assert all(total(run.lengths) <= 12 for run in runs), runs
    assert runs or how == "a stale row"  # it takes two requests


LIBRARY = """
import torch
from other_library import Adapter, Session, Store

class Forgets(Store):
    def put(self, layer, k, v):
        self.keys.pop(layer, None)
        return super().put(layer, k, v)

class ForgetfulSession(Session):
    store = Forgets

class Forgetful(Adapter):
    session_type = ForgetfulSession

class Dicts(Forgetful):
    def plain(self, ids):
        return {"logits": super().plain(ids)}

    def start(self, rows):
        session = super().start(rows)
        read = session.read
        session.read = lambda ids: {"logits": read(ids)}
        return session

class Padded(Forgetful):
    class net_type(Adapter.net_type):
        def finish(self, x):
            logits = super().finish(x)
            return torch.where(torch.arange(40) < 30, logits, -torch.inf)

class AtOnce(Adapter):
    start = None
    longest = 64

    def cached(self, pieces):
        return torch.cat([self.net(piece) for piece in pieces], 1)
"""
RUN = """
import sys
sys.modules["nanogpt"] = None  # the import of this project fails
exec(open("shown.py", encoding="utf-8").read())
"""


@pytest.mark.parametrize("kind", quick(["Forgetful", "Dicts", "Padded", "AtOnce"], "Forgetful"))
def test_the_script_runs_without_this_project(kind, tmp_path, monkeypatch):
    (tmp_path / "their_library.py").write_text(textwrap.dedent(LIBRARY), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "their_library", raising=False)
    import their_library

    report = referee(getattr(their_library, kind)(), **QUICK)
    (code,) = [bug.code for bug in report.bugs if bug.code]
    assert f"MODEL = {kind}()" in code
    (tmp_path / "shown.py").write_text(code, encoding="utf-8")
    paths = os.pathsep.join([str(tmp_path), str(ROOT / "tests")])
    ended = subprocess.run(
        [sys.executable, "-c", RUN],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        encoding="utf-8",
    )
    assert ended.stdout.startswith("tensor("), ended.stdout + ended.stderr
    numbers = [float(x) for x in ended.stdout.split("[[")[1].split("]]")[0].split(",")]
    assert numbers[0] < 1e-9
    assert max(numbers) > 0.01
