"""Rung 7: the whole decode loop in C++ (decoder.cpp), float32 on the CPU.

decoder.cpp is compiled once, on first use, for all models, kept in the user's cache folder, and
called through ctypes. Weights have 32 or 8 bits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import ExitStack
from copy import deepcopy
from functools import partial

import torch
from torch import Tensor, nn

from ..config import GPTConfig
from ..decoder.config import DecoderConfig, decoder_config
from ..decoder.pack import flatten
from ..model import LanguageModel
from ..sampling import SamplingParams
from .base import Engine, check_float32, require_float32_cpu
from .compiled import Compiled
from .decoder_library import (
    FLOAT,
    CCache,
    CSequence,
    CTurn,
    Packed,
    Work,
    decoder_library,
    helpers_library,
    up,
    weights_of,
)
from .drafts import Draft, DraftModel
from .noise import Noise
from .speculation import SpeculativeLoop, matching
from .toolchain import CannotBuild

INT64 = {"dtype": torch.int64, "device": "cpu"}
CHUNK = 64  # the most tokens in one call
WORK = 1e8  # multiplications in one call of several steps: about ten milliseconds


class Native(Engine):
    """Rung 7. The whole loop as one native function: Python runs once for up to 64 tokens.

    `bits` per weight are 32 or 8. With 8, every row of a matrix is rounded to 255 steps of its own
    size when a generation begins, and every vector that it multiplies to 16 bits; embeddings, norms
    and biases stay float32. The tokens may then differ from those of float32.

    It computes on up to `torch.get_num_threads()` threads, bit-identical to one thread, and on
    fewer if there is too little work to share: a model whose largest matrix has less than 0.13M
    weights decodes on one. Of several concurrent generations, one has the threads at any moment.
    """

    fallback = Compiled
    decodes_drafts = True
    bits = 32

    def __init__(self, config: GPTConfig | DecoderConfig, *, bits: int | None = None, **shape):
        self.bits = self.bits if bits is None else bits
        if self.bits not in (32, 8):
            raise ValueError(f"bits={bits!r}: must be 32 or 8")
        super().__init__(config, **shape)

    def build(self):
        require_float32_cpu(self)
        self.library = decoder_library()
        self.spare = []  # memory of the last generation, reused because allocating costs time

    def tokens(self, model, prompt, noise, sampling, draft=None):
        if draft is None:
            return NativeTokens(self, model, prompt, noise, sampling)
        return NativeSpeculation(self, model, draft, prompt, noise, sampling)


def steps_of_a_call(config: DecoderConfig, n_sequences: int) -> int:
    """How many tokens of each sequence to decode in one call, so that no caller waits long."""
    return max(1, min(CHUNK, int(WORK / (config.matrix_weights * n_sequences))))


class Native8(Native):
    """Native with 8-bit weights: a quarter of the bytes, and not exactly the same model."""

    bits = 8


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """8-bit codes and row scales, weight ≈ codes * scales[:, None].  (n, k) -> (n, k), (n,)

    The weight is float32 on the CPU. Raises ValueError.
    """
    if weight.device.type != "cpu" or weight.ndim != 2:
        shape = tuple(weight.shape)
        raise ValueError(f"a weight {shape} on {weight.device}: pass a matrix (n, k) on the CPU")
    check_float32([weight])
    weight = weight.contiguous()
    n, k = weight.shape
    try:
        lib = helpers_library()
    except CannotBuild:  # the same arithmetic in torch, in more passes over the data
        top = weight.abs().amax(1)
        return (weight * (127 / top.clamp(min=1e-38))[:, None]).round().to(torch.int8), top / 127
    codes = torch.empty(n, k, dtype=torch.int8, device="cpu")
    scales = torch.empty(n, **FLOAT)
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
        self, engine: Native, model: LanguageModel, prompt: Tensor, noise: Tensor, sampling
    ):
        text = text_of(prompt, len(noise))
        T = prompt.shape[1]
        self.session = partial(Session, engine, model, text, T, noise, sampling)
        self.begun = False
        self._steps = self._stream()

    def __next__(self) -> Tensor:
        self.begun = True
        return next(self._steps)

    def rest(self) -> Tensor:
        """All remaining tokens at once.  -> (B, n)"""
        if self.begun:
            return torch.cat([self.session.args[2][:, :0], *self], dim=1)
        self.close()
        with self.session() as session:
            end = session.text.shape[1]
            # Noise that is already drawn needs only one call.
            piece = CHUNK if isinstance(session.noise, Noise) else end
            read = 0
            for known in range(session.T, end, piece):
                last = min(known + piece, end) - 1
                session.decode(read, last)
                read = last
        return session.text[:, session.T :]

    def close(self) -> None:
        self.begun = True
        self._steps.close()

    def _stream(self) -> Iterator[Tensor]:
        with self.session() as session:
            text = session.text
            known = session.T
            end = text.shape[1]
            read = 0
            chunk = 1  # return the first token immediately, then more per call
            most = steps_of_a_call(session.engine.config, len(text))
            while known < end:
                new = min(chunk, end - known)
                session.decode(read, known + new - 1)
                yield from text[:, known : known + new].clone().split(1, dim=1)
                read = known + new - 1
                known += new
                chunk = min(4 * chunk, most)


def text_of(prompt: Tensor, n_new: int) -> Tensor:
    """The prompt followed by room for n_new tokens, on the CPU.  (B, T) -> (B, T + n_new)"""
    B, T = prompt.shape
    text = torch.empty(B, T + n_new, **INT64)
    text[:, :T] = prompt
    return text


class Memory:
    """The memory of a generation: packed weights, keys and values, and C++'s working memory."""

    def __init__(self, engine: Native):
        self.packed = Packed(decoder_config(engine.config), engine.bits, by_group=False)
        self.capacity = up(engine.capacity, self.packed.lanes)
        sizes = self.packed.cache_sizes(engine.batch, self.capacity)
        self.kv = [torch.empty(n, **FLOAT) for n in sizes]
        keys, values = (numbers.data_ptr() for numbers in self.kv)
        self.cache = CCache(keys, values, engine.batch, self.capacity)
        self.work = Work()


