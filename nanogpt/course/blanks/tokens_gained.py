"""Notebook 07, blank 1: tokens_gained, what one pass adds to the text."""

from ..drivers import form
from ..page import Blank, Case


def tokens_gained(proposals: list[int], choices: list[int]) -> list[int]:
    """The tokens that one pass adds to the text; len(choices) == len(proposals) + 1."""
    n = 0
    while n < len(proposals) and proposals[n] == choices[n]:
        n += 1
    return choices[: n + 1]


# ------------------------------------------------------------------ what a check runs


def run_pass(answer, proposals, choices):
    """One pass. Equal tokens are different objects, as with a model's."""
    given = {"proposals": proposals, "choices": choices}
    copies = {name: [int(str(token)) for token in tokens] for name, tokens in given.items()}
    gained = listed(answer(*copies.values()))
    for name, tokens in given.items():
        yield (
            f"your code changes the list `{name}`, which the caller still needs",
            copies[name] != tokens,
        )
    yield "the tokens that the text gains", gained


def run_passes(answer, passes):
    """Several calls: nothing of an earlier one is left."""
    for n, (proposals, choices) in enumerate(passes, start=1):
        gained = listed(answer([*proposals], [*choices]))
        yield f"the tokens that the text gains in call {n}", gained


def listed(got):
    """A list, whatever kind of sequence it was; anything else in words."""
    if isinstance(got, str) or not hasattr(got, "__iter__"):
        return f"{form(got)} instead of a list"
    return [int(token) if hasattr(token, "__index__") else token for token in got]


MANY = [token % 65 for token in range(300)]


# ------------------------------------------------------------------ what people write

BLANK = Blank(
    number="07.1",
    minutes=5,
    solution=tokens_gained,
    cases=[
        Case(run_pass, proposals=[7, 8, 9], choices=[7, 8, 5, 6]),
        Case(run_pass, proposals=[7, 8, 9], choices=[1, 8, 9, 4]),
        Case(run_pass, proposals=[7, 8], choices=[7, 8, 3]),
        Case(run_pass, proposals=[], choices=[4]),
        Case(run_pass, proposals=[1, 2, 3], choices=[2, 1, 3, 9]),
        Case(run_pass, proposals=[5, 5], choices=[4, 5, 5]),
        Case(run_pass, proposals=[3, 4], choices=[9, 3, 4]),
        Case(run_pass, proposals=[6], choices=[6, 6]),
        Case(run_pass, proposals=[0, 0, 2], choices=[0, 0, 0, 1]),
        Case(run_pass, proposals=[50_256, 1000], choices=[50_256, 1000, 777]),
        Case(run_passes, passes=[([1, 2], [1, 3, 4]), ([5], [6, 7]), ([], [8])]),
        Case(run_pass, proposals=MANY, choices=[*MANY[:280], 70, *MANY[281:], 3]),
        Case(run_pass, proposals=MANY, choices=[*MANY, 64]),
    ],
    mistakes={
        "you drop the choice after the proposals that agree: it is the model's own token after correct text, so the text gains it too.": [
            ": n + 1] -> :n]"
        ],
        "the wrong proposal itself is kept: at that position the text gains the model's choice.": [
            "return choices[: n + 1] -> return proposals[: n + 1] if n < len(proposals) else choices"
        ],
        "you count all proposals that agree: those after the first wrong one agree by chance, after a different text.": [
            "    while n < len(proposals) and proposals[n] == choices[n]:\n        n += 1 ->     n = sum(p == c for p, c in zip(proposals, choices))"
        ],
        "your loop ends with the proposals: if all of them are right, the pass yields one more token, the last choice.": [
            "return choices[: n + 1] -> return choices[: min(n + 1, len(proposals))]"
        ],
        "a number is returned: return the list of that many tokens.": [
            "return choices[: n + 1] -> return n + 1"
        ],
    },
    wrong=[
        "n < len(proposals) and -> n < len(proposals) and proposals[n] and",
        "n = 0 -> n = 0\n    if not proposals:\n        return []",
        "len(proposals) and -> min(len(proposals), 4) and",
        "return choices[: n + 1] -> del choices[n + 1 :]\n    return choices",
        "== choices[n] -> in choices",
    ],
    right=[
        """
def tokens_gained(proposals, choices):
    for i in range(len(choices)):
        yield choices[i]
        if i < len(proposals) and choices[i] != proposals[i]:
            return
""",
        """
def tokens_gained(proposals, choices):
    if not proposals or proposals[0] != choices[0]:
        return choices[:1]
    return choices[:1] + tokens_gained(proposals[1:], choices[1:])
""",
        """
def tokens_gained(proposals, choices):
    proposed = torch.tensor(proposals, dtype=torch.long)
    chosen = torch.tensor(choices)
    n = (proposed == chosen[:-1]).long().cumprod(0).sum()
    return chosen[: n + 1]
""",
        """
def tokens_gained(guessed, own):
    from itertools import takewhile

    right = tuple(takewhile(lambda pair: pair[0] == pair[1], zip(guessed, own)))
    return tuple(choice for _, choice in right) + (own[len(right)],)
""",
    ],
    hints=(
        "The draft proposes 7, 8, 9, and the model chooses 7, 8, 5, 6. After which text did it choose the 5, and after which the 6?",
        "Count the proposals that equal their choice, up to the first that differs: n. How many of the `choices` follow correct text?",
        "return choices[: n + 1], where n counts up while n < len(proposals) and proposals[n] == choices[n]",
    ),
    advice={
        "still needs": "Slices like choices[:n] make a new list; append, pop and del do not.",
        "the tokens that": "Return the choices up to and including the first that differs from its proposal; all of them if none does. Without a proposal that is the only choice.",
    },
)
