"""native.cpp as a library, and one generation in it.

The library is compiled for one shape on first use, in a few seconds, kept in the user's cache
folder, and called through ctypes. One thread; float32 on the CPU.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from ..decoding.sampling import SamplingParams
from ..model.gpt import GPT
from . import toolchain
from .functional import qkv_of

SOURCE = Path(__file__).with_name("native.cpp")
# Whatever torch's default dtype and device are set to.
FLOAT = {"dtype": torch.float32, "device": "cpu"}


class Job(ctypes.Structure):
    """One generation, as native.cpp's struct Job; the fields in its order."""

    _fields_ = [
        ("weights", ctypes.c_void_p),
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("text", ctypes.c_void_p),
        ("noise", ctypes.c_void_p),
        ("layers", ctypes.c_int64),
        ("batch", ctypes.c_int64),
        ("capacity", ctypes.c_int64),
        ("length", ctypes.c_int64),
        ("known", ctypes.c_int64),
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
        self, engine, model: GPT, text: Tensor, T: int, noise: Tensor, sampling: SamplingParams
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
        self.noise = None if sampling.greedy else noise.float().contiguous()
        self.job = Job(
            weights=ctypes.addressof(self.pointers),
            keys=self.kv[0].data_ptr(),
            values=self.kv[1].data_ptr(),
            text=text.data_ptr(),
            layers=c.n_layer,
            batch=B,
            capacity=capacity,
            length=length,
            qkv_parts=len(qkv_of(model.blocks[0])),
            temperature=sampling.temperature,
            top_p=1.0 if sampling.top_p is None else sampling.top_p,
            top_k=sampling.top_k or 0,
        )
        self.known(T)

    def known(self, length: int) -> None:
        """Set how many tokens of the text are known; `decode` draws what comes behind them."""
        self.job.known = length
        if self.noise is not None:
            self.job.noise = self.noise.data_ptr() + (length - self.T) * self.noise[0].nbytes

    def decode(self, start: int, end: int) -> None:
        """Read the tokens at start … end - 1; from the last known one on, write the next behind."""
        self._check_range(0, start, end)
        self.engine.library.decode(ctypes.byref(self.job), start, end)

    def check(self, start: int, end: int) -> list[list[int]]:
        """Read the tokens at start … end - 1 in one pass; by text, the right token behind each."""
        self._check_range(self.T - 1, start, end)
        choices = torch.empty(len(self.text), end - start, dtype=torch.int64, device="cpu")
        self.engine.library.check(ctypes.byref(self.job), start, end, choices.data_ptr())
        return choices.tolist()

    def _check_range(self, first: int, start: int, end: int) -> None:
        last = min(self.text.shape[1] - 1, self.job.capacity)  # nothing comes behind the last token
        if not first <= start <= end <= last:
            raise ValueError(
                f"positions {start} to {end - 1} of a text of {self.text.shape[1]}: choose from "
                f"{first} to {last - 1}"
            )

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error) -> None:
        self.engine.spare[:] = [self.kv]  # one is enough: two generations at once are rare


def excerpt(begin: str, end: str) -> str:
    """The part of native.cpp from the line that holds `begin` up to the line that holds `end`."""
    lines = SOURCE.read_text(encoding="utf-8").splitlines()
    first = next(i for i, line in enumerate(lines) if begin in line)
    last = next(i for i, line in enumerate(lines) if i > first and end in line)
    return "\n".join(lines[first:last]).rstrip()


@lru_cache(maxsize=64)
def library(
    width: int, n_head: int, vocab: int, bits: int = 32, int8_inputs: bool = False
) -> ctypes.CDLL:
    """native.cpp compiled for these numbers, now or at an earlier time. Raises CannotBuild."""
    shape = {"C": width, "H": n_head, "V": vocab, "BITS": bits, "INT8_INPUTS": int(int8_inputs)}
    lib = compiled("native", SOURCE, shape)
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    lib.decode.argtypes, lib.decode.restype = [pointer, number, number], None
    lib.check.argtypes, lib.check.restype = [pointer, number, number, pointer], None
    lib.quantize.argtypes, lib.quantize.restype = [pointer, number, number, pointer, pointer], None
    lib.read_all.argtypes, lib.read_all.restype = [pointer, number, number], ctypes.c_float
    lib.multiply_add.argtypes, lib.multiply_add.restype = [number, pointer], number
    return lib


def compiled(name: str, source: Path, shape: dict, *included: Path) -> ctypes.CDLL:
    """A C++ file compiled for these numbers, now or at an earlier time. Raises CannotBuild."""
    text = "".join(path.read_text(encoding="utf-8") for path in (source, *included))
    key = toolchain.key_of(source=text, **shape)
    path = toolchain.kept(name, key, ".so", lambda out: toolchain.compile_cpp(source, out, shape))
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        why = toolchain.first_line(error)
        raise toolchain.CannotBuild(f"{path} cannot be loaded: {why}") from error
