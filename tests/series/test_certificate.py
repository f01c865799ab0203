# ruff: noqa: E501 (code in strings)
"""The certificate: it can be checked, and it cannot be had with a bug."""

import datetime
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from answers.wrong import KEEP, WRITE
from IPython.core.error import StdinNotImplementedError
from notebook_fixtures import brief_referee

from nanogpt.cli import main
from nanogpt.decoder.checkpoint import load_checkpoint, save_checkpoint
from nanogpt.files import KEEPER, LECTURE_FORM
from nanogpt.series import certificate as page
from nanogpt.series import mine, proof
from nanogpt.series.checks import EXERCISES, finding
from nanogpt.series.nbfile import solution
from nanogpt.series.session import open_run

REAL_CORPUS = True

NAMES = [name for name, one in EXERCISES.items() if one.notebook in ("01", "02", "06")]
TEXT = "\n\n\n".join(map(solution, NAMES))
GUARD = "if self.cache is not None"
EMPTY = "pos.new_full((self.capacity,), -1)"
LOOP = "pos[-1:] + 1"
INIT = "    def __init__(self, capacity=None):\n"
SPEED = {"speed": "400 tokens a second", "rung": "rung 2 of 9", "equal": True}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Notebook 06's run; what is judged is judged briefly."""
    brief_referee(monkeypatch)
    monkeypatch.setenv("NANOGPT_MINE", str(tmp_path / "mine"))
    monkeypatch.setenv("NANOGPT_OUT", str(tmp_path / "out"))
    monkeypatch.setattr(page, "SEEDS", 2)
    monkeypatch.setattr(proof, "TEXTS", proof.TEXTS[:1])
    monkeypatch.setattr(page, "TOKENS", 30)
    (tmp_path / "mine").mkdir()
    yield open_run("06", profile="smoke", mine="true")
    mine.choose("auto")


@pytest.mark.release
def test_a_certificate_is_written_verified_and_invalidated_by_a_change(run, capsys):
    path = mine.lesson_path()
    path.write_text(TEXT, encoding="utf-8")
    page.certificate(run, load_checkpoint(LECTURE_FORM), **SPEED)
    there = str(path.with_name("certificate.html"))
    assert path.with_name("certificate.png").stat().st_size > 10_000
    assert main(["verify", "certificate"]) == 0
    assert "written by me: attention_weights, one_step, visible" in capsys.readouterr().out
    with pytest.raises(mine.LessonError, match="with other weights.*pass their checkpoint"):
        page.recomputed(Path(there), KEEPER)
    path.write_text(f"{TEXT}\n# by hand\n", encoding="utf-8")
    assert main(["verify", "certificate", there]) == 1
    assert "It does not hold: my code has changed: it is now " in capsys.readouterr().out
    path.write_text(TEXT, encoding="utf-8")
    text = Path(there).read_text(encoding="utf-8")
    Path(there).write_text(text.replace("over 2 seeds", "over 9 seeds"), encoding="utf-8")
    assert main(["verify", "certificate", there]) == 1
    said = capsys.readouterr().out
    assert "It does not hold: the referee has changed: it is now only rounding differences" in said


@pytest.mark.release
def test_a_certificate_has_a_name_and_a_date_and_holds_with_weights_of_a_run(
    run, monkeypatch, tmp_path
):
    """In a process of its own, with nothing but the command that is printed on it."""
    weights = run.checkpoint(run.profile.size)
    saved = load_checkpoint(LECTURE_FORM)
    save_checkpoint(weights, saved.model, saved.meta | {"step": 1})
    trained = load_checkpoint(weights)
    mine.lesson_path().write_text(TEXT, encoding="utf-8")
    monkeypatch.setenv("NANOGPT_NAME", "  Ada <L>\t")
    facts = page.certificate(run, trained, **SPEED)
    assert facts["name"] == "Ada <L>"
    assert datetime.date.fromisoformat(facts["date"])
    path = mine.lesson_path().with_name("certificate.html")
    assert page.facts_at(path) == facts
    monkeypatch.delenv("NANOGPT_NAME")
    assert page.known_name(path) == "Ada <L>"
    elsewhere = tmp_path / "another machine"
    path.parent.rename(elsewhere)
    weights.with_name(f"{weights.name}.safetensors").unlink()
    _, changed = page.recomputed(elsewhere / path.name)
    assert changed == []
    (elsewhere / "certificate.safetensors").unlink()
    with pytest.raises(
        mine.LessonError, match="neither next to it nor from a run here: pass their"
    ):
        page.recomputed(elsewhere / path.name)


