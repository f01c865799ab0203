"""`generate` with an engine or a draft: decides which code decodes a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import torch
from torch import Tensor

from .. import generation as lesson
from ..cache import DynamicCache
from ..decoder.model import Decoder
from ..model import LanguageModel
from ..sampling import PLAIN, SamplingParams
from .base import Engine, loop
from .drafts import Draft
from .noise import AT_ONCE, Noise, noise_in_blocks
from .stopping import UpToStop, check_stop


def generate(
    model: LanguageModel,
    prompt: Tensor,
    n_new: int,
    sampling: SamplingParams = PLAIN,
    *,
    engine: type[Engine] | Engine | None = None,
    draft: Draft | None = None,
    cache=DynamicCache,
    generator: torch.Generator | None = None,
    noise: Tensor | None = None,
    past_block: str = "error",
    stop: Sequence[int] = (),
) -> Iterator[Tensor]:
    """Yield n_new tokens after the prompt, one (B, 1) tensor at a time.  (B, T) -> n_new × (B, 1)

    `cache` is a class (DynamicCache, StaticCache), or None to recompute the whole text for every
    token. Randomness comes from `generator`, on the CPU, or from `noise` (n_new, B, V); without
    either, from the seed 1337, so two calls give the same text. A learned position table has no
    rows past block_size: past_block="error" raises an error, "slide" reads the last block_size
    tokens again for each token, as the lecture does.

    `engine`, a class of nanogpt.engines or an engine that you built, decodes with its own cache.
    `draft` proposes tokens, and the model reads several in one forward pass: the tokens are the
    same, however bad the draft is; the iterator's `stats` count the passes. Without either, this is
    `nanogpt.generation.generate`, the lesson's loop.

    A text ends with the first of the `stop` tokens, as in stop=tokenizer.stop, or after n_new. A
    batch continues until every row has ended: a row that has ended repeats its stop token. Native
    engines decode for about ten milliseconds per call; tokens after a stop are dropped.

    The arguments are checked at the call. The model's modes and caches are neither used nor
    changed. Raises ValueError for arguments that do not fit the model or each other, and TypeError
    for an object that is not a model.
    """
    slides = lesson.check_generation(model, prompt, n_new, sampling, past_block)
    stop = check_stop(stop, model.config.vocab_size)
    if draft is not None:
        _check_draft(draft, cache, slides)
        draft.check(model, prompt, n_new, engine)
    if engine is None:
        alone = draft is None and cache is not None and not slides
        if alone and type(model).forward is Decoder.forward:
            reader = LastLogits(model, cache, prompt.shape[1] + n_new - 1)
        else:
            reader = lesson.reader_for(model, prompt, n_new, cache, slides)
    else:
        ready = _ready(engine, model, prompt, n_new, cache)
    shape = (n_new, len(prompt), model.config.vocab_size)
    noise = _noise_for(noise, generator, sampling, shape, prompt.device)
    if engine is None:
        steps = loop(reader, prompt, noise, sampling, draft)
    else:
        steps = ready.tokens(model, prompt, noise, sampling, draft)
    return UpToStop(steps, stop) if stop else steps


def _noise_for(
    noise: Tensor | Noise | None,
    generator: torch.Generator | None,
    sampling: SamplingParams,
    shape: tuple[int, int, int],
    device: torch.device,
) -> Tensor | Noise:
    """The same noise as the lesson's; large amounts are drawn in blocks. Raises ValueError."""
    lesson.check_generator(generator)
    if isinstance(noise, Noise) and not sampling.greedy and noise.shape == shape:
        return noise
    if noise is None and not sampling.greedy and prod(shape) > AT_ONCE:
        return noise_in_blocks(generator, shape, device)
    return lesson.noise_for(noise, generator, sampling, shape, device)


class LastLogits(lesson.CachedReader):
    """A cached Decoder that computes only the last token's logits.

    The plain loop samples from no others. All logits of a 512-token prompt over a vocabulary of
    49,152 take 100 MB and a tenth of SmolLM2-135M's prefill time. A draft needs all of them.
    """

    def forward(self, tokens: Tensor, start: int) -> Tensor:
        pos = torch.arange(start, start + tokens.shape[1], device=tokens.device)
        logits = self.model(tokens, pos=pos, last=1)[0]  # (B, 1, V)
        if not self.checked:
            self.check(tokens[:, -1:], logits)
        return logits


def complete(model: LanguageModel, prompt: Tensor, n_new: int, *args, **kwargs) -> Tensor:
    """The prompt followed by the tokens of `generate`; same arguments.  -> (B, T + n_new)

    With `stop` it is shorter if all rows end early.
    """
    steps = generate(model, prompt, n_new, *args, **kwargs)
    rest = [steps.rest()] if hasattr(steps, "rest") else steps  # a native loop needs no Python
    return torch.cat([prompt, *rest], dim=1)


def _check_draft(draft, cache, slides: bool) -> None:
    if isinstance(draft, type) or not hasattr(draft, "loop"):
        raise ValueError(f"draft={draft!r}: pass a draft instance such as PromptLookup()")
    if cache is None or slides:
        raise ValueError(
            "a draft needs a cache that it can rewind, and there is none with cache=None or with a "
            "sliding window: leave the draft out"
        )


def _ready(engine, model: LanguageModel, prompt: Tensor, n_new: int, cache) -> Engine:
    """The given engine, or one of the given class, checked for this call. Raises ValueError."""
    if not all(hasattr(engine, part) for part in ("ready", "check", "tokens")):
        raise ValueError(f"engine={engine!r}: pass a class, as in engine=Native, or one you built")
    if cache is not DynamicCache:
        raise ValueError("an engine has its own cache: pass either engine or cache")
    if isinstance(engine, type):
        engine = engine.ready(model, len(prompt))
    engine.check(model, prompt, n_new)
    return engine
