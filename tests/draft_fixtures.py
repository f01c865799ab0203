"""Drafts that know the text: the best and the worst that a draft can be."""

from __future__ import annotations

from torch import Tensor

from nanogpt.decoding.drafts import Draft


class Right(Draft):
    """Always right: it is told the whole text, (B, N). The limit of what a draft can give, for tests."""

    shift = 0

    def __init__(self, tokens: Tensor, vocab_size: int, k: int = 4):
        super().__init__(k)
        if not isinstance(tokens, Tensor) or tokens.ndim != 2:
            raise ValueError("the tokens are the whole texts (B, N), as complete() gives them")
        self.told, self.vocab_size = (tokens.long() + self.shift) % vocab_size, vocab_size

    def check(self, model, prompt, n_new):
        super().check(model, prompt, n_new)
        self.check_vocab(model, self.vocab_size)
        if len(self.told) != len(prompt) or self.told.device != prompt.device:
            raise ValueError(
                f"the draft was told {len(self.told)} texts on {self.told.device}, the prompt "
                f"has {len(prompt)} on {prompt.device}: tell it each whole text"
            )

    def begin(self, prompt, sampling):
        def guess(text, noise):
            t = text.shape[1]
            return self.told[:, t : t + 1] if t < self.told.shape[1] else None

        return guess


class Wrong(Right):
    """Never right: each token is the one after the true one in the vocabulary."""

    shift = 1
