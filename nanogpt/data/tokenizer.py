"""One integer for each distinct character."""

from __future__ import annotations

import torch
from torch import Tensor


class CharTokenizer:
    """One integer for each distinct character, in sorted order."""

    def __init__(self, vocabulary: str):
        self.chars = "".join(sorted(set(vocabulary)))
        if not self.chars:
            raise ValueError("a vocabulary needs at least one character; the text given is empty")
        self.index = {char: i for i, char in enumerate(self.chars)}

    def __len__(self) -> int:
        return len(self.chars)

    def encode(self, text: str) -> Tensor:
        """(T,) int64. Raises ValueError for an empty text and for unknown characters."""
        if not text:
            raise ValueError("the prompt is empty: give a character or more, such as a newline")
        if unknown := sorted(set(text) - set(self.chars)):
            known = f"the model knows only the {len(self)} characters {self.chars!r}"
            raise ValueError(f"{', '.join(map(repr, unknown))} not in the vocabulary: {known}")
        return torch.tensor([self.index[char] for char in text])

    def decode(self, tokens: Tensor) -> str:
        """The text of tokens, of any shape, or a list. Raises ValueError for unknown tokens."""
        numbers = torch.as_tensor(tokens).flatten().tolist()
        if wrong := [i for i in numbers if type(i) is not int or not 0 <= i < len(self)]:
            raise ValueError(f"token {wrong[0]}: must be an integer in [0, {len(self) - 1}]")
        return "".join(self.chars[i] for i in numbers)
