"""Speculative decoding that gives the very same tokens: a draft proposes, the model reads several at once.

The noise is drawn beforehand, so the token at a place depends on the text before it alone. A draft guesses
it, with the same noise; the model reads a few guesses in one pass over its cache and draws its own token
at each place. As long as they agree, each guess is the text; the first that differs is the model's own,
the text too. So any draft gives the tokens of plain decoding, and a good one gives them sooner.

Speculation: Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318), who draw the
guesses from noise of their own and keep the distribution (`rejection` below), not the tokens. With shared
noise the choices are coupled: model and draft agree with a probability of at least (1 - TV) / (1 + TV), TV
being half the sum of |p - q| (Daliri, Musco and Suresh 2024, arXiv 2408.07978; as races: Kobus and Gündüz
2025, arXiv 2504.15475).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .generate import _stepping, draw_noise, sample
from .model import GPT, build_caches, cache_owners

Guess = Callable[[Tensor, Tensor | None], Tensor | None]


@dataclass
class Tally:
    """What became of the proposals of one generation, all its texts together, up to the last pass made.

    A text that is ahead of its batch proposes what it knows already: that is counted once, where it
    was found. What was offered after a rejected token was never looked at.
    """

    offered: int = 0
    accepted: int = 0
    rejected: int = 0
    advances: list[int] = field(default_factory=list)  # tokens that each pass of the model brought
    drafted: list[list[bool]] = field(default_factory=list)  # of each token and text: was it the draft's?

    @property
    def passes(self) -> int:
        return len(self.advances)

    @property
    def rate(self) -> float:
        """The share accepted of all proposals that were looked at: the `a` of expected_tokens."""
        return self.accepted / max(1, self.accepted + self.rejected)

    def add(self, proposals: list[int], choices: list[int], ahead: list[bool]) -> list[bool]:
        """One text in one pass: of the tokens it knows now, which are the draft's. `ahead`: known before."""
        n, known = agreement(proposals, choices), len(ahead)
        self.offered += max(0, len(proposals) - known)  # at the end a text may know even the last token
        self.accepted += max(0, n - known)
        self.rejected += n < len(proposals)
        return (ahead + [True] * (n - known))[:n] + [False]


def agreement(proposals: list[int], choices: list[int]) -> int:
    """How many of the first proposals are the choices."""
    differ = (i for i, (a, b) in enumerate(zip(proposals, choices, strict=False)) if a != b)
    return next(differ, len(proposals))


def expected_tokens(a: float, k: int) -> float:
    """Tokens for each pass, when each of k proposals is accepted with probability a: 1 + a + … + aᵏ.

    Equation 1 of Leviathan et al. 2023, (1 - aᵏ⁺¹) / (1 - a).
    """
    if not 0 <= a <= 1 or k < 0:
        raise ValueError(f"a={a!r}, k={k!r}: a probability from 0 to 1 and a number of proposals are needed")
    return float(k + 1) if a == 1 else (1 - a ** (k + 1)) / (1 - a)


# ------------------------------------------------------------------ the loop


class Reader:
    """A model over caches of its own, which reads a text on, and takes back the end of what it has read."""

    def __init__(self, model: GPT, design, max_len: int):
        self.model, self.length = model, 0
        self.modules, self.owners = list(model.modules()), cache_owners(model)
        self.caches = build_caches(self.owners, design, max_len)
        if other := [type(cache).__name__ for cache in self.caches if not hasattr(cache, "rewind")]:
            raise ValueError(f"{other[0]} has no rewind(n), to forget its last n rows: write one, or leave "
                             f"draft out")  # fmt: skip

    def read(self, text: Tensor) -> Tensor:
        """The logits after each token not read before.  (B, t) -> (B, t - length, V)"""
        pos = torch.arange(self.length, text.shape[1], device=text.device)
        with _stepping(self.modules, self.owners, self.caches):
            logits, _ = self.model(text[:, self.length :], pos=pos)
        self.length = text.shape[1]
        return logits

    def rewind(self, n: int) -> None:
        for cache in self.caches:
            cache.rewind(n)
        self.length -= n


