"""Drafts, which guess the next tokens from an n-gram table, the text itself or a smaller model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from ..cache import DynamicCache
from ..config import check_int, check_type
from ..generation import CachedReader, Reader
from ..model import LanguageModel
from ..sampling import SamplingParams, check_length, check_prompt, sample
from .speculation import Guess, Speculation, SpeculativeTokens

if TYPE_CHECKING:
    from .noise import Noise


class DecodingEngine(Protocol):
    """What a draft asks of an engine: whether it decodes draft models, and this one."""

    decodes_drafts: bool

    @classmethod
    def refuses_model(cls, model: LanguageModel) -> object | None:
        """Why it does not decode this model; None if it does."""


class Draft(ABC):
    """Guesses the next tokens, up to k for each pass of the target model.

    One draft can serve several generations, even nested ones.
    """

    vocab_size: int | None = None  # of its own vocabulary, if it has one
    engine: type[DecodingEngine] | None = None  # decodes the draft if an engine decodes the target

    def __init__(self, k: int = 4):
        check_int("k", k, 1)
        self.k = k

    @abstractmethod
    def begin(self, prompt: Tensor, sampling: SamplingParams) -> Guess:
        """Start a generation: returns guess(text, noise), the next token of each text, or None.

        (B, t), (B, V) -> (B, 1). `text` is the text so far followed by the guesses of this pass;
        `noise` is the noise with which the target model will sample this token. Between calls the
        text only grows, shrinks, or changes its last token.
        """

    def loop(
        self, reader: Reader, prompt: Tensor, noise: Tensor | Noise, sampling: SamplingParams
    ) -> SpeculativeTokens:
        """The speculative loop over the target's reader, with this draft.  -> n × (B, 1)"""
        return SpeculativeTokens(Speculation(reader, self, prompt, noise, sampling), prompt, noise)

    def check(
        self,
        model: LanguageModel,
        prompt: Tensor,
        n_new: int,
        engine: type[DecodingEngine] | DecodingEngine | None = None,
    ) -> None:
        """Raise ValueError if this draft cannot serve this generation."""
        if self.engine is not None and not getattr(engine, "decodes_drafts", False):
            pair = f"the draft is decoded by {self.engine.__name__}, which requires engine=Native"
            raise ValueError(f"{pair}: pass that, or build the draft without an engine")
        if self.vocab_size not in (None, model.config.vocab_size):
            sizes = f"{self.vocab_size} tokens, the model {model.config.vocab_size}"
            raise ValueError(
                f"this {type(self).__name__} has {sizes}: both need the same vocabulary"
            )


LARGEST_TABLE = 1 << 24  # numbers
LONGEST_CONTEXT = 24  # tokens: with two or more in the vocabulary, no larger table is allowed


