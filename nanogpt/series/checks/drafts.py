"""The check of MyDraft."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...config import GPTConfig
from ...engines.drafts import Draft
from ...engines.generation import generate
from ...model import GPT
from ...sampling import PLAIN, draw_noise
from .. import solutions
from .exercise import Answer, Case, Exercise, Pairs
from .observing import Arguments, form

SIZE = 9  # vocabulary size


def spoken(got: Any) -> Any:
    """A guess in words: a token, none, or the type of anything else."""
    if got is None:
        return "None"
    if not isinstance(got, Tensor) or got.shape != (1, 1):
        return f"{form(got)} instead of (1, 1)"
    if got.is_floating_point() or got.is_complex() or got.dtype == torch.bool:
        return f"{got.dtype} instead of an integer"
    return f"token {int(got)}"


def begun(answer: Answer, prompt: Sequence[int]) -> Any:
    """The guessing function of a new generation with this prompt."""
    return answer(4).begin(torch.tensor([[*prompt]]), PLAIN)


def run_guess(answer: Answer, text: Sequence[int], prompt: int = 1) -> Pairs:
    """One guess in a text whose first few tokens are the prompt."""
    guess = begun(answer, text[:prompt])
    yield "begin does not return a function", not callable(guess)
    given = Arguments(text=torch.tensor([[*text]]), noise=torch.ones(1, SIZE))
    got = guess(*given.tensors.values())
    yield from given.changes()
    yield "the guess", spoken(got)


def run_noise(answer: Answer) -> Pairs:
    """One text with different noise."""
    guess = begun(answer, [1])
    for token in range(SIZE):
        noise = torch.ones(1, SIZE)
        noise[0, token] = 1e-6  # so that sampling picks this one
        got = guess(torch.tensor([[1, 2, 3, 1]]), noise)
        yield f"the guess after 1 2 3 1 where the noise favours {token}", spoken(got)


def run_texts(answer: Answer, texts: Sequence[Sequence[int]]) -> Pairs:
    """One function, for texts that grow, shrink and change."""
    guess = begun(answer, texts[0])
    for text in texts:
        said = " ".join(map(str, text))
        got = guess(torch.tensor([[*text]]), torch.ones(1, SIZE))
        yield f"the guess after {said}, in one generation", spoken(got)


def run_two(answer: Answer) -> Pairs:
    """Two interleaved generations of one draft."""
    draft = answer(7)
    yield "the k of a draft that is made with k = 7", getattr(draft, "k", "missing")
    prompts = {"first": [5, 6], "second": [7, 8]}
    guesses = {name: draft.begin(torch.tensor([prompt]), PLAIN) for name, prompt in prompts.items()}
    noise = torch.ones(1, SIZE)
    turns = (
        ("first", [5, 6, 5]),
        ("second", [7, 8, 5]),
        ("first", [5, 6, 5, 6]),
        ("second", [7, 8, 5, 7]),
    )
    for name, text in turns:
        said = " ".join(map(str, text))
        got = guesses[name](torch.tensor([text]), noise)
        yield f"the guess after {said}, in the {name} of two generations", spoken(got)


def run_model(answer: Answer, n: int = 40) -> Pairs:
    """A whole text, with and without the draft."""
    shape = GPTConfig(SIZE, n + 1, n_layer=1, n_head=1, n_embd=8)
    model = GPT(shape, generator=torch.Generator().manual_seed(1)).eval()
    noise = draw_noise(n, 1, SIZE, torch.Generator().manual_seed(2))
    start = torch.zeros(1, 1, dtype=torch.long)
    plain = torch.cat([*generate(model, start, n, noise=noise)], dim=1)
    steps: Any = generate(model, start, n, draft=answer(4), noise=noise)
    drafted = torch.cat([*steps], dim=1)
    yield "with your draft the model generates different tokens", not torch.equal(plain, drafted)
    yield f"the passes of a model for {n} tokens", steps.stats.passes


# ------------------------------------------------------------------ mistakes


def places_before(text: Tensor) -> list[int]:
    """Earlier positions of the last token, in order."""
    found: list[int] = (text[0, :-1] == text[0, -1]).nonzero()[:, 0].tolist()
    return found


def draft_by(guess: Any) -> type[Draft]:
    """A draft that guesses by another function of the text."""

    class Other(Draft):
        def begin(self, prompt: Tensor, sampling: Any) -> Any:
            return lambda text, noise: guess(text)

    return Other


def found_by(say: Any, otherwise: Any = lambda text: None) -> type[Draft]:
    """A draft that guesses from the text and the earlier positions of its last token."""

    def guess(text: Tensor) -> Any:
        before = places_before(text)
        return say(text, before) if before else otherwise(text)

    return draft_by(guess)


def after(text: Tensor, place: int) -> Tensor:
    """The token after a position.  -> (1, 1)"""
    return text[:, place + 1 : place + 2]


def most_frequent_after(text: Tensor, before: list[int]) -> Tensor:
    counts = Counter(int(text[0, place + 1]) for place in before)
    return torch.tensor([[counts.most_common(1)[0][0]]])


def most_frequent(text: Tensor) -> Tensor:
    return torch.tensor([[Counter(text[0].tolist()).most_common(1)[0][0]]])


def last_two(text: Tensor) -> Tensor | None:
    tokens = text[0].tolist()
    for place in range(len(tokens) - 2, 0, -1):
        if tokens[place - 1 : place + 1] == tokens[-2:]:
            return after(text, place)
    return None


def not_neighbours(text: Tensor) -> Tensor | None:
    before = [place for place in places_before(text) if place < text.shape[1] - 2]
    return after(text, before[-1]) if before else None


def with_itself(text: Tensor) -> Tensor:
    return text[:, (text[0] == text[0, -1]).nonzero()[-1] + 1]


def without_asking(text: Tensor) -> Tensor:
    return text[:, (text[0, :-1] == text[0, -1]).nonzero()[-1] + 1]


def without_zero(text: Tensor, before: list[int]) -> Tensor | None:
    token = after(text, before[-1])
    return token if token.any() else None


RIGHT: Answer = solutions.MyDraft


class InThePrompt(Draft):
    def begin(self, prompt: Tensor, sampling: Any) -> Any:
        guess = RIGHT(self.k).begin(prompt, sampling)
        return lambda text, noise: guess(prompt, noise)


class Silent(Draft):
    def begin(self, prompt: Tensor, sampling: Any) -> Any:
        RIGHT(self.k).begin(prompt, sampling)


class AtOnce(Draft):
    def begin(self, prompt: Tensor, sampling: Any) -> Any:
        return RIGHT(self.k).begin(prompt, sampling)(prompt, torch.ones(1, SIZE))


class ByNoise(Draft):
    def begin(self, prompt: Tensor, sampling: Any) -> Any:
        return lambda text, noise: noise.argmin(-1, keepdim=True)


class Table(Draft):
    """Records what follows each token as the text grows, separately for each generation."""

    def begin(self, prompt: Tensor, sampling: Any) -> Any:
        followed: dict[int, int] = {}
        read = 0

        def guess(text: Tensor, noise: Tensor) -> Tensor | None:
            nonlocal read
            tokens = text[0].tolist()
            for place in range(max(read - 1, 0), len(tokens) - 1):
                followed[tokens[place]] = tokens[place + 1]
            read = max(read, len(tokens))
            token = followed.get(tokens[-1])
            return None if token is None else torch.tensor([[token]])

        return guess


class OneTable(Draft):
    """Records what follows each token in one table shared by all generations."""

    def __init__(self, k: int = 4) -> None:
        super().__init__(k)
        self.followed: dict[int, int] = {}

    def begin(self, prompt: Tensor, sampling: Any) -> Any:
        def guess(text: Tensor, noise: Tensor) -> Tensor | None:
            tokens = text[0].tolist()
            self.followed.update(zip(tokens, tokens[1:], strict=False))
            token = self.followed.get(tokens[-1])
            return None if token is None else torch.tensor([[token]])

        return guess


class WithoutK(solutions.MyDraft):
    def __init__(self, k: int = 4) -> None:
        pass


class OwnK(solutions.MyDraft):
    def __init__(self, k: int = 4) -> None:
        super().__init__()
        self.k = 1


class InPlace(Draft):
    def begin(self, prompt: Tensor, sampling: Any) -> Any:
        def guess(text: Tensor, noise: Tensor) -> Tensor | None:
            last = int(text[0, -1])
            text[0, -1] = -1
            before = (text[0] == last).nonzero()
            return text[:, before[-1] + 1] if len(before) else None

        return guess


LONG = [token * token % 7 for token in range(200)]
MY_DRAFT = Exercise(
    notebook="07",
    hints=(
        "The text is 1 2 1 3 1. Where did the last token occur before, which of these positions "
        "is the latest, and what followed it there?",
        "`(text[0, :-1] == text[0, -1]).nonzero()` returns the earlier positions of the last "
        "token, in order. It may be empty.",
        "return text[:, before[-1] + 1] if len(before) else None",
    ),
    method="begin",
    right=RIGHT,
    cases=[
        Case(run_guess, text=[1, 2, 3, 1]),
        Case(run_guess, text=[1, 4, 1, 2, 1, 2, 1, 3, 1]),
        Case(run_guess, text=[1, 2, 1, 3, 1]),
        Case(run_guess, text=[1, 2, 3]),
        Case(run_guess, text=[5]),
        Case(run_guess, text=[4, 4]),
        Case(run_guess, text=[1, 2, 1, 1]),
        Case(run_guess, text=[1, 2, 1, 2, 1, 3, 4, 1]),
        Case(run_guess, text=[5, 0, 2, 5]),
        Case(run_guess, text=[0, 3, 0]),
        Case(run_guess, text=[4, 4, 1, 2, 3, 1], prompt=2),
        Case(run_noise),
        Case(
            run_texts,
            texts=[
                [1, 2],
                [1, 2, 1],
                [1, 2, 1, 4],
                [1, 2, 1],
                [1, 3],
                [1, 3, 1],
                [1, 3, 4],
                [1, 3, 4, 2],
                [1, 3, 4, 1],
            ],
        ),
        Case(run_two),
        Case(run_guess, text=LONG),
        Case(run_guess, text=[*LONG, 8, 7]),
        Case(run_model),
    ],
    mistakes={
        "it guesses the last token again: guess what followed its earlier occurrence, one "
        "position later.": found_by(lambda text, before: text[:, before[-1] : before[-1] + 1]),
        "the earliest occurrence is used: use the latest, the last in the list.": found_by(
            lambda text, before: after(text, before[0])
        ),
        "it guesses what came before the token: guess what followed it, one position "
        "later.": found_by(lambda text, before: text[:, before[-1] - 1][:, None]),
        "it guesses the token two positions later: what followed is one position later.": found_by(
            lambda text, before: text[:, (before[-1] + 2) % text.shape[1]][:, None]
        ),
        "if the last token never occurred before, there is no guess: return None, not the last "
        "token again.": found_by(
            lambda text, before: after(text, before[-1]), lambda text: text[:, -1:]
        ),
        "if the last token never occurred before, there is no guess: return None, not token 0.": (
            found_by(
                lambda text, before: after(text, before[-1]),
                lambda text: torch.zeros(1, 1, dtype=torch.long),
            )
        ),
        "if the last token never occurred before, there is no guess: return None, not the first "
        "token of the text.": found_by(
            lambda text, before: after(text, before[-1]), lambda text: text[:, :1]
        ),
        "the list of positions may be empty, and then has no last element: check its length "
        "first, and return None.": draft_by(without_asking),
        "the last token finds itself at the end, where nothing follows: search text[0, "
        ":-1].": draft_by(with_itself),
        "the guess has one dimension, (1,): it must be (1, 1), like text[:, i : i + 1].": found_by(
            lambda text, before: text[0, before[-1] + 1].view(1)
        ),
        "the guess has no dimension, (): it must be (1, 1), like text[:, i : i + 1].": found_by(
            lambda text, before: text[0, before[-1] + 1]
        ),
        "the guess is a Python number: it must be a tensor (1, 1).": found_by(
            lambda text, before: int(text[0, before[-1] + 1])
        ),
        "the guess is a float: a token is an integer.": found_by(
            lambda text, before: after(text, before[-1]).float()
        ),
        "everything that followed is returned: return only the next token, (1, 1).": found_by(
            lambda text, before: text[:, before[-1] + 1 :]
        ),
        "the position is returned: return the token at that position.": found_by(
            lambda text, before: torch.tensor([[before[-1] + 1]])
        ),
        "it guesses what followed most often: guess what followed the latest occurrence.": found_by(
            most_frequent_after
        ),
        "it guesses the most frequent token of the text: guess what followed the last "
        "token.": draft_by(most_frequent),
        "it looks for the last two tokens: look only for the last one.": draft_by(last_two),
        "the position right before the last token is left out: search all of text[0, "
        ":-1].": draft_by(not_neighbours),
        "the first position of the text is left out: the token may also have occurred "
        "there.": draft_by(
            lambda text: after(text, places_before(text)[-1]) if any(places_before(text)) else None
        ),
        "it returns None for token 0, which is a token like any other: check whether the list "
        "is empty.": found_by(without_zero),
        "it never guesses anything: return the token at the end of your function.": draft_by(
            lambda text: None
        ),
        "it searches the prompt, which is the text when the generation began: search `text`, "
        "which grows.": InThePrompt,
        "begin returns a token: it must return a function that guesses one token per call.": AtOnce,
        "begin returns nothing: define guess(text, noise) inside it, and return guess.": Silent,
        "it depends on the noise: this draft looks only at the text.": ByNoise,
        "it remembers a longer text, but proposals can be taken back: search the text of each "
        "call.": Table,
        "it remembers another text: search the text of each call.": OneTable,
        "the k of the draft is lost: leave __init__ out, or call super().__init__(k).": WithoutK,
        "the draft's k is your own value: leave __init__ out, or call super().__init__(k).": OwnK,
        "your code changes `text`, which belongs to the caller: compare with text[0, :-1], and "
        "modify nothing.": InPlace,
    },
    advice={
        "IndexError": (
            "The list of positions may be empty, and nothing follows the last token: search "
            "text[0, :-1], and check its length first."
        ),
        "not return a function": "Define guess(text, noise) inside it, and return guess.",
        "of a model": "Each correct guess saves a pass: search the whole text of each call.",
        "in one generation": "Only the text of this call counts, and nothing from earlier calls.",
        "generations": "Only the text of this call counts, and nothing from earlier calls.",
        "the noise favours": "This draft depends only on the text.",
        "the k of": "Leave __init__ out, or call super().__init__(k).",
        "the guess": (
            "Find the latest earlier occurrence of the last token, and return what followed it, as "
            "(1, 1); None if there is none."
        ),
    },
)
