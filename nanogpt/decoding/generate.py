"""Generation, one token at a time. Holds no timing code: whoever wants times measures outside."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..cache.attach import build_caches, require_owners
from ..cache.dynamic import DynamicCache
from ..config.checks import check_int
from ..model.gpt import GPT
from ..system.console import warn_caller
from ..system.device import send
from .decoder import Tokens, decode, module_decoder
from .sampling import PLAIN, SamplingParams, draw_noise
from .speculative import Speculation


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

    The arguments are checked here, at the call. Caches are attached only while a step runs, so an
    iterator left half-way leaves the model as it was. Raises ValueError.
    """
    vocab_size, (B, T) = model.config.vocab_size, _check_prompt(model, prompt)
    check_int("n_new", n_new, 1, 2**31 - 1)
    _check_sampling(sampling, vocab_size)
    _check_length(T, n_new, model.config.positions, past_block, draft)
    if draft is not None:
        _check_draft(draft, cache, engine)
        draft.check(model, prompt, n_new)
    if engine is None:
        _check_cache(model, cache, draft)
    else:
        engine = _ready(engine, model, prompt, n_new, cache)
    noise = _noise(noise, generator, sampling, (n_new, B, vocab_size), prompt.device)
    if engine is not None:
        if draft is not None:
            return engine.speculate(model, prompt, noise, sampling, draft)
        return engine.tokens(model, prompt, noise, sampling)
    decoder = module_decoder(model, cache, T, n_new)
    if draft is not None:
        return Speculation(decoder, draft, vocab_size, prompt, noise, sampling)
    return decode(decoder, prompt, noise, sampling)


def complete(model: GPT, prompt: Tensor, n_new: int, *args, **kwargs) -> Tensor:
    """The prompt and what `generate` adds; the arguments are the same.  -> (B, T + n_new)"""
    steps = generate(model, prompt, n_new, *args, **kwargs)
    return torch.cat([prompt, *([steps.rest()] if isinstance(steps, Tokens) else steps)], dim=1)


# ------------------------------------------------------------------ checks


def _check_prompt(model: GPT, prompt: Tensor) -> tuple[int, int]:
    """The shape (B, T) of a prompt that this model can read. Raises ValueError."""
    vocab_size, device = model.config.vocab_size, model.lm_head.weight.device
    if not isinstance(prompt, Tensor):
        raise ValueError(
            f"the prompt is a {type(prompt).__name__}: pass tokens (B, T), as in "
            f"tokenizer.encode(text)[None]"
        )
    if prompt.ndim != 2 or 0 in prompt.shape:
        raise ValueError(
            f"the prompt has shape {tuple(prompt.shape)}: it needs (B, T), at least one text "
            f"of at least one token"
        )
    if prompt.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"the prompt holds {prompt.dtype}: tokens are integers (torch.int64)")
    if prompt.device.type != device.type:
        raise ValueError(
            f"the prompt is on {prompt.device}, the model on {device}: move one of them"
        )
    if prompt.layout != torch.strided:
        raise ValueError(
            f"the prompt is {prompt.layout}: pass a plain tensor, as in prompt.to_dense()"
        )
    low, high = torch.stack(prompt.aminmax()).tolist()  # one wait for a GPU, not two
    if low < 0 or high >= vocab_size:
        raise ValueError(
            f"the prompt holds tokens {low} to {high}; the vocabulary has 0 to {vocab_size - 1}"
        )
    return tuple(prompt.shape)


def _check_sampling(sampling, vocab_size: int) -> None:
    if not isinstance(sampling, SamplingParams):
        raise ValueError(
            f"sampling={sampling!r}: pass SamplingParams, as in SamplingParams(temperature=0.8)"
        )
    if sampling.top_k is not None:
        check_int("top_k", sampling.top_k, 1, vocab_size)


