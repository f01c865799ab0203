"""Notebook 12, blank 1: pairwise, a sum whose order does not depend on the machine."""

import torch

from ..drivers import Arguments, form, numbers
from ..page import Blank, Case


def pairwise(x):
    """The sum of x, neighbours first: (a + b) + (c + d) for four.  (2**k,) -> ()"""
    while len(x) > 1:
        x = x[0::2] + x[1::2]
    return x[0]


# ------------------------------------------------------------------ what a check runs


def run_sum(answer, terms, dtype=torch.float32):
    """A bit-exact sum, which only the right order gives."""
    yield from run_terms(answer, torch.tensor(terms, dtype=dtype))


def run_many(answer, count, dtype=torch.float32):
    """The bit-exact sum of numbers of very different sizes."""
    terms = numbers(count, seed=1) * 10 ** numbers(count, seed=2)
    yield from run_terms(answer, terms.to(dtype))


def run_terms(answer, terms):
    """The sum, with enough digits to tell neighbouring floats apart."""
    given = Arguments(x=terms.clone())
    total = answer(*given.tensors.values())
    yield from given.changes()
    yield "the shape of the sum", form(total)
    yield "the dtype of the sum", str(getattr(total, "dtype", "none"))
    digits = 9 if terms.dtype == torch.float32 else 17
    yield "the sum", f"{float(total):.{digits}g}"


ORDER = "add neighbours first, 1 and 2, 3 and 4, then their sums"


# ------------------------------------------------------------------ what people write

BLANK = Blank(
    number="12.1",
    minutes=8,
    solution=pairwise,
    cases=[
        Case(run_sum, terms=[3.0]),
        Case(run_sum, terms=[1.0, 2.0]),
        Case(run_sum, terms=[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]),
        Case(run_sum, terms=[1e8, 1.0, -1e8, 1.0]),
        Case(
            run_sum, terms=[3.0, 1e8, 5.0, 2.0]
        ),  # sorted numbers differ here, an exact sum does not
        Case(run_sum, terms=[1e8, -1e8, 1.0, 1e8]),
        Case(run_sum, terms=[1e8, 1.0, 1.0, -1e8, 1.0, 1.0, 1.0, 1.0]),
        Case(run_sum, terms=[1e17, 1.0, -1e17, 1.0], dtype=torch.float64),
        Case(run_many, count=16),
        Case(run_many, count=64, dtype=torch.float64),
        Case(run_many, count=1024),
    ],
    mistakes={
        f"the numbers are added one after the other: {ORDER}.": (
            [
                "\ndef pairwise(x):\n    total = x[0]\n    for term in x[1:]:\n        total = total + term\n    return total\n"
            ],
            ["\ndef pairwise(x):\n    return x[0] + pairwise(x[1:]) if len(x) > 1 else x[0]\n"],
        ),
        f"torch.sum adds in an order of its own: {ORDER}.": [
            "\ndef pairwise(x):\n    return x.sum()\n"
        ],
        "only the first round adds in pairs: keep adding neighbours until one number is left.": [
            "\ndef pairwise(x):\n    return (x[0::2] + x[1::2]).sum() if len(x) > 1 else x[0]\n"
        ],
        "there is only one round, with `if`: repeat with `while` until one number is left.": [
            "while -> if"
        ],
        "a Python number is returned: stay with tensors, and return x[0] of the last one.": [
            "x[0] -> x[0].item()"
        ],
        "a tensor of one number is returned: a sum has shape (), so return x[0].": [
            "return x[0] -> return x"
        ],
    },
    wrong=[
        """
def pairwise(x):
    if len(x) == 2:
        return x[0] + x[1]
    return pairwise(x[: len(x) // 2]) + pairwise(x[len(x) // 2 :])
""",
        "while -> x = x.float()\n    while",
        "x[0::2] + x[1::2] -> x[0::2] + x[0::2]",
        """
def pairwise(x):
    n = len(x)
    while n > 1:
        x[: n // 2] = x[0:n:2] + x[1:n:2]
        n //= 2
    return x[0]
""",
        "x[0::2] + x[1::2] -> x[: len(x) // 2] + x[len(x) // 2 :].flip(0)",
    ],
    right=[
        """
def pairwise(x):
    n = len(x)
    return pairwise(x[: n // 2]) + pairwise(x[n // 2 :]) if n > 1 else x[0]
""",
        """
def pairwise(x):
    stack = []
    for term in x:
        level = 0
        while stack and stack[-1][0] == level:
            term = stack.pop()[1] + term
            level += 1
        stack.append((level, term))
    return stack[0][1]
""",
        """
def pairwise(x):
    while x.numel() > 1:
        x = x.view(-1, 2).sum(-1)
    return x.squeeze()
""",
    ],
    hints=(
        "Eight numbers: how many sums of two neighbours do they make, and how many are left when those are added in pairs again?",
        "`x[0::2]` are the left neighbours, `x[1::2]` the right ones. Their sum is half as long. Repeat until one number is left.",
        "while len(x) > 1: x = x[0::2] + x[1::2]; then return x[0]",
    ),
    advice={
        "the shape of the sum": "A sum is a single number, of shape (): return x[0] of the last tensor.",
        "the dtype of the sum": "Stay in x's dtype.",
        "the sum": "It must be bit-identical to adding neighbours first: (a + b) + (c + d), in x's dtype.",
    },
)