class Speculation(Iterator[Tensor]):
    """The tokens of one generation, one (B, 1) at a time, and its `tally`.

        steps = generate(model, prompt, 200, draft=LookUp())
        text = torch.cat(list(steps), dim=1)
        steps.tally.passes  # of the model

    `reader` is what computes: read(text) and rewind(n), as in Reader.
    """

    def __init__(self, draft: Draft, reader, vocab: int, prompt: Tensor, noise, settings: dict):
        self.reader, self.vocab, self.settings = reader, vocab, settings
        self.guess, self.k, self.tally = draft.begin(prompt, settings), draft.k, Tally()
        # The texts of a batch stand at one place, and some are right about more tokens than others. All
        # go on by the smallest number; what a text knows beyond is true whatever follows, so these
        # tokens go first among its next proposals, and are accepted again.
        self._ahead: list[list[int]] = [[] for _ in prompt]
        self._whose: list[list[bool]] = [[] for _ in prompt]
        self._steps = self._run(prompt, noise)

    def __next__(self) -> Tensor:
        return next(self._steps)

    def close(self) -> None:
        self._steps.close()

    @torch.no_grad()
    def _run(self, text: Tensor, noise: list | Tensor) -> Iterator[Tensor]:
        while len(noise):
            rows = noise[: self.k + 1]  # the last token is never read back: it is nobody's proposal
            proposed = self._proposed(text, rows[:-1])  # (B, k)
            k = proposed.shape[1]
            logits = self.reader.read(torch.cat([text, proposed], dim=1))[:, -k - 1 :]  # (B, k + 1, V)
            drawn = self._drawn(logits, rows, proposed)
            n = self._settle(proposed.tolist(), torch.cat(drawn, dim=1).tolist())
            self.reader.rewind(k + 1 - n)  # the last of the n tokens has not been read
            text, noise = torch.cat([text, *drawn[:n]], dim=1), noise[n:]
            yield from drawn[:n]

    def _settle(self, proposed: list[list[int]], choices: list[list[int]]) -> int:
        """How many tokens this pass brought to every text; what some know beyond is kept for the next."""
        whose = [self.tally.add(*one) for one in zip(proposed, choices, self._whose, strict=True)]
        n = min(len(one) for one in whose)
        self.tally.advances.append(n)
        self.tally.drafted += [list(one) for one in zip(*(one[:n] for one in whose), strict=True)]
        self._ahead = [row[n : len(one)] for row, one in zip(choices, whose, strict=True)]
        self._whose = [one[n:] for one in whose]
        return n

    def _proposed(self, text: Tensor, rows: list | Tensor) -> Tensor:
        """What may follow, at most one token for each row of noise.  (B, t) -> (B, k)"""
        longer = text.clone()  # whatever a draft does with it
        for place, row in enumerate(rows):
            token = self.guess(longer, row)
            known = [(i, tokens[place]) for i, tokens in enumerate(self._ahead) if place < len(tokens)]
            if token is None and not known:
                break
            token = longer[:, -1:].long() if token is None else token
            self._check(token, text)
            if known:
                token = token.clone()
                for i, true in known:
                    token[i] = true
            longer = torch.cat([longer, token], dim=1)
        return longer[:, text.shape[1] :]

    def _drawn(self, logits: Tensor, rows: list | Tensor, proposed: Tensor) -> list[Tensor]:
        """The model's own tokens, (B, 1) each, drawn as in plain decoding, up to where no text agrees."""
        drawn = []
        for place, row in enumerate(rows[: logits.shape[1]]):
            drawn.append(sample(logits[:, place], row, **self.settings))
            if not (drawn[-1] == proposed[:, place : place + 1]).any():
                break  # at the latest after the last proposal
        return drawn

    def _check(self, token: Tensor, text: Tensor) -> None:
        need = (len(text), 1), torch.int64, text.device
        is_tensor = isinstance(token, Tensor)
        found = (tuple(token.shape), token.dtype, token.device) if is_tensor else (type(token).__name__,)
        if found != need:
            found, need = (", ".join(map(str, what)) for what in (found, need))
            raise ValueError(f"the draft proposed {found}: tokens {need} are needed, or None")
        low, high = int(token.min()), int(token.max())
        if low < 0 or high >= self.vocab:
            raise ValueError(f"the draft proposed tokens {low} to {high}; the vocabulary has 0 to "
                             f"{self.vocab - 1}")  # fmt: skip


# ------------------------------------------------------------------ what proposes


