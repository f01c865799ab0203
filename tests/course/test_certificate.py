# ruff: noqa: E501 (code in strings)
"""The certificate: it can be checked, and it cannot be had with a bug."""

import datetime
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from notebook_fixtures import brief_referee

from nanogpt.cli import main
from nanogpt.course import certificate as page
from nanogpt.course import finding
from nanogpt.course import lesson as mine
from nanogpt.course.blanks import BLANKS
from nanogpt.decoder.checkpoint import load_checkpoint
from nanogpt.files import LECTURE_FORM, ROOT
from nanogpt.site.nbfile import solution

REAL_CORPUS = True

NAMES = [name for name, one in BLANKS.items() if one.notebook in ("01", "02", "06")]
TEXT = "\n\n\n".join(map(solution, NAMES))
KEEP = "        self.k = k\n        self.v = v\n        self.pos = pos\n"
WRITE = "        self.k[:, pos] = k\n        self.v[:, pos] = v\n        self.pos[pos] = pos\n"
GUARD = "if self.cache is not None"
EMPTY = "pos.new_full((self.capacity,), -1)"
LOOP = "pos[-1:] + 1"
INIT = "    def __init__(self, capacity=None):\n"
SPEED = {"speed": "400 tokens a second", "rung": "rung 2 of 9", "equal": True}


@pytest.fixture
def lesson(tmp_path, monkeypatch):
    """The path of a reader's lesson; what is judged is judged briefly."""
    brief_referee(monkeypatch)
    monkeypatch.setenv("NANOGPT_MINE", str(tmp_path / "mine"))
    monkeypatch.setattr(page, "SEEDS", 2)
    monkeypatch.setattr(page, "TOKENS", 30)
    (tmp_path / "mine").mkdir()
    mine.choose("true")
    yield mine.lesson_path()
    mine.choose("auto")


