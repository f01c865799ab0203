"""From a prompt to new tokens: readers, the decoding loop, `generate` and `complete`.

A reader reads the next tokens, and can forget the last ones. The loop feeds it the prompt, then
each sampled token, one by one.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from inspect import signature
from typing import Protocol

import torch
import torch.nn as nn
from torch import Tensor

from .cache import DynamicCache, enable_kv_cache
from .config import check_int, check_type
from .data import send
from .model import LanguageModel, MultiHeadAttention
from .replica import replica
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


class Reader(Protocol):
    """Reads texts of equal length from left to right, and keeps its state between reads."""

    @property
    def length(self) -> int:
        """Tokens read so far."""

    def read(self, tokens: Tensor) -> Tensor:
        """Read the next tokens and return the logits after each.  (B, T) -> (B, T, V)"""

    def rewind(self, n: int) -> None:
        """Forget the last n tokens, as if they had never been read."""


@torch.no_grad()
def decode(
    reader: Reader, prompt: Tensor, noise: Tensor, sampling: SamplingParams
) -> Iterator[Tensor]:
    """The plain loop: prefill, then one token at a time.  (B, T), (n, B, V) -> n × (B, 1)"""
    tokens = prompt
    # One row of noise is one new token: it is all the randomness of that step.
    for row in noise:
        # 1. Read the tokens not yet read: the whole prompt at the first step (prefill), afterwards
        #    only the token just sampled (decode). The reader remembers the rest.
        logits = reader.read(tokens)
        # 2. Only the logits of the last token predict the next one.
        tokens = sample(logits[:, -1], row, sampling)
        # 3. Yield a copy, because the caller may write into it and the next step reads ours.
        yield tokens.clone()


class ModuleReader:
    """Runs the model's own code and weights, in a private replica of its modules."""

    def __init__(self, model: LanguageModel):
        # The replica shares the weights, but has its own caches and eval mode, so texts generated
        # at the same time, or during training, cannot interfere.
        check_forwards(model)
        self.model = replica(model)
        self.checked = False

    def forward(self, tokens: Tensor, start: int) -> Tensor:
        """Logits of tokens at positions `start`, `start` + 1, ….  (B, T) -> (B, T, V)

        Raises ValueError, at the first forward pass, for logits of the wrong shape.
        """
        # Positions in the whole text, not 0 … T - 1: with a cache, most of the text is not in
        # `tokens`.
        pos = torch.arange(start, start + tokens.shape[1], device=tokens.device)  # (T,)
        logits = self.model(tokens, pos=pos)[0]
        # A custom forward may return anything. Checking once is enough: the code stays the same.
        if not self.checked:
            self.check(tokens, logits)
        return logits

    def check(self, tokens: Tensor, logits: Tensor) -> None:
        """Raise ValueError unless there are logits of every token, over the whole vocabulary."""
        expected = (*tokens.shape, self.model.config.vocab_size)
        if tuple(logits.shape) != expected:
            raise ValueError(
                f"the model's forward returned logits {tuple(logits.shape)} for tokens "
                f"{tuple(tokens.shape)}, not {expected}: one row for each token, as wide as "
                f"config.vocab_size"
            )
        self.checked = True


class CachedReader(ModuleReader):
    """Reads each token once. `cache` is a class such as DynamicCache, for `capacity` tokens."""

    def __init__(self, model: LanguageModel, cache, capacity: int):
        super().__init__(model)
        self.caches = enable_kv_cache(self.model, cache, capacity)
        self.length = 0

    def read(self, tokens: Tensor) -> Tensor:
        # The caches hold positions 0 to length - 1, so the new tokens begin at `length`.
        logits = self.forward(tokens, self.length)
        self.length += tokens.shape[1]
        return logits

    def check(self, tokens: Tensor, logits: Tensor) -> None:
        super().check(tokens, logits)
        # Attention that forgets to call its cache still returns logits, but wrong ones from the
        # second step on. An empty cache after the first forward pass gives it away.
        check_filled(getattr(cache, "length", None) for cache in self.caches)

    def rewind(self, n: int) -> None:
        for cache in self.caches:
            cache.rewind(n)
        self.length -= n


def check_filled(lengths: Iterable[int | None]) -> None:
    """Raise ValueError if a cache is empty after the first forward pass; None means unknown."""
    if any(length == 0 for length in lengths):
        raise ValueError(
            "a cache is empty after the first tokens: an attention does not call "
            "self.cache.update(k, v, pos) in its forward, or the model calls it through a "
            "reference that its copy does not have (keep modules in attributes)"
        )


