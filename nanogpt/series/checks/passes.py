"""The checks of the gain of a speculative decoding pass: tokens_gained and expected_gain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .. import solutions
from .exercise import Anew, Answer, Case, Exercise, Pairs
from .observing import form

# ------------------------------------------------------------------ tokens_gained


def run_pass(answer: Answer, proposals: list[int], choices: list[int]) -> Pairs:
    """One pass. Equal tokens are different objects, as with a model's."""
    given = {"proposals": proposals, "choices": choices}
    copies = {name: [int(str(token)) for token in tokens] for name, tokens in given.items()}
    got = answer(*copies.values())
    for name, tokens in given.items():
        yield (
            f"your code changes the list `{name}`, which the caller still needs",
            (copies[name] != tokens),
        )
    yield "the tokens that the text gains", _listed(got)


def run_passes(answer: Answer, *, passes: Sequence[tuple[list[int], list[int]]]) -> Pairs:
    """Several calls, one after the other."""
    for number, (proposals, choices) in enumerate(passes, start=1):
        yield (
            f"the tokens that the text gains in call {number}",
            _listed(answer([*proposals], [*choices])),
        )


def _listed(got: Any) -> Any:
    """The list of tokens, or a description of anything else."""
    if isinstance(got, str) or not hasattr(got, "__iter__"):
        return f"{form(got)} instead of a list"
    return [*got]


def agreed(proposals: list[int], choices: list[int]) -> int:
    """The number of proposals that equal their choice, up to the first that differs."""
    pairs = zip(proposals, choices, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), len(proposals))


def by_count(gain: Any) -> Answer:
    """tokens_gained as a function of the number of proposals that agree."""
    return lambda proposals, choices: gain(proposals, choices, agreed(proposals, choices))


def matches_anywhere(proposals: list[int], choices: list[int]) -> list[int]:
    return choices[: 1 + sum(a == b for a, b in zip(proposals, choices, strict=False))]


def matches_alone(proposals: list[int], choices: list[int]) -> list[int]:
    pairs = zip(proposals, choices, strict=False)
    return [a for a, b in pairs if a == b] + [choices[agreed(proposals, choices)]]


def loop_over_pairs(proposals: list[int], choices: list[int]) -> list[int]:
    gained = []
    for proposal, choice in zip(proposals, choices, strict=False):
        gained.append(choice)
        if proposal != choice:
            break
    return gained


def members(proposals: list[int], choices: list[int]) -> list[int]:
    n = 0
    while n < len(proposals) and proposals[n] in choices:
        n += 1
    return choices[: n + 1]


def members_of_proposals(proposals: list[int], choices: list[int]) -> list[int]:
    n = 0
    while n < len(proposals) and choices[n] in proposals:
        n += 1
    return choices[: n + 1]


def identical(proposals: list[int], choices: list[int]) -> list[int]:
    n = 0
    while n < len(proposals) and proposals[n] is choices[n]:
        n += 1
    return choices[: n + 1]


def until_zero(proposals: list[int], choices: list[int]) -> list[int]:
    n = 0
    while n < len(proposals) and proposals[n] and proposals[n] == choices[n]:
        n += 1
    return choices[: n + 1]


def while_they_differ(proposals: list[int], choices: list[int]) -> list[int]:
    n = 0
    while n < len(proposals) and proposals[n] != choices[n]:
        n += 1
    return choices[: n + 1]


def past_the_last(proposals: list[int], choices: list[int]) -> list[int]:
    n = 0
    while proposals[n] == choices[n]:
        n += 1
    return choices[: n + 1]


def shifted(proposals: list[int], choices: list[int]) -> list[int]:
    return choices[: agreed(proposals, choices[1:]) + 1]


def greater_ends(proposals: list[int], choices: list[int]) -> list[int]:
    n = 0
    while n < len(proposals) and proposals[n] <= choices[n]:
        n += 1
    return choices[: n + 1]


def sentinel_left(proposals: list[int], choices: list[int]) -> list[int]:
    proposals.append(-1)
    n = agreed(proposals, choices)
    return choices[: n + 1]


def cut_in_place(proposals: list[int], choices: list[int]) -> list[int]:
    del choices[agreed(proposals, choices) + 1 :]
    return choices


def gathers() -> Answer:
    gained: list[int] = []

    def tokens_gained(proposals: list[int], choices: list[int]) -> list[int]:
        gained.extend(choices[: agreed(proposals, choices) + 1])
        return [*gained]

    return tokens_gained


