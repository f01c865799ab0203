"""`generate` with an engine, a draft and stop tokens: the lesson's, over another loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from .. import generation as lesson
from ..cache import DynamicCache
from ..decoder.model import Decoder
from ..model import LanguageModel
from ..sampling import PLAIN, SamplingParams
from .base import Engine, TokenIterator, engine_for, loop
from .drafts import Draft
from .noise import DRAWN_AT_ONCE, Noise, noise_in_blocks
from .stopping import UpToStop, check_stop

CacheType = Callable[..., object]  # a class such as DynamicCache, or a function of the capacity


def generate(
    model: LanguageModel,
    prompt: Tensor,
    n_new: int,
    sampling: SamplingParams = PLAIN,
    *,
    engine: type[Engine] | Engine | None = None,
    draft: Draft | None = None,
    cache: CacheType | None = DynamicCache,
    generator: torch.Generator | None = None,
    noise: Tensor | None = None,
    past_block: str = "error",
    stop: Sequence[int] = (),
) -> Iterator[Tensor]:
    """Yield n_new tokens after the prompt, one (B, 1) tensor at a time.  (B, T) -> n_new × (B, 1)

    This is `nanogpt.generation.generate`, the lesson's, which describes `cache`, `generator`,
    `noise`, `past_block` and what is raised, with three more arguments. Without a generator or
    noise, the seed is 1337, so two calls give the same text.

    `engine`, a class of nanogpt.engines or an engine that you built, decodes with its own cache.
    `draft` proposes tokens, and the model reads several in one forward pass: the tokens are the
    same, however bad the draft is; the iterator's `stats` count the passes.

    A text ends with the first of the `stop` tokens, as in stop=tokenizer.stop, or after n_new. A
    batch continues until every row has ended: a row that has ended repeats its stop token. Native
    engines decode for about ten milliseconds per call; tokens after a stop are dropped.
    """
    return lesson.generate(
        model,
        prompt,
        n_new,
        sampling,
        cache=cache,
        generator=generator,
        noise=noise,
        past_block=past_block,
        loop=EngineLoop(engine, draft, stop),
    )


def complete(model: LanguageModel, prompt: Tensor, n_new: int, *args: Any, **kwargs: Any) -> Tensor:
    """The prompt followed by the tokens of `generate`; same arguments.  -> (B, T + n_new)

    With `stop` it is shorter if all rows end early.
    """
    steps = generate(model, prompt, n_new, *args, **kwargs)
    # A native loop needs no Python between its tokens.
    rest: Iterable[Tensor] = [steps.rest()] if hasattr(steps, "rest") else steps
    return torch.cat([prompt, *rest], dim=1)


class EngineLoop(lesson.TokenLoop):
    """The loop of a generation with an engine, a draft, stop tokens, or none of them."""

    model: LanguageModel
    engine: Engine | None = None  # the one that decodes, once it is chosen
    stop_tokens: tuple[int, ...] = ()

    def __init__(
        self, engine: type[Engine] | Engine | None, draft: Draft | None, stop: Sequence[int]
    ):
        self.given_engine = engine  # a class, or one that the caller built
        self.draft = draft
        self.given_stop = stop

    def begin(
        self,
        model: LanguageModel,
        prompt: Tensor,
        n_new: int,
        cache: CacheType | None,
        slides: bool,
    ) -> None:
        # 1. Do the arguments fit the model, and each other?
        self.model = model
        self.stop_tokens = check_stop(self.given_stop, model.config.vocab_size)
        if self.draft is not None:
            _check_draft(self.draft, cache, slides)
            self.draft.check(model, prompt, n_new, self.given_engine)
        # 2. An engine, which has its own cache …
        if self.given_engine is not None:
            if cache is not DynamicCache:
                raise ValueError("an engine has its own cache: pass either engine or cache")
            self.engine = engine_for(self.given_engine, model, prompt, n_new)
            return
        # 3. … or the model's own modules. The plain loop samples from the last logits only, and a
        #    Decoder can leave out the others. A draft needs all of them.
        alone = self.draft is None and cache is not None and not slides
        if alone and type(model) is Decoder:
            self.reader = LastLogits(model, cache, prompt.shape[1] + n_new - 1)
        else:
            super().begin(model, prompt, n_new, cache, slides)

    def noise(
        self,
        noise: Tensor | Noise | None,
        generator: torch.Generator | None,
        sampling: SamplingParams,
        shape: tuple[int, int, int],
        device: torch.device,
    ) -> Tensor | Noise:
        lesson.check_generator(generator)
        # Noise that is already a stream is used as it is; a large amount becomes one.
        if isinstance(noise, Noise) and not sampling.greedy and noise.shape == shape:
            return noise
        if noise is None and not sampling.greedy and prod(shape) > DRAWN_AT_ONCE:
            return noise_in_blocks(generator, shape, device)
        return lesson.noise_for(noise, generator, sampling, shape, device)

    def tokens(
        self, prompt: Tensor, noise: Tensor | Noise, sampling: SamplingParams
    ) -> TokenIterator:
        if self.engine is None:
            steps = loop(self.reader, prompt, noise, sampling, self.draft)
        else:
            steps = self.engine.tokens(self.model, prompt, noise, sampling, self.draft)
        return UpToStop(steps, self.stop_tokens) if self.stop_tokens else steps


class LastLogits(lesson.CachedReader):
    """Computes only the last token's logits, for a Decoder, whose forward takes `last`.

    All logits of a 512-token prompt over a vocabulary of 49,152 take 100 MB and a tenth of
    SmolLM2-135M's prefill time.
    """

    def forward(self, tokens: Tensor, start: int) -> Tensor:
        pos = torch.arange(start, start + tokens.shape[1], device=tokens.device)
        logits: Tensor = self.model(tokens, pos=pos, last=1)[0]  # (B, 1, V)
        if not self.checked:
            self.check(tokens[:, -1:], logits)
        return logits


def _check_draft(draft: object, cache: CacheType | None, slides: bool) -> None:
    if not isinstance(draft, Draft):
        raise ValueError(f"draft={draft!r}: pass a draft instance such as PromptLookup()")
    if cache is None or slides:
        raise ValueError(
            "a draft needs a cache that it can rewind, and there is none with cache=None or with a "
            "sliding window: leave the draft out"
        )
