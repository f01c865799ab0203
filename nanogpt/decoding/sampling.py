"""From logits to a token: sampling parameters, noise drawn beforehand, and one draw.

Randomness is data: the noise of a whole generation is drawn before the first step, on the CPU, so a
seed means the same on every device, and the token at a step depends on the text before it alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..config.checks import check_int, check_number, check_switch


@dataclass(frozen=True)
class SamplingParams:
    """How a token is drawn from its distribution. Raises ValueError when a value is out of range.

    The logits are divided by `temperature`. `top_k` keeps the k likeliest tokens; `top_p` keeps the
    fewest whose probabilities add up to p (Holtzman et al. 2020, arXiv 1904.09751), of equally
    likely ones those of lower number first. `greedy` takes the likeliest token, without noise.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    greedy: bool = False

    def __post_init__(self):
        check_switch("greedy", self.greedy)
        check_number("temperature", self.temperature, 1e-6, 1e38, "or use greedy=True")
        object.__setattr__(self, "temperature", float(self.temperature))  # no int beyond 64 bits
        if self.top_k is not None:
            check_int("top_k", self.top_k, 1)
        if self.top_p is not None:
            check_number("top_p", self.top_p, 1e-30, 1.0)
        if self.greedy and (self.temperature, self.top_k, self.top_p) != (1.0, None, None):
            raise ValueError("greedy=True uses no temperature, top_k or top_p: leave them out")


PLAIN = SamplingParams()


def draw_noise(
    n_new: int, batch: int, vocab_size: int, generator: torch.Generator | None = None
) -> Tensor:
    """Exponential noise for n_new tokens, (n_new, B, V), float32 on the CPU, all above 0.

    argmax(probs / noise) with exponential noise is a sample from probs: the exponential race that
    torch.multinomial(probs, 1) runs inside. The noise is -log(1 - u) with u uniform in [0, 1),
    drawn as float64, so a seed means the same on every build and platform of PyTorch. On builds
    whose `exponential_` is computed so too, the tokens are those of torch.multinomial called step
    by step, for probabilities in float32 or float64.
    """
    u = torch.rand(n_new, batch, vocab_size, dtype=torch.float64, device="cpu", generator=generator)
    noise = u.neg_().log1p_().neg_().float()
    return noise.clamp_(min=torch.finfo(torch.float32).tiny)  # u may be 0, and p / 0 is no race


def sample(logits: Tensor, noise: Tensor, sampling: SamplingParams = PLAIN) -> Tensor:
    """One token for each row: argmax(softmax(logits / temperature) / noise).

    (B, V), (B, V) -> (B, 1)

    Greedy sampling takes argmax(logits) and does not look at the noise.
    """
    if sampling.greedy:
        return logits.argmax(-1, keepdim=True)
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    probs = (logits / sampling.temperature).softmax(-1)
    if sampling.top_k is not None:
        weakest = probs.topk(min(sampling.top_k, probs.shape[-1])).values[:, -1:]
        probs = probs.masked_fill(probs < weakest, 0.0)
    if sampling.top_p is not None and sampling.top_p < 1.0:  # at 1 rounding would drop the rarest
        probs = keep_top_p(probs, sampling.top_p)
    return (probs / noise).argmax(-1, keepdim=True)


def keep_top_p(probs: Tensor, p: float) -> Tensor:
    """The probabilities, 0 but for the fewest tokens that reach p together.  (B, V) -> (B, V)"""
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)  # of equals, the first
    ordered = ordered / ordered.sum(-1, keepdim=True)
    late = ordered.cumsum(-1) - ordered >= p  # p is reached before this one; never the first
    return probs.masked_fill(late.scatter(-1, order, late), 0.0)
