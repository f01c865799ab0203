"""From logits to a token: sampling parameters, noise drawn in advance, and sampling with it.

Randomness is data: the noise for a whole generation is drawn before the first step, on the CPU. So
a seed gives the same noise on every device, and each token depends only on the text before it.
"""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from .config import ParameterError, check_int, check_number, check_switch, check_type, too_large

TEMPERATURES = (1e-6, 1e38)  # below, all but the largest logits vanish; above, float32 overflows


@dataclass(frozen=True)
class SamplingParams:
    """How a token is sampled. Raises ValueError for a value out of range.

    The logits are divided by `temperature`. `top_k` keeps the k most likely tokens and any ties,
    `top_p` the fewest tokens whose probabilities add up to p (Holtzman et al. 2020, arXiv
    1904.09751); among equally likely tokens, lower numbers come first. `greedy` takes the most
    likely token, without noise.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    greedy: bool = False

    def __post_init__(self):
        check_switch("greedy", self.greedy)
        check_number("temperature", self.temperature, *TEMPERATURES, "; or use greedy=True")
        if self.top_k is not None:
            check_int("top_k", self.top_k, 1)
        if self.top_p is not None:
            check_number("top_p", self.top_p, 1e-30, 1.0)
        if self.greedy and (self.temperature, self.top_k, self.top_p) != (1.0, None, None):
            raise ParameterError(
                "greedy=True uses no temperature, top_k or top_p: leave them out", "greedy"
            )


PLAIN = SamplingParams()


def draw_noise(
    n_new: int, batch: int, vocab_size: int, generator: torch.Generator | None = None
) -> Tensor:
    """Exponential noise for n_new tokens, (n_new, B, V), float32 on the CPU, all above 0.

    argmax(probs / noise) with exponential noise is a sample from probs: the exponential race that
    torch.multinomial(probs, 1) runs internally. The noise is -log(1 - u) with u uniform in [0, 1),
    drawn as float64, so a seed gives the same noise on every build and platform of PyTorch. On
    builds that compute `exponential_` the same way, the tokens are those of torch.multinomial
    called step by step, for probabilities in float32 or float64.
    """
    check_draw(n_new, batch, vocab_size, generator)
    # 1. uniform numbers, one for each candidate of each token of each text
    u = torch.rand(n_new, batch, vocab_size, dtype=torch.float64, device="cpu", generator=generator)
    # 2. made exponential: -log(1 - u), in place to save memory: (n_new, B, V) numbers of 8 bytes
    noise = u.neg_().log1p_().neg_().float()
    return noise.clamp_(min=torch.finfo(torch.float32).tiny)  # u may be 0; avoid dividing by 0


def sample(logits: Tensor, noise: Tensor, sampling: SamplingParams = PLAIN) -> Tensor:
    """Sample a token per row: argmax(softmax(logits / temperature) / noise). 2 × (B, V) -> (B, 1)

    Greedy sampling takes argmax(logits) and ignores the noise.
    """
    if sampling.greedy:
        return logits.argmax(-1, keepdim=True)
    # 1. Logits become probabilities. A low temperature spreads the logits and favours the most
    #    likely candidates; a high one makes the candidates more equal. In 16 bits many candidates
    #    would tie, and the first of them would always win.
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    probs = (logits / sampling.temperature).softmax(-1)
    # 2. Rule out unlikely candidates if asked: a probability of 0 loses every race. The remaining
    #    ones need not add up to 1, because only the ratios matter.
    if sampling.top_k is not None:
        weakest = probs.topk(min(sampling.top_k, probs.shape[-1])).values[:, -1:]
        probs = probs.masked_fill(probs < weakest, 0.0)
    if sampling.top_p is not None and sampling.top_p < 1.0:  # at 1 rounding would drop the rarest
        probs = keep_top_p(probs, sampling.top_p)
    # 3. The race: a candidate finishes at time noise / probs, so the winner has the largest
    #    probs / noise. Candidate i wins with probability probs[i], so this is a sample, and only
    #    the noise and the text determine it.
    return (probs / noise).argmax(-1, keepdim=True)


def keep_top_p(probs: Tensor, p: float) -> Tensor:
    """Zero all but the fewest most likely tokens that add up to p.  (B, V) -> (B, V)"""
    # 1. sort from most to least likely; after top_k they may add up to less than 1
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)  # ties: lower numbers first
    ordered = ordered / ordered.sum(-1, keepdim=True)
    # 2. cumsum - ordered is the sum before each candidate: it is late if that sum has reached p
    late = ordered.cumsum(-1) - ordered >= p  # the first one is never late
    # 3. back in vocabulary order, late candidates get 0
    return probs.masked_fill(late.scatter(-1, order, late), 0.0)


# ------------------------------------------------------------------ argument checks

MOST_NEW = 2**31 - 1  # tokens in one generation: more must be a typo
_FLOAT32 = torch.finfo(torch.float32)


def check_prompt(prompt, vocab_size: int | None = None, ndim: int = 2, where: str = "") -> None:
    """Raise ValueError unless these are tokens, (B, T) or (T,), of a known vocabulary."""
    plain = isinstance(prompt, Tensor) and prompt.layout == torch.strided and not prompt.is_meta
    integers = plain and prompt.dtype in (torch.int64, torch.int32)
    if not integers or prompt.ndim != ndim or prompt.numel() == 0:
        shape = "(B, T)" if ndim == 2 else "(T,)"
        example = "tokenizer.encode(text)[None]" if ndim == 2 else "tokenizer.encode(text)"
        raise ValueError(
            f"{where}the prompt is {described(prompt)}: pass a plain tensor {shape} of integers, "
            f"at least one token, such as {example}"
        )
    if vocab_size is not None:
        low, high = torch.stack(prompt.aminmax()).tolist()  # one GPU sync, not two
        check_tokens(low, high, vocab_size, f"{where}the prompt holds")


def described(value) -> str:
    """A tensor's shape, dtype, layout and device, or the type of anything else, for a message."""
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    return f"{tuple(value.shape)}, {value.dtype}, {value.layout} on {value.device}"


