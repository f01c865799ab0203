"""Rung 7: the whole decode loop in C++ (native.cpp). One thread; float32 on the CPU.

native.cpp is compiled for one shape on first use, in a few seconds, kept in the user's cache
folder, and called through ctypes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from ..decoding.drafts import Draft, DraftModel
from ..decoding.sampling import SamplingParams
from ..decoding.speculative import SpeculativeLoop, matching
from ..model.gpt import GPT
from .base import Engine, check_float32, require_float32_cpu
from .compiled import Compiled
from .functional import qkv_of
from .toolchain import load_library

SOURCE = Path(__file__).with_name("native.cpp")
# Whatever torch's default dtype and device are set to.
FLOAT = {"dtype": torch.float32, "device": "cpu"}


@lru_cache(maxsize=64)
def library(
    width: int, n_head: int, vocab: int, bits: int = 32, int8_inputs: bool = False
) -> ctypes.CDLL:
    """native.cpp compiled for these numbers, now or at an earlier time. Raises CannotBuild."""
    shape = {"C": width, "H": n_head, "V": vocab, "BITS": bits, "INT8_INPUTS": int(int8_inputs)}
    lib = load_library("native", SOURCE, shape)
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    lib.decode.argtypes, lib.decode.restype = [pointer, number, number], None
    lib.check.argtypes, lib.check.restype = [pointer, number, number, pointer], None
    lib.quantize.argtypes, lib.quantize.restype = [pointer, number, number, pointer, pointer], None
    lib.read_all.argtypes, lib.read_all.restype = [pointer, number, number], ctypes.c_float
    lib.multiply_add.argtypes, lib.multiply_add.restype = [number, pointer], number
    return lib


def excerpt(begin: str, end: str) -> str:
    """The part of native.cpp from the line that holds `begin` up to the line that holds `end`."""
    lines = SOURCE.read_text(encoding="utf-8").splitlines()
    first = next(i for i, line in enumerate(lines) if begin in line)
    last = next(i for i, line in enumerate(lines) if i > first and end in line)
    return "\n".join(lines[first:last]).rstrip()


class Native(Engine):
    """Rung 7. The whole loop as one native function: Python is asked for 64 tokens at a time."""

    fallback = Compiled
    decodes_drafts = True
    bits = 32  # of a weight
    int8_inputs = False  # whether vectors are rounded to 8 bits as well

    def build(self):
        require_float32_cpu(self)
        c = self.config
        self.library = library(c.n_embd, c.n_head, c.vocab_size, self.bits, self.int8_inputs)
        self.spare = []  # keys and values of the last generation: fresh memory costs time

    def tokens(self, model, prompt, noise, sampling, draft=None):
        if draft is None:
            return NativeTokens(self, model, prompt, noise, sampling)
        drafter = self._drafter(draft, len(prompt))
        return NativeSpeculation(self, model, drafter, draft, prompt, noise, sampling)

    @staticmethod
    def _drafter(draft: Draft, batch: int) -> Native | None:
        """The native engine of a draft model; None for a draft that is asked token by token."""
        if not isinstance(draft, DraftModel):
            return None
        if draft.engine is None and Native.supports(draft.model):
            return None
        engine = (draft.engine or Native).ready(draft.model, batch)
        return engine if isinstance(engine, Native) else None

    def weights(self, model: GPT) -> list[Tensor]:
        """The model's tensors in the order in which native.cpp reads them."""
        named = [model.token_embedding_table.weight, model.position_embedding_table.weight]
        named += [model.ln_f.weight, model.ln_f.bias]
        named += [*self.matrix(model.lm_head.weight), model.lm_head.bias]
        for block in model.blocks:
            sa, (up, _, down, _) = block.sa, block.ffwd.net
            named += [block.ln1.weight, block.ln1.bias]
            for layer in qkv_of(block):
                named += self.matrix(layer.weight)
            named += [*self.matrix(sa.proj.weight), sa.proj.bias, block.ln2.weight, block.ln2.bias]
            named += [*self.matrix(up.weight), up.bias, *self.matrix(down.weight), down.bias]
        check_float32(w for w in named if w.dtype != torch.int8)
        # Detached, so that their memory stays even when the model is cast or moved half-way.
        return [w.detach().contiguous() for w in named]

    def matrix(self, weight: Tensor) -> list[Tensor]:
        """What stands for a matrix: itself."""
        return [weight]


