"""What guesses the next tokens for nanogpt.speculate: a table, the text itself, or a smaller GPT."""

from __future__ import annotations

import torch
from torch import Tensor

from .cache import DynamicCache
from .generate import sample
from .model import GPT
from .speculate import Draft, Reader

LARGEST_TABLE = 1 << 24  # numbers


class NGram(Draft):
    """How often each token followed the last n - 1 in a text: a table, counted once.

    Where those were seen too seldom the table for one token fewer is believed: it counts as one more
    sighting (a Dirichlet prior, as in MacKay and Peto 1995, A hierarchical Dirichlet language model).
    """

    def __init__(self, text: Tensor, vocab_size: int, n: int = 3, k: int = 4):
        super().__init__(k)
        if not isinstance(n, int) or isinstance(n, bool) or n < 1 or vocab_size**n > LARGEST_TABLE:
            raise ValueError(f"n={n!r}: choose a whole number from 1 on, for a table whose {vocab_size}**n "
                             f"numbers are at most {LARGEST_TABLE}")  # fmt: skip
        if not isinstance(text, Tensor) or text.ndim != 1 or text.is_floating_point() or len(text) < n:
            raise ValueError(f"the text to count in is a tensor of at least n={n} tokens (N,), as in "
                             f"tokenizer.encode(text)")  # fmt: skip
        if int(text.min()) < 0 or int(text.max()) >= vocab_size:
            raise ValueError(f"the text holds tokens {int(text.min())} to {int(text.max())}; the vocabulary "
                             f"has 0 to {vocab_size - 1}")  # fmt: skip
        self.vocab_size, self.tables = vocab_size, []  # log-probabilities after m tokens, (V**m, V)
        probs = torch.full((1, vocab_size), 1 / vocab_size)
        for m in range(n):
            counts = _counts(text.cpu().long(), m + 1, vocab_size)
            lower = probs.repeat(len(counts) // len(probs), 1)  # of the last m - 1 tokens
            probs = (counts + lower) / (counts.sum(-1, keepdim=True) + 1)
            self.tables.append(probs.log())

    def check(self, model, prompt, n_new):
        super().check(model, prompt, n_new)
        self.check_vocab(model, self.vocab_size)

    def logits(self, text: Tensor) -> Tensor:
        """(B, t) -> (B, V)"""
        m = min(len(self.tables) - 1, text.shape[1])
        number = torch.zeros(len(text), dtype=torch.long)
        for token in text[:, text.shape[1] - m :].cpu().unbind(1):
            number = number * self.vocab_size + token
        return self.tables[m][number].to(text.device)

    def begin(self, prompt, settings):
        return lambda text, row: sample(self.logits(text), row, **settings)


def _counts(text: Tensor, m: int, vocab_size: int) -> Tensor:
    """How often each token followed each m - 1 others.  (N,) -> (V**(m-1), V)"""
    number, many = torch.zeros(len(text) - m + 1, dtype=torch.long), len(text) - m + 1
    for i in range(m):
        number = number * vocab_size + text[i : i + many]
    return torch.bincount(number, minlength=vocab_size**m).view(-1, vocab_size)


class LookUp(Draft):
    """What followed last time: the longest of the last n tokens that stand in the text already, the latest.

    Prompt lookup (Saxena 2023) and LLMA (Yang et al. 2023, arXiv 2304.04487). It ends where no text of
    the batch has a match; a text that has none while others do repeats its last token.
    """

    def __init__(self, n: int = 5, k: int = 4):
        super().__init__(k)
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise ValueError(f"n={n!r}: look up a whole number of tokens, at least 1")
        self.n = n

    def begin(self, prompt, settings):
        return lambda text, row: self.following(text)

    def following(self, text: Tensor) -> Tensor | None:
        """(B, t) -> (B, 1)"""
        t = text.shape[1] - 1  # places before the last
        same = torch.ones(len(text), t, dtype=torch.bool, device=text.device)
        length = torch.zeros_like(same, dtype=torch.long)  # of the match that ends here
        for back in range(min(self.n, t)):
            same[:, :back] = False
            same[:, back:] &= text[:, : t - back] == text[:, t - back, None]
            length += same
        if not same.numel() or not length.any():
            return None
        best = (length * t + torch.arange(t, device=text.device)).argmax(1, keepdim=True)
        return text.gather(1, best + 1).long()


class Small(Draft):
    """A smaller GPT with a cache of its own, sampled as the model is. Decodes in eval mode, as it does.

    `engine` is what decodes it where an engine decodes the model, generate(…, engine=Native): Native
    when None. With Rough8 it may be the model itself, in a quarter of its bytes.
    """

    def __init__(self, model: GPT, k: int = 4, engine=None):
        super().__init__(k)
        if not isinstance(model, GPT):
            raise ValueError(f"Small({model!r}): pass a GPT, as in load_checkpoint(path).model")
        if engine is not None and not (isinstance(engine, type) and hasattr(engine, "speculate")):
            raise ValueError(f"engine={engine!r}: pass one of the classes Native, Native8 or Rough8")
        self.model, self.engine = model, engine

    def check(self, model, prompt, n_new):
        super().check(model, prompt, n_new)
        self.check_vocab(model, self.model.config.vocab_size)
        mine, its = self.model.lm_head.weight, model.lm_head.weight
        if (mine.dtype, mine.device) != (its.dtype, its.device):
            raise ValueError(f"the draft's model is {mine.dtype} on {mine.device}, the model {its.dtype} on "
                             f"{its.device}: move or cast one of them")  # fmt: skip
        limit, last = self.model.config.positions, prompt.shape[1] + n_new - 2
        if limit is not None and last > limit:  # the last token is not proposed, the one before not read
            raise ValueError(f"a prompt of {prompt.shape[1]} and {n_new} new tokens: the draft's model reads "
                             f"{last} of them, and has block_size {limit}")  # fmt: skip

    def tokens(self, model, prompt, noise, cache, settings):
        if self.engine is not None:
            raise ValueError(f"Small(…, engine={self.engine.__name__}) is for generate(…, engine=Native): "
                             f"give both or none")  # fmt: skip
        return super().tokens(model, prompt, noise, cache, settings)

    def begin(self, prompt, settings):
        reader, seen = Reader(self.model, DynamicCache, self.model.config.block_size), prompt[:, :0]

        def guess(text, row):
            nonlocal seen
            n = min(seen.shape[1], text.shape[1] - 1)  # at least the last token is read
            kept = int((seen[:, :n] == text[:, :n]).all(0).cumprod(0).sum())
            reader.rewind(seen.shape[1] - kept)  # what was guessed, and turned out to be another
            seen = text[:, :kept]
            logits = reader.read(text)[:, -1]
            seen = text
            return sample(logits, row, **settings)

        return guess


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
            raise ValueError(f"the draft was told {len(self.told)} texts on {self.told.device}, the prompt "
                             f"has {len(prompt)} on {prompt.device}: tell it each whole text")  # fmt: skip

    def begin(self, prompt, settings):
        def guess(text, row):
            t = text.shape[1]
            return self.told[:, t : t + 1] if t < self.told.shape[1] else None

        return guess


class Wrong(Right):
    """Never right: each token is the one after the true one in the vocabulary."""

    shift = 1
