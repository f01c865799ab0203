"""Rung 7: the whole decode loop in C++ (native.cpp), and the machine's limits measured by the same code.

The library is compiled on first use for one shape, in a few seconds, kept in the user's cache
folder, and called through ctypes. One thread; float32 on the CPU.
"""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from copy import deepcopy
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from . import build
from .compiled import Compiled
from .convert import check_standard
from .drafts import Small
from .engine import Engine
from .flat import qkv_of
from .model import GPT
from .speculate import Speculation, agreement

SOURCE = Path(__file__).with_name("native.cpp")
FLOAT = {"dtype": torch.float32, "device": "cpu"}  # whatever the defaults of torch have been set to


class Job(ctypes.Structure):
    """What native.cpp's decode() is told; the fields in its order."""

    _fields_ = [
        *[(name, ctypes.c_void_p) for name in ("weights", "keys", "values", "text", "noise")],
        *[(name, ctypes.c_int64) for name in ("layers", "batch", "room", "width", "prompt", "pieces")],
        *[("temperature", ctypes.c_double), ("top_p", ctypes.c_double), ("top_k", ctypes.c_int64)],
    ]


class Native(Engine):
    """Rung 7. The whole loop as one native function: nothing is called any more, and no weight is copied."""

    below = Compiled
    bits, rough = 32, False

    def build(self):
        if (self.device.type, self.dtype) != ("cpu", torch.float32):
            kind = f"{str(self.dtype).removeprefix('torch.')} on {self.device.type}"
            raise build.CannotBuild(f"it computes float32 on the CPU, not {kind}")
        c = self.config
        self.library = library(c.n_embd, c.n_head, c.vocab_size, self.bits, self.rough)
        self.spare = []  # keys and values of generations that have ended: fresh memory costs time

    def tokens(self, model, prompt, noise, settings):
        (B, T), n = prompt.shape, len(noise)
        text = torch.empty(B, T + n, dtype=torch.int64, device="cpu")
        text[:, :T] = prompt
        read, ready, chunk = 0, T, 1  # the first token at once, then more and more in one call
        with Session(self, model, text, T, noise, settings) as session:
            while ready < T + n:
                new = min(chunk, T + n - ready)
                session.decode(read, ready + new - 1)
                yield from text[:, ready : ready + new].clone().split(1, dim=1)
                read, ready, chunk = ready + new - 1, ready + new, min(2 * chunk, 64)

    def speculate(self, model: GPT, prompt: Tensor, noise, settings: dict, draft) -> Speculation:
        """The tokens of `tokens`, several for each reading of the weights: nanogpt.speculate."""
        return NativeSpeculation(self, model, prompt, noise, settings, draft)

    def weights(self, model: GPT) -> list[Tensor]:
        """The model's tensors in the order in which native.cpp reads them."""
        named = [model.token_embedding_table.weight, model.position_embedding_table.weight]
        named += [model.ln_f.weight, model.ln_f.bias, *self.matrix(model.lm_head.weight), model.lm_head.bias]
        for block in model.blocks:
            sa, (up, _, down, _) = block.sa, block.ffwd.net
            named += [block.ln1.weight, block.ln1.bias]
            for layer in qkv_of(block):
                named += self.matrix(layer.weight)
            named += [*self.matrix(sa.proj.weight), sa.proj.bias, block.ln2.weight, block.ln2.bias]
            named += [*self.matrix(up.weight), up.bias, *self.matrix(down.weight), down.bias]
        if any(w.dtype not in (torch.float32, torch.int8) for w in named):
            raise ValueError(
                "some weights are not float32, and this engine reads them as they lie: cast the model whole"
            )
        # Detached, so that their memory stays even when the model is cast or moved half-way.
        return [w.detach().contiguous() for w in named]

    def matrix(self, weight: Tensor) -> list[Tensor]:
        """What stands for a matrix: itself."""
        return [weight]


