"""What every engine shares: it is built for one shape, kept for the next generation, and checked.

An engine is one way of decoding the same tokens, as in generate(…, engine=…). It is built for a shape:
a model's config, a batch, a length, a dtype, a device. It holds no weights: each generation reads the
model's as they are then, so training on between two generations, or two models of one shape, are
nothing special.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from ..config.checks import check_int
from ..config.shapes import GPTConfig
from ..decoding.decoder import Decoder, decode
from ..decoding.drafts import Draft
from ..decoding.sampling import SamplingParams
from ..decoding.speculative import Speculation, SpeculativeLoop
from ..model.convert import not_standard
from ..model.exact import in_exact_mode
from ..model.gpt import GPT
from ..system.console import warn_caller
from .toolchain import CannotBuild

KEPT = 16  # shapes: an engine's buffers for large batches take hundreds of MB
_building = threading.RLock()
_built: dict[tuple, list[Engine]] = {}  # engines kept for the next generation of the same shape
_failed: dict[tuple, str] = {}  # what could not be built, so that it is not tried for every text


class Engine(ABC):
    """One way of decoding, built for `batch` texts of up to `max_len` tokens (default: block_size).

    Pass a class, as in generate(model, prompt, 99, engine=Native): it is built on first use for the
    shape at hand and kept; or an engine that you built. Raises ValueError for a shape that this
    engine does not compute, CannotBuild when this machine cannot build it.
    """

    fallback: type[Engine] | None = None  # what decodes instead where this one cannot be built
    lecture_only = True  # computes the lecture's architecture and no other
    own_modules_only = (
        True  # computes this package's own modules, whatever class the model's are of
    )
    per_head = False  # runs the model as a list of Heads
    in_torch = False  # all it does is torch operations, which `with exact(model):` can change

    def __init__(
        self,
        config: GPTConfig,
        *,
        batch: int = 1,
        max_len: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
    ):
        max_len = config.block_size if max_len is None else max_len
        check_int("batch", batch, 1)
        check_int("max_len", max_len, 1, config.block_size)
        if why := self.refuses(config):
            raise ValueError(why)
        self.config, self.batch, self.max_len = _shape(config), batch, max_len
        self.dtype, self.device = dtype, torch.device(device)
        before = time.perf_counter()
        self.build()
        self.build_seconds = time.perf_counter() - before

    def build(self) -> None:  # noqa: B027
        """Make what the shape alone decides. Raises CannotBuild, in one line."""

    @abstractmethod
    def decoder(self, model: GPT) -> Decoder:
        """A decoder over the model's weights as they are now, for one generation."""

    def tokens(
        self, model: GPT, prompt: Tensor, noise: Tensor, sampling: SamplingParams
    ) -> Iterator[Tensor]:
        """One (B, 1) token for each row of the noise."""
        return decode(self.decoder(model), prompt, noise, sampling)

    def speculate(
        self, model: GPT, prompt: Tensor, noise: Tensor, sampling: SamplingParams, draft: Draft
    ) -> SpeculativeLoop:
        """The same tokens, several for each pass of the model."""
        vocab_size = self.config.vocab_size
        return Speculation(self.decoder(model), draft, vocab_size, prompt, noise, sampling)

    def generate(
        self,
        model: GPT,
        prompt: Tensor,
        noise: Tensor,
        sampling: SamplingParams,
        draft: Draft | None,
    ) -> Iterator[Tensor]:
        """What `nanogpt.generate` returns for this engine, its arguments checked."""
        if draft is None:
            return self.tokens(model, prompt, noise, sampling)
        return self.speculate(model, prompt, noise, sampling, draft)

    # -------------------------------------------------------------- what it can compute

    @classmethod
    def refuses(cls, config: GPTConfig) -> str | None:
        """Why this engine does not compute that architecture; None when it does."""
        other = ", ".join(f"{name}={value}" for name, value in config.beyond_lecture.items())
        instead = "use Batched, or leave engine out"
        if cls.lecture_only and other:
            return f"{cls.__name__} computes the lecture's architecture, and this model has {other}: {instead}"
        if cls.per_head and not config.has_heads:
            return f"{cls.__name__} decodes a list of Heads; with {other} there is none: {instead}"
        return None

    @classmethod
    def supports(cls, model: GPT) -> str | None:
        """Why this engine cannot decode this model here and now; None when it can."""
        if why := cls.refuses(model.config):
            return why
        if cls.own_modules_only and (why := not_standard(model)):
            return why
        if in_exact_mode() and not cls.in_torch:
            return (
                f"{cls.__name__} is compiled: `with exact(model):` cannot change how it adds up; use Flat, "
                f"the fastest engine that it covers"
            )
        return None

    def check(self, model: GPT, prompt: Tensor, n_new: int) -> None:
        """Raises ValueError when this generation does not fit what was built."""
        where = model.lm_head.weight
        facts = (
            ("a model of", _sizes(model.config), _sizes(self.config)),
            ("a batch of", prompt.shape[0], self.batch),
            ("weights in", where.dtype, self.dtype),
            ("the device", where.device.type, self.device.type),
        )
        name = type(self).__name__
        for what, got, built in facts:
            if got != built:
                raise ValueError(
                    f"this {name} was built for {what} {_plain(built)} and got {_plain(got)}: build "
                    f"another, or pass the class: engine={name}"
                )
        if why := self.supports(model):
            raise ValueError(why)
        last = prompt.shape[1] + n_new - 1  # the last token is only returned, never read
        if last > self.max_len:
            raise ValueError(
                f"a prompt of {prompt.shape[1]} and {n_new} new tokens need room for {last}: this {name} "
                f"has max_len={self.max_len}"
            )

    # -------------------------------------------------------------- engines that are kept

    @property
    def free(self) -> bool:
        """Whether a generation may start now; False while one uses buffers that cannot be shared."""
        return True

    @classmethod
    def ready(cls, model: GPT, batch: int) -> Engine:
        """An engine of this class for the shape at hand, from those built before or built now.

        Where it cannot be built, its fallback, and a warning that says why in one line.
        """
        where = model.lm_head.weight
        key = (cls, _shape(model.config), batch, where.dtype, where.device)
        with _building:  # compilers are not made for two threads at once
            if key in _failed and cls.fallback:
                return cls.fallback.ready(model, batch)
            for engine in _built.setdefault(key, []):
                if engine.free:
                    _built[key] = _built.pop(key)  # the one used last is let go last
                    return engine
            try:
                engine = cls(model.config, batch=batch, dtype=where.dtype, device=where.device)
            except CannotBuild as error:
                if cls.fallback is None:
                    raise
                _failed[key] = str(error)
                instead = cls.fallback.__name__
                warn_caller(
                    f"{cls.__name__} cannot be built here, {instead} decodes instead: {error}"
                )
                return cls.fallback.ready(model, batch)
            _built[key].append(engine)
            while len(_built) > KEPT:
                del _built[next(iter(_built))]
            return engine


