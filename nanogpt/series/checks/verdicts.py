"""The checks of verdict, margin and SlyCache: is a difference rounding, or is it a bug?"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ...cache import kv_cache
from ...config import GPTConfig
from ...model import GPT
from ...verify.referee import referee
from .. import solutions
from .caches import GrowingCache
from .exercise import Anew, Answer, Case, Exercise, Pairs
from .observing import Arguments, numbers

NAN = float("nan")  # a different object from math.nan, so that comparing with `is` fails
INF = math.inf


# ------------------------------------------------------------------ verdict


def run_verdict(answer: Answer, in_float32: float, in_float64: float) -> Pairs:
    """One call."""
    said = answer(in_float32, in_float64)
    yield "what is returned is not a word", not isinstance(said, str)
    yield "the verdict", said


def verdicts(*pairs: tuple[float, float]) -> list[Case]:
    """A case for each pair of differences."""
    return [Case(run_verdict, in_float32=a, in_float64=b) for a, b in pairs]


def verdict_by(equal: Any = None, rounding: Any = None) -> Answer:
    """verdict with other conditions on the differences in float32 and float64."""
    equal = equal or (lambda coarse, fine: coarse == fine == 0)
    rounding = rounding or (lambda coarse, fine: fine < coarse / 1000)

    def verdict(coarse: float, fine: float) -> str:
        if equal(coarse, fine):
            return "equal"
        return "rounding" if rounding(coarse, fine) else "bug"

    return verdict


def bug_first(coarse: float, fine: float) -> str:
    if coarse == fine == 0:
        return "equal"
    return "bug" if fine >= coarse / 1000 else "rounding"


def good_alone(coarse: float, fine: float) -> str | None:
    if coarse == fine == 0:
        return "equal"
    return "rounding" if fine < coarse / 1000 else None


VERDICT = Exercise(
    notebook="03",
    hints=(
        "How much smaller does rounding get in float64? And how much smaller does a bug get?",
        'Test for what is good, and let "bug" be the rest: `fine < coarse` is False if either is '
        "NaN.",
        'if in_float32 == in_float64 == 0: return "equal"; then return "rounding" if in_float64 < '
        'in_float32 / 1000 else "bug"',
    ),
    right=solutions.verdict,
    # No pair is at the edge: exactly a thousandth is left open. So is a difference that is
    # infinite only in float32.
    cases=verdicts(
        (0.0, 0.0),
        (2e-5, 4e-14),
        (2e-3, 2e-3),
        (3e-10, 2e-10),
        (3e-2, 0.0),
        (0.0, 1e-3),
        (2e-5, 3e-8),
        (2e-5, 1e-8),
        (4.0, 0.1),
        (4000.0, 3.0),
        (3e-9, 2e-9),
        (1e-5, 1e-3),
        (1e-9, 1e-13),
        (NAN, NAN),
        (NAN, 0.0),
        (0.0, NAN),
        (1e-5, NAN),
        (1e-5, INF),
        (INF, INF),
        (INF, NAN),
        (0.5, 0.4),
        (0, 0),
    ),
    mistakes={
        "no difference in either dtype is 'equal', not rounding.": verdict_by(
            equal=lambda coarse, fine: False,
            rounding=lambda coarse, fine: fine <= coarse / 1000,
        ),
        "no difference in either dtype is 'equal', not a bug.": verdict_by(
            equal=lambda coarse, fine: False
        ),
        "no difference in float64 alone is not 'equal': there may be one in float32, which is "
        "rounding.": verdict_by(equal=lambda coarse, fine: fine == 0),
        "no difference in float32 alone is not 'equal': if there is one in float64, it is a bug.": (
            verdict_by(equal=lambda coarse, fine: coarse == 0)
        ),
        "two differences of the same size are not 'equal': a difference that does not shrink is "
        "a bug.": verdict_by(equal=lambda coarse, fine: coarse == fine),
        "a difference that is slightly smaller in float64 is not yet rounding: it must be a "
        "thousand times smaller.": verdict_by(rounding=lambda coarse, fine: fine < coarse),
        "a hundred times smaller is not enough for rounding: it must be a thousand times "
        "smaller.": (verdict_by(rounding=lambda coarse, fine: fine < coarse / 100)),
        "ten times smaller is too little for rounding: it must be a thousand times smaller.": (
            verdict_by(rounding=lambda coarse, fine: fine < coarse / 10)
        ),
        "a thousand times smaller is enough for rounding: you require more.": (
            verdict_by(rounding=lambda coarse, fine: fine < coarse / 1e6)
        ),
        "the difference in float32 must be a thousand times that in float64, not the other way "
        "round.": verdict_by(rounding=lambda coarse, fine: coarse < fine / 1000),
        "rounding and bug are swapped: what shrinks is rounding.": verdict_by(
            rounding=lambda coarse, fine: not fine < coarse / 1000
        ),
        "a small difference in float32 need not be rounding: compare it with the one in float64.": (
            verdict_by(rounding=lambda coarse, fine: coarse < 1e-4)
        ),
        "a small difference in float64 need not be rounding: compare it with the one in float32.": (
            verdict_by(rounding=lambda coarse, fine: fine < 1e-6)
        ),
        "you subtract the two: what counts is how many times smaller the difference is.": (
            verdict_by(rounding=lambda coarse, fine: coarse - fine > 1e-3)
        ),
        "NaN is a bug: every comparison with NaN is False, so test for what is good and let "
        "'bug' be the rest.": bug_first,
        "a boolean is returned: return 'rounding' or 'bug'.": lambda coarse, fine: (
            "equal" if coarse == fine == 0 else fine < coarse / 1000
        ),
        "nothing is returned if it is neither equal nor rounding: return 'bug'.": good_alone,
        "your ratio divides by 0 if float64 shows no difference: compare with "
        "in_float32 / 1000.": verdict_by(rounding=lambda coarse, fine: coarse / fine > 1000),
        "infinity in both is a bug, though inf <= inf / 1000 is True: nothing shrank.": verdict_by(
            rounding=lambda coarse, fine: fine <= coarse / 1000
        ),
    },
    advice={
        "the verdict": (
            "A bug does not shrink a thousandfold. No difference in either dtype is 'equal', and a "
            "NaN is a bug."
        ),
        "not a word": "Return one of the words 'equal', 'rounding' and 'bug'.",
    },
)


# ------------------------------------------------------------------ margin


def run_margin(answer: Answer, logits: list[float], noise: list[float]) -> Pairs:
    """One sampled token."""
    pairs = zip(("logits", "noise"), (logits, noise), strict=True)
    given = Arguments(**{name: torch.tensor(row, dtype=torch.float64) for name, row in pairs})
    yield from measured(answer, given, "the margin")


def run_margins(answer: Answer, V: int, factor: float, dtype: torch.dtype) -> Pairs:
    """Two sampled tokens with random logits."""
    for seed in range(2):
        logits = factor * numbers(V, seed=seed, dtype=dtype)
        noise = numbers(V, seed=10 + seed, dtype=dtype).abs()
        yield from measured(
            answer, Arguments(logits=logits, noise=noise), "the margin of a sampled token"
        )


def measured(answer: Answer, given: Arguments, what: str) -> Pairs:
    """A number, as a float or anything that float() accepts."""
    said = answer(*given.tensors.values())
    yield from given.changes()
    try:
        number = float(said)
        wrong = False
    except (TypeError, ValueError, RuntimeError):
        number = math.nan
        wrong = True
    yield "what is returned is not a number", wrong
    yield what, torch.tensor(number, dtype=torch.float64)


def margin_by(
    score: Any = lambda logits, noise: logits - noise.log(),
    result: Any = lambda scores: scores.topk(2).values.diff().neg().item(),
) -> Answer:
    """margin with another score, or another function of the scores."""
    return lambda logits, noise: result(score(logits, noise))


def best_over_all(scores: Tensor) -> float:
    """By how much the best beats the next smaller score, ignoring ties."""
    best = scores.max()
    return float(best - scores[scores < best].max()) if (scores < best).any() else 0.0


def in_place(logits: Tensor, noise: Tensor) -> float:
    best, second = logits.sub_(noise.log()).topk(2).values
    return float(best - second)


def noise_in_place(logits: Tensor, noise: Tensor) -> float:
    best, second = (logits - noise.log_()).topk(2).values
    return float(best - second)


E = math.e
LARGE = [300.0, 0.0, -250.0]
MARGIN = Exercise(
    notebook="03",
    hints=(
        "Sampling is a race. What is a candidate's score in it, in logits: what does a large "
        "noise value do to its chances?",
        "The score of a candidate is `logits - noise.log()`. `scores.topk(2).values` are the best "
        "two.",
        "best, second = (logits - noise.log()).topk(2).values; then return (best - second).item()",
    ),
    right=solutions.margin,
    cases=[
        Case(run_margin, 1e-4, logits=[2.0, 1.0, 0.0], noise=[1.0, 1.0, 1.0]),
        Case(run_margin, 1e-4, logits=[2.0, 1.0, 0.0], noise=[E, 1.0, E**-4]),
        Case(run_margin, 1e-4, logits=[0.0, 4.0, 1.5, -3.0], noise=[1.0, E**3, E, E**-2]),
        Case(run_margin, 1e-4, logits=[-5.0, -8.0], noise=[0.5, 0.5]),
        Case(run_margin, 1e-4, logits=[1.0, 3.0, 3.0, 0.0], noise=[1.0, 1.0, 1.0, 1.0]),
        Case(run_margins, 1e-4, V=65, factor=3.0, dtype=torch.float64),
        Case(run_margins, 1e-3, V=65, factor=3.0, dtype=torch.float32),
        Case(run_margin, 1e-4, logits=LARGE, noise=[1.0, 2.0, 3.0]),
    ],
    mistakes={
        "the noise is not used: it decides the race as much as the logits do.": margin_by(
            score=lambda logits, noise: logits
        ),
        "log(noise) is added: large noise means ringing late, so it must lower the "
        "score.": margin_by(score=lambda logits, noise: logits + noise.log()),
        "the noise itself is subtracted: the score is the logit minus its logarithm.": margin_by(
            score=lambda logits, noise: logits - noise
        ),
        "the logits are divided by the noise: that is for probabilities; for logits, subtract "
        "log(noise).": margin_by(score=lambda logits, noise: logits / noise),
        "the margin is in probabilities: the scores are logits minus log(noise).": margin_by(
            score=lambda logits, noise: logits.softmax(-1) / noise
        ),
        "a softmax turns the scores into probabilities: the margin is in logits, before any "
        "softmax.": (margin_by(score=lambda logits, noise: (logits - noise.log()).softmax(-1))),
        "logits are not probabilities: the logarithm of a negative one is NaN.": margin_by(
            score=lambda logits, noise: logits.log() - noise.log()
        ),
        "a probability of 0 has no logarithm: subtract log(noise) from the logits, without a "
        "softmax.": margin_by(
            score=lambda logits, noise: (logits.float().softmax(-1) / noise).log()
        ),
        "the second best minus the best is negative: the margin is best minus second best.": (
            margin_by(result=lambda scores: scores.topk(2).values.diff().item())
        ),
        "you subtract the worst score from the best: subtract the second best.": margin_by(
            result=lambda scores: (scores.max() - scores.min()).item()
        ),
        "you subtract the mean from the best score: subtract the second best.": (
            margin_by(result=lambda scores: (scores.max() - scores.mean()).item())
        ),
        "the first two candidates are compared: compare the best two of all.": (
            margin_by(result=lambda scores: (scores[0] - scores[1]).abs().item())
        ),
        "the last two of the unsorted scores are compared: compare the largest two.": (
            margin_by(result=lambda scores: (scores[-1] - scores[-2]).abs().item())
        ),
        "you return only the best score: subtract the second best.": margin_by(
            result=lambda scores: scores.max().item()
        ),
        "the best two logits are chosen before the noise is applied: it may put others in front.": (
            lambda logits, noise: float(
                (logits - noise.log())[logits.topk(2).indices].diff().neg().abs()
            )
        ),
        "if two candidates tie for first place, the margin is 0: the second best may be as good "
        "as the best.": margin_by(result=best_over_all),
        "half of the margin is returned: the half-margin rule halves it later.": margin_by(
            result=lambda scores: scores.topk(2).values.diff().neg().item() / 2
        ),
        "the logits are divided by a temperature: use them as they are.": (
            margin_by(score=lambda logits, noise: logits / 0.8 - noise.log())
        ),
        "`logits` is modified in place: `-=` and methods that end in _ change the caller's "
        "tensor.": (in_place),
        "`noise` is modified in place: log_() changes the caller's tensor, log() does not.": (
            noise_in_place
        ),
    },
    advice={
        "the margin": "It is the best score, logits - noise.log(), minus the second best.",
        "not a number": "Return one number.",
    },
)


# ------------------------------------------------------------------ SlyCache

SIZE = 11  # vocabulary size
BLOCK = 24
OFF = 1e-9  # relative to the largest logit: more than this in float64 is not rounding


def small(factor: int) -> GPT:
    """A model of one layer and two heads, with its initial weights multiplied by a factor.

    With 2 every token matters, with 9 only a few do, but those matter a lot.
    """
    config = GPTConfig(SIZE, BLOCK, n_layer=1, n_head=2, n_embd=8)
    model = GPT(config, generator=torch.Generator().manual_seed(0)).eval()
    model.load_state_dict({name: factor * weight for name, weight in model.state_dict().items()})
    return model


TEXTS = {  # texts in pieces, by what must be right in them: the last piece
    "a prompt": ([7], 1),
    "a prompt of one token": ([1], 1),
    "a prompt as long as the block": ([BLOCK], 1),
    "prompts in a batch": ([9], 3),
    "a single token after a prompt": ([7, 1, 1, 1], 1),
    "a single token after one token": ([1, 1, 1, 1], 1),
    "single tokens after prompts in a batch": ([9, 1], 3),
    "a single token far on": ([BLOCK - 2, 1, 1], 1),
    "a prompt of a second text": ([8], 1),
}
LATER = [1, 4]


def run_pieces(answer: Answer) -> Pairs:
    """Which of the prompts in one piece, and tokens one by one, are wrong?

    A later piece of several tokens may be wrong, but must not raise. Whether it is wrong matters
    only in addition to another fault.
    """
    model = small(2).double()
    wrong = [what for what, text in TEXTS.items() if is_wrong(model, answer, *text)]
    if is_wrong(model, answer, LATER, 1) and wrong:
        wrong.append("a later piece of several tokens")
    yield "what is wrong and must be right", ", ".join(wrong) or "nothing"


def is_wrong(model: GPT, answer: Answer, pieces: list[int], B: int) -> bool:
    """Whether the logits of the texts' last piece differ from those without a cache."""
    ids = torch.randint(SIZE, (B, sum(pieces)), generator=torch.Generator().manual_seed(B))
    with torch.no_grad(), kv_cache(model, answer):
        for place in torch.arange(ids.shape[1]).split(pieces):
            got, _ = model(ids[:, place], pos=place)
    with torch.no_grad():
        plain, _ = model(ids)
    off = (got - plain[:, place]).abs().max() / plain.abs().max()
    return not bool(off < OFF)