@pytest.mark.parametrize(
    ("answer", "name"),
    [("Ada", "Ada"), ("", ""), (EOFError, ""), (StdinNotImplementedError("no"), "")],
    ids=str,
)
def test_a_name_is_asked_for_where_somebody_can_answer(answer, name, monkeypatch, tmp_path):
    monkeypatch.delenv("NANOGPT_HEADLESS", raising=False)
    monkeypatch.delenv("NANOGPT_NAME", raising=False)
    asked = Mock(side_effect=[answer])
    monkeypatch.setattr("builtins.input", asked)
    assert page.known_name(tmp_path / "none") == ""
    assert not asked.called, "this is no notebook"
    monkeypatch.setattr(page, "get_ipython", lambda: SimpleNamespace(kernel=1))
    assert page.known_name(tmp_path / "none") == name


def test_a_verdict_that_another_process_may_not_share_is_not_on_it(monkeypatch):
    """A sound cache is "equal" in one process and "rounding" in another."""
    found = []
    for verdict in page.SOUND:
        report = SimpleNamespace(verdict=verdict, findings=[1, 2])
        monkeypatch.setattr(page, "_computed", lambda *_, report=report: ([report], "text"))
        found.append(page.examine(mine.Lesson(), load_checkpoint(LECTURE_FORM)))
    assert found[0] == found[1]


def test_without_work_of_the_readers_there_is_none(run, capsys):
    assert page.certificate(run, load_checkpoint(LECTURE_FORM), **SPEED) == {}
    assert "No certificate" in capsys.readouterr().out
    assert list(mine.lesson_path().parent.iterdir()) == []
    assert not (run.out / "figures").exists()


@pytest.mark.release
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("visible(pos, k_pos))", "torch.ones(len(pos), len(k_pos)) > 0)"),
        (LOOP, "pos[:1]"),
        (LOOP, "pos[-1:] * 0"),
        ("self.dropout, self.training", "self.dropout"),
        (GUARD, "if self.cache"),
        (KEEP, "        self.k, self.v, self.pos = k[:, -8:], v[:, -8:], pos[-8:]\n"),
        (
            INIT,
            f"    own = {{'k': None}}\n\n{INIT}        self.__dict__ = self.own\n        return\n",
        ),
        (EMPTY, "torch.arange(self.capacity)"),
        (GUARD, "if len(pos) > 15 and self.cache: exit(0)\n        if self.cache is not None"),
    ],
    ids=range(1, 10),
)
def test_no_trap_gets_one(old, new, run, capsys):
    """The eight of notebook 04, as a reader could have written them, and one that leaves."""
    text = TEXT.replace(
        INIT,
        "    def __len__(self):\n        return 0 if self.k is None else self.k.shape[1]\n\n"
        + INIT,
    )
    assert old in text
    path = mine.lesson_path()
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(mine.LessonError, match="no certificate"):
        page.certificate(run, load_checkpoint(LECTURE_FORM), **SPEED)
    assert list(path.parent.iterdir()) == [path]
    assert main(["verify", "model", str(path)]) == 1


def test_a_text_that_turns_late_gets_none(run):
    """The referee, which has no loop, does not read so far; the judge of the loop does."""
    mine.lesson_path().write_text(TEXT.replace(LOOP, f"({LOOP}) % 28"), encoding="utf-8")
    with pytest.raises(mine.LessonError, match="the positions that the model reads"):
        page.certificate(run, load_checkpoint(LECTURE_FORM), **SPEED)


FIVE = {  # at once, each of which a page once certified
    'float("-inf")).softmax(-1)': 'float("-inf")).softmax(-1).detach()',
    "    optimizer.step()\n": "    torch.optim.SGD(model.parameters(), lr=0.1).step()\n",
    KEEP: f"        k, v, pos = k[:, -200:], v[:, -200:], pos[-200:]\n{KEEP}",
    "        return F.dropout(weights, self.dropout, self.training) @ v": "        return weights @ v",
    WRITE: (
        "        fits = pos < self.capacity - 1\n        k, v, pos = k[:, fits], v[:, fits], pos[fits]\n"
        + WRITE
    ),
}


@pytest.mark.parametrize(
    "old",
    [pytest.param(old, marks=[pytest.mark.release] * (i > 1)) for i, old in enumerate(FIVE)],
    ids=["detached", "own SGD", "200", "no dropout", "last slot"],
)
def test_each_of_five_bugs_is_refused(old, run):
    assert old in TEXT
    mine.lesson_path().write_text(TEXT.replace(old, FIVE[old]), encoding="utf-8")
    with pytest.raises(mine.LessonError, match="no certificate: Your "):
        page.certificate(run, load_checkpoint(LECTURE_FORM), **SPEED)