class Session:
    """One generation in native code: its text, its noise, keys and values. To be closed, as by `with`.

    `text` (B, width) begins with `prompt` tokens; row t of the noise belongs to the token at prompt + t.
    """

    def __init__(self, engine: Native, model: GPT, text: Tensor, prompt: int, noise, settings: dict):
        c, (B, width) = engine.config, text.shape
        self.engine, self.text, self.prompt = engine, text, prompt
        self.held = engine.weights(model)  # their memory stays where it is until the end
        self.pointers = (ctypes.c_void_p * len(self.held))(*[w.data_ptr() for w in self.held])
        room = -(-engine.max_len // 16) * 16  # whole tiles of keys
        spare, size = engine.spare, c.n_layer * B * room * c.n_embd
        self.rows = spare.pop() if spare else torch.empty(2, size, **FLOAT)
        keys, values = self.rows
        self.noise = noise.float().contiguous() if isinstance(noise, Tensor) else None
        top_k, top_p = settings["top_k"] or 0, 1.0 if settings["top_p"] is None else settings["top_p"]
        shape = c.n_layer, B, room, width, prompt, len(qkv_of(model.blocks[0]))
        memory = ctypes.addressof(self.pointers), keys.data_ptr(), values.data_ptr(), text.data_ptr()
        self.job = Job(*memory, None, *shape, settings["temperature"], top_p, top_k)
        self.known(prompt)

    def known(self, length: int) -> None:
        """So many tokens of the text stand; what `decode` draws comes behind them."""
        self.job.prompt = length
        if self.noise is not None:
            self.job.noise = self.noise.data_ptr() + (length - self.prompt) * self.noise[0].nbytes

    def decode(self, start: int, end: int) -> None:
        """Read the tokens at start … end - 1; from the last known one on, write the next behind each."""
        self._bounds(0, start, end)
        self.engine.library.decode(ctypes.byref(self.job), start, end)

    def check(self, start: int, end: int) -> list[list[int]]:
        """Read the tokens at start … end - 1 in one pass; the token that belongs behind each, by text."""
        self._bounds(self.prompt - 1, start, end)
        choices = torch.empty(len(self.text), end - start, dtype=torch.int64, device="cpu")
        self.engine.library.check(ctypes.byref(self.job), start, end, choices.data_ptr())
        return choices.tolist()

    def _bounds(self, first: int, start: int, end: int) -> None:
        last = min(self.text.shape[1] - 1, self.job.room)  # behind the last token there is room for no other
        if not first <= start <= end <= last:
            raise ValueError(
                f"positions {start} to {end - 1} of a text of {self.text.shape[1]}: choose from {first} to "
                f"{last - 1}"
            )

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error) -> None:
        self.engine.spare[:] = [self.rows]  # one is enough: two generations at once are rare


class NativeSpeculation(Speculation):
    """Speculation in native code: the model reads known and proposed tokens in one pass of its weights.

    A draft that is a model (Small) decodes natively too, into the same text; any other is asked token
    by token.
    """

    def __init__(self, engine: Native, model: GPT, prompt: Tensor, noise, settings: dict, draft):
        self.engine, self.model, self.small = engine, model, None
        if isinstance(draft, Small):
            small = self._engine_of(draft, len(prompt))
            self.small = (small, draft.model) if isinstance(small, Native) else None
        super().__init__(draft, None, model.config.vocab_size, prompt, noise, settings)

    @staticmethod
    def _engine_of(draft: Small, batch: int) -> Engine | None:
        """What decodes the smaller model; None where it is no lecture model, and its modules have to."""
        try:
            check_standard(draft.model)
            return (draft.engine or Native).ready(draft.model, batch)
        except ValueError:
            if draft.engine is not None:
                raise
            return None

    @torch.no_grad()
    def _run(self, prompt, noise):
        (B, known), n = prompt.shape, len(noise)
        end, read = known + n, 0
        text = torch.empty(B, end, dtype=torch.int64, device="cpu")
        text[:, :known] = prompt
        with ExitStack() as both:
            a_session = (text, known, noise, self.settings)
            target = both.enter_context(Session(self.engine, self.model, *a_session))
            small = both.enter_context(Session(*self.small, *a_session)) if self.small else None
            target.decode(0, known - 1)
            while known < end:
                rows = noise[n - (end - known) :][: self.k + 1]
                k = len(rows) - 1  # the last token is never read back: it is nobody's proposal
                if small is None:
                    guessed = self._proposed(text[:, :known], rows[:-1])
                    k = guessed.shape[1]
                    text[:, known : known + k] = guessed
                elif k:
                    small.known(known)
                    small.decode(read, known + k - 1)  # writes its guesses into the text
                wrote = text[:, known : known + k].tolist()
                pairs = zip(self._ahead, wrote, strict=True)
                proposed = [(sure + row[len(sure) :])[:k] for sure, row in pairs]
                if proposed != wrote:
                    text[:, known : known + k] = torch.tensor(proposed, device="cpu")
                choices = target.check(known - 1, known + k)
                new = self._settle(proposed, choices)
                text[:, known : known + new] = torch.tensor([row[:new] for row in choices], device="cpu")
                right = min(map(agreement, wrote, choices))  # what the draft has read of these stays true
                read = min(known + right, max(read, known + k - 1))
                known += new
                yield from text[:, known - new : known].clone().split(1, dim=1)