class NGram(Draft):
    """An n-gram table, counted once: how often each token followed the last n - 1 in a text.

    Rare contexts fall back on the table for one token fewer: its probabilities count as one more
    occurrence (a Dirichlet prior, as in MacKay and Peto 1995, A hierarchical Dirichlet language
    model). Raises ValueError for a table that is too large, or a text with tokens outside the
    vocabulary.
    """

    def __init__(self, text: Tensor, vocab_size: int, n: int = 3, k: int = 4):
        super().__init__(k)
        check_int("vocab_size", vocab_size, 1)
        check_int("n", n, 1, LONGEST_CONTEXT)  # before a power is computed
        if vocab_size**n > LARGEST_TABLE:
            size = f"a table of {vocab_size}**n numbers exceeds {LARGEST_TABLE}"
            raise ValueError(f"n={n}: {size}: choose a smaller n")
        check_prompt(text, vocab_size, ndim=1, where="the text to count in: ")
        check_int("tokens of the text to count in", len(text), n)
        self.vocab_size = vocab_size
        self.tables: list[Tensor] = []  # log-probabilities after m tokens, (V**m, V)
        # From short contexts to long ones, because each table starts from the one before it. After
        # no token at all, before anything is counted, all tokens are equally likely.
        probs = torch.full((1, vocab_size), 1 / vocab_size)
        for m in range(n):
            # 1. Count every run of m + 1 tokens: as digits of one number in base V, whose last
            #    digit is the token that followed, so that a row of the table is a context.
            powers = vocab_size ** torch.arange(m, -1, -1)
            numbers = text.cpu().long().unfold(0, m + 1, 1) @ powers
            counts = torch.bincount(numbers, minlength=vocab_size ** (m + 1)).view(-1, vocab_size)
            # 2. Add the shorter context's probabilities as one more occurrence: a context that was
            #    never seen gets just these, and one that was seen often hardly changes.
            lower = probs.repeat(len(counts) // len(probs), 1)  # of the last m - 1 tokens
            probs = (counts + lower) / (counts.sum(-1, keepdim=True) + 1)
            self.tables.append(probs.log())

    def logits(self, text: Tensor) -> Tensor:
        """(B, t) -> (B, V)"""
        m = min(len(self.tables) - 1, text.shape[1])
        # The last m tokens as one number is the row of their table.
        row = torch.zeros(len(text), dtype=torch.long, device=text.device)
        for token in text[:, text.shape[1] - m :].unbind(1):
            row = row * self.tables[0].shape[1] + token
        if self.tables[0].device.type != text.device.type:  # move them once
            self.tables = [table.to(text.device) for table in self.tables]
        return self.tables[m][row]

    def begin(self, prompt: Tensor, sampling: SamplingParams) -> Guess:
        return lambda text, noise: sample(self.logits(text), noise, sampling)


class PromptLookup(Draft):
    """Proposes the token that followed an earlier occurrence of the last n tokens in the text.

    It uses the longest match, up to n tokens, and the latest one among equals: prompt lookup
    (Saxena 2023) and LLMA (Yang et al. 2023, arXiv 2304.04487). If no text of the batch has a
    match, it proposes nothing; a text without a match while others have one repeats its last token.
    On a GPU, where testing for a match would sync, it repeats the last token in both cases.
    """

    def __init__(self, n: int = 5, k: int = 4):
        super().__init__(k)
        check_int("n", n, 1)
        self.n = n

    def begin(self, prompt: Tensor, sampling: SamplingParams) -> Guess:
        return lambda text, noise: self.following(text)

    def following(self, text: Tensor) -> Tensor | None:
        """(B, t) -> (B, 1)"""
        # All positions of all texts are compared at once: a Python loop over them would be slow.
        t = text.shape[1] - 1  # positions before the last
        same = torch.ones(len(text), t, dtype=torch.bool, device=text.device)
        length = torch.zeros_like(same, dtype=torch.long)  # of the match that ends at each position
        for i in range(min(self.n, t)):
            # 1. A position still matches if the token i before it is the token i before the last.
            #    `same` only loses matches, so `length` counts how long each one is.
            same[:, :i] = False
            same[:, i:] &= text[:, : t - i] == text[:, t - i, None]
            length += same
        if not same.numel() or (text.is_cpu and not length.any()):
            return None
        # 2. The longest match, and the latest of equally long ones: `length * t + position` orders
        #    by length first.
        best = (length * t + torch.arange(t, device=text.device)).argmax(1, keepdim=True)
        return text.gather(1, best + 1).long()


class DraftModel(Draft):
    """A smaller model with its own cache, in eval mode, sampled like the target model.

    `engine` decodes the draft if a native engine decodes the target, generate(…, engine=Native);
    None then means Native. With Native8 the draft can be the target itself, in a quarter of its
    bytes. With any other engine the draft's own modules run, and an `engine` here is refused.
    """

    def __init__(
        self, model: LanguageModel, k: int = 4, engine: type[DecodingEngine] | None = None
    ) -> None:
        super().__init__(k)
        check_type("model", model, LanguageModel)
        decodes = isinstance(engine, type) and getattr(engine, "decodes_drafts", False)
        if engine is not None and not decodes:
            given = getattr(engine, "__name__", engine)
            raise ValueError(f"engine={given} cannot decode a draft: pass Native or Native8")
        self.model = model
        self.engine = engine
        self.vocab_size = model.config.vocab_size

    def check(
        self,
        model: LanguageModel,
        prompt: Tensor,
        n_new: int,
        engine: type[DecodingEngine] | DecodingEngine | None = None,
    ) -> None:
        super().check(model, prompt, n_new, engine)
        device = self.model.device
        if device != model.device:
            raise ValueError(f"the draft model is on {device}, the target is not: move one of them")
        refusal = None if self.engine is None else self.engine.refuses_model(self.model)
        if refusal:
            raise ValueError(str(refusal))
        # The last token is not proposed, and the one before it is not read.
        positions = self.model.config.max_positions
        check_length(prompt.shape[1], n_new - 1, positions, "the draft model, for all but one: ")

    def begin(self, prompt: Tensor, sampling: SamplingParams) -> Guess:
        reader = CachedReader(self.model, DynamicCache, self.model.config.block_size)

        def guess(text: Tensor, noise: Tensor) -> Tensor:
            # 1. Forget the guesses that the target has rejected since the last call: the text is
            #    shorter now, or its last token is another one.
            valid = min(reader.length, text.shape[1] - 1)
            reader.rewind(reader.length - valid)
            # 2. Read the rest: the prompt at first, a few tokens after a pass, one while guessing.
            return sample(reader.read(text[:, valid:])[:, -1], noise, sampling)

        return guess