def check_tokens(low: int, high: int, vocab_size: int, subject: str) -> None:
    """Raise ValueError if the lowest or the highest token is not in the vocabulary."""
    if low < 0 or high >= vocab_size:
        raise ValueError(
            f"{subject} tokens {low} to {high}; the vocabulary has 0 to {vocab_size - 1}: "
            f"encode with the model's tokenizer"
        )


def check_length(
    n_prompt: int, n_new: int, positions: int | None, where="", limit="block_size", otherwise=""
) -> None:
    """Raise ValueError for a text that does not fit into `positions` positions (None: no limit).

    The last token is only returned, never read, so the text may end one past the last position.
    `limit` is the user's name for that number; `otherwise` is another suggestion, if there is one.
    """
    if positions is None or n_prompt + n_new - 1 <= positions:
        return
    most = positions + 1 - n_prompt
    if most < 1:
        raise ValueError(
            f"{where}a prompt of {n_prompt} and {n_new} new tokens exceed {limit} {positions}: "
            f"shorten the prompt to at most {positions}{otherwise}"
        )
    raise ValueError(
        f"{where}a prompt of {n_prompt} and {n_new} new tokens exceed {limit} {positions}: "
        f"ask for at most {most}{otherwise}"
    )


def check_sampling(sampling, vocab_size: int | None = None, where: str = "") -> None:
    """Raise ValueError unless these are SamplingParams with a top_k of at most vocab_size."""
    if not isinstance(sampling, SamplingParams):
        raise ValueError(f"{where}sampling={sampling!r}: pass SamplingParams(temperature=0.8)")
    if sampling.top_k is not None and vocab_size is not None:
        check_int(f"{where}top_k", sampling.top_k, 1, vocab_size)


def check_seed(name: str, seed) -> None:
    """Raise ValueError unless torch.Generator().manual_seed accepts the seed."""
    check_int(name, seed, -(2**63), 2**64 - 1)


def check_draw(n_new, batch, vocab_size, generator) -> None:
    """Raise ValueError for invalid sizes, TypeError for an invalid generator, and MemoryError."""
    shape = (n_new, batch, vocab_size)
    for name, size in zip(("n_new", "batch", "vocab_size"), shape, strict=True):
        check_int(name, size, 0, MOST_NEW)
    check_type("generator", generator, (torch.Generator, type(None)))
    # Is there room for this many numbers, in float64 and in float32? Memory that nobody writes to
    # is only reserved, so asking costs microseconds.
    try:
        torch.empty(*shape, 8 + 4, dtype=torch.uint8, device="cpu")
    except (RuntimeError, MemoryError):
        what = f"n_new={n_new}, batch={batch}, vocab_size={vocab_size}: the random numbers"
        raise too_large(what, (8 + 4) * prod(shape), "ask for fewer tokens") from None


def check_noise(noise, shape: tuple[int, int, int]) -> None:
    """Raise ValueError unless this is noise of shape (n_new, B, V), as draw_noise returns it."""
    numbers = isinstance(noise, Tensor) and noise.is_floating_point() and not noise.is_meta
    if numbers and noise.shape == shape and _in_float32s_range(noise):
        return
    raise ValueError(
        f"noise is {described(noise)}; these tokens need {shape} numbers from {_FLOAT32.tiny:.1e} "
        f"to {_FLOAT32.max:.1e}, as float32 has them: draw it with draw_noise"
    )


def _in_float32s_range(noise: Tensor) -> bool:
    """Whether all numbers are float32's, neither 0, nor subnormal, nor infinite, nor NaN.

    With a noise of 0 a ruled-out token would win: 0 / 0 is NaN, which argmax takes for the largest;
    with infinite noise no token would. Engines divide in float32, whatever the noise is, where a
    float64 of 1e-50 is 0, and where 1 / 1e-40 is infinite.
    """
    if noise.numel() == 0:  # no tokens, so no smallest number
        return True
    # Asked once for a generation, so waiting for a GPU here costs next to nothing. Both are NaN if
    # any number is, and then no comparison is true.
    low, high = torch.stack(noise.aminmax()).tolist()
    return _FLOAT32.tiny <= low and high <= _FLOAT32.max
