"""The judges of the kept blanks: no right answer is refused, and a wrong one meets its cause."""

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

REAL_CORPUS = True
WRONG = {name: PLAIN[name] | SUBTLE.get(name, {}) for name in PLAIN}
# The judges of these run a model for each answer: two styles are enough for a quick look.
STYLES = {name: [*RIGHT[name]][2:] for name in ("generate_with_cache", "Head")}
# Accepted by a judge, which cannot see it; the certificate refuses each.
LATER: dict[tuple[str, str], str] = {}


@functools.cache
def solutions() -> dict[str, str]:
    """The solution of every blank that a judge of the package has, by name."""
    found = {}
    for path in sorted((ROOT / "notebooks").glob("0[1-6]_*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        for text in SOLUTION.findall("\n".join("".join(cell["source"]) for cell in cells)):
            name = re.findall(r"^(?:class|def) (\w+)", text, re.M)[0]
            if name in judges.__all__:
                found.setdefault(name, text.strip() + "\n")
    return found


def said(name: str, source: str) -> str | None:
    """What the judge says of an answer of this source; None where it is right."""
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


@pytest.mark.parametrize(("name", "misconception"), answers(WRONG, SUBTLE))
def test_a_wrong_answer_is_refused_for_its_cause(name, misconception):
    old, new, *word = WRONG[name][misconception]
    source = solutions()[name].replace(old, new) if old else new
    assert source != solutions()[name]
    found = said(name, source)
    if (name, misconception) in LATER:
        return
    assert found, "accepted"
    assert word[0] in found if word else True


def test_the_tables_are_long_enough():
    assert sum(map(len, RIGHT.values())) + len(judges.__all__) >= 40
    assert sum(map(len, WRONG.values())) >= 150
    assert [name for name in SUBTLE if PLAIN[name].keys() & SUBTLE[name].keys()] == []
    assert len(LATER) <= 5
    assert set(LATER) <= {(name, how) for name in WRONG for how in WRONG[name]}
