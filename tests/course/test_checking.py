"""What a learner calls: check and hint; what they say of things that are no answer."""

import linecache
import runpy

import pytest

from nanogpt.course import checking
from nanogpt.course import lesson as mine
from nanogpt.course.blanks import BLANKS
from nanogpt.course.editing import execute
from nanogpt.course.lesson import LessonError
from nanogpt.course.solutions import lesson_names
from nanogpt.site.nbfile import solution

REAL_CORPUS = True
RIGHT = solution("visible")


@pytest.fixture(autouse=True)
def lesson(tmp_path, monkeypatch):
    """A reader's folder, nobody's code in it yet, and no hint shown."""
    monkeypatch.setenv("NANOGPT_MINE", str(tmp_path))
    monkeypatch.delenv("NANOGPT_HEADLESS", raising=False)
    monkeypatch.setattr(mine, "_runs", True)
    monkeypatch.setattr(checking, "_last", "")
    monkeypatch.setattr(checking, "_shown", {})
    return tmp_path / "lesson.py"


def made(text: str, name: str = "visible"):
    """What a cell of this text defines."""
    scope = lesson_names()
    execute(text, f"<cell {len(linecache.cache)}>", scope)
    return scope[name]


def test_the_answer_comes_back_only_if_it_is_right(capsys):
    """So `assert check(visible) is visible` is a test."""
    right = made(RIGHT)
    wrong = made(RIGHT.replace("<=", "<"))
    assert checking.check(right) is right
    assert checking.check(wrong) is not wrong
    said = capsys.readouterr().out
    assert "Right: visible does what it should." in said
    assert "Not yet: a query does not see the key of its own" in said
    assert "hint() helps" in said


def test_an_empty_blank_is_offered_no_hint(capsys):
    checking.check(made('def visible(q_pos, k_pos):\n    """To do."""'))
    said = capsys.readouterr().out
    assert "visible is still empty" in said
    assert "hint()" not in said
    assert "From here on the solution's visible runs." in said


def test_a_hint_comes_in_stages_and_the_last_one_stays(capsys):
    checking.check(made(RIGHT.replace("<=", "<")))
    capsys.readouterr()
    for _ in range(4):
        checking.hint()
    said = capsys.readouterr().out.splitlines()
    question, idea, line = BLANKS["visible"].hints
    assert said[0] == f"visible, a question: {question}"
    assert said[1] == f"visible, the idea: {idea}"
    assert said[2] == said[3] == f"visible, the line: {line}"
    checking.hint("Head")
    checking.hint(made(RIGHT))
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("Head, a question: ")
    assert said[1] == f"visible, the line: {line}"


class Head:
    pass


def misnamed(x):
    return x


def visibel(x):
    return x


NO_ANSWERS = {
    "an object of a class": (
        Head(),
        "check takes the class, not an instance: Head = check(",
    ),
    "a slip of the pen": (visibel, "no exercise is called visibel: did you mean visible?"),
    "another name": (misnamed, "no exercise is called misnamed: there is attention_weights"),
    "a lambda": (lambda x: x, "no exercise is called <lambda>: there is"),
    "a number": (5, "check takes your function or class, for example Head = check(Head), not 5"),
    "nothing": (None, "not None"),
    "its name": ("Head", "check takes the function or class itself: Head = check(Head)"),
}


@pytest.mark.parametrize("how", NO_ANSWERS)
def test_an_object_that_is_no_answer_is_refused_by_its_kind(how):
    thing, words = NO_ANSWERS[how]
    with pytest.raises(LessonError) as error:
        checking.check(thing)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_hint_without_a_check_is_an_error():
    with pytest.raises(LessonError, match="run its check first"):
        checking.hint()
    with pytest.raises(LessonError, match="did you mean visible"):
        checking.hint("visibl")


def test_a_script_keeps_the_answer_and_what_it_uses_and_nothing_else(tmp_path, lesson):
    script = tmp_path / "homework.py"
    lines = ["import math", "from nanogpt.course import check", "LOWEST = 0", ""]
    lines += ["def test_of_mine():", "    assert True", "", RIGHT.replace(">= 0", ">= LOWEST"), ""]
    lines += ["visible = check(visible)"]
    script.write_text("\n".join(lines), encoding="utf-8")
    runpy.run_path(str(script))
    kept = lesson.read_text(encoding="utf-8").partition("# %% What you add")[0]
    section = kept.partition("# %% visible\n")[2]
    assert section.strip() == "\n".join(["LOWEST = 0", "", "", lines[7]]).strip()


IMPORTS = """
import statistics as st
from textwrap import dedent
"""
PAGE = """
class Base:
    pass


def helper(a, b):
    dedent("")
    assert st.mean([1, 1]) == 1
    return other(a) <= b


def other(a):
    return a


print("not kept")
"""


def test_names_of_the_notebook_that_an_answer_uses_are_kept_with_it(lesson):
    scope = lesson_names()
    for cell in (IMPORTS, PAGE):
        execute(cell, f"<cell {len(linecache.cache)}>", scope)
    text = RIGHT.replace(
        "k_pos[None, :] <= q_pos[:, None]", "helper(k_pos[None, :], q_pos[:, None])"
    )
    execute(f"{text}\n", f"<cell {len(linecache.cache)}>", scope)
    assert checking.check(scope["visible"]) is scope["visible"]
    kept = lesson.read_text(encoding="utf-8").partition("# %% visible\n")[2].partition("# %%")[0]
    for part in (
        "import statistics as st",
        "from textwrap import dedent",
        "def helper",
        "def other",
    ):
        assert part in kept
    assert "class Base" not in kept
    assert "print" not in kept
    assert mine.read_lesson().check().yours == ["visible"]


def test_another_exercise_in_the_same_cell_is_not_kept_unchecked(lesson):
    """Head is right with the visible above, and a wrong one stands below it."""
    wrong = solution("visible").replace("<=", "<")
    text = f"{solution('Head')}\n\n\nHead = check(Head)\n\n\n{wrong}\n"
    execute(text, "<two answers>", lesson_names() | {"check": checking.check})
    kept = lesson.read_text(encoding="utf-8")
    assert "class Head" in kept
    assert "def visible" not in kept


def test_every_exercise_has_a_right_solution_and_a_hint_in_three_stages():
    for name, one in BLANKS.items():
        assert solution(name).startswith(("def ", "class ", "@"))
        assert len(one.hints) == 3