class Native8(Native):
    """Rung 7 with 8-bit weights: a quarter of the bytes, and not quite the same model any more.

    Every row of every matrix is rounded to 255 steps of its own size when a generation begins;
    embeddings, LayerNorms and biases stay as they are. Its tokens need not be those of float32.
    """

    bits = 8

    def matrix(self, weight):
        codes, scales = quantize(weight.detach(), self.library)
        return [codes, scales]


class Rough8(Native8):
    """Native8 that rounds the vectors to 8 bits as well: whole numbers times whole numbers.

    Sooner again, and further from the model: good for guessing what it will say (Small), and no more.
    """

    rough = True


def quantize(weight: Tensor, lib: ctypes.CDLL | None = None) -> tuple[Tensor, Tensor]:
    """8-bit codes and a scale for each row: weight ≈ codes * scales[:, None].  (n, k) -> (n, k), (n,)"""
    weight = weight.contiguous()
    n, k = weight.shape
    try:
        lib = lib or library(64, 4, 65)
    except build.CannotBuild:  # the same arithmetic, in more passes over the numbers
        top = weight.abs().amax(1)
        return (weight * (127 / top.clamp(min=1e-38))[:, None]).round().to(torch.int8), top / 127
    codes, scales = torch.empty(n, k, dtype=torch.int8, device="cpu"), torch.empty(2 * n, **FLOAT)
    lib.quantize(*(ctypes.c_void_p(t.data_ptr()) for t in (weight,)), n, k,
                 ctypes.c_void_p(codes.data_ptr()), ctypes.c_void_p(scales.data_ptr()))  # fmt: skip
    return codes, scales[:n]  # the rest, in the same memory, is for Rough8


def rounded(model: GPT) -> GPT:
    """A copy of the model whose matrices are what Native8 reads: rounded to 8 bits, held as float32."""
    copy = deepcopy(model)
    with torch.no_grad():
        for block in copy.blocks:
            up, _, down, _ = block.ffwd.net
            for layer in (*qkv_of(block), block.sa.proj, up, down):
                _round(layer.weight)
        _round(copy.lm_head.weight)
    return copy


def _round(weight: Tensor) -> None:
    codes, scales = quantize(weight.detach())
    weight.copy_(codes * scales[:, None])


def excerpt(begin: str, end: str) -> str:
    """The part of native.cpp from the line that holds `begin` up to the line that holds `end`."""
    lines = SOURCE.read_text(encoding="utf-8").splitlines()
    first = next(i for i, line in enumerate(lines) if begin in line)
    last = next(i for i, line in enumerate(lines) if i > first and end in line)
    return "\n".join(lines[first:last]).rstrip()


@lru_cache(maxsize=64)
def library(width: int, n_head: int, vocab: int, bits: int = 32, rough: bool = False) -> ctypes.CDLL:
    """native.cpp compiled for these numbers, or as it was compiled before. Raises CannotBuild."""
    shape = {"C": width, "H": n_head, "V": vocab, "BITS": bits, "ROUGH": int(rough)}
    key = build.key_of(source=SOURCE.read_text(encoding="utf-8"), **shape)
    path = build.kept("native", key, ".so", lambda out: build.compile_cpp(SOURCE, out, shape))
    try:
        lib = ctypes.CDLL(str(path))
    except OSError as error:
        raise build.CannotBuild(f"{path} cannot be loaded: {build.first_line(error)}") from error
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    lib.decode.argtypes, lib.decode.restype = [pointer, number, number], None
    lib.check.argtypes, lib.check.restype = [pointer, number, number, pointer], None
    lib.quantize.argtypes, lib.quantize.restype = [pointer, number, number, pointer, pointer], None
    lib.read_all.argtypes, lib.read_all.restype = [pointer, number, number], ctypes.c_float
    lib.multiply_add.argtypes, lib.multiply_add.restype = [number, pointer], number
    return lib
