"""From a prompt to its tokens: decoders, the loop over them, `generate` and `complete`.

A decoder reads the next tokens, and can forget the last ones. Two loops run over any decoder: the
plain one here, and a draft's own (engines/speculation.py). No timing code: times are measured
outside.
"""

from collections.abc import Iterator
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from .cache import DynamicCache, enable_kv_cache
from .config import check_int, check_type
from .data import send
from .model import GPT, replica
from .sampling import (
    MOST_NEW,
    PLAIN,
    SamplingParams,
    check_length,
    check_noise,
    check_prompt,
    check_sampling,
    draw_noise,
    sample,
)


class Decoder(Protocol):
    """Texts of one length that are read from left to right, and what is remembered of them."""

    @property
    def length(self) -> int:
        """Tokens read so far."""

    def read(self, tokens: Tensor) -> Tensor:
        """Read the next tokens; the logits behind each of them.  (B, T) -> (B, T, V)"""

    def rewind(self, n: int) -> None:
        """Forget the last n tokens, as if they had never been read."""


@torch.no_grad()
def decode(
    decoder: Decoder, prompt: Tensor, noise: Tensor, sampling: SamplingParams
) -> Iterator[Tensor]:
    """The plain loop: prefill, then one token at a time.  (B, T), (n, B, V) -> n × (B, 1)"""
    tokens = prompt
    for row in noise:
        logits = decoder.read(tokens)  # prefill at the first step, decode after it
        tokens = sample(logits[:, -1], row, sampling)
        yield tokens.clone()  # the caller's own: the next step reads ours


def loop(
    decoder: Decoder, prompt: Tensor, noise: Tensor, sampling: SamplingParams, draft=None
) -> Iterator[Tensor]:
    """The plain loop over a decoder, or with a draft the draft's own.  -> n × (B, 1)"""
    if draft is None:
        return decode(decoder, prompt, noise, sampling)
    return draft.loop(decoder, prompt, noise, sampling)


class ModuleDecoder:
    """The model's own code and weights, in a replica that is this decoder's alone."""

    def __init__(self, model: GPT):
        self.model = replica(model)

    def forward(self, tokens: Tensor, start: int) -> Tensor:
        """Logits of tokens that stand at `start` and after it.  (B, T) -> (B, T, V)"""
        pos = torch.arange(start, start + tokens.shape[1], device=tokens.device)
        return self.model(tokens, pos=pos)[0]


class CachedDecoder(ModuleDecoder):
    """Reads each token once. `cache` is a class, as in DynamicCache; `capacity` the most tokens."""

    def __init__(self, model: GPT, cache, capacity: int):
        super().__init__(model)
        self.caches = enable_kv_cache(self.model, cache, capacity)
        self.length = 0

    def read(self, tokens: Tensor) -> Tensor:
        logits = self.forward(tokens, self.length)
        self.length += tokens.shape[1]
        return logits

    def rewind(self, n: int) -> None:
        for cache in self.caches:
            cache.rewind(n)
        self.length -= n


class UncachedDecoder(ModuleDecoder):
    """Reads the whole text again every time, as in the lecture."""

    text = None  # (B, length), behind the first read

    @property
    def length(self) -> int:
        return 0 if self.text is None else self.text.shape[1]

    def append(self, tokens: Tensor) -> None:
        before = tokens[:, :0] if self.text is None else self.text
        self.text = torch.cat([before, tokens], dim=1)

    def read(self, tokens: Tensor) -> Tensor:
        self.append(tokens)
        return self.forward(self.text, 0)[:, -tokens.shape[1] :]

    def rewind(self, n: int) -> None:
        self.text = self.text[:, : self.length - n]


class SlidingDecoder(UncachedDecoder):
    """Past the end of the position table, reads the last block_size tokens, as in the lecture.

    Every position changes there, so no cached row is valid. Up to the end it is cached, unless
    `cache` is None. Only the last logits of a read are used.
    """

    def __init__(self, model: GPT, cache):
        super().__init__(model)
        self.limit = model.config.block_size
        self.cached = None if cache is None else CachedDecoder(model, cache, self.limit)

    def read(self, tokens: Tensor) -> Tensor:
        self.append(tokens)
        if self.cached is not None and self.length <= self.limit:
            return self.cached.read(tokens)
        return self.forward(self.text[:, -self.limit :], 0)[:, -tokens.shape[1] :]


# ------------------------------------------------------------------ generate


