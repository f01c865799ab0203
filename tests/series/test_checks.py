"""The checks of the kept blanks: no right answer is refused, and a wrong one meets its cause."""

import functools
import json
import linecache
import math
import re
from statistics import median

import pytest
from right_answers import RIGHT
from subtle_answers import SUBTLE
from wrong_answers import WRONG as PLAIN

from nanogpt.files import ROOT
from nanogpt.series import judges, mine
from nanogpt.series.blanks import SOLUTION, wrong
from nanogpt.series.checks import EXERCISES, finding
from nanogpt.series.checks.head import PLAIN_HEAD

REAL_CORPUS = True
WRONG = {name: PLAIN[name] | SUBTLE.get(name, {}) for name in PLAIN}
# The checks of these run a model for each answer: two styles are enough for a quick look.
STYLES = {name: [*RIGHT[name]][2:] for name in ("generate_with_cache", "Head")}
# Mistakes that show the same as another one of their table: the message of that one.
UNCACHED = "Head without a cache"  # as many keys as queries, and the last of them sees all
TABLES = EXERCISES | {UNCACHED: PLAIN_HEAD}
ALIKE = {
    (UNCACHED, "the scores are divided by √S, the number of keys: hs is q.shape[-1]."): (
        "the scores are divided by √T, the number of queries: hs is q.shape[-1]."
    ),
    (UNCACHED, "every query gets the mask of the last one: each has a row of its own."): (
        "the mask is not used, so a query sees the future."
    ),
}


@functools.cache
def solutions() -> dict[str, str]:
    """The solution of every exercise of the package, by name."""
    found = {}
    for path in sorted((ROOT / "notebooks").glob("0[1-6]_*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        for text in SOLUTION.findall("\n".join("".join(cell["source"]) for cell in cells)):
            name = re.findall(r"^(?:class|def) (\w+)", text, re.M)[0]
            if name in judges.__all__:
                found.setdefault(name, text.strip() + "\n")
    return found


@functools.cache
def said(name: str, source: str) -> str | None:
    """What the check says of an answer of this source; None where it is right."""
    scope = mine.judged_lesson().scope | {"math": math, "median": median}
    mine.execute(source, f"<{name} {len(linecache.cache)}>", scope)
    return wrong(getattr(judges, name), scope[name])


def answers(table: dict, subtle: dict) -> list:
    """The answers of a table as parameters; subtle ones are many, and slow together."""
    return [
        pytest.param(
            name,
            how,
            id=f"{name}: {how}",
            marks=[pytest.mark.slow] * (how in subtle.get(name, ())),
        )
        for name in table
        for how in table[name]
    ]


@pytest.mark.parametrize(("name", "style"), answers(RIGHT, STYLES))
def test_a_right_answer_in_another_style_is_right(name, style):
    assert said(name, RIGHT[name][style]) is None


@pytest.mark.parametrize("name", judges.__all__)
def test_the_solution_is_right(name):
    assert said(name, solutions()[name]) is None


def wrong_source(name: str, misconception: str) -> str:
    """The source of a wrong answer, which differs from the solution."""
    old, new, *_ = WRONG[name][misconception]
    source = solutions()[name].replace(old, new) if old else new
    assert source != solutions()[name]
    return source


@pytest.mark.parametrize(("name", "misconception"), answers(WRONG, SUBTLE))
def test_a_wrong_answer_is_refused_for_its_cause(name, misconception):
    word = WRONG[name][misconception][2:]
    found = said(name, wrong_source(name, misconception))
    assert found, "accepted"
    assert word[0] in found if word and word[0] else True


@pytest.mark.slow
def test_five_wrong_answers_in_six_are_told_their_mistake():
    named = []
    for name in WRONG:
        for misconception, (*_, word) in WRONG[name].items():
            found = said(name, wrong_source(name, misconception))
            mistake = any(message in found for message in EXERCISES[name].mistakes)
            named.append(mistake or word in found)
    assert sum(named) >= len(named) * 5 / 6


MISTAKES = [(name, message) for name in TABLES for message in TABLES[name].mistakes]


@pytest.mark.parametrize(("name", "message"), MISTAKES)
def test_each_mistake_of_a_table_is_told_its_own_message(name, message):
    found = finding.problem(TABLES[name], TABLES[name].mistakes[message])
    assert found, "accepted"
    assert ALIKE.get((name, message), message) in found


@pytest.mark.parametrize("name", TABLES)
def test_messages_are_sentences_that_differ(name):
    messages = [*TABLES[name].mistakes]
    assert [text for text in messages if not text.endswith(".")] == []
    assert [a for a in messages for b in messages if a != b and a in b] == []
    assert [text for text in TABLES[name].advice.values() if not text.endswith((".", "?"))] == []


def test_the_tables_are_long_enough():
    assert sum(map(len, RIGHT.values())) + len(judges.__all__) >= 40
    assert sum(map(len, WRONG.values())) >= 150
    assert [name for name in SUBTLE if PLAIN[name].keys() & SUBTLE[name].keys()] == []
    assert len(ALIKE) <= 5
    assert set(ALIKE) <= set(MISTAKES)
