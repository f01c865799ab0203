"""The judge of the learner's answers: right, empty, wrong with its reason, or an error's line."""

import pytest

from nanogpt.series.blanks import TooLong, judge, limit

REAL_CORPUS = True


def problem(double):
    got = double(3)
    return None if got == 6 else f"double(3) is 6, yours gives {got}."


def empty(x):
    """Twice x."""
    ...


def broken(x):
    return x.double()


# Its line is not the learner's.
cannot_be_used = eval(compile("lambda answer: answer(3) - 6", "another cell", "eval"))


@pytest.mark.parametrize(
    ("problem", "answer", "said"),
    [
        (problem, lambda x: 2 * x, "Right: <lambda>"),
        (problem, empty, "Not yet: empty is still empty"),
        (problem, lambda x: x + 2, "Not yet: double(3) is 6, yours gives 5"),
        (problem, broken, "line `return x.double()`, for broken(3)"),
        (problem, lambda: 6, "Not yet: your code raised TypeError"),
        (problem, lambda x: [][x:] or None, "yours gives None. It returned None"),
        (cannot_be_used, lambda x: [x, x], "cannot use what your code returned, [3, 3] (Type"),
    ],
)
def test_an_answer_is_judged_in_a_line(problem, answer, said, capsys):
    assert judge(problem, answer) is said.startswith("Right")
    printed = capsys.readouterr().out
    assert said in printed
    assert printed.count("\n") == 1


class Doubles:
    def twice(self, x): ...


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (Doubles.twice, "Doubles is still empty"),
        ("twice", "Doubles is still empty"),
        ("double", "Not yet: it has no method `double`"),
    ],
)
def test_of_a_class_one_method_is_the_blank(body, said, capsys):
    def problem(kind):
        return None if hasattr(kind, "double") else "it has no method `double`"

    assert not judge(problem, Doubles, body=body)
    assert said in capsys.readouterr().out


def test_a_loop_that_never_ends_is_stopped_also_after_an_inner_limit_was_kept():
    def spins():
        with limit(0.2, "the outer one"):
            with limit(60, "the inner one"):
                pass
            while True:
                pass

    with pytest.raises(TooLong, match="the outer one after 0.2 seconds"):
        spins()


def test_an_answer_that_never_ends_is_told_by_its_name(monkeypatch, capsys):
    monkeypatch.setattr("nanogpt.series.blanks.SECONDS", 0.2)

    def spins(x):
        while True:
            x = -x

    assert not judge(problem, spins)
    assert "Not yet: judging your spins has come to no end" in capsys.readouterr().out