@pytest.mark.release
def test_a_certificate_is_written_verified_and_invalidated_by_a_change(lesson, capsys):
    lesson.write_text(TEXT, encoding="utf-8")
    facts = page.certificate(load_checkpoint(LECTURE_FORM), **SPEED, name="  Ada <L>\t")
    there = lesson.with_name("certificate.txt")
    assert page.facts_at(there) == facts
    assert facts["name"] == "Ada <L>"
    assert datetime.date.fromisoformat(facts["date"])
    assert main(["verify", "certificate"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "written by me: attention_weights, one_step, visible" in said
    lesson.write_text(f"{TEXT}\n# by hand\n", encoding="utf-8")
    assert main(["verify", "certificate", str(there)]) == 1
    assert "It does not hold: my code has changed: it is now " in capsys.readouterr().out
    lesson.write_text(TEXT, encoding="utf-8")
    text = there.read_text(encoding="utf-8")
    there.write_text(text.replace("over 2 seeds", "over 9 seeds"), encoding="utf-8")
    assert main(["verify", "certificate", str(there)]) == 1
    said = capsys.readouterr().out
    assert "It does not hold: the referee has changed: it is now only" in said


@pytest.mark.release
def test_its_command_holds_in_a_new_process_after_the_folder_moved(tmp_path, monkeypatch):
    first = tmp_path / "mine"
    first.mkdir()
    (first / "lesson.py").write_text(TEXT, encoding="utf-8")
    monkeypatch.setenv("NANOGPT_MINE", str(first))
    mine.choose("true")
    page.certificate(load_checkpoint(LECTURE_FORM), **SPEED)
    mine.choose("auto")
    moved = tmp_path / "another place"
    first.rename(moved)
    command = page.COMMAND.partition(",")[0].split()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *command[1:]], cwd=moved, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "It holds" in done.stdout


def test_a_page_says_what_it_was_given(tmp_path):
    facts = {
        "text": "To be,\n  or not: to be\n\nname: nobody",
        "name": "Ada",
        "speed": f"{'many words ' * 30}: the end",
        "my code": "a" * 64,
    }
    path = tmp_path / "certificate.txt"
    path.write_text(page.page_of(facts), encoding="utf-8")
    assert page.facts_at(path) == facts


def test_a_file_of_somebody_else_is_kept(lesson):
    lesson.write_text(TEXT, encoding="utf-8")
    other = lesson.with_name("certificate.txt")
    other.write_text("of my school", encoding="utf-8")
    with pytest.raises(ValueError, match="certificate"):
        page.certificate(load_checkpoint(LECTURE_FORM), **SPEED)
    assert other.read_text(encoding="utf-8") == "of my school"


def test_a_verdict_that_another_process_may_not_share_is_not_on_it(monkeypatch):
    """A sound cache is "equal" in one process and "rounding" in another."""
    found = []
    for verdict in page.SOUND:
        report = SimpleNamespace(verdict=verdict, findings=[1, 2])
        monkeypatch.setattr(page, "_computed", lambda *_, report=report: ([report], "text"))
        found.append(page.examine(mine.Lesson(), load_checkpoint(LECTURE_FORM)))
    assert found[0] == found[1]


def test_without_work_of_the_readers_there_is_none(lesson, capsys):
    assert page.certificate(load_checkpoint(LECTURE_FORM), **SPEED) == {}
    assert "No certificate" in capsys.readouterr().out
    assert list(mine.lesson_path().parent.iterdir()) == []


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
def test_no_trap_gets_one(old, new, lesson, capsys):
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
        page.certificate(load_checkpoint(LECTURE_FORM), **SPEED)
    assert list(path.parent.iterdir()) == [path]
    assert main(["verify", "model", str(path)]) == 1


FAULTS = {  # that show only in long texts or in training; each was on a certificate once
    "detached": (
        "attention_weights",
        'float("-inf")).softmax(-1)',
        'float("-inf")).softmax(-1).detach()',
    ),
    "own SGD": (
        "one_step",
        "    optimizer.step()\n",
        "    torch.optim.SGD(model.parameters(), lr=0.1).step()\n",
    ),
    "half": ("one_step", "loss.backward()", "(0.5 * loss).backward()"),
    "140": ("KVCache", KEEP, f"        k, v, pos = k[:, -140:], v[:, -140:], pos[-140:]\n{KEEP}"),
    "200": ("KVCache", KEEP, f"        k, v, pos = k[:, -200:], v[:, -200:], pos[-200:]\n{KEEP}"),
    "no dropout": (
        "Head",
        "        return F.dropout(weights, self.dropout, self.training) @ v",
        "        return weights @ v",
    ),
    "last slot": (
        "StaticKVCache",
        WRITE,
        "        fits = pos < self.capacity - 1\n        k, v, pos = k[:, fits], v[:, fits], pos[fits]\n"
        + WRITE,
    ),
    "late position": ("generate_with_cache", LOOP, f"({LOOP}) % 149"),
    "exit": (
        "generate_with_cache",
        "        for row in noise:\n",
        "        for row in noise:\n            exit(0)\n",
    ),
}


@pytest.mark.parametrize("how", FAULTS)
def test_a_fault_of_long_texts_or_of_training_is_refused_by_a_check(how, lesson):
    name, old, new = FAULTS[how]
    assert old in TEXT
    assert name in mine.Lesson(TEXT.replace(old, new), lesson).check([name]).broken


def test_an_error_in_a_later_exercise_neither_prevents_nor_earns_a_certificate(lesson, capsys):
    broken = solution("mfu").replace("6 *", "7 *")
    mine.lesson_path().write_text(broken, encoding="utf-8")
    assert mine.read_lesson().check().broken.keys() == {"mfu"}
    assert page.certificate(load_checkpoint(LECTURE_FORM), **SPEED) == {}
    assert "both caches are the solution's" in capsys.readouterr().out


def test_without_a_cache_of_the_readers_or_with_unequal_tokens_there_is_none(lesson, capsys):
    mine.lesson_path().write_text(solution("visible"), encoding="utf-8")
    assert page.certificate(load_checkpoint(LECTURE_FORM), **SPEED) == {}
    assert "both caches are the solution's" in capsys.readouterr().out
    mine.lesson_path().write_text(TEXT, encoding="utf-8")
    with pytest.raises(mine.LessonError, match="different tokens on the ladder"):
        page.certificate(load_checkpoint(LECTURE_FORM), **SPEED | {"equal": False})


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
def test_a_lesson_that_breaks_out_is_a_line_and_exit_code_1(more, lesson, capsys, monkeypatch):
    if "while" in more:
        monkeypatch.setattr(mine, "LESSON_SECONDS", 1)
        monkeypatch.setattr(finding, "CHECK_SECONDS", 1)
    path = mine.lesson_path()
    path.write_text(f"{TEXT}\n{more}\n", encoding="utf-8")
    code = main(["verify", "model", str(path)])
    printed = capsys.readouterr()
    assert code == 1
    assert "Traceback" not in printed.out + printed.err
    assert BROKEN[more] in printed.out


@pytest.mark.parametrize(("more", "code"), [("", 0), ("raise SystemExit(0)", 1)])
def test_a_lesson_has_a_row_in_the_json(more, code, lesson, tmp_path):
    path = mine.lesson_path()
    path.write_text(f"{TEXT}\n{more}\n", encoding="utf-8")
    rows = tmp_path / "rows.json"
    assert main(["verify", "model", str(path), "--json", str(rows)]) == code
    (row,) = json.loads(rows.read_text(encoding="utf-8"))
    assert (row["model"], row["code"]) == (str(path), code)
    assert ("SystemExit" in str(row["findings"])) == bool(code)


def test_a_lesson_without_a_name_of_the_readers_is_not_judged(lesson, capsys):
    path = mine.lesson_path()
    path.write_text("import math\n", encoding="utf-8")
    assert main(["verify", "model", str(path)]) == 2
    assert "none of your code yet" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["<dt>" * 100_000, page.TITLE, f"{page.TITLE}\nname: \x1b[2J\x07", "\0", ""]
)
def test_a_page_that_is_none_is_one_line_at_once(text, tmp_path, capsys):
    (tmp_path / "page.txt").write_text(text, encoding="utf-8")
    assert main(["verify", "certificate", str(tmp_path / "page.txt")]) == 2
    said = capsys.readouterr().err
    assert "is not a certificate: the last cell of notebook 06 writes one" in said
    assert said.count("\n") == 1
    assert said.strip().isprintable()


@pytest.mark.parametrize("option", ["--seconds 5", "--tokens 100", "--known x", "--expects 0.1"])
def test_a_lesson_takes_no_limits_of_the_referee(option, lesson, capsys):
    assert main(["verify", "model", str(mine.lesson_path()), *option.split()]) == 2
    assert f"{option.split()[0]}: " in capsys.readouterr().err