class Draft(ABC):
    """What guesses the next tokens, up to k for each pass of the model; nanogpt.drafts has some.

    One draft may serve several generations, one inside the other too.
    """

    def __init__(self, k: int = 4):
        if not isinstance(k, int) or isinstance(k, bool) or k < 1:
            raise ValueError(f"k={k!r}: propose a whole number of tokens, at least 1")
        self.k = k

    @abstractmethod
    def begin(self, prompt: Tensor, settings: dict) -> Guess:
        """For one generation, a function guess(text, row): the next token of each text, or None.

        (B, t), (B, V) -> (B, 1). `row` is the noise that the model will draw this token with (None:
        greedy), `text` all that is known, then all guesses since. What guess remembers is its own.
        """

    def check(self, model: GPT, prompt: Tensor, n_new: int) -> None:
        """Raises ValueError when this draft cannot serve that generation."""
        if self.k > model.config.block_size:
            raise ValueError(f"k={self.k} > block_size {model.config.block_size}: propose fewer tokens")

    def check_vocab(self, model: GPT, vocab: int) -> None:
        if vocab != model.config.vocab_size:
            raise ValueError(f"this {type(self).__name__} knows {vocab} tokens, the model "
                             f"{model.config.vocab_size}: both need one vocabulary")  # fmt: skip

    def tokens(self, model: GPT, prompt: Tensor, noise: list | Tensor, cache, settings: dict) -> Speculation:
        """What `generate` returns, its arguments checked."""
        reader = Reader(model, cache, max(1, prompt.shape[1] + len(noise) - 1))
        return Speculation(self, reader, model.config.vocab_size, prompt, noise, settings)


# ------------------------------------------------------------------ the usual form, for comparison


def keep_or_redraw(p: Tensor, q: Tensor, token: Tensor, coin: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Accept a token drawn from q, or draw another, so that all are drawn from p.

    Probabilities p, q (N, V), token (N, 1), coin (N, 1) uniform in 0 … 1, exponential noise (N, V)
    -> tokens (N, 1), accepted (N, 1). The noise must be none that the token was drawn with: what
    was rejected says something about that.
    """
    accepted = coin * q.gather(-1, token) < p.gather(-1, token)  # with probability p / q, at most 1
    other = ((p - q).clamp(min=0) / noise).argmax(-1, keepdim=True)
    return torch.where(accepted, token, other), accepted


@torch.no_grad()
def rejection(
    model: GPT, logits: Callable[[Tensor], Tensor], prompt: Tensor, n_new: int, generator: torch.Generator,
    k: int = 4,
) -> tuple[Tensor, Tally]:  # fmt: skip
    """Speculative sampling as published: the model's distribution, other tokens.  (1, T) -> (1, T + n_new)

    `logits` is the draft, (1, t) -> (1, V), as in NGram.logits. A proposal is accepted with probability
    1 - TV on average. Everything is read anew, without a cache: what counts here is the rule. The
    tally has no list of tokens `drafted`.
    """
    if len(prompt) != 1:
        raise ValueError(f"the prompt has {len(prompt)} texts: this form is written for one, (1, T)")
    text, end, tally, V = prompt, prompt.shape[1] + n_new, Tally(), model.config.vocab_size

    def draw(probs):
        return (probs / draw_noise(1, 1, V, generator)[0]).argmax(-1, keepdim=True)

    while (start := text.shape[1]) < end:
        longer, guessed = text, []
        for _ in range(min(k, end - start - 1)):
            guessed.append(logits(longer).softmax(-1))
            longer = torch.cat([longer, draw(guessed[-1])], dim=1)
        with _stepping(list(model.modules()), cache_owners(model), None):
            probs = model(longer)[0][:, start - 1 :].softmax(-1)  # (1, k + 1, V)
        for place, q in enumerate(guessed):
            coin, noise = torch.rand(1, 1, generator=generator), draw_noise(1, 1, V, generator)[0]
            token, accepted = keep_or_redraw(probs[:, place], q, longer[:, start + place, None], coin, noise)
            text = torch.cat([text, token], dim=1)
            if not accepted:
                tally.rejected += 1
                break
        else:
            text = torch.cat([text, draw(probs[:, -1])], dim=1)
        tally.offered += len(guessed)
        tally.advances.append(text.shape[1] - start)
        tally.accepted += text.shape[1] - start - 1
    return text, tally
