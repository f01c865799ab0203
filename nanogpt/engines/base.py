"""The base class of all engines: built for one shape, cached for later generations, checked.

An engine is one implementation of decoding, passed as generate(…, engine=…); all engines give the
same tokens. It is built for a `Shape`: a model's config, a batch size, a capacity, a dtype, a
device. It holds no weights: a generation uses the model's, so one engine serves all models of one
shape, even while they train.

Weights that change in the middle of a text are undefined: begin a new text after a change. Native
engines and CUDA graphs copy all weights when a text begins. The others read the model's own memory
at every step, but not what they must convert first, which is a copy from the text's start: for a
GPT, Batched packs everything, Flat and Compiled only the heads' matrices, so their next
token would be computed with a mixture; for a Decoder, Uncached and PerHead unpack everything.
"""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

import torch
from torch import Tensor

from ..config import GPTConfig
from ..decoder.config import DecoderConfig, beyond_lecture
from ..decoder.standard import Refusal, in_memory, not_standard
from ..generation import Reader, decode
from ..model import LanguageModel
from ..sampling import SamplingParams, check_length
from .exact import in_exact_mode
from .shape import Shape
from .toolchain import CannotBuild

if TYPE_CHECKING:
    from .drafts import Draft
    from .noise import Noise

INSTEAD = "use Batched, or leave engine out"
KEPT = 16  # engines kept: the buffers of one for large batches take hundreds of MB
building = threading.RLock()  # compilers are not thread-safe
# (class, shape) -> the engine that decodes it, possibly the class's fallback.
_built: dict[tuple[type[Engine], Shape], Engine] = {}


class TokenIterator(Iterator[Tensor], Protocol):
    """The tokens of a generation, (B, 1) each. Closing them frees what the generation held."""

    def close(self) -> None: ...


class Engine:
    """A decoding implementation built for `batch` texts of `capacity` tokens (default: block_size).

    Pass a class, as in generate(model, prompt, 99, engine=Native): an engine is built for the shape
    on first use and kept. Or pass an engine that you built. Raises ValueError for a shape that this
    engine does not support, CannotBuild if this machine cannot build it.
    """

    fallback: type[Engine] | None = None  # used if this engine cannot be built
    per_head = False  # runs the lecture's list of heads
    runs: tuple[type, ...] = ()  # models whose own modules it runs, whatever they compute
    decodes_drafts = False  # whether it uses the `engine` of a DraftModel
    in_torch = False  # runs only torch operations, which `with exact(model):` can change

    def __init__(
        self,
        config: GPTConfig | DecoderConfig,
        *,
        batch: int = 1,
        capacity: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
    ):
        # 1. The shape, and whether this engine computes its architecture.
        self.shape = Shape.of(config, batch, capacity, dtype, device)
        refusal = self.refuses(config)
        if refusal:
            raise ValueError(str(refusal))
        # 2. What depends only on the shape.
        start = time.perf_counter()
        with torch.inference_mode(False):  # the buffers are also used outside the caller's mode
            self.build()
        self.build_seconds = time.perf_counter() - start

    @property
    def config(self) -> DecoderConfig:
        """The architecture that this engine computes."""
        return self.shape.config

    def build(self) -> None:
        """Build everything that depends only on the shape. Raises CannotBuild, in one line."""

    def reader(self, model: LanguageModel) -> Reader:
        """A reader over the model's current weights, for one generation.

        `tokens` loops over it, unless an engine has its own loop.
        """
        raise NotImplementedError

    def tokens(
        self,
        model: LanguageModel,
        prompt: Tensor,
        noise: Tensor | Noise,
        sampling: SamplingParams,
        draft: Draft | None = None,
    ) -> TokenIterator:
        """Yield a (B, 1) token for each row of noise (n, B, V); a draft gives several per pass."""
        return loop(self.reader(model), prompt, noise, sampling, draft)

    # ---------------------------------------------------------- two gates before a token

    @classmethod
    def refuses(cls, config: GPTConfig | DecoderConfig) -> Refusal | None:
        """The first gate: why this engine does not compute an architecture; None if it does."""
        fields = beyond_lecture(config)
        if not cls.per_head or not fields:
            return None
        given = ", ".join(f"{name}={value}" for name, value in fields.items())
        return Refusal(
            f"{cls.__name__} decodes the lecture's heads, but this model has {given}", INSTEAD
        )

    @classmethod
    def refuses_model(cls, model: LanguageModel) -> Refusal | None:
        """The second gate: why this engine does not decode this model now; None if it does."""
        refusal = cls.refuses(model.config)
        if refusal:
            return refusal
        # An engine that runs the model's own modules computes whatever they compute. Any other
        # reads the weights, and computes with them what the package's modules do.
        if not isinstance(model, cls.runs):
            refusal = not_standard(model)
            if refusal:
                return refusal
        # Compiled code calls no torch function, so a mode that changes those does not reach it.
        if cls.in_torch:
            return None
        if in_exact_mode():
            return Refusal(
                f"{cls.__name__} is compiled: `with exact(model):` cannot change its summation "
                f"order",
                "use Flat, the fastest engine that it covers",
            )
        if torch.is_autocast_enabled(model.device.type):
            return Refusal(
                f"{cls.__name__} is compiled, and torch.autocast is on",
                "leave its with-block, or use Flat",
            )
        return None

    # ---------------------------------------------------------- an engine for a text

    def check_fits(self, model: LanguageModel, prompt: Tensor, n_new: int) -> None:
        """Raises ValueError if this generation does not fit the shape the engine was built for."""
        name = type(self).__name__
        given = Shape.of_model(model, len(prompt))
        if not self.shape.decodes(given):
            raise ValueError(
                f"this {name} was built for {self.shape}, but got {given}: "
                f"build another, or pass the class: engine={name}"
            )
        most = self.shape.capacity
        instead = ", or leave engine out"
        check_length(prompt.shape[1], n_new, most, f"this {name}: ", "capacity", instead)

    @classmethod
    def ready(cls, model: LanguageModel, batch: int) -> Engine:
        """An engine of this class for this model's shape, newly built or one that was kept.

        If it cannot be built, returns its fallback and warns with a one-line reason. Raises
        ValueError if this engine does not compute the model's config.
        """
        key = (cls, Shape.of_model(model, batch))
        with building:
            engine = _built.pop(key, None)
            if engine is None:
                try:
                    engine = cls(model.config, batch=batch, dtype=model.dtype, device=model.device)
                except CannotBuild as error:
                    instead = cls.fallback
                    if instead is None:
                        raise
                    words = f"cannot be built here, {instead.__name__} decodes instead: {error}"
                    warn_caller(f"{cls.__name__} {words}")
                    engine = instead.ready(model, batch)
            _built[key] = engine  # at the end: the least recently used engine is dropped first
            if len(_built) > KEPT:
                del _built[next(iter(_built))]
            return engine


