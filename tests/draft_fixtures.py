"""Drafts that know the text: the best and the worst that a draft can be, and one between them."""

from __future__ import annotations

import torch
from torch import Tensor

from nanogpt.engines.drafts import Draft


class Right(Draft):
    """Always right: it knows the whole texts, (B, N). The most that a draft can give."""

    def __init__(self, texts: Tensor, vocab_size: int, k: int = 4):
        super().__init__(k)
        self.texts = texts.long()
        self.vocab_size = vocab_size

    def begin(self, prompt, sampling):
        def guess(text, noise):
            t = text.shape[1]
            return self.texts[:, t : t + 1] if t < self.texts.shape[1] else None

        return guess


class Wrong(Right):
    """Never right: each token is the one after the true one in the vocabulary."""

    def __init__(self, texts: Tensor, vocab_size: int, k: int = 4):
        super().__init__((texts + 1) % vocab_size, vocab_size, k)


class PartlyRight(Right):
    """Wrong about a random part of the tokens, in each text of a batch about others."""

    def __init__(
        self, texts: Tensor, vocab_size: int, k: int = 4, wrong: float = 0.3, seed: int = 0
    ):
        generator = torch.Generator().manual_seed(seed)
        changed = torch.rand(texts.shape, generator=generator) < wrong
        super().__init__(torch.where(changed, (texts + 5) % vocab_size, texts), vocab_size, k)
