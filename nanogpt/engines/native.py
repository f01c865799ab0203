"""Rung 6: the whole decode loop in C++ (decoder.cpp), float32 on the CPU.

decoder.cpp is compiled once, on first use, for all models, kept in the user's cache folder, and
called through ctypes. Weights have 32 or 8 bits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from copy import deepcopy
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from ..config import GPTConfig, too_large
from ..decoder.config import DecoderConfig
from ..decoder.pack import flatten
from ..model import LanguageModel
from ..sampling import SamplingParams
from ..timing import CPU
from .base import Engine, TokenIterator, check_float32, require_float32_cpu
from .decoder_library import (
    CCache,
    CSequence,
    CTurn,
    Packed,
    Work,
    decoder_library,
    floats,
    helpers_library,
    integers,
    up,
    weights_of,
)
from .drafts import Draft, DraftModel
from .eager import Flat
from .noise import Noise
from .speculation import SpeculativeLoop, SpeculativeTokens, matching
from .toolchain import CannotBuild

CALL_TOKENS = 64  # the most new tokens of a text in one call
WORK = 1e8  # multiplications in one call of several steps: about ten milliseconds


class Native(Engine):
    """Rung 6. The whole loop as one native function: Python runs once for up to 64 tokens.

    `bits` per weight are 32 or 8. With 8, every row of a matrix is rounded to 255 steps of its own
    size when a generation begins, and every vector that it multiplies to 16 bits; embeddings, norms
    and biases stay float32. The tokens may then differ from those of float32.

    It computes on up to `torch.get_num_threads()` threads, bit-identical to one thread, and on
    fewer if there is too little work to share: a model whose largest matrix has less than 0.13M
    weights decodes on one. Of several concurrent generations, one has the threads at any moment.
    """

    fallback: type[Engine] | None = Flat  # Compiled would need the compiler that is missing
    decodes_drafts = True
    bits = 32

    def __init__(
        self,
        config: GPTConfig | DecoderConfig,
        *,
        bits: int | None = None,
        batch: int = 1,
        capacity: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
    ):
        self.bits = self.bits if bits is None else bits
        if self.bits not in (32, 8):
            raise ValueError(f"bits={bits!r}: must be 32 or 8")
        super().__init__(config, batch=batch, capacity=capacity, dtype=dtype, device=device)

    def build(self) -> None:
        require_float32_cpu(self.shape)
        self.library = decoder_library()
        # The memory of the last generation, reused because allocating costs time.
        self.spare: list[Memory] = []

    def tokens(
        self,
        model: LanguageModel,
        prompt: Tensor,
        noise: Tensor | Noise,
        sampling: SamplingParams,
        draft: Draft | None = None,
    ) -> TokenIterator:
        if draft is None:
            return NativeTokens(self, model, prompt, noise, sampling)
        speculation = NativeSpeculation(self, model, draft, prompt, noise, sampling)
        return SpeculativeTokens(speculation, prompt, noise)


def steps_of_a_call(config: DecoderConfig, n_sequences: int) -> int:
    """How many tokens of each sequence to decode in one call, so that no caller waits long."""
    return max(1, min(CALL_TOKENS, int(WORK / (config.matrix_weights * n_sequences))))


class Native8(Native):
    """Native with 8-bit weights: a quarter of the bytes, and not exactly the same model."""

    bits = 8


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """8-bit codes and row scales, weight ≈ codes * scales[:, None].  (n, k) -> (n, k), (n,)

    The weight is float32 on the CPU. Raises ValueError for any other, and for NaN and infinity.
    """
    if weight.device.type != "cpu" or weight.ndim != 2:
        shape = tuple(weight.shape)
        raise ValueError(f"a weight {shape} on {weight.device}: pass a matrix (n, k) on the CPU")
    check_float32([weight])
    if not weight.isfinite().all():  # no code stands for these
        raise ValueError(f"a weight {tuple(weight.shape)} is NaN or infinite: it cannot be rounded")
    weight = weight.contiguous()
    n, k = weight.shape
    try:
        lib = helpers_library()
    except CannotBuild:  # the same arithmetic in torch, in more passes over the data
        top = weight.abs().amax(1)
        return (weight * (127 / top.clamp(min=1e-38))[:, None]).round().to(torch.int8), top / 127
    codes = torch.empty(n, k, dtype=torch.int8, device=CPU)
    scales = floats(n)
    lib.quantize(weight.data_ptr(), n, k, codes.data_ptr(), scales.data_ptr())
    return codes, scales


def rounded(model: LanguageModel) -> LanguageModel:
    """A copy of the model with its matrices rounded to 8 bits as in Native8, stored as float32.

    Embeddings are not rounded, so a tied head gets its own matrix.
    """
    copy = deepcopy(model)
    for layer in copy.modules():
        if isinstance(layer, nn.Linear):
            codes, scales = quantize(layer.weight.detach())
            layer.weight = nn.Parameter(codes * scales[:, None])
    return copy


class NativeTokens(Iterator[Tensor]):
    """The tokens of a native generation. All use the weights as they are at the first token."""

    def __init__(
        self,
        engine: Native,
        model: LanguageModel,
        prompt: Tensor,
        noise: Tensor | Noise,
        sampling: SamplingParams,
    ):
        self.text = text_of(prompt, len(noise))  # (B, T + n): native code appends to it in place
        self.T = prompt.shape[1]
        self.noise = noise
        # Packs the weights as they are when it is called.
        self._begin = partial(NativeGeneration, engine, model, self.text, self.T, noise, sampling)
        self.begun = False
        # The generator does not refer to this object: so a caller who drops the tokens closes it at
        # once, and its memory serves the next text.
        most = steps_of_a_call(engine.config, len(prompt))
        self._steps = _stream(self._begin, self.text, self.T, most)

    def __next__(self) -> Tensor:
        self.begun = True
        return next(self._steps)

    def rest(self) -> Tensor:
        """All remaining tokens at once.  -> (B, n)"""
        if self.begun:
            return torch.cat([self.text[:, :0], *self], dim=1)
        self.close()
        with self._begin() as generation:
            end = self.text.shape[1]
            # Nobody waits for the first token here, so a call may decode as much as it likes. Noise
            # that is already drawn needs only one call; a stream of it is drawn in pieces.
            piece = CALL_TOKENS if isinstance(self.noise, Noise) else end
            read = 0
            for known in range(self.T, end, piece):
                last = min(known + piece, end) - 1
                generation.decode(read, last)
                read = last
        return self.text[:, self.T :]

    def close(self) -> None:
        self.begun = True
        self._steps.close()


def _stream(
    begin: Callable[[], NativeGeneration], text: Tensor, known: int, most: int
) -> Generator[Tensor, None, None]:
    """The tokens behind the first `known` of a text, one by one; at most `most` in a call."""
    # 1. Nothing happens before the first token is asked for; then the weights are packed.
    with begin() as generation:
        end = text.shape[1]
        read = 0
        # 2. Each call has a fixed cost in Python, which counts for a small model, so a call
        #    decodes several tokens. But the caller waits for all of them: the first call
        #    returns one token immediately, and each further call four times as many as the one
        #    before, until a call takes about ten milliseconds.
        chunk = 1
        while known < end:
            new = min(chunk, end - known)
            # 3. Read what is not read yet: the prompt at first, then the last token of the call
            #    before. The last token of this call is sampled and not read.
            generation.decode(read, known + new - 1)
            # 4. Copies, because the caller may write into a token and C++ reads ours.
            yield from text[:, known : known + new].clone().split(1, dim=1)
            read = known + new - 1
            known += new
            chunk = min(4 * chunk, most)


def text_of(prompt: Tensor, n_new: int) -> Tensor:
    """The prompt followed by room for n_new tokens, on the CPU.  (B, T) -> (B, T + n_new)"""
    B, T = prompt.shape
    text = integers(B, T + n_new)
    text[:, :T] = prompt
    return text


class Memory:
    """The memory of a generation: packed weights, keys and values, and C++'s working memory."""

    def __init__(self, engine: Native):
        self.packed = Packed(engine.config, engine.bits)
        self.capacity = up(engine.shape.capacity, self.packed.lanes)
        sizes = self.packed.cache_sizes(engine.shape.batch, self.capacity)
        try:
            self.kv = [floats(n) for n in sizes]
        except (RuntimeError, MemoryError):
            what = f"batch={engine.shape.batch}, capacity={self.capacity}: keys and values"
            advice = "build the engine with a smaller capacity, as in Native(config, capacity=4096)"
            raise too_large(what, 4 * sum(sizes), advice) from None
        keys, values = (numbers.data_ptr() for numbers in self.kv)
        self.cache = CCache(keys, values, engine.shape.batch, self.capacity)
        self.work = Work()


