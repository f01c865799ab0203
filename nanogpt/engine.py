"""Ways of decoding the same tokens, from the slowest up: what `generate(…, engine=…)` takes.

An engine is built for one shape: a model's config, a batch, a length, a dtype, a device. It holds
no weights: each generation reads the model's as they are then, so training on between two
generations, or two models of one shape, are nothing special.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from . import flat
from .build import CannotBuild
from .cache import DynamicCache
from .config import GPTConfig
from .convert import check_standard, pack_heads, unpack_heads
from .exact import in_exact_mode
from .generate import decode, sample
from .model import GPT
from .runtime import warn_caller


class Engine(ABC):
    """One way of decoding, built for `batch` texts of up to `max_len` tokens (default: block_size).

    Pass a class, as in generate(model, prompt, 99, engine=Native): it is built on first use for the
    shape at hand and kept; or an engine that you built. Raises CannotBuild when this machine
    cannot build it.
    """

    below: type[Engine] | None = None  # what stands in where this one cannot be built
    lecture = True  # whether it computes nothing but the lecture's architecture
    standard = True  # whether it computes this package's own heads, whatever class the model's are of
    in_torch = False  # whether all it does is torch operations, which `with exact(model):` can change

    def __init__(self, config: GPTConfig, *, batch: int = 1, max_len: int | None = None,
                 dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu"):  # fmt: skip
        max_len = config.block_size if max_len is None else max_len
        for name, value in (("batch", batch), ("max_len", max_len)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name}={value!r}: a whole number of at least 1 is needed")
        if max_len > config.block_size:
            raise ValueError(
                f"max_len={max_len} > block_size {config.block_size}: an engine's buffers end there"
            )
        other = ", ".join(f"{name}={value}" for name, value in config.beyond_lecture.items())
        if self.lecture and other:
            raise ValueError(f"{type(self).__name__} computes the lecture's architecture, and this model has "
                             f"{other}: take Batched, or leave engine out")  # fmt: skip
        if getattr(self, "per_head", False) and not config.has_heads:
            raise ValueError(f"{type(self).__name__} decodes a list of Heads; with {other} there is none: "
                             f"take Batched, or leave engine out")  # fmt: skip
        self.config, self.batch, self.max_len = _shape(config), batch, max_len
        self.dtype, self.device = dtype, torch.device(device)
        before = time.perf_counter()
        self.build()
        self.build_seconds = time.perf_counter() - before

    def build(self) -> None:  # noqa: B027
        """Make what the shape alone decides. Raises CannotBuild, in one line."""

    @property
    def free(self) -> bool:
        """Whether a generation may start now; False while one uses buffers that cannot be shared."""
        return True

    def check(self, model: GPT, prompt: Tensor, n_new: int) -> None:
        """Raises ValueError when this generation does not fit what was built."""
        where = model.lm_head.weight
        facts = (
            ("a model of", _sizes(model.config), _sizes(self.config)),
            ("a batch of", prompt.shape[0], self.batch),
            ("weights in", where.dtype, self.dtype),
            ("the device", where.device.type, self.device.type),
        )
        for what, got, built in facts:
            if got != built:
                name = type(self).__name__
                raise ValueError(f"this {name} was built for {what} {_plain(built)} and got {_plain(got)}: "
                                 f"build another, or pass the class: engine={name}")  # fmt: skip
        if self.standard:
            check_standard(model)
        if in_exact_mode() and not self.in_torch:
            raise ValueError(f"{type(self).__name__} is compiled: `with exact(model):` cannot change how it "
                             f"adds up; take Flat, the fastest engine that it covers")  # fmt: skip
        last = prompt.shape[1] + n_new - 1  # the last token is only returned, never read back
        if last > self.max_len:
            raise ValueError(f"a prompt of {prompt.shape[1]} and {n_new} new tokens need room for {last}: "
                             f"this {type(self).__name__} has max_len={self.max_len}")  # fmt: skip

    @abstractmethod
    def tokens(self, model: GPT, prompt: Tensor, noise: list | Tensor, settings: dict) -> Iterator[Tensor]:
        """One (B, 1) token for each row of the noise (None: the likeliest token)."""

    @classmethod
    def ready(cls, model: GPT, batch: int) -> Engine:
        """An engine of this class for the shape at hand, from those built before or built now.

        Where it cannot be built, the one below it, and a warning that says why in one line.
        """
        where = model.lm_head.weight
        key = (cls, _shape(model.config), batch, where.dtype, where.device)
        with _building:  # compilers are not made for two threads at once
            if key in _failed and cls.below:
                return cls.below.ready(model, batch)
            for engine in _built.setdefault(key, []):
                if engine.free:
                    _built[key] = _built.pop(key)  # the one used last is let go last
                    return engine
            try:
                engine = cls(model.config, batch=batch, dtype=where.dtype, device=where.device)
            except CannotBuild as error:
                if cls.below is None:
                    raise
                _failed[key] = str(error)
                said = f"{cls.__name__} cannot be built here, {cls.below.__name__} decodes instead: {error}"
                warn_caller(said)
                return cls.below.ready(model, batch)
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

    def tokens(self, model, prompt, noise, settings):
        if self.busy:
            yield from type(self).ready(model, self.batch).tokens(model, prompt, noise, settings)
            return
        self.busy = True
        try:
            yield from self.decode(model, prompt, noise, settings)
        finally:
            self.busy = False
            self.release()

    @abstractmethod
    def decode(self, model: GPT, prompt: Tensor, noise: list | Tensor, settings: dict) -> Iterator[Tensor]:
        """What `tokens` does, with the buffers to itself."""

    def release(self) -> None:
        """Let go of what a generation borrowed."""


KEPT = 16  # shapes: an engine's buffers for large batches take hundreds of MB
_building = threading.RLock()
_built: dict[tuple, list[Engine]] = {}  # engines kept for the next generation of the same shape
_failed: dict[tuple, str] = {}  # what could not be built, so that it is not tried for every text


def _shape(config: GPTConfig) -> GPTConfig:
    """The config without what leaves the arithmetic of inference the same."""
    return replace(config, dropout=0.0, per_head=False)


def _sizes(config: GPTConfig) -> str:
    c = config
    other = "".join(f", {name}={value}" for name, value in c.beyond_lecture.items())
    return (
        f"{c.n_layer} layers, {c.n_head} heads, width {c.n_embd}, block {c.block_size}, {c.vocab_size} tokens"
        f"{other}"
    )


def _plain(value) -> str:
    return str(value).removeprefix("torch.")


# ------------------------------------------------------------------ rungs 1 to 4: the model's own modules


class Uncached(Engine):
    """Rung 1. The lecture's Heads one by one, all positions anew for every token."""

    per_head, cache, standard, lecture, in_torch = True, None, False, False, True

    def tokens(self, model, prompt, noise, settings):
        if model.config.per_head != self.per_head:
            model = unpack_heads(model) if self.per_head else pack_heads(model)
        return decode(model, prompt, noise, self.cache, settings)


