"""The kind of a mistake is named, its text is short, and its script runs without this project."""

import functools
import os
import re
import subprocess
import sys
import textwrap

import pytest
import torch
from other_library import LONGEST, Adapter, Net, Session, Store
from rows import quick

from nanogpt.files import ROOT
from nanogpt.kv_referee import Verdict, referee
from nanogpt.kv_referee.report import Mistake, ScenarioKind

QUICK = {"tokens": 0}


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


class Shuffled(Session):
    """The texts of a batch are moved by one after the prompt."""

    def read(self, ids):
        logits = super().read(ids)
        return logits.roll(1, 0) if self.held.length > ids.shape[1] else logits


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


def loses_last(net, old, new):
    return joined(net, old[:, :-1] if old.shape[1] > 2 else old, new)


def forgets(net, old, new):
    return net(new)


# What is broken, the kind of mistake, and a part of the words that describe it.
MISTAKES = {
    "everything forgotten": (
        remembering(forgets),
        Mistake.LOST_TOKEN,
        "or most of it",
    ),
    "the first token lost": (
        remembering(forgets_first),
        Mistake.LOST_TOKEN,
        "forgotten|must depend on",
    ),
    "the last token lost": (
        remembering(loses_last),
        Mistake.LOST_TOKEN,
        r"depend on token \d",
    ),
    "positions one too high": (
        {"store": shifted(1), "base": Placed},
        Mistake.SHIFTED_POSITION,
        r"positions are shifted by \+1 from token",
    ),
    "positions that begin again": (
        {"store": {"positions": lambda self, pos: pos - self.length}, "base": Placed},
        Mistake.SHIFTED_POSITION,
        "positions restart at 0",
    ),
    "texts of a batch moved": (
        {"session_type": Shuffled},
        Mistake.WRONG_ROW,
        r"row \d depends on a token of another text",
    ),
    "a stale row": (
        {"session_type": Pool},
        Mistake.PREVIOUS_REQUEST,
        "depend on what an earlier session has read",
    ),
}


def broken(how):
    """The adapter with this mistake."""
    change = MISTAKES[how][0]
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
    _, mistake, words = MISTAKES[how]
    assert report.verdict is Verdict.BUG, report
    (first, *_) = report.bugs
    assert first.mistake is mistake, first
    assert re.search(words, first.cause), first.cause
    assert f"kind of mistake: {mistake}: " in str(report)


def test_a_kind_that_nothing_shows_is_not_named():
    """Values that are keys: each token has an influence, and none is foreign."""

    class KeysForValues(Store):
        def put(self, layer, k, v):
            first = layer not in self.keys
            k, v = super().put(layer, k, v)
            return (k, v) if first else (k, k)

    session = type("S", (Session,), {"store": KeysForValues})
    report = referee(type("Broken", (Adapter,), {"session_type": session})(), **QUICK)
    assert report.bugs[0].mistake is None, report
    assert "kind of mistake: not known: no token has lost half of its influence" in str(report)
    assert "whether positions are shifted needs placed(ids, pos)" in str(report)


def test_a_slight_mistake_that_spares_some_tokens_is_no_rounding():
    """A state that is scaled a little, for pieces alone: single tokens are right."""

    class Slight(Store):
        def put(self, layer, k, v):
            behind = layer in self.keys and k.shape[2] > 1
            k, v = super().put(layer, k, v)
            return k, v * 1.001 if behind else v

    session = type("S", (Session,), {"store": Slight})
    report = referee(type("Broken", (Adapter,), {"session_type": session})(), **QUICK)
    assert report.verdict is Verdict.BUG
    assert report.bugs[0].mistake is None, report


@pytest.mark.parametrize("how", MISTAKES)
def test_the_text_that_shows_it_is_short(how):
    report = judged(how)
    assert all(bug.code for bug in report.bugs)
    most = 80 if how == "a stale row" else 12  # what outlives a model is not made shorter
    assert report.bugs[0].tokens <= most, report.bugs[0].code


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

