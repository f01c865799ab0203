"""Speculative sampling as published, for comparison: it keeps the distribution, not the tokens."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..model.gpt import GPT
from ..system.device import send
from .decoder import UncachedDecoder
from .sampling import draw_noise
from .speculative import DraftStats


def accept_or_resample(
    p: Tensor, q: Tensor, token: Tensor, u: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor]:
    """Accept a token drawn from q with probability min(1, p / q), or draw from the residual.

    The residual distribution is max(0, p - q), normalised; so all tokens are drawn from p.
    Probabilities p, q (N, V), token (N, 1), u (N, 1) uniform in [0, 1), exponential noise (N, V)
    -> tokens (N, 1), accepted (N, 1). The noise must not be what the token was drawn with: that a
    token was rejected says something about its noise.
    """
    accepted = u * q.gather(-1, token) < p.gather(-1, token)
    residual = (p - q).clamp(min=0)  # argmax needs no normalisation
    return torch.where(accepted, token, (residual / noise).argmax(-1, keepdim=True)), accepted


@torch.no_grad()
def rejection_sampling(
    model: GPT,
    draft_logits: Callable[[Tensor], Tensor],
    prompt: Tensor,
    n_new: int,
    generator: torch.Generator,
    k: int = 4,
) -> tuple[Tensor, DraftStats]:
    """The model's distribution, but other tokens.  (1, T) -> (1, T + n_new)

    Algorithm 1 of Leviathan et al. 2023 (arXiv 2211.17192). `draft_logits` maps (1, t) to (1, V),
    as NGram.logits does. A proposal is accepted with probability 1 - TV on average. There is no
    cache: what counts here is the rule. The stats have no list of tokens `drafted`. Raises
    ValueError for a batch, and past block_size.
    """
    if len(prompt) != 1:
        raise ValueError(f"the prompt has {len(prompt)} texts: this form needs one, (1, T)")
    text, end, stats, V = prompt, prompt.shape[1] + n_new, DraftStats(), model.config.vocab_size

    def fresh():
        return send(draw_noise(1, 1, V, generator)[0], prompt.device)

    def uniform():
        return send(torch.rand(1, 1, generator=generator), prompt.device)

    while (start := text.shape[1]) < end:
        longer, q = text, []
        for _ in range(min(k, end - start - 1)):
            q.append(draft_logits(longer).softmax(-1))
            longer = torch.cat([longer, (q[-1] / fresh()).argmax(-1, keepdim=True)], dim=1)
        p = UncachedDecoder(model).read(longer)[0, start - 1 :].softmax(-1)  # (k + 1, V)
        accepted = True
        for i in range(len(q)):
            proposal = longer[:, start + i, None]
            token, accepted = accept_or_resample(p[i, None], q[i], proposal, uniform(), fresh())
            text = torch.cat([text, token], dim=1)
            if not accepted:
                break
        if accepted:  # all of them: the same pass gives one token more
            text = torch.cat([text, (p[-1:] / fresh()).argmax(-1, keepdim=True)], dim=1)
        stats.offered += len(q)
        stats.rejected += not accepted
        stats.advances.append(text.shape[1] - start)
        stats.accepted += text.shape[1] - start - 1
    return text, stats
