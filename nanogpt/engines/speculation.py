"""Speculative decoding with identical tokens: a draft proposes, the model reads several at once.

The noise is drawn in advance, so the token at a position depends only on the text before it. A
draft guesses that token, with the same noise. The model reads a few guesses in one forward pass
over its cache and samples its own token at each position. As long as they agree, the guesses are
the text; the first wrong guess is replaced by the model's own token. So any draft gives the tokens
of plain decoding, and a good draft gives them faster.

Speculation: Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318), who
sample the guesses with independent noise and preserve the distribution, not the tokens; notebook 07
also does that. With shared noise the choices are coupled: draft and target agree with a probability
of at least (1 - TV) / (1 + TV), where TV is half the sum of |p - q| (Daliri, Musco and Suresh 2024,
arXiv 2408.07978; as exponential races: Kobus and Gündüz 2025, arXiv 2504.15475).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from ..config import check_int, check_number
from ..data import send
from ..generation import Reader
from ..sampling import SamplingParams, check_tokens, sample

if TYPE_CHECKING:
    from .noise import Noise


Guess = Callable[[Tensor, Tensor], Tensor | None]


class Guesses(Protocol):
    """What the loops ask of a draft: how many tokens it guesses for a pass, and how."""

    k: int

    def begin(self, prompt: Tensor, sampling: SamplingParams) -> Guess:
        """guess(text, noise): the next token of each text, or None.  (B, t), (B, V) -> (B, 1)"""


@dataclass
class DraftStats:
    """Proposal counts of one generation, summed over its texts, up to the latest pass.

    In a batch, accepted tokens wait for the slowest row and are proposed again: they count once.
    Proposals after a rejected one are not verified and do not count. Of the tokens that a pass adds
    to a single text, the last is the model's and the others are the draft's.
    """

    accepted: int = 0
    rejected: int = 0
    advances: list[int] = field(default_factory=list)  # tokens added by each pass of the model

    @property
    def passes(self) -> int:
        return len(self.advances)

    @property
    def acceptance_rate(self) -> float:
        """The share of verified proposals that were accepted: the `a` of expected_tokens."""
        return self.accepted / max(1, self.accepted + self.rejected)


def matching(proposals: list[int], choices: list[int]) -> int:
    """The length of the common prefix of proposals and choices."""
    for n, (proposal, choice) in enumerate(zip(proposals, choices, strict=False)):
        if proposal != choice:
            return n
    return len(proposals)


def expected_tokens(a: float, k: int) -> float:
    """Expected tokens per pass if each of k proposals is accepted with probability a: 1 + … + aᵏ.

    Equation 1 of Leviathan et al. 2023, (1 - aᵏ⁺¹) / (1 - a). Raises ValueError.
    """
    check_number("a", a, 0, 1)
    check_int("k", k, 0)
    return float(k + 1) if a == 1 else (1 - a ** (k + 1)) / (1 - a)


class SpeculativeLoop(ABC):
    """Base class: the speculative loop of one generation, and its `stats`.

    A batch advances together, by the fewest tokens that a pass added to any of its texts. Tokens
    that a text gained beyond that are already correct. They are kept in `verified`, a list for each
    text, proposed first in the next pass, and accepted again. A subclass implements in `run` how
    the model reads several tokens in one pass.
    """

    def __init__(
        self, draft: Guesses, prompt: Tensor, noise: Tensor | Noise, sampling: SamplingParams
    ):
        self.vocab_size = noise.shape[-1]
        self.sampling = sampling
        self.stats = DraftStats()
        self.guess = draft.begin(prompt, sampling)
        self.k = draft.k
        self.verified: list[list[int]] = [[] for _ in prompt]

    @abstractmethod
    def run(self, prompt: Tensor, noise: Tensor | Noise) -> Generator[Tensor, None, None]:
        """Yield a (B, 1) token for each row of noise."""

    def propose(self, text: Tensor, noise: Tensor) -> Tensor:
        """Guess the next tokens, at most one for each row of noise.  (B, t) -> (B, k)"""
        longer = text.clone()  # a draft may write into it
        verified, n_verified = self._verified(text.device)
        for i, row in enumerate(noise):
            # 1. The draft guesses with the noise that the model will sample this token with. If the
            #    two compute similar probabilities, the same noise mostly picks the same token.
            token = self.guess(longer, row)
            # 2. A draft may have no guess. Then stop, unless some text already knows its token
            #    here: all texts are read together, so the others propose anything.
            if token is None and i >= n_verified:
                break
            token = longer[:, -1:].long() if token is None else token
            # 3. A verified token is the model's own, so it is better than any guess.
            if i < n_verified:
                known = verified[:, i, None]  # (B, 1)
                token = torch.where(known < 0, token, known)
            # 4. The next guess continues this one.
            longer = torch.cat([longer, token], dim=1)
        proposals = longer[:, text.shape[1] :]
        if text.is_cpu:  # on a GPU they are checked with the choices, to save a sync
            self.check_tokens(proposals.flatten().tolist())
        return proposals

    def _verified(self, device: torch.device) -> tuple[Tensor, int]:
        """The verified tokens of each text, padded with -1: (B, n), and n."""
        n = max(map(len, self.verified))
        if n == 0:  # always, for a single text
            return torch.empty(0), 0
        rows = [row + [-1] * (n - len(row)) for row in self.verified]
        return send(torch.tensor(rows, dtype=torch.long), device), n

    def accept(self, proposals: list[list[int]], choices: list[list[int]]) -> int:
        """How many tokens the batch advances; keeps the tokens that some texts gained beyond it."""
        # 1. The model has chosen a token at each position, and a choice is right if all guesses
        #    before it are. So each text gains its right guesses and one more token: the choice in
        #    place of the first wrong guess, or behind the last guess.
        gained = []
        for guesses, row, known in zip(proposals, choices, self.verified, strict=True):
            right = matching(guesses, row)
            # At the end of a text, more tokens may be verified than are proposed.
            self.stats.accepted += max(0, right - len(known))
            self.stats.rejected += right < len(guesses)
            gained.append(right + 1)
        # 2. The caches of a batch have one length, so all texts advance by the fewest. What others
        #    gained beyond it is kept, and proposed first in the next pass.
        n = min(gained)
        self.stats.advances.append(n)
        self.verified = [row[n:end] for row, end in zip(choices, gained, strict=True)]
        return n

    def check_tokens(self, proposed: list[int]) -> None:
        """Raises ValueError for proposals that are not in the vocabulary."""
        if proposed:
            low = min(proposed)
            high = max(proposed)
            check_tokens(low, high, self.vocab_size, "the draft proposed")


class SpeculativeTokens(Iterator[Tensor]):
    """The tokens of a speculative loop, (B, 1) each, with its `stats`.

    steps = generate(model, prompt, 200, draft=PromptLookup())
    text = torch.cat(list(steps), dim=1)
    steps.stats.passes  # forward passes of the model
    """

    def __init__(self, loop: SpeculativeLoop, prompt: Tensor, noise: Tensor | Noise):
        # The generator refers to the loop and not to this object: so a caller who drops the tokens
        # closes it at once, without waiting for the garbage collector.
        self.loop = loop
        self.stats = loop.stats
        self._steps = loop.run(prompt, noise)

    def __next__(self) -> Tensor:
        return next(self._steps)

    def close(self) -> None:
        self._steps.close()


class Speculation(SpeculativeLoop):
    """The speculative loop over any reader."""

    def __init__(
        self,
        reader: Reader,
        draft: Guesses,
        prompt: Tensor,
        noise: Tensor | Noise,
        sampling: SamplingParams,
    ):
        self.reader = reader
        super().__init__(draft, prompt, noise, sampling)

    @torch.no_grad()
    def run(self, prompt: Tensor, noise: Tensor | Noise) -> Generator[Tensor, None, None]:
        text = prompt
        done = 0  # new tokens so far: the next one is sampled with this row of the noise
        while done < len(noise):
            # 1. Guess up to k tokens. There is a row of noise for one more, the model's own. At the
            #    end of the text there are fewer rows: its last token is never read, so not guessed.
            rows = noise[done : done + self.k + 1]
            proposals = self.propose(text, rows[:-1])  # (B, k)
            k = proposals.shape[1]
            # 2. One forward pass over what is not read yet and all guesses. The logits after the
            #    last known token and after each guess are those of plain decoding, as long as the
            #    guesses before them are right.
            unread = text[:, self.reader.length :]
            # A guess outside the vocabulary is an error of the draft. On a GPU it is found below,
            # and until then must not be looked up in an embedding.
            read = proposals if text.is_cpu else proposals.clamp(0, self.vocab_size - 1)
            logits = self.reader.read(torch.cat([unread, read], dim=1))[:, -k - 1 :]
            # 3. The model's own tokens at these positions, and how many of them count.
            choices = self._draw(logits, rows, proposals)
            both = torch.cat([proposals, *choices], dim=1).tolist()  # the only sync of a pass
            self.check_tokens([token for row in both for token in row[:k]])
            n = self.accept([row[:k] for row in both], [row[k:] for row in both])
            # 4. Forget the guesses behind them. The last of the n tokens is the model's own, in
            #    place of a guess or behind all of them: it has not been read yet.
            self.reader.rewind(k + 1 - n)
            text = torch.cat([text, *choices[:n]], dim=1)
            done += n
            yield from choices[:n]

    def _draw(self, logits: Tensor, noise: Tensor, proposals: Tensor) -> list[Tensor]:
        """The model's own tokens, (B, 1) each, up to the first where no text agrees.

        On a GPU all of them: finding that position would need a sync.
        """
        choices = []
        for i, row in enumerate(noise[: logits.shape[1]]):
            choices.append(sample(logits[:, i], row, self.sampling))
            if row.is_cpu and not (choices[-1] == proposals[:, i : i + 1]).any():
                break  # at the latest after the last proposal; not on a GPU, where it would sync
        return choices