class Session:
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
        weights = flatten(model)
        check_float32(weights_of(weights))
        try:
            self.memory = engine.spare.pop()
        except IndexError:
            self.memory = Memory(engine)
        self.memory.packed.pack(weights)
        self.noise = None if sampling.greedy else noise  # (n, B, V)
        self.tables = torch.arange(B, **INT64)  # each text has one block, as long as the capacity
        self.sequences = (CSequence * B)()
        self.turns = (CTurn * B)()
        for b, (sequence, turn) in enumerate(zip(self.sequences, self.turns, strict=True)):
            sequence.tokens = text[b].data_ptr()
            sequence.table = self.tables[b:].data_ptr()
            sequence.noise_stride = B * V
            sequence.n_prompt = T
            sequence.top_k = sampling.top_k or 0
            sequence.temperature = sampling.temperature
            sequence.top_p = 1.0 if sampling.top_p is None else sampling.top_p
            turn.sequence = ctypes.addressof(sequence)
        self.where = (
            self.memory.packed.address,
            ctypes.addressof(self.memory.cache),
            self.memory.work.address,
            ctypes.addressof(self.turns),
            B,
        )
        self.logits = torch.empty(B, up(V, self.memory.packed.lanes), **FLOAT)

    def known(self, length: int) -> None:
        """Set how many tokens of the text are known; `decode` samples the tokens after them."""
        self.end_known = length

    def decode(self, start: int, end: int) -> None:
        """Read tokens start … end - 1; from the last known token on, sample and append the next."""
        if start >= end:
            return
        known = max(self.end_known, start + 1)
        steps = max(0, end + 1 - known)
        self._use_noise(known - self.T, steps)
        for turn in self.turns:
            turn.start = start
            turn.count = min(end, known) - start
            turn.steps = steps
            turn.wanted = min(steps, 1)
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
            self.logits = torch.empty(B * n, self.logits.shape[1], **FLOAT)
        choices = torch.empty(B, n, **INT64)
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
            sequence.n_prompt = self.T + first  # the position that the first row belongs to
            address += self.rows.stride(1) * self.rows.itemsize

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error) -> None:
        if self.memory.work.alive:
            self.engine.spare[:] = [self.memory]  # keep one: concurrent generations are rare


class NativeSpeculation(SpeculativeLoop):
    """The speculative loop in native code: known and proposed tokens in one pass over the weights.

    A draft model also decodes natively, into the same text, if an engine supports it. Any other
    draft is called token by token.
    """

    def __init__(self, engine: Native, model: LanguageModel, draft: Draft, prompt: Tensor, *args):
        self.engine = engine
        self.model = model
        self.draft = draft
        self.drafter = None
        if isinstance(draft, DraftModel) and (draft.engine or not Native.supports(draft.model)):
            drafter = (draft.engine or Native).ready(draft.model, len(prompt))
            self.drafter = drafter if isinstance(drafter, Native) else None  # not a fallback
        super().__init__(draft, prompt, *args)

    @torch.no_grad()
    def _run(self, prompt, noise):
        text = text_of(prompt, len(noise))
        T = prompt.shape[1]
        known = T
        end = text.shape[1]
        generation = (text, known, noise, self.sampling)
        with ExitStack() as sessions:
            target = sessions.enter_context(Session(self.engine, self.model, *generation))
            drafting = None
            valid = 0  # tokens of the text whose keys and values the draft holds
            # Rotary positions have no limit, but native buffers do. The draft does not read the
            # last two tokens.
            if self.drafter is not None and end - 2 <= self.drafter.capacity:
                drafting = Session(self.drafter, self.draft.model, *generation)
                sessions.enter_context(drafting)
            target.decode(0, known - 1)
            while known < end:
                k = min(self.k, end - known - 1)  # the last token is never read, so not proposed
                if drafting is None or k == 0:
                    guess = self.propose(text[:, :known], noise[known - T : known - T + k])
                    k = guess.shape[1]
                    text[:, known : known + k] = guess
                else:
                    drafting.known(known)
                    drafting.decode(valid, known + k - 1)
                guessed = text[:, known : known + k].tolist()
                pairs = zip(self.verified, guessed, strict=True)  # verified tokens come first
                proposed = [(sure + row[len(sure) :])[: len(row)] for sure, row in pairs]
                if proposed != guessed:
                    _write(text, known, proposed)
                choices = target.check(known - 1, known + k)
                new = self.accept(proposed, choices)
                _write(text, known, [row[:new] for row in choices])
                if drafting is not None:  # keep the guesses that were right in every text
                    valid = known + min(k - 1, *map(matching, guessed, choices))
                known += new
                yield from text[:, known - new : known].clone().split(1, dim=1)


def _write(text: Tensor, start: int, tokens: list[list[int]]) -> None:
    text[:, start : start + len(tokens[0])] = torch.tensor(tokens, device="cpu")
