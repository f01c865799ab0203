"""Do two ways of decoding give the same tokens, how close are their logits, by what margin?"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .cache import DynamicCache
from .config import check_int
from .generation import CachedReader, UncachedReader, complete
from .model import LanguageModel
from .sampling import MOST_NEW, SamplingParams, check_length, check_prompt, check_seed, draw_noise


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`, as plain numbers. All lists have one entry for each new token."""

    equal: bool
    first_divergence: int | None  # index of the first new token that differs, or has no logits
    n_new: int
    max_logit_diff: float  # over all steps, with the same tokens fed to both
    rounding: float  # a larger difference is not rounding; see the function `rounding`
    min_margin: float  # smallest gap, in logits, between a sample and its runner-up
    tokens_a: list[list[int]]  # (B, n_new)
    tokens_b: list[list[int]]
    logit_diffs: list[float]
    margins: list[float]

    def __str__(self) -> str:
        n = self.first_divergence
        verdict = f"✓ all {self.n_new} tokens equal"
        if not self.equal:
            # The difference of two NaN is not a number, so the message names NaN instead.
            defect = "logits are NaN" if math.isnan(self.logit_diffs[n]) else "tokens differ"
            verdict = f"✗ {defect} from new token {n} on (the first {n} of {self.n_new} match)"
        difference = f"max |Δlogit| {self.max_logit_diff:.1e}"
        return f"{verdict} | {difference} | smallest margin {self.min_margin:.1e}"


def compare(
    model: LanguageModel,
    prompt: Tensor,
    n_new: int,
    a,
    b,
    *,
    seed: int = 42,
    temperature=1.0,
) -> Comparison:
    """Decode twice from one seed, with cache `a` and with cache `b`, and compare.

    A cache is a class such as DynamicCache, or None for no cache. First the tokens, generated
    independently. Then the logits, teacher-forced: both read a's tokens, so step t
    compares like with like even after a divergence. A NaN logit counts as different. The margin of
    a step is log(p₁/noise₁) - log(p₂/noise₂) of the two best candidates, in units of logits. Raises
    ValueError as `generate` does.
    """
    if not isinstance(model, LanguageModel):
        raise ValueError(f"model={model!r}: pass a GPT; `referee` compares others")
    check_prompt(prompt, model.config.vocab_size)
    check_int("n_new", n_new, 1, MOST_NEW)
    check_length(prompt.shape[1], n_new, model.config.max_positions)
    check_seed("seed", seed)
    # 1. The same noise for both, so that a token can differ only because a logit does.
    sampling = SamplingParams(temperature=temperature)
    generator = torch.Generator().manual_seed(seed)
    noise = draw_noise(n_new, len(prompt), model.config.vocab_size, generator)
    # 2. Decode with a and with b, then compute the logits of both on a's tokens.
    ways = [(model, {"cache": cache}) for cache in (a, b)]
    tokens, logits, margins = decode_both(ways, prompt, noise, sampling)
    new_a, new_b = tokens  # (B, n_new) each
    logits_a, logits_b = logits  # (n_new, B, V) each
    # 3. The worst case of each step, over texts and tokens: the largest difference and the
    #    smallest margin.
    diffs = (logits_a - logits_b).abs().amax((-2, -1))  # (n_new,)
    margins = margins.amin(-1)  # (n_new,)
    # NaN on both sides gives equal tokens, but it is still a bug.
    wrong = ((new_a != new_b).any(0) | diffs.isnan()).nonzero()
    return Comparison(
        equal=len(wrong) == 0,
        first_divergence=int(wrong[0]) if len(wrong) else None,
        n_new=n_new,
        max_logit_diff=float(diffs.max()),
        rounding=rounding(logits_a),
        min_margin=float(margins.min()),
        tokens_a=new_a.tolist(),
        tokens_b=new_b.tolist(),
        logit_diffs=diffs.tolist(),
        margins=margins.tolist(),
    )