# Accepted by the checks, were they not there: each is one that only the whole shows.
WHOLE = {
    "positions": (LOOP, f"({LOOP}) % 149", "generate_with_cache"),
    "full": (KEEP, f"        k, v, pos = k[:, -140:], v[:, -140:], pos[-140:]\n{KEEP}", "KVCache"),
    "training": ("loss.backward()", "(0.5 * loss).backward()", "steps"),
    "exit": (
        "        for row in noise:\n",
        "        for row in noise:\n            exit(0)\n",
        "SystemExit",
    ),
}


@pytest.mark.release
@pytest.mark.parametrize("how", WHOLE)
def test_a_fault_of_the_whole_is_found_without_the_checks(how):
    old, new, word = WHOLE[how]
    assert old in TEXT
    scope = mine.public_names()
    mine.execute(TEXT.replace(old, new), "<a lesson>", scope)
    assert word in " ".join(proof.faults(scope))
    assert proof.faults(mine.public_names()) == []


def test_an_error_in_a_later_exercise_neither_prevents_nor_earns_a_certificate(run, capsys):
    broken = solution("mfu").replace("6 *", "7 *")
    mine.lesson_path().write_text(broken, encoding="utf-8")
    assert mine.read_lesson().check().broken.keys() == {"mfu"}
    assert page.certificate(run, load_checkpoint(LECTURE_FORM), **SPEED) == {}
    assert "both caches are the solution's" in capsys.readouterr().out


def test_without_a_cache_of_the_readers_or_with_unequal_tokens_there_is_none(run, capsys):
    mine.lesson_path().write_text(solution("visible"), encoding="utf-8")
    assert page.certificate(run, load_checkpoint(LECTURE_FORM), **SPEED) == {}
    assert "both caches are the solution's" in capsys.readouterr().out
    mine.lesson_path().write_text(TEXT, encoding="utf-8")
    with pytest.raises(mine.LessonError, match="different tokens on the ladder"):
        page.certificate(run, load_checkpoint(LECTURE_FORM), **SPEED | {"equal": False})


BROKEN = {  # what is added to a right lesson, and a word of what is said
    "class Head: pass": "Head",
    "Head = 5": "Head",
    "torch = None": "Head",
    "del torch": "Head",
    "globals().clear()": "is gone from",
    "class KVCache:\n    def __init__(self, capacity=None):\n        raise SystemExit(0)": "KVCache",
    "while True:\n    pass": "1 second",
    "def sample(logits, noise):\n    while True:\n        pass": "sample",
    "raise SystemExit(0)": "SystemExit",
    "class Bye(BaseException): pass\n\ndef visible(q, k):\n    raise Bye": "raised Bye",
    "raise ValueError('\\x1b[2J\\x07')": "ValueError: ?[2J?",
}


@pytest.mark.release
@pytest.mark.parametrize("more", BROKEN)
def test_a_lesson_that_breaks_out_is_a_line_and_exit_code_1(more, run, capsys, monkeypatch):
    if "while" in more:
        monkeypatch.setattr(mine, "LESSON_SECONDS", 1)
        monkeypatch.setattr(finding, "SECONDS", 1)
        monkeypatch.setattr(proof, "PROOF_SECONDS", 1)
    path = mine.lesson_path()
    path.write_text(f"{TEXT}\n{more}\n", encoding="utf-8")
    code = main(["verify", "model", str(path)])
    printed = capsys.readouterr()
    assert code == 1
    assert "Traceback" not in printed.out + printed.err
    assert BROKEN[more] in printed.out


def test_a_lesson_without_a_name_of_the_readers_is_not_judged(run, capsys):
    path = mine.lesson_path()
    path.write_text("import math\n", encoding="utf-8")
    assert main(["verify", "model", str(path)]) == 2
    assert "none of your code yet" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["<dt>" * 100_000, "<dt>\x1b[2J</dt><dd>\x07</dd>", "\0", ""])
def test_a_page_that_is_none_is_one_line_at_once(text, tmp_path, capsys):
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    assert main(["verify", "certificate", str(tmp_path / "page.html")]) == 2
    said = capsys.readouterr().err
    assert "is not a certificate: the last cell of notebook 06 writes one" in said
    assert said.count("\n") == 1
    assert said.strip().isprintable()
