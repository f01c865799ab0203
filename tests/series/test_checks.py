"""The checks of the exercises: no right answer is refused, and a wrong one meets its cause.

Every run of the tests has the solutions and the first row of each table; a release run the others.
"""

import functools
import inspect
import linecache

import pytest
from answers import ALL_WRONG, RIGHT, SUBTLE, WRONG

from nanogpt.series import solutions
from nanogpt.series.checks import EXERCISES
from nanogpt.series.checks.finding import objection
from nanogpt.series.checks.head import PLAIN_HEAD
from nanogpt.series.mine import execute, public_names

REAL_CORPUS = True
FIRST = 1  # row of each table that is run every time
# Mistakes that show the same as another one of their table: the message of that one.
UNCACHED = "Head without a cache"  # as many keys as queries, and the last of them sees all
TABLES = EXERCISES | {UNCACHED: PLAIN_HEAD}
ALIKE = {
    (UNCACHED, "the scores are divided by √S, the number of keys: hs is q.shape[-1]."): (
        "the scores are divided by √T, the number of queries: hs is q.shape[-1]."
    ),
    (UNCACHED, "every query gets the last one's mask: each has its own row."): (
        "the mask is not used, so a query sees the future."
    ),
}


def solution(name: str) -> str:
    """The source of a solution."""
    return inspect.getsource(getattr(solutions, name))


@functools.cache
def said(name: str, source: str):
    """The objection to an answer of this source; None where it is right."""
    scope = public_names()
    execute(source, f"<{name} {len(linecache.cache)}>", scope)
    return objection(EXERCISES[name], scope[name])


def rows(table: dict) -> list:
    """The answers of a table, by exercise, as parameters."""
    return [
        pytest.param(
            name,
            how,
            id=f"{name}: {how}",
            marks=[pytest.mark.release] * (i >= FIRST),
        )
        for name in table
        for i, how in enumerate(table[name])
    ]


@pytest.mark.parametrize(("name", "style"), rows(RIGHT))
def test_a_right_answer_in_another_style_is_right(name, style):
    assert said(name, RIGHT[name][style]) is None


@pytest.mark.parametrize("name", EXERCISES)
def test_the_solution_is_right(name):
    assert said(name, solution(name)) is None


def wrong_source(name: str, misconception: str) -> str:
    """The source of a wrong answer, which differs from the solution."""
    old, new, *_ = ALL_WRONG[name][misconception]
    source = solution(name).replace(old, new) if old else new
    assert source != solution(name)
    return source


@pytest.mark.parametrize(("name", "misconception"), rows(ALL_WRONG))
def test_a_wrong_answer_is_refused_for_its_cause(name, misconception):
    word = ALL_WRONG[name][misconception][2:]
    found = said(name, wrong_source(name, misconception))
    assert found, "accepted"
    assert word[0] in str(found) if word and word[0] else True


@pytest.mark.release
def test_five_wrong_answers_in_six_are_told_their_mistake():
    wrong = [(name, misconception) for name in ALL_WRONG for misconception in ALL_WRONG[name]]
    named = []
    for name, misconception in wrong:
        *_, word = ALL_WRONG[name][misconception]
        found = said(name, wrong_source(name, misconception))
        named.append(bool(found.mistake) or word in str(found))
    assert sum(named) >= len(named) * 5 / 6


MISTAKES = {name: TABLES[name].mistakes for name in TABLES}


@pytest.mark.parametrize(("name", "message"), rows(MISTAKES))
def test_each_mistake_of_a_table_is_told_its_own_message(name, message):
    found = objection(TABLES[name], TABLES[name].mistakes[message])
    assert found, "accepted"
    assert ALIKE.get((name, message), message) in str(found)


@pytest.mark.parametrize("name", TABLES)
def test_messages_are_sentences_that_differ(name):
    messages = [*TABLES[name].mistakes]
    assert [text for text in messages if not text.endswith(".")] == []
    assert [a for a in messages for b in messages if a != b and a in b] == []
    assert [text for text in TABLES[name].hints if len(text) < 10] == []
    assert [text for text in TABLES[name].advice.values() if not text.endswith((".", "?"))] == []


def test_the_tables_are_long_enough():
    assert [name for name in EXERCISES if len(RIGHT[name]) < 2 or len(WRONG[name]) < 5] == []
    assert sum(map(len, ALL_WRONG.values())) >= 500
    assert [name for name in SUBTLE if WRONG[name].keys() & SUBTLE[name].keys()] == []
    assert len(ALIKE) <= 5
    assert all(message in MISTAKES[name] for name, message in ALIKE)
