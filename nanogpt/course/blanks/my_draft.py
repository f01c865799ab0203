"""Notebook 07, blank 4: MyDraft, which proposes what followed the last token before."""

import torch
from torch import Tensor

from ...config import GPTConfig
from ...engines.drafts import Draft
from ...engines.generation import generate
from ...model import GPT
from ...sampling import PLAIN, draw_noise
from ..drivers import Arguments, form
from ..page import Blank, Case


class MyDraft(Draft):
    """Guesses what followed the last token at its previous occurrence in the text."""

    def begin(self, prompt, sampling):
        """A function guess(text, noise): (1, t), (1, V) -> (1, 1), or None."""

        def guess(text, noise):
            before = (text[0, :-1] == text[0, -1]).nonzero()
            return text[:, before[-1] + 1] if len(before) else None

        return guess


# ------------------------------------------------------------------ what a check runs

SIZE = 9  # of the vocabulary


def run_guess(answer, text, prompt=1):
    """One guess in a text whose first few tokens are the prompt."""
    guess = begun(answer, text[:prompt])
    yield "begin does not return a function", not callable(guess)
    given = Arguments(text=torch.tensor([text]), noise=torch.ones(1, SIZE))
    got = guess(*given.tensors.values())
    yield from given.changes()
    yield "the guess", spoken(got)


def run_noise(answer):
    """One text with different noise."""
    guess = begun(answer, [1])
    for token in range(SIZE):
        noise = torch.ones(1, SIZE)
        noise[0, token] = 1e-6  # so that sampling picks this one
        got = guess(torch.tensor([[1, 2, 3, 1]]), noise)
        yield f"the guess after 1 2 3 1 where the noise favours {token}", spoken(got)


def run_texts(answer, texts):
    """One function, for texts that grow, shrink and change, as proposals are taken back."""
    guess = begun(answer, texts[0])
    for text in texts:
        got = guess(torch.tensor([text]), torch.ones(1, SIZE))
        yield f"the guess after {words(text)}, in one generation", spoken(got)


def run_two(answer):
    """Two interleaved generations of one draft."""
    draft = answer(7)
    yield "the k of a draft that is made with k = 7", getattr(draft, "k", "missing")
    prompts = {"first": [5, 6], "second": [7, 8]}
    guesses = {name: draft.begin(torch.tensor([prompt]), PLAIN) for name, prompt in prompts.items()}
    turns = ("first", 5), ("second", 5), ("first", 6), ("second", 7)
    for name, token in turns:
        prompts[name].append(token)
        got = guesses[name](torch.tensor([prompts[name]]), torch.ones(1, SIZE))
        yield (
            f"the guess after {words(prompts[name])}, in the {name} of two generations",
            spoken(got),
        )


def run_model(answer, n=16):
    """A whole text, with and without the draft."""
    shape = GPTConfig(SIZE, n + 1, n_layer=1, n_head=1, n_embd=8)
    model = GPT(shape, generator=torch.Generator().manual_seed(1)).eval()
    noise = draw_noise(n, 1, SIZE, torch.Generator().manual_seed(2))
    start = torch.zeros(1, 1, dtype=torch.long)
    plain = torch.cat([*generate(model, start, n, noise=noise)], dim=1)
    steps = generate(model, start, n, draft=answer(4), noise=noise)
    drafted = torch.cat([*steps], dim=1)
    yield "with your draft the model generates different tokens", not torch.equal(plain, drafted)
    yield f"the passes of a model for {n} tokens", steps.stats.passes


def begun(answer, prompt):
    """The guessing function of a new generation with this prompt."""
    return answer(4).begin(torch.tensor([prompt]), PLAIN)


def words(text):
    """A text's tokens in words."""
    return " ".join(map(str, text))


def spoken(got):
    """A guess in words: a token, none, or the form of anything else."""
    if got is None:
        return "None"
    if not isinstance(got, Tensor) or got.shape != (1, 1):
        return f"{form(got)} instead of (1, 1)"
    if got.is_floating_point() or got.is_complex() or got.dtype == torch.bool:
        return f"{got.dtype} instead of an integer"
    return f"token {int(got)}"


LONG = [token * token % 7 for token in range(200)]


# ------------------------------------------------------------------ what people write