class NativeGeneration:
    """One generation in native code: its text, noise, keys and values. A context manager.

    `text` (B, length) begins with a prompt of T tokens; row t of the noise samples token T + t.
    Native code checks no positions: do not read past the end of the text or the engine's capacity.
    """

    def __init__(
        self,
        engine: Native,
        model: LanguageModel,
        text: Tensor,
        T: int,
        noise: Tensor | Noise,
        sampling: SamplingParams,
    ):
        B = len(text)
        V = engine.config.vocab_size
        self.engine = engine
        self.library = engine.library
        self.text = text
        self.T = T
        self.end_known = T
        # 1. Pack the weights into memory of their own, because the model may be trained or freed
        #    while this text is decoded. Weights that have not changed are not packed again.
        weights = flatten(model)
        check_float32(weights_of(weights))
        try:
            self.memory = engine.spare.pop()
        except IndexError:
            self.memory = Memory(engine)
        self.memory.packed.pack(weights)
        self.noise = None if sampling.greedy else noise  # (n, B, V)
        # 2. Describe the texts to C++, by address: their tokens, where their keys and values are,
        #    and how to sample. Each text has one block of the cache, as long as the capacity.
        self.tables = torch.arange(B, dtype=torch.int64, device=CPU)
        self.sequences = (CSequence * B)()
        self.turns = (CTurn * B)()
        for b, (sequence, turn) in enumerate(zip(self.sequences, self.turns, strict=True)):
            sequence.tokens = text[b].data_ptr()
            sequence.table = self.tables[b:].data_ptr()
            sequence.noise_stride = B * V
            sequence.noise_from = T
            sequence.top_k = sampling.top_k or 0
            sequence.temperature = sampling.temperature
            sequence.top_p = 1.0 if sampling.top_p is None else sampling.top_p
            turn.sequence = ctypes.addressof(sequence)
        # 3. What every call passes. These addresses stay valid as long as this object.
        self.where = (
            self.memory.packed.address,
            ctypes.addressof(self.memory.cache),
            self.memory.work.address,
            ctypes.addressof(self.turns),
            B,
        )
        self.logits = floats(B, up(V, self.memory.packed.lanes))

    def known(self, length: int) -> None:
        """Set how many tokens of the text are known; `decode` samples the tokens after them."""
        self.end_known = length

    def decode(self, start: int, end: int) -> None:
        """Read tokens start … end - 1; from the last known token on, sample and append the next."""
        if start >= end:
            return
        # 1. Tokens up to `known` are read in one pass, and the logits of the last one give the next
        #    token. Each further token needs a step of its own. Without any, only read.
        known = max(self.end_known, start + 1)
        steps = max(0, end + 1 - known)
        # 2. All randomness comes from PyTorch, drawn in advance: C++ only divides by it.
        self._use_noise(known - self.T, steps)
        for turn in self.turns:
            turn.start = start
            turn.count = min(end, known) - start
            turn.steps = steps
            turn.wanted = min(steps, 1)
        # 3. All of it in one call, which writes the new tokens into `text`. Nobody reads the logits
        #    here, so each step overwrites those of the last (0), and there is no second copy of the
        #    tokens (None).
        logits = self.logits.data_ptr()
        threads = torch.get_num_threads()
        self.library.run_steps(*self.where, max(1, steps), 0, logits, None, threads)

    def check(self, start: int, end: int) -> list[list[int]]:
        """Read the tokens at start … end - 1 in one pass; the correct next tokens, by text."""
        B = len(self.text)
        n = end - start
        self._use_noise(start + 1 - self.T, n)
        for turn in self.turns:
            turn.start = start
            turn.count = turn.wanted = n
            turn.steps = 0
        if len(self.logits) < B * n:
            self.logits = floats(B * n, self.logits.shape[1])
        choices = integers(B, n)
        threads = torch.get_num_threads()
        self.library.check(*self.where, self.logits.data_ptr(), choices.data_ptr(), threads)
        return choices.tolist()

    def _use_noise(self, first: int, n: int) -> None:
        """Point native code at the noise of the new tokens first … first + n - 1."""
        if self.noise is None or n == 0:
            return
        self.rows = self.noise[first : first + n].float().contiguous()
        address = self.rows.data_ptr()
        for sequence in self.sequences:
            sequence.noise = address
            sequence.noise_from = self.T + first
            address += self.rows.stride(1) * self.rows.itemsize

    def __enter__(self) -> NativeGeneration:
        return self

    def __exit__(self, *error: object) -> None:
        if self.memory.work.alive:
            self.engine.spare[:] = [self.memory]  # keep one: concurrent generations are rare