class NativeTokens(Iterator[Tensor]):
    """The tokens of a native generation. What is known at the first of them is used for all."""

    def __init__(self, engine: Native, model: GPT, prompt: Tensor, noise: Tensor, sampling):
        self.start, self.prompt, self.n_new = (engine, model, noise, sampling), prompt, len(noise)
        self._steps = None

    def __next__(self) -> Tensor:
        if self._steps is None:
            self._steps = self._stream()
        return next(self._steps)

    def rest(self) -> Tensor:
        """All tokens that have not been taken yet, in one go.  -> (B, n)"""
        if self._steps is not None:
            return torch.cat([self.prompt[:, :0], *self._steps], dim=1)
        self.close()
        with self._session() as session:
            session.decode(0, session.text.shape[1] - 1)
        return session.text[:, session.T :]

    def close(self) -> None:
        self._steps = iter(())

    def _session(self) -> Session:
        engine, model, noise, sampling = self.start
        text, T = text_of(self.prompt, self.n_new), self.prompt.shape[1]
        return Session(engine, model, text, T, noise, sampling)

    def _stream(self) -> Iterator[Tensor]:
        with self._session() as session:
            text, known = session.text, session.T
            read, end, chunk = 0, text.shape[1], 1  # the first token at once, then more in one call
            while known < end:
                new = min(chunk, end - known)
                session.decode(read, known + new - 1)
                yield from text[:, known : known + new].clone().split(1, dim=1)
                read, known, chunk = known + new - 1, known + new, min(4 * chunk, 64)


# ------------------------------------------------------------------ one generation