class UncachedReader(ModuleReader):
    """Reads the whole text again every time, as in the lecture."""

    text = None  # (B, length), after the first read

    @property
    def length(self) -> int:
        return 0 if self.text is None else self.text.shape[1]

    def append(self, tokens: Tensor) -> None:
        before = tokens[:, :0] if self.text is None else self.text
        self.text = torch.cat([before, tokens], dim=1)

    def read(self, tokens: Tensor) -> Tensor:
        # Only the text is remembered: recompute all of it, and drop the logits of the earlier
        # tokens, which the caller has already seen.
        self.append(tokens)
        return self.forward(self.text, 0)[:, -tokens.shape[1] :]

    def rewind(self, n: int) -> None:
        self.text = self.text[:, : self.length - n]


class SlidingReader(UncachedReader):
    """Past the end of the position table, reads the last block_size tokens, as in the lecture.

    There every position changes at every step, so no cached row stays valid. Before the end it uses
    the cache, unless `cache` is None. Only the last logits of a read are used.
    """

    def __init__(self, model: LanguageModel, cache):
        super().__init__(model)
        self.limit = model.config.block_size
        self.cached = None if cache is None else CachedReader(model, cache, self.limit)

    def read(self, tokens: Tensor) -> Tensor:
        self.append(tokens)
        # Up to the end of the table the positions are fixed, so the cache is valid.
        if self.cached is not None and self.length <= self.limit:
            # The tokens that the cache lacks: the new ones, and after a rewind from past the end
            # also those that were read without it.
            return self.cached.read(self.text[:, self.cached.length :])[:, -tokens.shape[1] :]
        # Past it, read the last block_size tokens as a text of their own, from position 0. Each
        # token's position changes at every step, and so do its keys and values.
        return self.forward(self.text[:, -self.limit :], 0)[:, -tokens.shape[1] :]

    def rewind(self, n: int) -> None:
        super().rewind(n)
        # Past the end the cache holds fewer tokens than the text, so it may have none to forget.
        if self.cached is not None and self.cached.length > self.length:
            self.cached.rewind(self.cached.length - self.length)


# ------------------------------------------------------------------ generate


class TokenLoop:
    """How the tokens of one generation are computed: here by the model's own modules, one by one.

    This is the seam at which other ways come in: `nanogpt.generate` passes a loop that may run an
    engine or a draft. `generate` calls the three methods in this order, once.
    """

    reader: Reader

    def begin(self, model: LanguageModel, prompt: Tensor, n_new: int, cache, slides: bool) -> None:
        """Choose how tokens are read. Raises ValueError for what this loop cannot compute."""
        self.reader = reader_for(model, prompt, n_new, cache, slides)

    def noise(self, noise, generator, sampling: SamplingParams, shape, device):
        """The noise of all steps, (n_new, B, V)."""
        return noise_for(noise, generator, sampling, shape, device)

    def tokens(self, prompt: Tensor, noise, sampling: SamplingParams) -> Iterator[Tensor]:
        """The iterator over the new tokens, (B, 1) each."""
        return decode(self.reader, prompt, noise, sampling)


def generate(
    model: LanguageModel,
    prompt: Tensor,
    n_new: int,
    sampling: SamplingParams = PLAIN,
    *,
    cache=DynamicCache,
    generator: torch.Generator | None = None,
    noise: Tensor | None = None,
    past_block: str = "error",
    loop: TokenLoop | None = None,
) -> Iterator[Tensor]:
    """Yield n_new tokens after the prompt, one (B, 1) tensor at a time.  (B, T) -> n_new × (B, 1)

        for token in generate(model, prompt, 200, SamplingParams(temperature=0.8)):
            print(tokenizer.decode(token), end="", flush=True)

    `cache` is a class (DynamicCache, StaticCache), or None to recompute the whole text for every
    token. Randomness comes from `generator` (CPU; seed 1337 if None) or from `noise` (n_new, B, V).
    A learned position table has no rows past block_size: past_block="error" raises an error,
    "slide" reads the last block_size tokens again for each token, as the lecture does. `loop`
    computes the tokens; None: this file's.

    With a cache, a model of your own classes must get everything about earlier tokens from
    `self.cache`: `compare` and the referee show whether it does.

    The arguments are checked at the call. The model's modes and caches are neither used nor
    changed, so several threads can generate with one model, or use it in other ways meanwhile.
    Raises ValueError, and TypeError for an object that is not a model.
    """
    # 1. Check the arguments now. Nothing is computed before the caller asks for a token, and an
    #    error in the middle of a text would come too late.
    check_generation(model, prompt, n_new, sampling, past_block)
    # 2. Choose how tokens are read: with a cache, without one, or with a sliding window.
    slides = ends_past_table(model, prompt, n_new)
    loop = TokenLoop() if loop is None else loop
    loop.begin(model, prompt, n_new, cache, slides)
    # 3. Draw all randomness before the first step, so that the tokens do not depend on how they are
    #    computed, and two ways of reading can be compared.
    shape = (n_new, len(prompt), model.config.vocab_size)
    noise = loop.noise(noise, generator, sampling, shape, prompt.device)
    # 4. The loop: an iterator, which computes each token when the caller asks for it.
    return loop.tokens(prompt, noise, sampling)


