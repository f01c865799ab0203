"""The harness of the checks: what it says of a small blank, and what it leaves as it was."""

import random
import sys
from dataclasses import replace

import pytest
import torch

from nanogpt.course.comparing import alike
from nanogpt.course.drivers import Arguments, numbers
from nanogpt.course.finding import objection
from nanogpt.course.limits import TooLong, limit
from nanogpt.course.page import Blank, Case


def run_rows(answer, rows, dtype=torch.float64):
    """An answer that doubles a matrix."""
    given = Arguments(x=numbers(rows, 3, dtype=dtype))
    result = answer(*given.tensors.values())
    yield from given.changes()
    yield "the result", result


def double(x):
    """Twice x."""
    return 2 * x


DOUBLE = Blank(
    number="02.1",
    minutes=1,
    solution=double,
    hints=("What is twice 2?", "Add x to itself.", "x + x"),
    cases=[
        Case(run_rows, rows=1, dtype=torch.float32),
        Case(run_rows, rows=2),
        Case(run_rows, rows=4),
        Case(run_rows, rows=5),
    ],
    mistakes={
        "the first row alone is doubled.": ["2 * x -> torch.cat([2 * x[:1], x[1:]])"],
        "one row is doubled, of up to four.": [
            "2 * x -> 2 * x if len(x) > 4 else torch.cat([2 * x[:1], x[1:]])"
        ],
        "the last row is doubled again.": ["2 * x -> torch.cat([2 * x[:-1], 4 * x[-1:]])"],
        "the rows are divided by 0.": ["2 * x -> x / 0 * 0"],
        "the matrix is turned.": ["2 * x -> 2 * x.view(3, -1)"],
        "an error.": ["2 * x -> x @ x"],
    },
    advice={"the result": "Double it.", "ZeroDivisionError": "By what?"},
    axes=[("row", "column")],
)


def own_line(x):
    return x.view(7, 7)


def two_calls():
    """Wrong in its second call."""
    calls = []

    def answer(x):
        calls.append(x)
        return 2 * x if len(calls) == 1 else x

    return answer


def in_place(x):
    x *= 2
    return x


# An answer, and a part of what is said about it; None where it is right.
SAID = {
    "right": (lambda x: x + x, None),
    "a mistake": (lambda x: torch.cat([2 * x[:-1], 4 * x[-1:]]), "the last row is doubled again."),
    "the mistake that explains the most of the rest": (
        lambda x: x * 2 if len(x) == 5 else torch.cat([2 * x[:1], x[1:]]),
        "one row is doubled, of up to four.",
    ),
    "in place": (in_place, "changes `x`"),
    "another shape": (lambda x: x[:, :2], "expected shape (1, 3), got (1, 2)"),
    "another dtype": (lambda x: 2 * x.double(), "expected torch.float32, got"),
    "a factor": (lambda x: 3 * x, "1.5 times the expected ones"),
    "rounded": (lambda x: (2 * x).round(decimals=3), "Is something rounded"),
    "a place": (lambda x: 2 * x.clamp(max=0.5), "column"),
    "not a number": (lambda x: x * float("nan"), "NaN"),
    "NaN has many causes": (lambda x: x / 0 * 0, "Perhaps the rows are divided by 0."),
    "nothing": (lambda x: [].append(x), "it returned None: does it end with `return`?"),
    "an error": (own_line, "on the line `return x.view(7, 7)`, with shapes x (1, 3)"),
    "the error of a mistake": (lambda x: x @ x, "Perhaps an error."),
    "the advice for an error": (lambda x: 1 // 0, "ZeroDivisionError"),
    "exit()": (lambda x: sys.exit(3), "SystemExit: 3"),
    "a later case": (lambda x: 2 * x if len(x) < 5 else x, "rows=5"),
    "something kept": (two_calls(), "0.5 times the expected ones"),
}


def run_words(answer):
    yield "the words", answer()


def test_an_empty_text_is_called_nothing():
    one = replace(DOUBLE, solution=lambda: "a word", cases=[Case(run_words)], mistakes={})
    assert "expected a word, got nothing." in str(objection(one, lambda: "".strip()))


@pytest.mark.parametrize("how", SAID)
def test_the_message_about_each_kind_of_answer(how):
    answer, words = SAID[how]
    found = objection(DOUBLE, answer)
    assert found is None if words is None else words in str(found)


def leaves_gradients_off(x):
    torch.set_grad_enabled(False)
    return 2 * x


def leaves_a_seed(x):
    torch.manual_seed(5)
    return 2 * x


def leaves_a_dtype(x):
    torch.set_default_dtype(torch.float64)
    return 2 * x


@pytest.mark.parametrize("answer", [leaves_gradients_off, leaves_a_seed, leaves_a_dtype])
def test_torch_is_after_a_check_as_it_was_before(answer):
    before = torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_rng_state()
    objection(DOUBLE, answer)
    assert torch.is_grad_enabled() == before[0]
    assert torch.get_default_dtype() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])


