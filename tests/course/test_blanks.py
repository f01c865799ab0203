"""The pages of the blanks: each row says what an answer is told, and all rows of all pages run."""

import linecache

import pytest

from nanogpt.course.blanks import BLANKS
from nanogpt.course.editing import edited, execute
from nanogpt.course.finding import objection
from nanogpt.course.solutions import lesson_names


def said(name: str, source: str):
    """The objection to an answer of this source; None if it is right."""
    scope = lesson_names()
    execute(source, f"<{name} {len(linecache.cache)}>", scope)
    return objection(BLANKS[name], scope[name])


@pytest.mark.parametrize("name", BLANKS)
def test_the_solution_and_right_answers_in_other_styles_are_accepted(name):
    blank = BLANKS[name]
    refused = {source: said(name, source) for source in [blank.source, *blank.right]}
    assert {source: found for source, found in refused.items() if found} == {}


# Their cases compile a model or run the referee: 8 seconds for all mistakes.
SLOW = {"FixedAttention", "SlyCache"}


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[pytest.mark.release] * (x in SLOW)) for x in BLANKS]
)
def test_each_mistake_is_told_its_own_message(name):
    blank = BLANKS[name]
    for message, edits in blank.mistakes.items():
        for way in edits if isinstance(edits, tuple) else (edits,):
            found = objection(blank, edited(blank, *way))
            assert found, f"accepted: {message}"
            assert message in str(found)


@pytest.mark.parametrize("name", BLANKS)
def test_each_other_wrong_answer_is_refused(name):
    blank = BLANKS[name]
    assert [edit for edit in blank.wrong if objection(blank, edited(blank, edit)) is None] == []


@pytest.mark.parametrize("name", BLANKS)
def test_messages_are_sentences_and_none_contains_another(name):
    blank = BLANKS[name]
    sentences = [*blank.mistakes, *blank.advice.values()]
    assert [text for text in sentences if not text.endswith((".", "?"))] == []
    messages = [*blank.mistakes]
    assert [a for a in messages for b in messages if a != b and a in b] == []
    assert all(blank.hints)


def test_an_edit_that_changes_nothing_is_an_error_of_the_page():
    with pytest.raises(ValueError, match="has no 'gone'"):
        edited(BLANKS["visible"], "gone -> here")
