"""Speculative sampling as published, for comparison: the distribution is kept, the tokens are not."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..model.gpt import GPT
from .decoder import UncachedDecoder
from .sampling import draw_noise
from .speculative import DraftStats


def keep_or_redraw(
    p: Tensor, q: Tensor, token: Tensor, coin: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor]:
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
    model: GPT,
    logits: Callable[[Tensor], Tensor],
    prompt: Tensor,
    n_new: int,
    generator: torch.Generator,
    k: int = 4,
) -> tuple[Tensor, DraftStats]:
    """Speculative sampling as published: the model's distribution, other tokens.  (1, T) -> (1, T + n_new)

    `logits` is the draft, (1, t) -> (1, V), as in NGram.logits. A proposal is accepted with probability
    1 - TV on average. Everything is read again, without a cache: what counts here is the rule. The
    stats have no list of tokens `drafted`.
    """
    if len(prompt) != 1:
        raise ValueError(
            f"the prompt has {len(prompt)} texts: this form is written for one, (1, T)"
        )
    text, end, stats, V = prompt, prompt.shape[1] + n_new, DraftStats(), model.config.vocab_size

    def draw(probs):
        return (probs / draw_noise(1, 1, V, generator)[0]).argmax(-1, keepdim=True)

    while (start := text.shape[1]) < end:
        longer, guessed = text, []
        for _ in range(min(k, end - start - 1)):
            guessed.append(logits(longer).softmax(-1))
            longer = torch.cat([longer, draw(guessed[-1])], dim=1)
        probs = UncachedDecoder(model).read(longer)[:, start - 1 :].softmax(-1)  # (1, k + 1, V)
        for place, q in enumerate(guessed):
            coin, noise = torch.rand(1, 1, generator=generator), draw_noise(1, 1, V, generator)[0]
            token, accepted = keep_or_redraw(
                probs[:, place], q, longer[:, start + place, None], coin, noise
            )
            text = torch.cat([text, token], dim=1)
            if not accepted:
                stats.rejected += 1
                break
        else:
            text = torch.cat([text, draw(probs[:, -1])], dim=1)
        stats.offered += len(guessed)
        stats.advances.append(text.shape[1] - start)
        stats.accepted += text.shape[1] - start - 1
    return text, stats