def engine_for(
    engine: type[Engine] | Engine, model: LanguageModel, prompt: Tensor, n_new: int
) -> Engine:
    """The engine that decodes this text: the given one, or one of the given class.

    Raises ValueError for anything else, and for a model or a text that it cannot decode.
    """
    given = engine if isinstance(engine, type) else type(engine)
    if not issubclass(given, Engine):
        raise ValueError(f"engine={engine!r}: pass a class, as in engine=Native, or one you built")
    # 1. Does the engine compute this model? Asked before minutes are spent on a build.
    refusal = given.refuses_model(model)
    if refusal:
        raise ValueError(str(refusal))
    # 2. An engine of this shape: the one that was passed, or one that is kept or built.
    if isinstance(engine, type):
        engine = engine.ready(model, len(prompt))
    # 3. Does this text fit it?
    engine.check_fits(model, prompt, n_new)
    return engine


def loop(
    reader: Reader,
    prompt: Tensor,
    noise: Tensor | Noise,
    sampling: SamplingParams,
    draft: Draft | None = None,
) -> TokenIterator:
    """The plain loop over a reader, or the draft's own loop.  -> n × (B, 1)"""
    if draft is not None:
        return draft.loop(reader, prompt, noise, sampling)
    # 1. The noise row by row. Iterating over a tensor would make all rows at once: a greedy text of
    #    5M tokens began after seconds, with 3 GB of rows.
    rows: object = noise
    if isinstance(noise, Tensor):
        rows = (noise[i] for i in range(len(noise)))
    # 2. The plain loop, which needs no more than the rows. It is a generator, so it can be closed.
    return cast("TokenIterator", decode(reader, prompt, cast("Tensor", rows), sampling))


def require_float32_cpu(shape: Shape) -> None:
    """Raises CannotBuild for another dtype or device."""
    if (shape.device.type, shape.dtype) != ("cpu", torch.float32):
        where = f"{shape.dtype} on {shape.device.type}"
        raise CannotBuild(f"it computes float32 on the CPU, not {where}")


def check_float32(weights: Iterable[Tensor]) -> None:
    """Raises ValueError unless all weights are plain float32, which is what compiled code reads.

    A tensor subclass, for example of a quantisation library, may have another memory layout. Memory
    may have been freed since the model was checked, because a text begins at its first token.
    """
    for weight in weights:
        if not in_memory(weight):
            raise ValueError(
                f"a weight {tuple(weight.shape)} has no numbers in memory: load the weights again"
            )
        if weight.dtype != torch.float32 or type(weight) not in (Tensor, torch.nn.Parameter):
            raise ValueError(
                f"a weight is a {type(weight).__name__} of {weight.dtype}, but this engine reads "
                f"plain float32 from memory: cast the whole model"
            )


def warn_caller(message: str) -> None:
    """Warn, pointing at the line outside this package that made the call."""
    package = Path(__file__).parents[1]
    frame = sys._getframe(1)
    level = 2
    while frame.f_back is not None and package in Path(frame.f_code.co_filename).parents:
        frame = frame.f_back
        level += 1
    warnings.warn(message, stacklevel=level)