MANY = [token % 65 for token in range(300)]
TOKENS_GAINED = Exercise(
    notebook="07",
    hints=(
        "The draft proposes 7, 8, 9, and the model chooses 7, 8, 5, 6. After which text did it "
        "choose the 5, and after which the 6?",
        "Count the proposals that equal their choice, up to the first that differs: n. How many "
        "of the `choices` follow correct text?",
        "return choices[: n + 1], where n counts up while n < len(proposals) and proposals[n] == "
        "choices[n]",
    ),
    right=solutions.tokens_gained,
    cases=[
        Case(run_pass, proposals=[7, 8, 9], choices=[7, 8, 5, 6]),
        Case(run_pass, proposals=[7, 8, 9], choices=[1, 8, 9, 4]),
        Case(run_pass, proposals=[7, 8], choices=[7, 8, 3]),
        Case(run_pass, proposals=[], choices=[4]),
        Case(run_pass, proposals=[5, 6, 7, 8], choices=[5, 1, 7, 8, 2]),
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
        "you drop the choice after the proposals that agree: it is the model's own token after "
        "correct text, so the text gains it too.": by_count(lambda p, c, n: c[:n]),
        "choices after a wrong proposal are kept: they belong to a different text. Stop after "
        "the first that differs.": lambda proposals, choices: choices,
        "one choice after the wrong proposal is kept: it belongs to a different text. Stop "
        "after n + 1 choices.": by_count(lambda p, c, n: c[: n + 2]),
        "the wrong proposal itself is kept: at that position the text gains the model's choice.": (
            by_count(lambda p, c, n: p[: n + 1] if n < len(p) else c)
        ),
        "all proposals are accepted unchecked: a proposal counts only if it is the model's own "
        "choice.": lambda proposals, choices: proposals,
        "the wrong proposal is kept, followed by the model's choice: the choice "
        "replaces it.": by_count(lambda p, c, n: p[: n + 1] + c[n : n + 1] if n < len(p) else c),
        "you count all proposals that agree: those after the first wrong one agree by chance, "
        "after a different text.": matches_anywhere,
        "proposals after the first wrong one are kept if they agree: they follow a different "
        "text, and agree by chance.": matches_alone,
        "your loop ends with the proposals: if all of them are right, the pass yields one more "
        "token, the last choice.": loop_over_pairs,
        "only the model's own token is returned: the text also gains the proposals before it "
        "that agree.": by_count(lambda p, c, n: c[n : n + 1]),
        "the last choice is always appended: it follows all proposals. After n right ones it is "
        "choices[n].": by_count(lambda p, c, n: c[:n] + c[-1:]),
        "a number is returned: return the list of that many tokens.": by_count(
            lambda p, c, n: n + 1
        ),
        "you check whether a proposal is anywhere among the choices: compare it with the choice "
        "at its own index.": members,
        "you check whether a choice is anywhere among the proposals: compare it with the "
        "proposal at its own index.": members_of_proposals,
        "`is` checks whether two numbers are the same object: compare with ==.": identical,
        "token 0 is a token, but your loop stops there: check whether the two are "
        "equal.": until_zero,
        "each proposal is compared with the choice after it: proposals[n] belongs to "
        "choices[n].": shifted,
        "the loop continues while proposal and choice differ: it must continue while they agree.": (
            while_they_differ
        ),
        "the loop runs past the last proposal: check n < len(proposals) first.": past_the_last,
        "without a proposal nothing is returned: such a pass is a plain step, which yields the "
        "model's own token.": by_count(lambda p, c, n: c[: n + 1] if p else []),
        "you compare which is larger: a proposal is right if it is equal to the choice.": (
            greater_ends
        ),
        "only four proposals are checked: there may be any number.": (
            lambda proposals, choices: choices[: min(agreed(proposals, choices), 4) + 1]
        ),
        "your code changes the list `proposals`, which the caller still needs: make a new list."
        "": sentinel_left,
        "your code changes the list `choices`, which the caller still needs: return a new list."
        "": cut_in_place,
        "tokens of an earlier call are returned again: begin with an empty list in each "
        "call.": Anew(gathers),
    },
    advice={
        "still needs": "Slices like choices[:n] make a new list; append, pop and del do not.",
        "the tokens that": (
            "Return the choices up to and including the first that differs from its proposal; all "
            "of them if none does."
        ),
    },
)


# ------------------------------------------------------------------ expected_gain


def run_gain(answer: Answer, a: float, k: int) -> Pairs:
    """One mean, as a number."""
    got = answer(a, k)
    if isinstance(got, Tensor) and got.numel() == 1:
        got = float(got)
    is_number = isinstance(got, (int, float)) and not isinstance(got, bool)
    yield "the mean tokens of a pass", got if is_number else form(got)


def mean_by(terms: Any) -> Answer:
    """expected_gain as the sum of these numbers."""
    return lambda a, k: sum(terms(a, k))


def at_one(value: Any) -> Answer:
    """The closed form, with something else at a = 1."""
    return lambda a, k: value(k) if a == 1 else (1 - a ** (k + 1)) / (1 - a)


def multiplied_on(a: float, k: int) -> float:
    total = power = 1.0
    for _ in range(k):
        total *= power + a
    return total