def decode_both(
    ways,
    prompt: Tensor,
    noise: Tensor,
    sampling: SamplingParams,
    chunk: int | None = None,
    complete=complete,
) -> tuple:
    """Tokens, logits and margins of two ways of decoding.

    (B, T), (n_new, B, V) -> (B, n_new) twice, (N, B, V) twice, (N, B)

    Each of the two `ways` is a model and the keyword arguments for `complete`. Both sets of logits
    are computed on the first one's tokens. If the window slides, N stops where sliding starts,
    because a teacher-forced text has no logits beyond that.
    """
    # 1. Each generates its own text, from the same prompt and noise.
    T = prompt.shape[1]
    texts = []
    for model, way in ways:
        settings = {"noise": noise, "past_block": "slide", **way}
        texts.append(complete(model, prompt, len(noise), sampling, **settings))
    # 2. Both read the first one's text, up to the first token that has no position.
    end = ways[0][0].config.max_positions
    text = texts[0] if end is None else texts[0][:, : end + 1]
    # With a text each, their logits could not be compared after a divergence.
    caches = [(model, way.get("cache", DynamicCache)) for model, way in ways]
    logits = [forced_logits(model, text, T, cache, chunk) for model, cache in caches]
    # 3. By how much did each token win? Greedy sampling is a race without noise: log(1) = 0.
    race = torch.ones_like(noise) if sampling.greedy else noise
    race = race[: len(logits[0])].to(text.device)
    return [x[:, T:] for x in texts], logits, draw_margins(logits[0], race, sampling.temperature)


@torch.no_grad()
def forced_logits(
    model: LanguageModel, tokens: Tensor, T: int, cache, chunk: int | None = None
) -> Tensor:
    """The logits that predict each token of a text after the first T.  (B, N) -> (N - T, B, V)

    With a cache: a prefill of T tokens, all at once or in chunks of `chunk`, then one token at a
    time. With cache=None: the whole text again for each token.
    """
    # Teacher forcing: the text is given, and the reader reads it as if it had sampled it. The
    # steps are those of a generation: the prompt, whole or in chunks, then one token at a time.
    N = tokens.shape[1]  # the last token predicts nothing
    capacity = max(N - 1, model.config.block_size)
    reader = UncachedReader(model) if cache is None else CachedReader(model, cache, capacity)
    steps = [*tokens[:, :T].split(chunk or T, 1), *tokens[:, T:-1, None].unbind(1)]
    logits = [reader.read(step)[:, -1] for step in steps]  # (B, V) each
    # The last N - T predict the tokens after the prompt; drop the logits within the prompt.
    return torch.stack(logits[T - N :])


def rounding(logits: Tensor) -> float:
    """The largest change that rounding can make: 64 · eps(dtype) · the largest |logit|.

    8 · eps in 16 bits, where sums are accumulated in float32 and rounded once. Measured with the
    random models of `sweep`: correct caches change logits by at most 5.2 · eps in float32 and
    1.6 · eps in bfloat16. A cache that halves its keys changes them by at least 60,000 · eps and,
    in half of all cases, 10 · eps.
    """
    eps = torch.finfo(logits.dtype).eps
    factor = 64 if eps < 1e-4 else 8  # 1e-4 is between float32's eps and that of 16 bits
    return factor * eps * float(logits.abs().max())


def draw_margins(logits: Tensor, noise: Tensor, temperature: float = 1.0) -> Tensor:
    """The gap between each sampled token and its runner-up, in logits.  2 × (N, B, V) -> (N, B)"""
    # argmax(probs / noise) is the argmax of its logarithm: logits / temperature - log(noise), plus
    # a constant that all candidates share. Multiply by the temperature to get units of logits.
    scores = logits.double() - temperature * noise.double().log()
    if scores.shape[-1] == 1:  # there is no other token to sample
        return torch.full(scores.shape[:-1], math.inf, dtype=scores.dtype)
    best, second = scores.topk(2, dim=-1).values.unbind(-1)  # (N, B) each
    return best - second