@pytest.mark.parametrize("state", [torch.no_grad, torch.inference_mode])
def test_a_check_does_not_depend_on_the_state_of_its_caller(state):
    with state():
        assert objection(DOUBLE, lambda x: 2 * x) is None


def test_an_endless_loop_ends_with_the_limit():
    def endless(x):
        while True:
            try:
                random.random()
            except Exception:
                continue

    found = objection(DOUBLE, endless, seconds=0.05)
    assert "checking your endless did not finish" in str(found)


def test_an_error_of_the_right_answer_is_one_of_the_check():
    broken = replace(DOUBLE, solution=lambda x: x.nothing)
    with pytest.raises(AttributeError):
        objection(broken, lambda x: x.nothing)


# ------------------------------------------------------------------ empty blanks, and time


class Keeps:
    def __init__(self):
        self.x = 0

    def update(self, x):
        """To do."""


def empty(x):
    """Twice x."""
    ...


@pytest.mark.parametrize(("answer", "method"), [(empty, ""), (Keeps, "update")])
def test_an_empty_blank_is_no_mistake(answer, method):
    found = objection(replace(DOUBLE, method=method), answer)
    assert found.empty
    assert f"{answer.__name__} is still empty" in str(found)


def test_a_limit_goes_on_after_an_inner_limit_was_kept():
    def spins():
        with limit(0.2, "the outer one"):
            with limit(60, "the inner one"):
                pass
            while True:
                pass

    with pytest.raises(TooLong, match="the outer one within 0.2 seconds"):
        spins()


# ------------------------------------------------------------------ what is the same

ALIKE = [
    (1.0, 1.0 + 1e-12, True),
    (1, 1.0, True),
    (True, 1, False),
    (float("nan"), float("nan"), False),
    ((1, 2.0), (1, 2.0 + 1e-12), True),
    ((1, 2), [1, 2], False),
    ([1, 2], [1, 2, 3], False),
    ((torch.ones(2), torch.zeros(2)), (torch.ones(2), torch.zeros(2)), True),
    ((torch.ones(2), torch.zeros(2)), (torch.ones(2), torch.ones(2)), False),
    (torch.tensor([100_000]), torch.tensor([100_500]), False),
    (torch.tensor([1.0]), torch.tensor([1]), False),
    (torch.tensor([float("nan"), 1.0]), torch.tensor([float("nan"), 1.0 + 1e-7]), True),
    (ValueError("a"), ValueError("a"), True),
    (ValueError("a"), ValueError("b"), False),
    ("a", "a", True),
    (None, None, True),
    (None, 0, False),
]


@pytest.mark.parametrize(("a", "b", "same"), ALIKE)
def test_equality_up_to_rounding(a, b, same):
    assert alike(a, b) is same
    assert alike(b, a) is same