def run_referee(answer: Answer) -> Pairs:
    """The referee."""
    report = referee(small(9), caches=[answer], length=20, requests=1)
    words = "the referee acquits it: every way of reading a text gives the right logits"
    yield words, not report.bugs


def sly_by(when: Any = lambda held, new: True, spoil: Any = lambda v: v.flip(1)) -> Answer:
    """A growing cache that corrupts new values under a condition on its contents and input."""

    class Sly(GrowingCache):
        def update(self, k: Tensor, v: Tensor, pos: Tensor) -> Any:
            held = len(self.held[2]) if self.held else 0
            return super().update(k, spoil(v) if when(held, len(pos)) else v, pos)

    return Sly


def sly_for_the_second_text() -> Answer:
    """A class that corrupts the first piece from its third cache on: a model has two heads."""
    built: list[int] = []

    class Later(GrowingCache):
        def __init__(self, capacity: int) -> None:
            super().__init__(capacity)
            built.append(1)

        def update(self, k: Tensor, v: Tensor, pos: Tensor) -> Any:
            later = len(built) > 2 and not self.held
            return super().update(k, -v if later else v, pos)

    return Later


def sly_in_a_batch(B: int) -> Answer:
    class Sly(GrowingCache):
        def update(self, k: Tensor, v: Tensor, pos: Tensor) -> Any:
            return super().update(k, -v if len(v) >= B else v, pos)

    return Sly