class LastOnly(Forgetful):
    def plain(self, ids):
        return super().plain(ids)[:, -1]

    def start(self, rows):
        session = super().start(rows)
        read = session.read
        session.read = lambda ids: read(ids)[:, -1]
        return session
"""
RUN = """
import sys
sys.modules["nanogpt"] = None  # the import of this project fails
exec(open("shown.py", encoding="utf-8").read())
"""


@pytest.mark.parametrize("kind", quick(["Forgetful", "Dicts", "Padded", "LastOnly"], "Forgetful"))
def test_the_script_runs_without_this_project(kind, tmp_path, monkeypatch):
    (tmp_path / "their_library.py").write_text(textwrap.dedent(LIBRARY), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "their_library", raising=False)
    import their_library

    report = referee(getattr(their_library, kind)(), **QUICK)
    assert f"MODEL = {kind}()" in report.bugs[0].code
    assert shown(report.bugs[0].code, tmp_path) > 0.01


def shown(code, folder):
    """What a script prints, in a process that cannot import this project."""
    (folder / "shown.py").write_text(code, encoding="utf-8")
    paths = os.pathsep.join([str(folder), str(ROOT / "tests")])
    ended = subprocess.run(
        [sys.executable, "-c", RUN],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        encoding="utf-8",
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return float(ended.stdout)


# Bugs that one kind of scenario alone shows: methods of a session, a store or a network.
SHOWN_BY = {
    ScenarioKind.REWIND: "class session_type(Session):\n    def rewind(self, n): pass",
    ScenarioKind.FORK: "class session_type(Session):\n    def fork(self): return self",
    ScenarioKind.BEAMS: "class session_type(Session):\n    def reorder(self, rows): pass",
    ScenarioKind.LEAVING: (
        "class session_type(Session):\n"
        "    def keep(self, rows): self.each(lambda x: x[: len(rows)])"
    ),
    ScenarioKind.BATCH: (
        "class session_type(Session):\n"
        "    def read(self, ids):\n"
        "        logits = super().read(ids)\n"
        "        return logits if len(ids) < 3 else logits.roll(1, 0)\n"
        "    reorder = keep = None"
    ),
    ScenarioKind.INTERLEAVED: (
        "class session_type(Session):\n"
        "    held_by_all = []\n"
        "    def __init__(self, net, rows):\n"
        "        super().__init__(net, rows)\n"
        "        self.held_by_all[:] = [self.held]\n"
        "    def read(self, ids):\n"
        "        return self.net(ids, self.held_by_all[0])\n"
        "    fork = None"
    ),
    ScenarioKind.PARTING: (
        "class session_type(Session):\n"
        "    def read(self, ids):\n"
        "        if self.held.length or ids.numel() < 6: return super().read(ids)\n"
        "        known, key = vars(self.net).setdefault('known', {}), tuple(ids[0, :6].tolist())\n"
        "        if key in known and len(known[key]) >= ids.shape[1]:\n"
        "            ids = known[key][None, : ids.shape[1]]\n"
        "        known[key] = ids[0]\n"
        "        return super().read(ids)"
    ),
    ScenarioKind.THREADS: (
        "class net_type(Adapter.net_type):\n"
        "    scratch = {}\n"
        "    def finish(self, x):\n"
        "        self.scratch[0] = x\n"
        "        x = self.scratch[0]\n"
        "        return super().finish(x)"
    ),
}


@pytest.mark.parametrize("kind", quick(SHOWN_BY, ScenarioKind.BEAMS, ScenarioKind.THREADS))
def test_a_bug_of_each_kind_of_scenario_has_a_script(kind, tmp_path, monkeypatch):
    name = f"library_of_{kind.name.lower()}"
    body = textwrap.indent(SHOWN_BY[kind], "    ")
    code = f"from other_library import Adapter, Session\n\nclass Broken(Adapter):\n{body}\n"
    (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    broken_library = __import__(name)
    report = referee(broken_library.Broken(), **QUICK)
    assert report.verdict is Verdict.BUG, report
    (bug, *_) = (bug for bug in report.bugs if bug.kind is kind)
    assert shown(bug.code, tmp_path) > 0.01, bug.code
