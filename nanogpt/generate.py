"""Turning logits into tokens, one at a time. Holds no timing code: whoever wants times measures outside.

Randomness is data: the noise of a whole generation is drawn before the first step, on the CPU,
so a seed means the same on every device, and the token at a step depends on its context alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from .cache import DynamicCache
from .model import GPT, build_caches, cache_owners


def draw_noise(n_new: int, batch: int, vocab_size: int, generator: torch.Generator | None = None) -> Tensor:
    """Exponential noise for n_new tokens, (n_new, B, V), float32 on the CPU.

    argmax(probs / noise) with exponential noise is a sample from probs, the exponential race
    that torch.multinomial(probs, 1) runs inside; drawn step by step, so that a CPU generator
    gives the very tokens that calling multinomial at each step would have given.
    """
    noise = torch.empty(n_new, batch, vocab_size, dtype=torch.float32)
    for row in noise:
        row.exponential_(generator=generator)
    return noise


def sample(
    logits: Tensor,
    noise: Tensor | None,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Tensor:
    """One token for each row: argmax(softmax(logits / temperature) / noise).  (B, V), (B, V) -> (B, 1)

    noise=None takes the likeliest token (greedy). `top_k` keeps the k likeliest; `top_p` the
    fewest whose probabilities add up to p.
    """
    if noise is None:
        return logits.argmax(-1, keepdim=True)
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    probs = (logits / temperature).softmax(-1)
    if top_k is not None:
        weakest = probs.topk(min(top_k, probs.shape[-1])).values[:, -1:]
        probs = probs.masked_fill(probs < weakest, 0.0)
    if top_p is not None and top_p < 1.0:  # at 1 the sum's rounding would drop the rarest
        ordered, order = probs.sort(-1, descending=True)
        ordered = ordered / ordered.sum(-1, keepdim=True)
        late = ordered.cumsum(-1) - ordered >= max(
            top_p, 1e-30
        )  # p is reached before this one; never the first
        probs = probs.masked_fill(late.scatter(-1, order, late), 0.0)
    return (probs / noise).argmax(-1, keepdim=True)


def generate(
    model: GPT,
    prompt: Tensor,
    n_new: int,
    *,
    cache=DynamicCache,
    generator: torch.Generator | None = None,
    noise: Tensor | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    greedy: bool = False,
    past_block: str = "error",
    engine=None,
    draft=None,
) -> Iterator[Tensor]:
    """Yield n_new tokens after the prompt, one (B, 1) tensor at a time.  (B, T) -> n_new × (B, 1)

        for token in generate(model, prompt, 200, generator=torch.Generator().manual_seed(42)):
            print(tokenizer.decode(token), end="", flush=True)

    `cache` is a design (DynamicCache, StaticCache), or None to compute the whole text anew for
    every token. Randomness comes from `generator` (CPU; seed 1337 when None) or from `noise`
    (n_new, B, V) drawn before. Past block_size the learned position table has no row:
    past_block="error" refuses, "slide" reads the last block_size tokens anew for each token, as
    the lecture does, since every position has changed and no cached row is valid. With rotary
    positions there is no such end.

    `engine` is another way to compute the same tokens, a class or an instance from nanogpt.engine,
    compiled or native: generate(model, prompt, 200, engine=Native). It brings a cache of its own.

    `draft`, from nanogpt.drafts, proposes tokens, of which the model reads several in one pass:
    generate(model, prompt, 200, draft=LookUp()). The tokens are the same, however bad it is; the
    iterator's `tally` counts passes and proposals. With engine=Native too, both run in native code.

    The arguments are checked here, at the call. Caches are attached only while a step runs, so
    an iterator left half-way leaves the model as it was. Raises ValueError.
    """
    vocab, limit = model.config.vocab_size, model.config.positions
    _check_prompt(prompt, vocab, model.lm_head.weight.device)
    B, T = prompt.shape
    _check_settings(n_new, temperature, top_k, top_p, greedy, vocab)
    if draft is not None:
        _check_draft(draft, cache)
        if past_block == "slide" and limit is not None and T + n_new - 1 > limit:
            raise ValueError(f"a prompt of {T} and {n_new} new tokens pass block_size {limit}, where no "
                             f"cache can be kept, and a draft needs one: leave draft out")  # fmt: skip
    _check_length(T, n_new, limit, past_block)
    if engine is None:
        _check_cache(model, cache)
    else:
        _check_engine(engine, cache, T + n_new - 1 > model.config.block_size)
        if isinstance(engine, type):
            engine = engine.ready(model, B)
        engine.check(model, prompt, n_new)
    if draft is not None:
        if engine is not None and not hasattr(engine, "speculate"):
            raise ValueError(f"{type(engine).__name__} decodes token by token: Native takes a draft; where "
                             f"it cannot be built, leave engine out")  # fmt: skip
        draft.check(model, prompt, n_new)
    noise = _noise(noise, generator, greedy, (n_new, B, vocab), prompt.device)
    settings = {"temperature": float(temperature), "top_k": top_k, "top_p": top_p}
    if draft is not None and engine is not None:
        return engine.speculate(model, prompt, noise, settings, draft)
    if draft is not None:
        return draft.tokens(model, prompt, noise, cache, settings)
    if engine is not None:
        return engine.tokens(model, prompt, noise, settings)
    return decode(model, prompt, noise, cache, settings)


@torch.no_grad()
def decode(model, prompt, noise, cache, settings) -> Iterator[Tensor]:
    """The tokens of `generate`, from the model's own modules, with all its arguments checked."""
    limit = model.config.positions
    modules, owners = list(model.modules()), cache_owners(model)
    total = max(1, prompt.shape[1] + len(noise) - 1)  # the last token is never read back
    total = total if limit is None else min(total, limit)
    caches = None if cache is None else build_caches(owners, cache, total)
    text, x, start = prompt, prompt, 0
    for row in noise:
        if (
            limit is not None and text.shape[1] > limit
        ):  # slide: all positions have moved, so start over from the last `limit`
            caches, x, start = None, text[:, -limit:], 0
        with _stepping(modules, owners, caches):
            pos = torch.arange(start, start + x.shape[1], device=x.device)
            logits, _ = model(x, pos=pos)  # prefill at the first step, decode after it
        token = sample(logits[:, -1], row, **settings)
        text = torch.cat([text, token], dim=1)
        x, start = (text, 0) if caches is None else (text[:, -1:], text.shape[1] - 1)
        yield token  # the reader's own: nothing below looks at it again


