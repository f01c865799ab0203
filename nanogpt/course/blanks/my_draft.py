"""Notebook 07, blank 4: MyDraft."""

from ...engines.drafts import Draft
from ..page import Blank


class MyDraft(Draft):
    """Guesses what followed the last token at its previous occurrence in the text."""

    def begin(self, prompt, sampling):
        """A function guess(text, noise): (1, t), (1, V) -> (1, 1), or None."""

        def guess(text, noise):
            before = (text[0, :-1] == text[0, -1]).nonzero()
            return text[:, before[-1] + 1] if len(before) else None

        return guess


BLANK = Blank(
    number="07.4",
    solution=MyDraft,
    method="begin",
    cases=[],
    mistakes={},
    hints=(
        "The text is 1 2 1 3 1. Where did the last token occur before, which of these positions is the latest, and what followed it there?",
        "`(text[0, :-1] == text[0, -1]).nonzero()` returns the earlier positions of the last token, in order. It may be empty.",
        "return text[:, before[-1] + 1] if len(before) else None",
    ),
    advice={
        "IndexError": "The list of positions may be empty, and nothing follows the last token: search text[0, :-1], and check its length first.",
        "not return a function": "Define guess(text, noise) inside it, and return guess.",
        "of a model": "Each correct guess saves a pass: search the whole text of each call.",
        "in one generation": "Only the text of this call counts, and nothing from earlier calls.",
        "generations": "Only the text of this call counts, and nothing from earlier calls.",
        "the noise favours": "This draft depends only on the text.",
        "the k of": "Leave __init__ out, or call super().__init__(k).",
        "the guess": "Find the latest earlier occurrence of the last token, and return what followed it, as (1, 1); None if there is none.",
    },
)
