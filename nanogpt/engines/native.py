"""Rung 7: the whole decode loop in C++ (native.cpp). One thread; float32 on the CPU.

native.cpp is compiled for one shape on first use, in a few seconds, kept in the user's cache
folder, and called through ctypes. Its weights have 32 bits, or 8.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import ExitStack
from copy import deepcopy
from functools import lru_cache, partial
from pathlib import Path

import torch
from torch import Tensor, nn

from ..config import GPTConfig
from ..model import GPT
from ..sampling import SamplingParams
from .base import Engine, check_float32, require_float32_cpu
from .compiled import Compiled
from .drafts import Draft, DraftModel
from .functional import flatten, in_order
from .speculation import SpeculativeLoop, matching
from .toolchain import CannotBuild, l2_bytes, load_library

SOURCE = Path(__file__).with_name("native.cpp")
# Whatever torch's default dtype and device are set to.
FLOAT = {"dtype": torch.float32, "device": "cpu"}
INT64 = {"dtype": torch.int64, "device": "cpu"}


# Fields of a config that change the arithmetic; each is compiled in, as 0 or 1.
FORM = ("rms_norm", "rope", "qk_norm", "relu2", "bias")
LECTURE = ("bias",)


def form_of(config: GPTConfig) -> tuple[str, ...]:
    """Those fields of FORM that are on."""
    return tuple(name for name in FORM if getattr(config, name))


def shape_of(width: int, n_head: int, vocab: int, form: tuple[str, ...]) -> dict[str, int]:
    """The numbers that native.cpp is compiled for, by their names in it."""
    on = {name.upper(): int(name in form) for name in FORM}
    return {"C": width, "H": n_head, "V": vocab} | on


@lru_cache(maxsize=64)
def decoder_library(
    width: int,
    n_head: int,
    vocab: int,
    form: tuple[str, ...] = LECTURE,
    bits: int = 32,
    int8_inputs: bool = False,
) -> ctypes.CDLL:
    """native.cpp compiled for these numbers, now or at an earlier time. Raises CannotBuild."""
    shape = shape_of(width, n_head, vocab, form) | {"L2": l2_bytes()}
    shape |= {"BITS": bits, "INT8_INPUTS": int(int8_inputs)}
    lib = load_library("native", SOURCE, shape)
    pointer = ctypes.c_void_p
    number = ctypes.c_int64
    lib.decode.argtypes = [pointer, number, number]
    lib.decode.restype = None
    lib.check.argtypes = [pointer, number, number, pointer]
    lib.check.restype = None
    lib.quantize.argtypes = [pointer, number, number, pointer, pointer]
    lib.quantize.restype = None
    lib.read_all.argtypes = [pointer, number, number]
    lib.read_all.restype = ctypes.c_float
    lib.multiply_add.argtypes = [number, pointer]
    lib.multiply_add.restype = number
    return lib


class Native(Engine):
    """Rung 7. The whole loop as one native function: Python is asked for 64 tokens at a time."""

    fallback = Compiled
    decodes_drafts = True
    bits = 32  # of a weight
    int8_inputs = False  # whether vectors are rounded to 8 bits as well

    def build(self):
        require_float32_cpu(self)
        c = self.config
        rounding = (self.bits, self.int8_inputs)
        self.library = decoder_library(c.n_embd, c.n_head, c.vocab_size, form_of(c), *rounding)
        self.spare = []  # keys and values of the last generation: fresh memory costs time

    def tokens(self, model, prompt, noise, sampling, draft=None):
        if draft is None:
            return NativeTokens(self, model, prompt, noise, sampling)
        return NativeSpeculation(self, model, draft, prompt, noise, sampling)

    def weights(self, model: GPT) -> list[Tensor]:
        """The model's tensors in the order in which native.cpp reads them."""
        tokens, positions, *others = in_order(flatten(model))
        named = [tokens, positions]
        for weight in others:
            named += self.matrix(weight) if weight.ndim == 2 else [weight]
        check_float32(w for w in named if w.dtype != torch.int8)
        return [w.contiguous() for w in named]

    def matrix(self, weight: Tensor) -> list[Tensor]:
        """The tensors that stand for a matrix: itself."""
        return [weight]


class Native8(Native):
    """Rung 7 with 8-bit weights: a quarter of the bytes, and no longer quite the same model.

    When a generation begins, every row of every matrix is rounded to 255 steps of its own size;
    embeddings, norms and biases stay as they are. Its tokens may differ from those of float32.
    """

    bits = 8

    def matrix(self, weight):
        return [*quantize(weight, self.library)]


class Rough8(Native8):
    """Native8 that rounds the vectors to 8 bits as well: integers times integers.

    Faster again, and further from the model: good for guessing its tokens (DraftModel).
    """

    int8_inputs = True


def quantize(weight: Tensor, lib: ctypes.CDLL | None = None) -> tuple[Tensor, Tensor]:
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
        lib = lib or decoder_library(64, 4, 65)
    except CannotBuild:  # the same arithmetic, in more passes over the numbers
        top = weight.abs().amax(1)
        return (weight * (127 / top.clamp(min=1e-38))[:, None]).round().to(torch.int8), top / 127
    codes = torch.empty(n, k, dtype=torch.int8, device="cpu")
    scales = torch.empty(2 * n, **FLOAT)  # the second half is for Rough8
    lib.quantize(weight.data_ptr(), n, k, codes.data_ptr(), scales.data_ptr())
    return codes, scales[:n]


def rounded(model: GPT) -> GPT:
    """A copy of the model with the matrices of Native8: rounded to 8 bits, held as float32."""
    copy = deepcopy(model)
    for layer in copy.modules():
        if isinstance(layer, nn.Linear):
            codes, scales = quantize(layer.weight.detach())
            layer.weight.data = codes * scales[:, None]
    return copy