class Arguments(ctypes.Structure):
    """One generation, as native.cpp's struct Arguments; the fields in its order."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("weights", "keys", "values", "text", "noise")),
        *((name, ctypes.c_int64) for name in ("layers", "batch", "capacity", "length", "known")),
        ("qkv_parts", ctypes.c_int64),
        ("temperature", ctypes.c_double),
        ("top_p", ctypes.c_double),
        ("top_k", ctypes.c_int64),
    ]


def text_of(prompt: Tensor, n_new: int) -> Tensor:
    """The prompt with space for n_new tokens behind it, on the CPU.  (B, T) -> (B, T + n_new)"""
    B, T = prompt.shape
    text = torch.empty(B, T + n_new, dtype=torch.int64, device="cpu")
    text[:, :T] = prompt
    return text


class Session:
    """One generation in native code: its text, its noise, keys and values. A context manager.

    `text` (B, length) begins with a prompt of T tokens; step t of the noise draws token T + t.
    """

    def __init__(
        self, engine: Native, model: GPT, text: Tensor, T: int, noise: Tensor, how: SamplingParams
    ):
        c, (B, length) = engine.config, text.shape
        self.engine, self.text, self.T = engine, text, T
        self.weights = engine.weights(model)  # held, so that their memory stays where it is
        self.pointers = (ctypes.c_void_p * len(self.weights))(*[w.data_ptr() for w in self.weights])
        capacity = -(-engine.capacity // 16) * 16  # whole tiles of keys
        try:
            self.kv = engine.spare.pop()
        except IndexError:
            self.kv = torch.empty(2, c.n_layer * B * capacity * c.n_embd, **FLOAT)
        self.noise = None if how.greedy else noise.float().contiguous()
        self.arguments = Arguments(
            weights=ctypes.addressof(self.pointers),
            keys=self.kv[0].data_ptr(),
            values=self.kv[1].data_ptr(),
            text=text.data_ptr(),
            layers=c.n_layer,
            batch=B,
            capacity=capacity,
            length=length,
            qkv_parts=len(qkv_of(model.blocks[0])),
            temperature=how.temperature,
            top_p=1.0 if how.top_p is None else how.top_p,
            top_k=how.top_k or 0,
        )
        self.known(T)

    def known(self, length: int) -> None:
        """Set how many tokens of the text are known; `decode` draws what comes behind them."""
        self.arguments.known = length
        if self.noise is not None:
            step_bytes = self.noise[0].nbytes
            self.arguments.noise = self.noise.data_ptr() + (length - self.T) * step_bytes

    def decode(self, start: int, end: int) -> None:
        """Read the tokens at start … end - 1; from the last known one on, write the next behind."""
        self._check_range(0, start, end)
        self.engine.library.decode(ctypes.byref(self.arguments), start, end)

    def check(self, start: int, end: int) -> list[list[int]]:
        """Read the tokens at start … end - 1 in one pass; by text, the right token behind each."""
        self._check_range(self.T - 1, start, end)
        choices = torch.empty(len(self.text), end - start, dtype=torch.int64, device="cpu")
        self.engine.library.check(ctypes.byref(self.arguments), start, end, choices.data_ptr())
        return choices.tolist()

    def _check_range(self, first: int, start: int, end: int) -> None:
        last = min(self.text.shape[1] - 1, self.arguments.capacity)  # nothing is behind the last
        if not first <= start <= end <= last:
            raise ValueError(
                f"positions {start} to {end - 1} of a text of {self.text.shape[1]}: choose from "
                f"{first} to {last - 1}"
            )

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error) -> None:
        self.engine.spare[:] = [self.kv]  # one is enough: two generations at once are rare


# ------------------------------------------------------------------ speculation


class NativeSpeculation(SpeculativeLoop):
    """The speculative loop in native code: known and proposed tokens in one pass of the weights.

    With a `drafter`, the native engine of a draft model, the draft decodes natively too, into the
    same text; any other draft is asked token by token.
    """

    def __init__(self, engine: Native, model: GPT, drafter: Native | None, draft: Draft, *args):
        self.engine, self.model, self.drafter, self.draft = engine, model, drafter, draft
        super().__init__(draft, *args)

    @torch.no_grad()
    def _run(self, prompt, noise):
        text, known = text_of(prompt, len(noise)), prompt.shape[1]
        end, generation = text.shape[1], (text, known, noise, self.sampling)
        with ExitStack() as sessions:
            target = sessions.enter_context(Session(self.engine, self.model, *generation))
            drafting = None
            if self.drafter is not None:
                drafting = DraftSession(self.drafter, self.draft.model, *generation)
                sessions.enter_context(drafting)
            target.decode(0, known - 1)
            while known < end:
                k = min(self.k, end - known - 1)  # the last token is never read, so not proposed
                guessed = self._guesses(text, known, noise[known - end :][:k], drafting)
                proposed = self._correct(text, known, guessed)
                choices = target.check(known - 1, known + len(proposed[0]))
                new = self.accept(proposed, choices)
                self._write(text, known, [row[:new] for row in choices])
                if drafting is not None:
                    drafting.settle(known, guessed, choices)
                known += new
                yield from text[:, known - new : known].clone().split(1, dim=1)

    def _guesses(self, text: Tensor, known: int, noise: Tensor, drafting) -> list[list[int]]:
        """What the draft proposes after `known` tokens, by text; also written into the text."""
        k = len(noise)
        if drafting is not None:
            drafting.guess(known, k)
        else:
            guessed = self.propose(text[:, :known], noise)
            k = guessed.shape[1]
            text[:, known : known + k] = guessed
        return text[:, known : known + k].tolist()

    def _correct(self, text: Tensor, known: int, guessed: list[list[int]]) -> list[list[int]]:
        """The guesses with what some texts know already in its place, in the text as well."""
        pairs = zip(self.verified, guessed, strict=True)
        proposed = [(verified + row[len(verified) :])[: len(row)] for verified, row in pairs]
        if proposed != guessed:
            self._write(text, known, proposed)
        return proposed

    @staticmethod
    def _write(text: Tensor, start: int, tokens: list[list[int]]) -> None:
        text[:, start : start + len(tokens[0])] = torch.tensor(tokens, device="cpu")


class DraftSession(Session):
    """The session of a draft model, which writes its guesses into the text that it shares."""

    valid = 0  # tokens of the text whose keys and values it holds

    def guess(self, known: int, k: int) -> None:
        """Write k guesses after the first `known` tokens."""
        if k:
            self.known(known)
            self.decode(self.valid, known + k - 1)
            self.valid = known + k - 1

    def settle(self, known: int, guessed: list[list[int]], choices: list[list[int]]) -> None:
        """Of what it has read, only the guesses that were right in every text stay valid."""
        right = min(map(matching, guessed, choices))
        self.valid = min(known + right, self.valid)