def generate(
    model: GPT,
    prompt: Tensor,
    n_new: int,
    sampling: SamplingParams = PLAIN,
    *,
    cache=DynamicCache,
    generator: torch.Generator | None = None,
    noise: Tensor | None = None,
    past_block: str = "error",
    engine=None,
    draft=None,
) -> Iterator[Tensor]:
    """Yield n_new tokens after the prompt, one (B, 1) tensor at a time.  (B, T) -> n_new × (B, 1)

        for token in generate(model, prompt, 200, SamplingParams(temperature=0.8)):
            print(tokenizer.decode(token), end="", flush=True)

    `cache` is a class (DynamicCache, StaticCache), or None to compute the whole text again for
    every token. Randomness comes from `generator` (CPU; seed 1337 when None) or from `noise`
    (n_new, B, V). Past block_size a learned position table has no row: past_block="error" refuses,
    "slide" reads the last block_size tokens again for each token, as the lecture does.

    `engine`, from nanogpt.engines, is another way to the same tokens, with a cache of its own.
    `draft`, from nanogpt.engines.drafts, proposes tokens, and the model reads several in one pass:
    the tokens are the same, however bad the draft is; the iterator's `stats` count its passes.

    The arguments are checked at the call. The model's modes and caches are neither used nor
    changed, so threads may generate with one model, and use it meanwhile. Raises ValueError, and
    TypeError for an object that is no model.
    """
    check_type("model", model, GPT)
    vocab_size = model.config.vocab_size
    check_prompt(prompt, vocab_size)
    check_int("n_new", n_new, 1, MOST_NEW)
    check_sampling(sampling, vocab_size)
    shape = (n_new, len(prompt), vocab_size)
    slides = _slides(model, prompt, n_new, past_block)
    if draft is not None:
        _check_draft(draft, cache, slides)
        draft.check(model, prompt, n_new, engine)
    if engine is None:
        tokens = partial(loop, _decoder(model, prompt, n_new, cache, slides))
    else:
        tokens = partial(_ready(engine, model, prompt, n_new, cache).tokens, model)
    noise = _noise(noise, generator, sampling, shape, prompt.device)
    return tokens(prompt, noise, sampling, draft)


def complete(model: GPT, prompt: Tensor, n_new: int, *args, **kwargs) -> Tensor:
    """The prompt and what `generate` adds; the arguments are the same.  -> (B, T + n_new)"""
    steps = generate(model, prompt, n_new, *args, **kwargs)
    return torch.cat([prompt, *([steps.rest()] if hasattr(steps, "rest") else steps)], dim=1)


def _slides(model: GPT, prompt: Tensor, n_new: int, past_block: str) -> bool:
    """Whether the window slides over this text. Raises ValueError where it may not."""
    if past_block not in ("error", "slide"):
        raise ValueError(f'past_block={past_block!r}: choose "error" or "slide"')
    device = model.device
    limit = model.config.positions
    T = prompt.shape[1]
    if prompt.device.type != device.type:
        raise ValueError(f"the prompt is on {prompt.device}, the model on {device}: move one")
    if past_block == "error":
        slower = ', or let the window slide with past_block="slide" (slower: no cache can be kept)'
        check_length(T, n_new, limit, otherwise=slower)
    return limit is not None and T + n_new - 1 > limit


def _check_draft(draft, cache, slides: bool) -> None:
    if isinstance(draft, type) or not hasattr(draft, "loop"):
        raise ValueError(f"draft={draft!r}: pass a draft that you built, as in PromptLookup()")
    if cache is None or slides:
        absent = "there is none with cache=None, nor where the window slides"
        raise ValueError(f"a draft takes tokens back from a cache, and {absent}: leave it out")


def _ready(engine, model: GPT, prompt: Tensor, n_new: int, cache):
    """The engine given, or one of the class given, for this very generation. Raises ValueError."""
    if not all(hasattr(engine, part) for part in ("ready", "check", "tokens")):
        raise ValueError(f"engine={engine!r}: pass a class, as in engine=Native, or one you built")
    if cache is not DynamicCache:
        raise ValueError("an engine brings its own cache: give generate either engine or cache")
    if isinstance(engine, type):
        engine = engine.ready(model, len(prompt))
    engine.check(model, prompt, n_new)
    return engine


def _decoder(model: GPT, prompt: Tensor, n_new: int, cache, slides: bool) -> Decoder:
    """The decoder over the model's own modules. Raises ValueError as build_caches does."""
    if slides:
        return SlidingDecoder(model, cache)
    if cache is None:
        return UncachedDecoder(model)
    # The last token is returned and never read, so it needs no slot.
    return CachedDecoder(model, cache, prompt.shape[1] + n_new - 1)


def _noise(
    noise, generator, sampling: SamplingParams, shape: tuple[int, int, int], device
) -> Tensor:
    """The noise given, or drawn from the generator; greedy sampling needs none, and gets ones."""
    on_cpu = isinstance(generator, torch.Generator) and generator.device.type == "cpu"
    if generator is not None and not on_cpu:
        reason = "one seed gives the same tokens on every device, as torch.Generator()"
        raise ValueError(f"generator={generator!r}: pass one of the CPU, so that {reason}")
    if sampling.greedy:
        return torch.ones(1, 1, 1, device=device).expand(shape)  # one number, not n·B·V
    if noise is None:
        noise = draw_noise(*shape, generator or torch.Generator().manual_seed(1337))
    else:
        check_noise(noise, shape)
    return send(noise, device)