EXPECTED_GAIN = Exercise(
    notebook="07",
    hints=(
        "How often does the second proposal count if the first one must also be right? And "
        "which token is gained in any case?",
        "The model's own token counts 1. The first proposal counts with probability a, the second "
        "with a · a, and so on.",
        "return sum(a**i for i in range(k + 1))",
    ),
    right=solutions.expected_gain,
    # Powers of 1/2 in all of them, so that float32 is as exact as float64.
    cases=[
        Case(run_gain, a=0.5, k=2),
        Case(run_gain, a=0.5, k=1),
        Case(run_gain, a=1.0, k=3),
        Case(run_gain, a=0.0, k=3),
        Case(run_gain, a=0.25, k=3),
        Case(run_gain, a=0.75, k=5),
        Case(run_gain, a=0.125, k=6),
        Case(run_gain, a=0.5, k=0),
        Case(run_gain, a=1.0, k=8),
        Case(run_gain, a=0.5, k=16),
    ],
    mistakes={
        "you count only the proposals: every pass also yields the model's own token, 1 more.": (
            mean_by(lambda a, k: (a**i for i in range(1, k + 1)))
        ),
        "you count 1 + k · a: the second proposal counts only if the first one was right too.": (
            lambda a, k: 1 + k * a
        ),
        "you count k · a: a proposal counts only if those before it were right, and the model's "
        "own token is one more.": lambda a, k: k * a,
        "you count (k + 1) · a: the model's own token is certain, and a proposal counts only "
        "after right ones.": lambda a, k: (k + 1) * a,
        "the last of the k proposals is left out: range(k + 1) counts from 0 to k.": mean_by(
            lambda a, k: (a**i for i in range(k))
        ),
        "there is one power of a too many: the last of the k proposals counts with probability "
        "aᵏ.": (mean_by(lambda a, k: (a**i for i in range(k + 2)))),
        "at a = 1 the closed form divides 0 by 0: there all k proposals are right, which makes "
        "k + 1 tokens.": (lambda a, k: (1 - a ** (k + 1)) / (1 - a)),
        "at a = 1 your k tokens are only the proposals: the model's own is one more.": at_one(
            lambda k: k
        ),
        "at a = 1 you return 1 token, but all k proposals are right there: k + 1.": at_one(
            lambda k: 1.0
        ),
        "at a = 1 you return 0 tokens, but all k proposals are right there: k + 1.": at_one(
            lambda k: 0.0
        ),
        "1 / (1 - a) is the mean for infinitely many proposals: there are k.": (
            lambda a, k: 1 / (1 - a) if a < 1 else k + 1
        ),
        "you count all k proposals or none: the first can be right without the others.": (
            lambda a, k: 1 + k * a**k
        ),
        "you count only the last proposal, 1 + aᵏ: each of the k adds its own power.": (
            lambda a, k: 1 + a**k
        ),
        "each power is counted i times: the i-th proposal yields one token, not i.": mean_by(
            lambda a, k: [1.0, *(i * a**i for i in range(1, k + 1))]
        ),
        "the passes in which all k proposals are right are left out: they yield k + 1 tokens, "
        "with probability aᵏ.": mean_by(lambda a, k: ((i + 1) * a**i * (1 - a) for i in range(k))),
        "if all k are right, no proposal is rejected: that pass has probability aᵏ, without 1 - "
        "a.": mean_by(lambda a, k: ((i + 1) * a**i * (1 - a) for i in range(k + 1))),
        "1 - aᵏ⁺¹ is the sum times 1 - a: divide by that.": (
            lambda a, k: 1 - a ** (k + 1) if a < 1 else k + 1
        ),
        "you count the rejected ones: a is the probability that a proposal is accepted.": mean_by(
            lambda a, k: ((1 - a) ** i for i in range(k + 1))
        ),
        "the probability is multiplied with the sum so far: each further proposal adds one "
        "power of a.": multiplied_on,
        "at a = 0 a pass is a plain step, which yields the model's own token: 1, not 0.": (
            lambda a, k: sum(a**i for i in range(k + 1)) if a else 0.0
        ),
        "without proposals, k = 0, a pass is a plain step and yields 1 token.": (
            lambda a, k: sum(a**i for i in range(k + 1)) if k else 0.0
        ),
        "a mean is rounded: leave it as it is.": (
            lambda a, k: round(sum(a**i for i in range(k + 1)), 1)
        ),
        "a mean is rounded to two digits: leave it as it is.": (
            lambda a, k: round(sum(a**i for i in range(k + 1)), 2)
        ),
        "each power of a is counted i times, from 0 on, so the model's own token is lost: it "
        "counts 1, the i-th proposal aⁱ.": mean_by(lambda a, k: (i * a**i for i in range(k + 1))),
        "base and exponent are swapped: a · a is a**2.": mean_by(
            lambda a, k: (i**a for i in range(k + 1))
        ),
        "a mean is truncated to an integer: leave it as it is.": (
            lambda a, k: int(sum(a**i for i in range(k + 1)))
        ),
        "k + 1 is the most that a pass can yield: weight each proposal by its probability.": (
            lambda a, k: k + 1
        ),
    },
    advice={
        "the mean tokens": "1 for the model's own token, and a power of a for each proposal: 1 + a "
        "+ … + aᵏ.",
        "ZeroDivisionError": "At a = 1 all k proposals are right: k + 1 tokens.",
    },
)