@contextmanager
def _stepping(modules, owners, caches):
    """Every module in eval mode with these caches on, for one step; then as it was."""
    if any(owner.cache is not None for owner in owners):
        raise ValueError("a KV cache is already on: generate brings its own; leave the with-block, or "
                         "call disable_kv_cache(model)")  # fmt: skip
    training = [module for module in modules if module.training]
    try:
        for module in training:
            module.training = False
        for owner, cache in zip(owners, caches or (), strict=bool(caches)):
            owner.cache = cache
        yield
    finally:
        for owner in owners:
            owner.cache = None
        for module in training:
            module.training = True


def complete(model: GPT, prompt: Tensor, n_new: int, **settings) -> Tensor:
    """The prompt and all that `generate` adds to it.  (B, T) -> (B, T + n_new)"""
    return torch.cat([prompt, *generate(model, prompt, n_new, **settings)], dim=1)


# ------------------------------------------------------------------ checks


def _check_prompt(prompt: Tensor, vocab: int, device: torch.device) -> None:
    if not isinstance(prompt, Tensor):
        kind = type(prompt).__name__
        raise ValueError(f"the prompt is a {kind}: pass tokens (B, T), as in tokenizer.encode(text)[None]")
    if prompt.ndim != 2 or 0 in prompt.shape:
        raise ValueError(f"the prompt has shape {tuple(prompt.shape)}: it needs (B, T), at least one text of "
                         f"at least one token")  # fmt: skip
    if prompt.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"the prompt holds {prompt.dtype}: tokens are integers (torch.int64)")
    if prompt.device.type != device.type:
        raise ValueError(f"the prompt is on {prompt.device}, the model on {device}: move one of them")
    if prompt.layout != torch.strided:
        raise ValueError(f"the prompt is {prompt.layout}: pass a plain tensor, as in prompt.to_dense()")
    low, high = int(prompt.min()), int(prompt.max())
    if low < 0 or high >= vocab:
        raise ValueError(f"the prompt holds tokens {low} to {high}; the vocabulary has 0 to {vocab - 1}")


def _check_settings(n_new, temperature, top_k, top_p, greedy, vocab) -> None:
    if not isinstance(n_new, int) or isinstance(n_new, bool) or n_new < 1:
        raise ValueError(f"n_new={n_new!r}: ask for a whole number of tokens, at least 1")
    if n_new >= 2**31:
        raise ValueError(f"n_new={n_new!r}: that many tokens fit into no memory; ask for fewer")
    if not isinstance(greedy, bool):
        raise ValueError(f"greedy={greedy!r}: choose True or False")
    if not isinstance(temperature, (int, float)) or not 1e-6 <= temperature < 1e38:
        raise ValueError(
            f"temperature={temperature!r}: it must be above 0 (from 1e-6 on, below 1e38); for the likeliest "
            f"token use greedy=True"
        )
    if top_k is not None and (
        not isinstance(top_k, int) or isinstance(top_k, bool) or not 1 <= top_k <= vocab
    ):
        raise ValueError(
            f"top_k={top_k!r}: choose a whole number from 1 to {vocab}, the size of the vocabulary"
        )
    if top_p is not None and (not isinstance(top_p, (int, float)) or not 1e-30 <= top_p <= 1.0):
        raise ValueError(f"top_p={top_p!r}: choose a share above 0 (from 1e-30 on) and up to 1")
    if greedy and (top_k is not None or top_p is not None or temperature != 1.0):
        raise ValueError(
            "greedy=True takes the likeliest token, so temperature, top_k and top_p change nothing: "
            "leave them out"
        )


