"""The judge of the learner's answers: right, empty, wrong with its reason, or an error's line."""

import pytest

from nanogpt.notebook.blanks import judge


def problem(double):
    got = double(3)
    return None if got == 6 else f"double(3) is 6, yours gives {got}."


def empty(x):
    """Twice x."""


def dots(x):
    """Twice x."""
    ...


def wrong(x):
    return x + 2


def broken(x):
    return x.double()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda x: 2 * x, "Right: <lambda> does what it should.\n"),
        (empty, "Not yet: empty is still empty. Write its body"),
        (dots, "Not yet: dots is still empty."),
        (wrong, "Not yet: double(3) is 6, yours gives 5.\n"),
        (broken, "Not yet: your code raised AttributeError: 'int' object has no attribute"),
        (lambda: 6, "Not yet: your code raised TypeError: "),
        (lambda x: [][x:] or None, "Not yet: double(3) is 6, yours gives None. It returned None"),
    ],
)
def test_an_answer_is_judged_in_a_line(answer, said, capsys):
    assert judge(problem, answer) is said.startswith("Right")
    printed = capsys.readouterr().out
    assert printed.startswith(said)
    assert printed.count("\n") == 1


def test_an_error_names_the_learners_own_line(capsys):
    judge(problem, broken)
    assert capsys.readouterr().out.endswith(", in the line `return x.double()`, for broken(3).\n")


def test_what_a_check_cannot_use_is_named(capsys):
    check = eval(compile("lambda answer: answer(3) - 6", "another cell", "eval"))
    judge(check, lambda x: [x, x])
    assert "cannot use what your code returned, [3, 3] (Type" in capsys.readouterr().out


def test_of_a_class_one_method_is_the_blank(capsys):
    class Doubles:
        def twice(self, x): ...

    assert not judge(lambda kind: None, Doubles, body=Doubles.twice)
    assert capsys.readouterr().out.startswith("Not yet: Doubles is still empty.")