class PerHead(Uncached):
    """Rung 2. A cache in every Head, grown by torch.cat."""

    cache = DynamicCache


class Batched(Uncached):
    """Rung 3. All heads in one matmul, one growing cache for each layer."""

    per_head, cache, standard = False, DynamicCache, True


class Static(Engine):
    """Rung 4. A cache allocated once, rows written in place, autograd's bookkeeping off (inference_mode).

    Still the model's modules, but written for decoding: a position is a number, and a new token
    sees all that is cached, so there is no mask to build and nothing to check at every layer.
    """

    below = Batched
    in_torch = True

    def tokens(self, model, prompt, noise, settings):
        model = pack_heads(model) if model.config.per_head else model
        caches = flat.buffers(self.config, self.batch, self.max_len, dtype=self.dtype, device=self.device)
        yield from _drawn(prompt, noise, settings, lambda *new: self.step(model, caches, *new))

    @staticmethod
    def step(model: GPT, caches: list, tokens: Tensor, start: int) -> Tensor:
        """Logits after the last of these tokens, whose first stands at `start`.  (B, T) -> (B, V)"""
        (B, T), end = tokens.shape, start + tokens.shape[1]
        x = model.token_embedding_table(tokens) + model.position_embedding_table.weight[start:end]
        for block, (keys, values) in zip(model.blocks, caches, strict=True):
            qkv = block.sa.qkv(block.ln1(x)).view(B, T, 3, block.sa.n_head, -1)
            q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # (B, H, T, hs)
            keys[:, :, start:end], values[:, :, start:end] = k, v
            y = F.scaled_dot_product_attention(q, keys[:, :, :end], values[:, :, :end], is_causal=T > 1)
            x = x + block.sa.proj(y.transpose(1, 2).reshape(B, T, -1))
            up, relu, down, _ = block.ffwd.net  # the last one is dropout
            x = x + down(relu(up(block.ln2(x))))
        return model.lm_head(model.ln_f(x[:, -1]))


# ------------------------------------------------------------------ rung 5: no modules


class Flat(Engine):
    """Rung 5. The decode step as one function over plain tensors, called from Python token by token."""

    below = Static
    in_torch = True

    def tokens(self, model, prompt, noise, settings):
        weights = flat.flatten(model)
        caches = flat.buffers(self.config, self.batch, self.max_len, dtype=self.dtype, device=self.device)
        n_head = self.config.n_head
        yield from _drawn(prompt, noise, settings, lambda *new: flat.step(weights, caches, *new, n_head))


def _drawn(prompt: Tensor, noise: list | Tensor, settings: dict, step) -> Iterator[Tensor]:
    """A token for each row of the noise, from `step(tokens, start)`, which gives logits."""
    token, start = prompt, 0
    for row in noise:
        with torch.inference_mode():
            drawn = sample(step(token, start), row, **settings)
        start += token.shape[1]
        token = drawn
        yield drawn.clone()  # made outside of inference_mode: a token like any other, and the reader's own