def _check_cache(model: GPT, cache) -> None:
    if cache is None:
        return
    if not callable(cache):
        raise ValueError(f"cache={cache!r}: pass a design, as in cache=DynamicCache, not an instance of it")
    if not cache_owners(model):
        raise ValueError("no attention module has a `cache` attribute: set self.cache = None in its "
                         "__init__, or decode with cache=None")  # fmt: skip
    try:
        build_caches(cache_owners(model)[:1], cache, 1)
    except (TypeError, ValueError) as error:
        raise ValueError(f"cache={cache!r} builds no cache: {error}") from error


def _noise(noise, generator, greedy: bool, shape: tuple, device: torch.device) -> list | Tensor:
    """The noise given, or drawn from the generator given, on the device; checked."""
    if getattr(getattr(generator, "device", None), "type", "cpu") != "cpu":
        raise ValueError(f"the generator is on {generator.device}: use a CPU torch.Generator, so that one "
                         f"seed gives the same tokens on every device")  # fmt: skip
    if not isinstance(generator, (torch.Generator, type(None))):
        raise ValueError(f"generator={generator!r}: pass torch.Generator().manual_seed({generator!r})")
    if greedy:
        return [None] * shape[0]
    if noise is None:
        return draw_noise(*shape, generator or torch.Generator().manual_seed(1337)).to(device)
    if not isinstance(noise, Tensor) or noise.shape != shape:
        raise ValueError(
            f"noise has shape {tuple(getattr(noise, 'shape', ()))}; {shape[0]} tokens for {shape[1]} texts "
            f"need {shape}"
        )
    if not noise.is_floating_point() or noise.device.type == "meta":
        raise ValueError(f"the noise is {noise.dtype} on {noise.device}: floating-point numbers are needed")
    if noise.device.type == "cpu" and not bool((noise > 0).all()):  # not on a GPU: it would stop the queue
        raise ValueError("the noise has numbers that are not above 0: draw it with draw_noise")
    return noise.to(device)


def _check_engine(engine, cache, past_block: bool) -> None:
    if not all(hasattr(engine, part) for part in ("ready", "check", "tokens")):
        raise ValueError(f"engine={engine!r}: pass a class, as in engine=Native of nanogpt.native, or an "
                         f"engine that you built")  # fmt: skip
    if cache is not DynamicCache:
        raise ValueError("an engine brings its own cache: give generate either engine or cache")
    if past_block:
        raise ValueError("an engine's buffers end at block_size: for a longer text leave engine out")


def _check_draft(draft, cache) -> None:
    if isinstance(draft, type) or not all(hasattr(draft, part) for part in ("check", "tokens")):
        raise ValueError(f"draft={draft!r}: pass a draft that you built, as in draft=LookUp() of "
                         f"nanogpt.drafts")  # fmt: skip
    if cache is None:
        raise ValueError("a draft needs a cache: without one there is nothing to take rejected tokens back "
                         "from; leave out cache=None, or the draft")  # fmt: skip


def _check_length(T: int, n_new: int, limit: int | None, past_block: str) -> None:
    if past_block not in ("error", "slide"):
        raise ValueError(f'past_block={past_block!r}: choose "error" or "slide"')
    # The last token is only returned, never read back, so the text may end one past the table.
    if limit is None or T + n_new - 1 <= limit:
        return
    if past_block == "slide":
        again = min(n_new, T + n_new - 1 - limit)
        warnings.warn(f"past block_size {limit} the window slides: the last {again} tokens each recompute "
                      f"{limit} positions, without a cache", stacklevel=3)  # fmt: skip
        return
    room = limit + 1 - T
    advice = f"ask for at most {room} tokens" if room > 0 else f"shorten the prompt to at most {limit} tokens"
    raise ValueError(
        f"a prompt of {T} and {n_new} new tokens pass block_size {limit}: {advice}, or let the window slide "
        f'with past_block="slide" (slower: no cache can be kept)'
    )