class NativeTokens(Iterator[Tensor]):
    """The tokens of a native generation. The model as it is at the first is used for all."""

    def __init__(self, engine: Native, model: GPT, prompt: Tensor, noise: Tensor, sampling):
        text = text_of(prompt, len(noise))
        T = prompt.shape[1]
        self.session = partial(Session, engine, model, text, T, noise, sampling)
        self.begun = False
        self._steps = self._stream()

    def __next__(self) -> Tensor:
        self.begun = True
        return next(self._steps)

    def rest(self) -> Tensor:
        """All tokens that have not been taken yet, in one go.  -> (B, n)"""
        if self.begun:
            return torch.cat([self.session.args[2][:, :0], *self], dim=1)
        self.close()
        with self.session() as session:
            session.decode(0, session.text.shape[1] - 1)
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
            chunk = 1  # the first token at once, then more in one call
            while known < end:
                new = min(chunk, end - known)
                session.decode(read, known + new - 1)
                yield from text[:, known : known + new].clone().split(1, dim=1)
                read = known + new - 1
                known += new
                chunk = min(4 * chunk, 64)


def text_of(prompt: Tensor, n_new: int) -> Tensor:
    """The prompt with space for n_new tokens behind it, on the CPU.  (B, T) -> (B, T + n_new)"""
    B, T = prompt.shape
    text = torch.empty(B, T + n_new, **INT64)
    text[:, :T] = prompt
    return text


class Arguments(ctypes.Structure):
    """One generation, as native.cpp's struct Arguments; the fields in its order."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("weights", "keys", "values", "text", "noise")),
        *((name, ctypes.c_int64) for name in ("layers", "batch", "capacity", "length", "known")),
        ("temperature", ctypes.c_double),
        ("top_p", ctypes.c_double),
        ("top_k", ctypes.c_int64),
    ]


class Session:
    """One generation in native code: its text, its noise, keys and values. A context manager.

    `text` (B, length) begins with a prompt of T tokens; step t of the noise draws token T + t.
    Native code checks no position: read no further than the text and the engine's capacity reach.
    """

    def __init__(
        self,
        engine: Native,
        model: GPT,
        text: Tensor,
        T: int,
        noise: Tensor,
        sampling: SamplingParams,
    ):
        c = engine.config
        B, length = text.shape
        self.engine = engine
        self.text = text
        self.T = T
        self.weights = engine.weights(model)  # held, so that their memory stays where it is
        self.pointers = (ctypes.c_void_p * len(self.weights))(*[w.data_ptr() for w in self.weights])
        capacity = -(-engine.capacity // 16) * 16  # whole tiles of keys
        try:
            self.kv = engine.spare.pop()
        except IndexError:
            self.kv = torch.empty(2, c.n_layer * B * capacity * c.n_embd, **FLOAT)
        self.noise = None if sampling.greedy else noise.float().contiguous()
        self.arguments = Arguments(
            weights=ctypes.addressof(self.pointers),
            keys=self.kv[0].data_ptr(),
            values=self.kv[1].data_ptr(),
            text=text.data_ptr(),
            layers=c.n_layer,
            batch=B,
            capacity=capacity,
            length=length,
            temperature=sampling.temperature,
            top_p=1.0 if sampling.top_p is None else sampling.top_p,
            top_k=sampling.top_k or 0,
        )
        self.known(T)

    def known(self, length: int) -> None:
        """Set how many tokens of the text are known; `decode` draws those behind them."""
        self.arguments.known = length
        if self.noise is not None:
            step_bytes = self.noise[0].nbytes
            self.arguments.noise = self.noise.data_ptr() + (length - self.T) * step_bytes

    def decode(self, start: int, end: int) -> None:
        """Read the tokens at start … end - 1; from the last known one on, write the next behind."""
        self.engine.library.decode(ctypes.byref(self.arguments), start, end)

    def check(self, start: int, end: int) -> list[list[int]]:
        """Read the tokens at start … end - 1 in one pass; by text, the right token behind each."""
        choices = torch.empty(len(self.text), end - start, **INT64)
        self.engine.library.check(ctypes.byref(self.arguments), start, end, choices.data_ptr())
        return choices.tolist()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error) -> None:
        self.engine.spare[:] = [self.kv]  # one is enough: two generations at once are rare


class NativeSpeculation(SpeculativeLoop):
    """The speculative loop in native code: known and proposed tokens in one pass of the weights.

    A draft model decodes natively too, into the same text, where an engine computes it. Any other
    draft is asked token by token.
    """

    def __init__(self, engine: Native, model: GPT, draft: Draft, prompt: Tensor, *args):
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
        known = prompt.shape[1]
        end = text.shape[1]
        generation = (text, known, noise, self.sampling)
        with ExitStack() as sessions:
            target = sessions.enter_context(Session(self.engine, self.model, *generation))
            drafting = None
            valid = 0  # tokens of the text whose keys and values the draft holds
            if self.drafter is not None:
                drafting = Session(self.drafter, self.draft.model, *generation)
                sessions.enter_context(drafting)
            target.decode(0, known - 1)
            while known < end:
                k = min(self.k, end - known - 1)  # the last token is never read, so not proposed
                if drafting is None or k == 0:
                    guess = self.propose(text[:, :known], noise[known - end :][:k])
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
                if drafting is not None:  # the guesses that were right in every text stay
                    valid = known + min(k - 1, *map(matching, guessed, choices))
                known += new
                yield from text[:, known - new : known].clone().split(1, dim=1)


def _write(text: Tensor, start: int, tokens: list[list[int]]) -> None:
    text[:, start : start + len(tokens[0])] = torch.tensor(tokens, device="cpu")
