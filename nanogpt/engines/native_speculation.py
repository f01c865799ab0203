"""Speculative decoding in native code."""

from __future__ import annotations

from contextlib import ExitStack

import torch
from torch import Tensor

from ..decoding.drafts import Draft
from ..decoding.speculative import SpeculativeLoop, matching
from ..model.gpt import GPT
from .native_library import Session, text_of


class NativeSpeculation(SpeculativeLoop):
    """The speculative loop in native code: known and proposed tokens in one pass of the weights.

    With a `drafter`, the native engine of a draft model, the draft decodes natively too, into the
    same text; any other draft is asked token by token.
    """

    def __init__(self, engine, model: GPT, drafter, draft: Draft, *args):
        self.engine, self.model, self.drafter, self.draft = engine, model, drafter, draft
        super().__init__(draft, *args)

    @torch.no_grad()
    def _run(self, prompt, noise):
        text, known = text_of(prompt, len(noise)), prompt.shape[1]
        end, generation = text.shape[1], (text, known, noise, self.sampling)
        with ExitStack() as sessions:
            target = sessions.enter_context(Session(self.engine, self.model, *generation))
            drafting = None
            if self.drafter is not None:
                drafting = DraftSession(self.drafter, self.draft.model, *generation)
                sessions.enter_context(drafting)
            target.decode(0, known - 1)
            while known < end:
                k = min(self.k, end - known - 1)  # the last token is never read, so not proposed
                guessed = self._guesses(text, known, noise[known - end :][:k], drafting)
                proposed = self._correct(text, known, guessed)
                choices = target.check(known - 1, known + len(proposed[0]))
                new = self.accept(proposed, choices)
                self._write(text, known, [row[:new] for row in choices])
                if drafting is not None:
                    drafting.settle(known, guessed, choices)
                known += new
                yield from text[:, known - new : known].clone().split(1, dim=1)

    def _guesses(self, text: Tensor, known: int, noise: Tensor, drafting) -> list[list[int]]:
        """What the draft proposes after `known` tokens, by text; also written into the text."""
        k = len(noise)
        if drafting is not None:
            drafting.guess(known, k)
        else:
            guessed = self.propose(text[:, :known], noise)
            k = guessed.shape[1]
            text[:, known : known + k] = guessed
        return text[:, known : known + k].tolist()

    def _correct(self, text: Tensor, known: int, guessed: list[list[int]]) -> list[list[int]]:
        """The guesses with what some texts know already in its place, in the text as well."""
        pairs = zip(self.verified, guessed, strict=True)
        proposed = [(verified + row[len(verified) :])[: len(row)] for verified, row in pairs]
        if proposed != guessed:
            self._write(text, known, proposed)
        return proposed

    @staticmethod
    def _write(text: Tensor, start: int, tokens: list[list[int]]) -> None:
        text[:, start : start + len(tokens[0])] = torch.tensor(tokens, device="cpu")


class DraftSession(Session):
    """The session of a draft model, which writes its guesses into the text that it shares."""

    valid = 0  # tokens of the text whose keys and values it holds

    def guess(self, known: int, k: int) -> None:
        """Write k guesses after the first `known` tokens."""
        if k:
            self.known(known)
            self.decode(self.valid, known + k - 1)
            self.valid = known + k - 1

    def settle(self, known: int, guessed: list[list[int]], choices: list[list[int]]) -> None:
        """Of what it has read, only the guesses that were right in every text stay valid."""
        right = min(map(matching, guessed, choices))
        self.valid = min(known + right, self.valid)