class NativeSpeculation(SpeculativeLoop):
    """The speculative loop in native code: known and proposed tokens in one pass over the weights.

    A draft model also decodes natively, into the same text, if an engine supports it. Any other
    draft is called token by token.
    """

    def __init__(
        self,
        engine: Native,
        model: LanguageModel,
        draft: Draft,
        prompt: Tensor,
        noise: Tensor | Noise,
        sampling: SamplingParams,
    ):
        self.engine = engine
        self.model = model
        self.drafter = drafter_of(draft, len(prompt))
        super().__init__(draft, prompt, noise, sampling)

    @torch.no_grad()
    def run(self, prompt: Tensor, noise: Tensor | Noise) -> Generator[Tensor, None, None]:
        text = text_of(prompt, len(noise))
        T = prompt.shape[1]
        known = T  # tokens of the text that are final; behind them there may be guesses
        end = text.shape[1]
        with ExitStack() as generations:
            # 1. Pack the weights of the target, and those of the draft if it decodes natively too.
            #    Both work on the same text and the same noise: the draft writes its guesses where
            #    the target's tokens will be.
            target = NativeGeneration(self.engine, self.model, text, T, noise, self.sampling)
            generations.enter_context(target)
            drafting = None
            valid = 0  # tokens of the text whose keys and values the draft holds
            # Rotary positions have no limit, but native buffers do. The draft does not read the
            # last two tokens.
            if self.drafter is not None and end - 2 <= self.drafter.engine.shape.capacity:
                drafting = NativeGeneration(
                    self.drafter.engine, self.drafter.model, text, T, noise, self.sampling
                )
                generations.enter_context(drafting)
            # 2. Read the prompt but for its last token: a pass begins with the last known token.
            target.decode(0, known - 1)
            while known < end:
                # 3. Guess up to k tokens behind the known ones.
                k = min(self.k, end - known - 1)  # the last token is never read, so not proposed
                if drafting is None or k == 0:
                    guess = self.propose(text[:, :known], noise[known - T : known - T + k])
                    k = guess.shape[1]
                    text[:, known : known + k] = guess
                else:
                    drafting.known(known)
                    drafting.decode(valid, known + k - 1)
                guessed = text[:, known : known + k].tolist()
                # 4. In a batch, some texts already know tokens that the slowest one does not. They
                #    are certain, so propose them in place of the draft's guesses.
                pairs = zip(self.verified, guessed, strict=True)
                proposed = [(sure + row[len(sure) :])[: len(row)] for sure, row in pairs]
                if proposed != guessed:
                    _write(text, known, proposed)
                # 5. One pass over the weights gives the model's own token after the last known one
                #    and after each proposal. Reading k + 1 tokens costs little more than one,
                #    because most of the time goes into reading the weights.
                choices = target.check(known - 1, known + k)
                # 6. Keep the tokens up to the first wrong guess of any text, and the model's own
                #    token in its place. Keys of wrong guesses are overwritten by the next pass.
                new = self.accept(proposed, choices)
                _write(text, known, [row[:new] for row in choices])
                if drafting is not None:  # keep the guesses that were right in every text
                    valid = known + min(k - 1, *map(matching, guessed, choices))
                known += new
                yield from text[:, known - new : known].clone().split(1, dim=1)


class Drafter(NamedTuple):
    """A draft model and the native engine that decodes it."""

    engine: Native
    model: LanguageModel


def drafter_of(draft: Draft, batch: int) -> Drafter | None:
    """The native engine for a draft; None if it has no model, or one that native code refuses."""
    if not isinstance(draft, DraftModel):
        return None
    if draft.engine is None and Native.refuses_model(draft.model):
        return None
    kind = cast("type[Native]", draft.engine or Native)  # only native engines decode drafts
    engine = kind.ready(draft.model, batch)
    # Without a compiler, `ready` returns a fallback, which has no text in common with the target.
    return Drafter(engine, draft.model) if isinstance(engine, Native) else None


def _write(text: Tensor, start: int, tokens: list[list[int]]) -> None:
    text[:, start : start + len(tokens[0])] = torch.tensor(tokens, device=CPU)