class Exclusive(Engine):
    """An engine whose buffers serve one generation at a time; a second one gets an engine of its own."""

    busy = False

    @property
    def free(self):
        return not self.busy

    def tokens(self, model, prompt, noise, sampling):
        if self.busy:
            other = type(self).ready(model, self.batch)
            yield from other.tokens(model, prompt, noise, sampling)
            return
        self.busy = True
        try:
            yield from self.run(model, prompt, noise, sampling)
        finally:
            self.busy = False
            self.release()

    @abstractmethod
    def run(
        self, model: GPT, prompt: Tensor, noise: Tensor, sampling: SamplingParams
    ) -> Iterator[Tensor]:
        """What `tokens` does, with the buffers to itself."""

    def release(self) -> None:
        """Let go of what a generation borrowed."""


def _shape(config: GPTConfig) -> GPTConfig:
    """The config without what leaves the arithmetic of inference the same."""
    return replace(config, dropout=0.0, per_head=False)


def _sizes(config: GPTConfig) -> str:
    c = config
    other = "".join(f", {name}={value}" for name, value in c.beyond_lecture.items())
    return (
        f"{c.n_layer} layers, {c.n_head} heads, width {c.n_embd}, block {c.block_size}, "
        f"{c.vocab_size} tokens{other}"
    )


def _plain(value) -> str:
    return str(value).removeprefix("torch.")
