"""Count how many generated words occur in a model's corpus, in any language."""

from __future__ import annotations

import re
from collections.abc import Iterator

_LONGEST = 20  # with more characters between spaces on average, a text has no space-separated words
SAMPLE = 100_000  # characters of a text examined for that


class Words:
    """The words of a text: the lower-case strings between spaces.

    Chinese, Japanese and Thai have no spaces between words, so pairs of neighbouring characters are
    used instead. Only distinct words are kept, so memory does not grow with a long text.
    """

    def __init__(self, text: str):
        sample = text[:SAMPLE]
        parts = sample.split()
        self.spaced = sum(map(len, parts)) <= _LONGEST * len(parts)
        self.name = "words" if self.spaced else "pairs of characters"
        self.known = set(self._of(text))

    def found(self, text: str, whole: bool = True) -> tuple[int, int]:
        """The number of words of another text that occur in this one, and its number of words.

        `whole` is False for a text that may begin and end inside a word: those two are not counted.
        """
        words = list(self._of(text))
        words = words if whole else words[1:-1]
        return sum(word in self.known for word in words), len(words)

    def _of(self, text: str) -> Iterator[str]:
        text = text.lower()
        if self.spaced:
            return (match[0] for match in re.finditer(r"\S+", text))
        return (text[i : i + 2] for i in range(len(text) - 1))
