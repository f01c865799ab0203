"""`generate` with an engine or a draft: the one place that decides which code decodes a text."""

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
    """`nanogpt.generation.generate`, an end, and two faster paths to the same tokens.

    `engine`, a class of nanogpt.engines or an engine that you built, decodes with a cache of its
    own. `draft` proposes tokens, and the model reads several in one pass: the tokens are the same,
    however bad the draft is; the iterator's `stats` count its passes.

    A text ends behind the first of the `stop` tokens, as in stop=tokenizer.stop, or after n_new. A
    batch goes on until every row has ended: a row that has ended repeats its stop token. Native
    engines decode for about ten milliseconds in one call, and what is behind a stop is dropped.

    Raises ValueError, and TypeError for an object that is no model.
    """
    slides = lesson.check_generation(model, prompt, n_new, sampling, past_block)
    stop = check_stop(stop, model.config.vocab_size)
    if draft is not None:
        _check_draft(draft, cache, slides)
        draft.check(model, prompt, n_new, engine)
    if engine is None:
        alone = draft is None and cache is not None and not slides
        if alone and type(model).forward is Decoder.forward:
            decoder = LastLogits(model, cache, prompt.shape[1] + n_new - 1)
        else:
            decoder = lesson.decoder_for(model, prompt, n_new, cache, slides)
    else:
        ready = _ready(engine, model, prompt, n_new, cache)
    shape = (n_new, len(prompt), model.config.vocab_size)
    noise = _noise_for(noise, generator, sampling, shape, prompt.device)
    if engine is None:
        steps = loop(decoder, prompt, noise, sampling, draft)
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
    """The noise as the lesson draws it, but much of it in blocks. Raises ValueError."""
    lesson.check_generator(generator)
    if isinstance(noise, Noise) and not sampling.greedy and noise.shape == shape:
        return noise
    if noise is None and not sampling.greedy and prod(shape) > AT_ONCE:
        return noise_in_blocks(generator, shape, device)
    return lesson.noise_for(noise, generator, sampling, shape, device)


class LastLogits(lesson.CachedDecoder):
    """A cached Decoder that computes the logits behind the last token alone.

    The plain loop samples from no others. Those of a prompt of 512 tokens over a vocabulary of
    49,152 are 100 MB, and a tenth of the prefill's time of SmolLM2-135M. A draft needs them all.
    """

    def forward(self, tokens: Tensor, start: int) -> Tensor:
        pos = torch.arange(start, start + tokens.shape[1], device=tokens.device)
        logits = self.model(tokens, pos=pos, last=1)[0]  # (B, 1, V)
        if not self.checked:
            self.check(tokens[:, -1:], logits)
        return logits


def complete(model: LanguageModel, prompt: Tensor, n_new: int, *args, **kwargs) -> Tensor:
    """The prompt and what `generate` adds; the arguments are the same.  -> (B, T + n_new)

    With `stop` it is shorter where all rows end before.
    """
    steps = generate(model, prompt, n_new, *args, **kwargs)
    rest = [steps.rest()] if hasattr(steps, "rest") else steps  # a native loop needs no Python
    return torch.cat([prompt, *rest], dim=1)


def _check_draft(draft, cache, slides: bool) -> None:
    if isinstance(draft, type) or not hasattr(draft, "loop"):
        raise ValueError(f"draft={draft!r}: pass a draft that you built, as in PromptLookup()")
    if cache is None or slides:
        raise ValueError(
            "a draft takes tokens back from a cache, and there is none with cache=None, "
            "nor where the window slides: leave it out"
        )


def _ready(engine, model: LanguageModel, prompt: Tensor, n_new: int, cache) -> Engine:
    """The engine given, or one of the class given, for this very generation. Raises ValueError."""
    if not all(hasattr(engine, part) for part in ("ready", "check", "tokens")):
        raise ValueError(f"engine={engine!r}: pass a class, as in engine=Native, or one you built")
    if cache is not DynamicCache:
        raise ValueError("an engine brings its own cache: give generate either engine or cache")
    if isinstance(engine, type):
        engine = engine.ready(model, len(prompt))
    engine.check(model, prompt, n_new)
    return engine