def _check_length(T: int, n_new: int, limit: int | None, past_block: str, draft) -> None:
    if past_block not in ("error", "slide"):
        raise ValueError(f'past_block={past_block!r}: choose "error" or "slide"')
    # The last token is only returned, never read, so the text may end one past the table.
    if limit is None or T + n_new - 1 <= limit:
        return
    what = f"a prompt of {T} and {n_new} new tokens exceed block_size {limit}"
    if past_block == "error":
        advice = f"ask for at most {limit + 1 - T} tokens"
        if limit < T:
            advice = f"shorten the prompt to at most {limit}"
        raise ValueError(
            f'{what}: {advice}, or let the window slide with past_block="slide" (slower: no cache '
            f"can be kept)"
        )
    if draft is not None:
        raise ValueError(
            f"{what}, where no cache can be kept, and a draft needs one: leave draft out"
        )
    again = min(n_new, T + n_new - 1 - limit)
    warn_caller(
        f"past block_size {limit} the window slides: the last {again} tokens each recompute "
        f"{limit} positions, without a cache"
    )


def _check_cache(model: GPT, cache, draft) -> None:
    if cache is None:
        return
    owners = require_owners(model)
    try:
        (built,) = build_caches(owners[:1], cache, 1)
    except TypeError as error:
        raise ValueError(f"cache={cache!r} builds no cache: {error}") from error
    if draft is not None and not hasattr(built, "rewind"):
        raise ValueError(
            f"{type(built).__name__} has no rewind(n), which forgets the last n rows: write one, "
            f"or leave draft out"
        )


def _check_draft(draft, cache, engine) -> None:
    if isinstance(draft, type) or not all(hasattr(draft, part) for part in ("check", "begin")):
        raise ValueError(
            f"draft={draft!r}: pass a draft that you built, as in draft=PromptLookup()"
        )
    if cache is None:
        raise ValueError(
            "a draft needs a cache, from which rejected tokens are taken back: leave out "
            "cache=None, or the draft"
        )
    if getattr(draft, "engine", None) and not getattr(engine, "decodes_drafts", False):
        raise ValueError(
            f"the draft is decoded by {draft.engine.__name__}, which goes with "
            f"generate(…, engine=Native): pass that, or build the draft without an engine"
        )


def _ready(engine, model: GPT, prompt: Tensor, n_new: int, cache):
    """The engine given, or one of the class given, for this very generation. Raises ValueError."""
    if not all(hasattr(engine, part) for part in ("ready", "check", "tokens")):
        raise ValueError(
            f"engine={engine!r}: pass a class, as in engine=Native, or an engine that you built"
        )
    if cache is not DynamicCache:
        raise ValueError("an engine brings its own cache: give generate either engine or cache")
    if prompt.shape[1] + n_new - 1 > model.config.block_size:
        raise ValueError(
            "an engine's buffers end at block_size: for a longer text leave engine out"
        )
    if isinstance(engine, type):
        engine = engine.ready(model, len(prompt))
    engine.check(model, prompt, n_new)
    return engine


def _noise(noise, generator, sampling: SamplingParams, shape: tuple, device) -> Tensor:
    """The noise given, or drawn from the generator; greedy sampling needs none, and gets ones."""
    _check_generator(generator)
    if sampling.greedy:
        return torch.ones(1, 1, 1, device=device).expand(shape)  # one number, not n·B·V
    if noise is None:
        generator = generator or torch.Generator().manual_seed(1337)
        return send(draw_noise(*shape, generator), device)
    _check_noise(noise, shape)
    return send(noise, device)


def _check_generator(generator) -> None:
    if not isinstance(generator, (torch.Generator, type(None))):
        raise ValueError(
            f"generator={generator!r}: pass torch.Generator().manual_seed({generator!r})"
        )
    if generator is not None and generator.device.type != "cpu":
        raise ValueError(
            f"the generator is on {generator.device}: use a CPU torch.Generator, so that one "
            f"seed gives the same tokens on every device"
        )


def _check_noise(noise, shape: tuple) -> None:
    if not isinstance(noise, Tensor) or noise.shape != shape:
        raise ValueError(
            f"noise has shape {tuple(getattr(noise, 'shape', ()))}; {shape[0]} tokens for "
            f"{shape[1]} texts need {shape}"
        )
    if not noise.is_floating_point() or noise.device.type == "meta":
        raise ValueError(
            f"the noise is {noise.dtype} on {noise.device}: floating-point numbers are needed"
        )
    # Not on a GPU, where looking at the numbers would stop the queue.
    if noise.device.type == "cpu" and not bool((noise > 0).all()):
        raise ValueError("the noise has numbers that are not above 0: draw it with draw_noise")
