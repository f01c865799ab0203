"""Do two ways of decoding give the same tokens, how nearly equal are their logits, and is that luck?"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from ..cache.attach import kv_cache
from ..decoding.generate import complete
from ..decoding.sampling import SamplingParams, draw_noise
from ..model.gpt import GPT


@dataclass(frozen=True)
class Report:
    """What `compare` found. All lists have one entry for each new token; plain numbers, ready for JSON."""

    equal: bool
    first_divergence: int | None  # index of the first new token that differs
    n_new: int
    max_logit_diff: float  # over all steps, both ways fed the same tokens
    rounding: float  # what rounding may do: 256 · eps(dtype) · largest |logit|
    min_margin: (
        float  # smallest distance, in logits, between the winner of a draw and the runner-up
    )
    tokens_a: list[list[int]]  # (B, n_new)
    tokens_b: list[list[int]]
    logit_diffs: list[float]
    margins: list[float]

    @property
    def explained(self) -> bool:
        """Whether a difference is no larger than what rounding can do in this dtype.

        True when the tokens are equal, or when no logit differs by more than `rounding`. In
        float32 a broken mask or position is far above that bound. In bfloat16 the bound is wide
        and proves little: there, see whether float64 gives equal tokens.
        """
        return self.equal or self.max_logit_diff <= self.rounding

    def __str__(self) -> str:
        if self.equal:
            verdict = f"✓ all {self.n_new} tokens equal"
        else:
            where = self.first_divergence
            verdict = f"✗ tokens differ from new token {where} on ({where} of {self.n_new} equal before it)"
        return f"{verdict} | max |Δlogit| {self.max_logit_diff:.1e} | smallest margin {self.min_margin:.1e}"

    def as_dict(self) -> dict:
        return asdict(self) | {"explained": self.explained}


def compare(
    model: GPT,
    prompt: Tensor,
    n_new: int,
    a=None,
    b=None,
    *,
    seed: int = 42,
    temperature: float = 1.0,
) -> Report:
    """Decode twice from one seed, by cache design `a` and by `b` (None: no cache), and compare.

    First the tokens, generated independently. Then the logits, teacher-forced: both ways read
    a's tokens, so that step t compares like with like even after a divergence. The margin of a
    step is log(p₁/noise₁) - log(p₂/noise₂) of the two best candidates, in units of logits.
    Raises ValueError as `generate` does.
    """
    T, sampling = prompt.shape[1], SamplingParams(temperature=temperature)
    full_a, full_b = (
        complete(model, prompt, n_new, sampling, cache=cache, generator=_seeded(seed))
        for cache in (a, b)
    )
    noise = draw_noise(n_new, len(prompt), model.config.vocab_size, _seeded(seed))
    logits_a = forced_logits(model, full_a, T, a)
    logits_b = forced_logits(model, full_a, T, b)
    diffs = (logits_a - logits_b).abs().amax((-2, -1))  # (n_new,)
    margins = draw_margins(logits_a, noise.to(logits_a.device), temperature)  # (n_new,)
    new_a, new_b = full_a[:, T:], full_b[:, T:]
    wrong = (new_a != new_b).any(0).nonzero()
    return Report(
        equal=len(wrong) == 0,
        first_divergence=int(wrong[0]) if len(wrong) else None,
        n_new=n_new,
        max_logit_diff=float(diffs.max()),
        rounding=256 * torch.finfo(logits_a.dtype).eps * float(logits_a.abs().max()),
        min_margin=float(margins.min()),
        tokens_a=new_a.tolist(),
        tokens_b=new_b.tolist(),
        logit_diffs=diffs.tolist(),
        margins=margins.tolist(),
    )


@torch.no_grad()
def forced_logits(model: GPT, tokens: Tensor, T: int, design, chunk: int | None = None) -> Tensor:
    """The logits that decode each token from the T-th on, when the text is given.  (B, N) -> (N - T, B, V)

    With a design: a prefill of T tokens, all at once or `chunk` by chunk, then one token at a time.
    Without: everything anew.
    """
    was_training, N = model.training, tokens.shape[1]
    places = torch.arange(N, device=tokens.device)
    model.eval()
    try:
        if design is None:
            return torch.stack([model(tokens[:, :n])[0][:, -1] for n in range(T, N)])
        with kv_cache(
            model, design, max(N - 1, model.config.block_size)
        ):  # the last one is not fed
            chunks = zip(
                tokens[:, :T].split(chunk or T, dim=1), places[:T].split(chunk or T), strict=True
            )
            rows = [model(part, pos=pos)[0][:, -1] for part, pos in chunks][-1:]
            rows += [
                model(tokens[:, n : n + 1], pos=places[n : n + 1])[0][:, -1]
                for n in range(T, N - 1)
            ]
            return torch.stack(rows)
    finally:
        model.train(was_training)


def draw_margins(logits: Tensor, noise: Tensor, temperature: float = 1.0) -> Tensor:
    """By how many logits each draw was decided, the closest of the batch.  (N, B, V), (N, B, V) -> (N,)"""
    scores = logits.double() - temperature * noise.double().log()
    best, second = scores.topk(2, dim=-1).values.unbind(-1)  # (N, B) each
    return (best - second).amin(-1)


def numbers_apart(a: Tensor, b: Tensor) -> Tensor:
    """How many numbers of their dtype lie between a and b: 0 for equal ones, 1 for neighbours (one ulp)."""
    whole = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float64: torch.int64}[
        a.dtype
    ]
    low = torch.iinfo(whole).min

    def rank(x):  # floats in their order as integers: the negative ones are stored back to front
        bits = x.contiguous().view(whole).long()
        return torch.where(bits < 0, low - bits, bits)

    return (rank(a) - rank(b)).abs()


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
