"""Speculative decoding in native code."""

from __future__ import annotations

from contextlib import ExitStack

import torch

from ..decoding.drafts import Draft
from ..decoding.speculative import SpeculativeLoop, matching
from ..model.gpt import GPT
from .native_library import Session


class NativeSpeculation(SpeculativeLoop):
    """The speculative loop in native code: known and proposed tokens in one pass of the weights.

    With a `drafter`, the native engine of a draft model, the draft decodes natively too, into the same
    text; any other draft is asked token by token.
    """

    def __init__(self, engine, model: GPT, drafter, draft: Draft, *args):
        self.engine, self.model, self.drafter, self.draft = engine, model, drafter, draft
        super().__init__(draft, *args)

    @torch.no_grad()
    def _run(self, prompt, noise):
        (B, known), n = prompt.shape, len(noise)
        end, read = known + n, 0
        text = torch.empty(B, end, dtype=torch.int64, device="cpu")
        text[:, :known] = prompt
        with ExitStack() as both:
            a_session = (text, known, noise, self.sampling)
            target = both.enter_context(Session(self.engine, self.model, *a_session))
            small = None
            if self.drafter is not None:
                small = both.enter_context(Session(self.drafter, self.draft.model, *a_session))
            target.decode(0, known - 1)
            while known < end:
                rows = noise[n - (end - known) :][: self.k + 1]
                k = len(rows) - 1  # the last token is never read back: it is proposed by nobody
                if small is None:
                    guessed = self.propose(text[:, :known], rows[:-1])
                    k = guessed.shape[1]
                    text[:, known : known + k] = guessed
                elif k:
                    small.known(known)
                    small.decode(read, known + k - 1)  # writes its guesses into the text
                wrote = text[:, known : known + k].tolist()
                pairs = zip(self.verified, wrote, strict=True)
                proposed = [(sure + row[len(sure) :])[:k] for sure, row in pairs]
                if proposed != wrote:
                    text[:, known : known + k] = torch.tensor(proposed, device="cpu")
                choices = target.check(known - 1, known + k)
                new = self.accept(proposed, choices)
                text[:, known : known + new] = torch.tensor(
                    [row[:new] for row in choices], device="cpu"
                )
                right = min(
                    map(matching, wrote, choices)
                )  # what the draft has read of these stays true
                read = min(known + right, max(read, known + k - 1))
                known += new
                yield from text[:, known - new : known].clone().split(1, dim=1)
