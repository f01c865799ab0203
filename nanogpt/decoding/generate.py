"""Generation, one token at a time. Holds no timing code: whoever wants times measures outside."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from ..cache.dynamic import DynamicCache
from ..config.checks import check_int, check_type
from ..model.gpt import GPT
from ..system.device import send
from .decoder import CachedDecoder, Decoder, SlidingDecoder, UncachedDecoder
from .limits import MOST_NEW, check_length, check_noise, check_prompt, check_sampling
from .sampling import PLAIN, SamplingParams, draw_noise
from .speculative import loop


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
    (n_new, B, V), drawn beforehand. Past block_size the learned position table has no row:
    past_block="error" refuses. "slide" reads the last block_size tokens again for each token, as
    the lecture does: every position has changed, so no cached row is valid. Rotary positions have
    no such end.

    `engine` is another way to compute the same tokens, a class or an instance from nanogpt.engines:
    generate(model, prompt, 200, engine=Native). It brings a cache of its own.

    `draft`, from nanogpt.decoding.drafts, proposes tokens, and the model reads several in one pass:
    generate(model, prompt, 200, draft=PromptLookup()). The tokens are the same, however bad the
    draft is; the iterator's `stats` count passes and proposals.

    The arguments are checked here, at the call. The model's weights are used as they are at each
    step (by an engine, at the first); its modes and caches are neither used nor changed, so
    threads may generate with one model, and use it meanwhile. Raises ValueError, and TypeError
    for what is no model.
    """
    check_type("model", model, GPT)
    vocab_size = model.config.vocab_size
    check_prompt(prompt, vocab_size)
    check_int("n_new", n_new, 1, MOST_NEW)
    check_sampling(sampling, vocab_size)
    shape = (n_new, len(prompt), vocab_size)
    slides = _slides(model, prompt, n_new, past_block)
    if draft is not None:
        _check_draft(draft, cache, engine, slides)
        draft.check(model, prompt, n_new)
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


# ------------------------------------------------------------------ what the door looks at


def _slides(model: GPT, prompt: Tensor, n_new: int, past_block: str) -> bool:
    """Whether the window slides over this text. Raises ValueError where it may not."""
    if past_block not in ("error", "slide"):
        raise ValueError(f'past_block={past_block!r}: choose "error" or "slide"')
    device, limit, T = model.lm_head.weight.device, model.config.positions, prompt.shape[1]
    if prompt.device.type != device.type:
        raise ValueError(f"the prompt is on {prompt.device}, the model on {device}: move one")
    if past_block == "error":
        slower = ', or let the window slide with past_block="slide" (slower: no cache can be kept)'
        check_length(T, n_new, limit, otherwise=slower)
    return limit is not None and T + n_new - 1 > limit


def _check_draft(draft, cache, engine, slides: bool) -> None:
    if isinstance(draft, type) or not all(hasattr(draft, part) for part in ("check", "begin")):
        raise ValueError(f"draft={draft!r}: pass a draft that you built, as in PromptLookup()")
    if cache is None or slides:
        why = "there is none with cache=None and where the window slides: leave draft out"
        raise ValueError(f"a draft needs a cache, to take rejected tokens back, and {why}")
    if getattr(draft, "engine", None) and not getattr(engine, "decodes_drafts", False):
        own = f"the draft is decoded by {draft.engine.__name__}, which goes with engine=Native"
        raise ValueError(f"{own}: pass that, or build the draft without an engine")


# ------------------------------------------------------------------ what decodes, and the noise


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
    return CachedDecoder(model, cache, prompt.shape[1] + n_new - 1)


def _noise(noise, generator, sampling: SamplingParams, shape: tuple, device) -> Tensor:
    """The noise given, or drawn from the generator; greedy sampling needs none, and gets ones."""
    own = isinstance(generator, torch.Generator) and generator.device.type == "cpu"
    if generator is not None and not own:
        why = "one seed gives the same tokens on every device, as torch.Generator()"
        raise ValueError(f"generator={generator!r}: pass one of the CPU, so that {why}")
    if sampling.greedy:
        return torch.ones(1, 1, 1, device=device).expand(shape)  # one number, not n·B·V
    if noise is None:
        noise = draw_noise(*shape, generator or torch.Generator().manual_seed(1337))
    else:
        check_noise(noise, shape)
    return send(noise, device)