BLANK = Blank(
    number="07.4",
    minutes=5,
    solution=MyDraft,
    method="begin",
    cases=[
        Case(run_guess, text=[1, 2, 3, 1]),
        Case(run_guess, text=[1, 4, 1, 2, 1, 2, 1, 3, 1]),
        Case(run_guess, text=[1, 2, 3]),
        Case(run_guess, text=[5]),
        Case(run_guess, text=[4, 4]),
        Case(run_guess, text=[1, 2, 1, 2, 1, 3, 4, 1]),
        Case(run_guess, text=[5, 0, 2, 5]),
        Case(run_guess, text=[4, 4, 1, 2, 3, 1], prompt=2),
        Case(run_noise),
        Case(
            run_texts,
            texts=[
                [1, 2],
                [1, 2, 1],
                [1, 2, 1, 4],
                [1, 2, 1],
                [1, 3, 1],
                [1, 3, 4, 2],
                [1, 3, 4, 1],
            ],
        ),
        Case(run_two),
        Case(run_guess, text=LONG),
        Case(run_model),
    ],
    mistakes={
        "the earliest occurrence is used: use the latest, the last in the list.": [
            "before[-1] -> before[0]"
        ],
        "the guess is taken from another position: what followed the earlier occurrence is one position after it, at before[-1] + 1.": [
            "before[-1] + 1 -> before[-1]"
        ],
        "position 0 counts like any other, but `if` takes it for nothing: ask for len(before).": (
            ["if len(before) -> if before"],
            ["if len(before) -> if before.any()"],
        ),
        "the guess has the wrong form: it must be a tensor (1, 1), like text[:, i : i + 1].": (
            ["text[:, before[-1] + 1] -> text[0, before[-1] + 1]"],
            ["text[:, before[-1] + 1] -> int(text[0, before[-1] + 1])"],
        ),
        "it searches the prompt, which is the text when the generation began: search `text`, which grows.": (
            ["before = -> text = prompt\n            before ="],
            ["text[0, :-1] -> prompt[0, :-1]", "text[:, -> prompt[:,"],
            ["text[0, :-1] -> prompt[0]", "text[:, -> prompt[:,"],
        ),
        "it never guesses anything: return the token at the end of your function.": [
            "return text -> text"
        ],
        "it looks for the last two tokens: look only for the last one.": [
            """
class MyDraft(Draft):
    def begin(self, prompt, sampling):
        def guess(text, noise):
            tokens = text[0].tolist()
            for i in range(len(tokens) - 3, -1, -1):
                if tokens[i : i + 2] == tokens[-2:]:
                    return text[:, i + 2 : i + 3]

        return guess
"""
        ],
    },
    wrong=[
        "text[0, :-1] -> text[0, :-2]",
        "else None -> else text[:, -1:]",
        "def begin -> def __init__(self, k=4):\n        self.n = k\n\n    def begin",
        "return text -> if len(before) and not text[0, before[-1] + 1]:\n                return None\n            return text",
        "before = (text[0, :-1] == text[0, -1]) -> last = text[0, -1].clone()\n            text[0, -1] = -1\n            before = (text[0] == last)",
    ],
    right=[
        """
class MyDraft(Draft):
    def begin(self, prompt, sampling):
        def guess(text, noise):
            tokens = text[0].tolist()
            for i in range(len(tokens) - 2, -1, -1):
                if tokens[i] == tokens[-1]:
                    return torch.tensor([[tokens[i + 1]]], device=text.device)
            return None
        return guess
""",
        """
class MyDraft(Draft):
    def begin(self, prompt, sampling):
        def guess(text, noise):
            row = text[0].tolist()
            followed = dict(zip(row, row[1:]))
            if row[-1] in followed:
                return text.new_tensor([[followed[row[-1]]]])
        return guess
""",
        """
class MyDraft(Draft):
    def begin(self, prompt, sampling):
        return self.guess

    def guess(self, text, noise):
        *before, last = text[0].tolist()
        if last not in before:
            return None
        place = len(before) - 1 - before[::-1].index(last)
        return text[:, place + 1 : place + 2]
""",
        """
from nanogpt.engines.drafts import PromptLookup

class MyDraft(PromptLookup):
    def __init__(self, k=4):
        super().__init__(1, k)
""",
    ],
    hints=(
        "The text is 1 2 1 3 1. Where did the last token occur before, which of these positions is the latest, and what followed it there?",
        "`(text[0, :-1] == text[0, -1]).nonzero()` returns the earlier positions of the last token, in order. It may be empty.",
        "return text[:, before[-1] + 1] if len(before) else None",
    ),
    advice={
        "IndexError": "The list of positions may be empty, and nothing follows the last token: search text[0, :-1], and check its length first.",
        "generation": "Only the text of this call counts: proposals can be taken back, and each generation has its own text.",
        "the noise favours": "This draft depends only on the text.",
        "the guess": "Find the latest earlier occurrence of the last token, also right before it, and return what followed it, as (1, 1); None if there is none.",
    },
)