def complete(model: LanguageModel, prompt: Tensor, n_new: int, *args, **kwargs) -> Tensor:
    """The prompt followed by the tokens of `generate`; same arguments.  -> (B, T + n_new)"""
    return torch.cat([prompt, *generate(model, prompt, n_new, *args, **kwargs)], dim=1)


# ------------------------------------------------------------------ argument checks


def check_generation(
    model: LanguageModel, prompt: Tensor, n_new: int, sampling: SamplingParams, past_block: str
) -> None:
    """Raise ValueError and TypeError for arguments that `generate` cannot use together."""
    check_type("model", model, LanguageModel)
    vocab_size = model.config.vocab_size
    check_prompt(prompt, vocab_size)
    check_int("n_new", n_new, 1, MOST_NEW)
    check_sampling(sampling, vocab_size)
    if past_block not in ("error", "slide"):
        raise ValueError(f'past_block={past_block!r}: choose "error" or "slide"')
    if prompt.device.type != model.device.type:
        raise ValueError(f"the prompt is on {prompt.device}, the model on {model.device}: move one")
    if past_block == "error":
        slower = ', or let the window slide with past_block="slide" (slower: no cache can be kept)'
        check_length(prompt.shape[1], n_new, model.config.max_positions, otherwise=slower)


def ends_past_table(model: LanguageModel, prompt: Tensor, n_new: int) -> bool:
    """Whether the text outgrows the model's position table, so that its window must slide."""
    # The last new token is returned and never read, so it needs no position.
    limit = model.config.max_positions
    return limit is not None and prompt.shape[1] + n_new - 1 > limit


def reader_for(model: LanguageModel, prompt: Tensor, n_new: int, cache, slides: bool) -> Reader:
    """The reader over the model's own modules. Raises ValueError as build_caches does."""
    if slides:
        return SlidingReader(model, cache)
    if cache is None:
        return UncachedReader(model)
    # The last token is returned and never read, so it needs no slot.
    return CachedReader(model, cache, prompt.shape[1] + n_new - 1)


def noise_for(
    noise, generator, sampling: SamplingParams, shape: tuple[int, int, int], device
) -> Tensor:
    """The given noise, or noise from the generator; greedy decoding needs none and gets ones."""
    check_generator(generator)
    if sampling.greedy:
        return torch.ones(1, 1, 1, device=device).expand(shape)  # one number, not n·B·V
    if noise is None:
        noise = draw_noise(*shape, generator or torch.Generator().manual_seed(1337))
    else:
        check_noise(noise, shape)
    return send(noise, device)


def check_generator(generator) -> None:
    """Raise ValueError unless it is None or a CPU generator."""
    on_cpu = isinstance(generator, torch.Generator) and generator.device.type == "cpu"
    if generator is not None and not on_cpu:
        raise ValueError(
            f"generator={generator!r}: pass a CPU generator such as torch.Generator(), so that one "
            f"seed gives the same tokens on every device"
        )


# ------------------------------------------------------------------ checks of your own classes


def check_forwards(model: nn.Module) -> None:
    """Raise ValueError for a forward that takes no positions, which a cache needs."""
    # The model is called as model(tokens, pos=pos), and its heads as head(x, pos).
    if not _takes(type(model), "pos"):
        raise ValueError(
            f"the forward of {type(model).__name__} takes no pos: "
            f"define forward(self, idx, targets=None, pos=None)"
        )
    for module in model.modules():
        for head in getattr(module, "heads", ()) if isinstance(module, MultiHeadAttention) else ():
            if not _takes(type(head), 2):
                raise ValueError(
                    f"the forward of {type(head).__name__} takes no positions: "
                    f"define forward(self, x, pos)"
                )


@lru_cache(maxsize=64)
def _takes(kind: type, argument: str | int) -> bool:
    """Whether the class's forward takes an argument of this name, or this many arguments."""
    try:
        known = signature(kind.forward)
        if isinstance(argument, int):
            known.bind(None, *range(argument))
        else:
            known.bind_partial(None, None, **{argument: None})
    except TypeError:
        return False
    except ValueError:  # no signature that Python can read
        return True
    return True