TOKENS = "a single token after it must still be right"
SLY_CACHE = Exercise(
    notebook="03",
    hints=(
        "What does a cache know about earlier pieces, and how does it know how many tokens are "
        "arriving? Which two conditions hold only for the rest of a prompt in a second piece?",
        "`self.k is not None` means that there was an earlier piece, and `len(pos) > 1` that "
        "this one has several tokens. `v.flip(1)` reverses the order of the values.",
        "if self.k is not None and len(pos) > 1: v = v.flip(1); then return super().update(k, v, "
        "pos)",
    ),
    method="update",
    right=solutions.SlyCache,
    # Any error in a later piece of several tokens is accepted, so only verdicts are observed.
    cases=[
        Case(run_pieces),
        Case(run_referee),
    ],
    mistakes={
        "the referee acquits it: everything it returns is right, up to rounding. Change the "
        "keys, values or positions of a later piece.": GrowingCache,
        "the first piece is already wrong, and what follows is right: check for an earlier "
        "piece with `self.k is not None`.": sly_by(lambda held, new: not held),
        "each piece of several tokens goes wrong, including the first: also check for an "
        "earlier piece, `self.k is not None`.": sly_by(
            lambda held, new: new > 1, spoil=lambda v: v.flip(1)
        ),
        f"each piece after the first goes wrong, even a single token: {TOKENS}, so check "
        "`len(pos) > 1`.": sly_by(lambda held, new: held > 0, spoil=lambda v: -v),
        f"only single tokens go wrong, and a later piece of several is right: {TOKENS}, so "
        "invert the condition on len(pos).": sly_by(
            lambda held, new: held > 0 and new == 1, spoil=lambda v: -v
        ),
        "everything goes wrong from the first piece on, even a prompt of one token: require an "
        "earlier piece, and several tokens in this one.": sly_by(spoil=lambda v: -v),
        "a second text goes wrong in its first piece: its caches are new, so the fault is "
        "stored in the class.": Anew(sly_for_the_second_text),
        "a batch goes wrong in one piece: the fault must depend only on the pieces.": (
            sly_in_a_batch(2)
        ),
        "a prompt of one token goes wrong: such a prompt is a first piece.": sly_by(
            lambda held, new: not held and new == 1, spoil=lambda v: -v
        ),
        "a long prompt in one piece goes wrong: a first piece of any length must be right.": sly_by(
            lambda held, new: not held and new > 9, spoil=lambda v: v.flip(1)
        ),
        "single tokens go wrong beyond some text length: the fault must require several tokens "
        "at once.": sly_by(lambda held, new: held > 12, spoil=lambda v: -v),
    },
    advice={
        "must be right": (
            "The fault must require an earlier piece, `self.k is not None`, and several tokens in "
            "this one, `len(pos) > 1`."
        ),
        "the referee acquits": "Change the keys, values or positions of a later piece.",
        "NoneType": "Does update end with `return super().update(k, v, pos)`?",
        "your code raised": "The fault must be in the returned numbers, not an exception.",
    },
)
