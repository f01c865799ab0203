"""Steps computed in native code (native.cpp), each row the same bits whatever rides along."""

from __future__ import annotations

import ctypes
from array import array
from functools import lru_cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from ..engines.base import INSTEAD, check_float32
from ..engines.functional import flatten, in_order, rotations
from ..engines.native import FLOAT, LECTURE, Native, form_of, shape_of
from ..engines.native import SOURCE as INCLUDED
from ..engines.toolchain import CannotBuild, load_library
from ..model import GPT
from .modules import ModuleBackend, StepInput
from .sequence import Sequence

SOURCE = Path(__file__).with_name("native.cpp")
WORK = 1e8  # multiplications in one call that may take several steps: about ten milliseconds


class NativeStep(ctypes.Structure):
    """One step, as native.cpp's struct of this name; the fields in its order.

    Native code itself fills in the fields that StepInput has as tensors.
    """

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("weights", "keys", "values")),
        *((name, ctypes.c_void_p) for name in (*StepInput._fields, "work", "logits")),
        *((name, ctypes.c_int64) for name in ("layers", "blocks", "block_len", "padded_len")),
        *((name, ctypes.c_int64) for name in ("N", "longest", "W")),
    ]


class NativeSequence(ctypes.Structure):
    """A sequence as native code knows it, in its struct of this name; the fields in its order."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("tokens", "block_table", "noise")),
        *((name, ctypes.c_int64) for name in ("n_prompt", "n_blocks", "top_k")),
        *((name, ctypes.c_double) for name in ("temperature", "top_p")),
    ]

    def __init__(self, seq: Sequence, block_len: int):
        request = seq.request
        sampling = request.sampling
        length = seq.num_prompt_tokens + request.max_new_tokens
        self.all_tokens = array("q", seq.tokens + [0] * (length - len(seq.tokens)))
        self.table = array("q", [0] * -(-length // block_len))
        self.known = None  # the list that `table` copies
        self.n_known = 0  # its numbers that are copied
        self.numbers = None if sampling.greedy else seq.noise.float().contiguous()
        self.address = ctypes.addressof(self)
        super().__init__(
            tokens=self.all_tokens.buffer_info()[0],
            block_table=self.table.buffer_info()[0],
            noise=None if sampling.greedy else self.numbers.data_ptr(),
            n_prompt=seq.num_prompt_tokens,
            top_k=sampling.top_k or 0,
            temperature=sampling.temperature,
            top_p=1.0 if sampling.top_p is None else sampling.top_p,
        )

    def copy(self, blocks: list[int]) -> None:
        """Where the sequence lies now. A block table only grows; a new one begins from nothing."""
        start = self.n_known if self.known is blocks else 0
        self.known = blocks
        self.n_known = len(blocks)
        self.n_blocks = len(blocks)
        self.table[start : len(blocks)] = array("q", blocks[start:])


class NativeBackend:
    """The fast backend: no groups and no windows, in float32, one thread of the CPU.

    A request's logits are the same bits alone, in any batch, in any chunking of its prompt, with
    shared blocks or without. Tokens are drawn here, too, so that several steps are one call. It
    packs a copy of the weights: the model must not change while it is served. Raises
    CannotBuild where there is no C++ compiler.
    """

    draws = True

    def __init__(self, model: GPT, n_blocks: int, block_len: int):
        c = model.config
        self.library = step_library(c.n_embd, c.n_head, c.vocab_size, form_of(c))
        self.lanes = self.library.lanes()
        self.vocab_size = c.vocab_size
        padded_len = self._up(block_len)
        rows = c.n_layer * n_blocks * c.n_embd
        self.kv = torch.zeros(2, rows * padded_len, **FLOAT)  # values leave some unused
        self.weights = self._weights(model, n_blocks * block_len)
        self.pointers = (ctypes.c_void_p * len(self.weights))(*[w.data_ptr() for w in self.weights])
        self.size = sum(weight.numel() for weight in self.weights)
        self.logits = torch.empty(0, c.vocab_size, **FLOAT)
        self.n_work = self.n_logits = self.first_logits = 0
        self.step = NativeStep(
            weights=ctypes.addressof(self.pointers),
            keys=self.kv[0].data_ptr(),
            values=self.kv[1].data_ptr(),
            layers=c.n_layer,
            blocks=n_blocks,
            block_len=block_len,
            padded_len=padded_len,
        )

    @classmethod
    def supports(cls, model: GPT) -> str | None:
        """Why it cannot compute this model, in one line; None when it can."""
        if (model.device.type, model.dtype) != ("cpu", torch.float32):
            return f"native code reads float32 on the CPU, not {model.dtype} on {model.device}"
        reason = Native.supports(model)
        return reason and reason.replace(INSTEAD, "use ModuleBackend")

    def most_steps(self, n_sequences: int) -> int:
        """Steps of so many sequences that one call may take, so that nobody waits for long."""
        return max(1, min(64, int(WORK / (self.size * n_sequences))))

    def draw(self, batch: list[Sequence], steps: list[int]) -> list[list[int]]:
        """Read the scheduled tokens, and decode. -> the tokens of each, as many as its steps.

        Where steps is 0 no token is drawn. `logits` then holds the rows that the first step wanted,
        and one for each later token, step by step. Nothing of a sequence changes here.
        """
        facts = []
        longest = 0
        n_logits = 0
        for seq, n_new in zip(batch, steps, strict=True):
            if seq.native is None:
                seq.native = NativeSequence(seq, self.step.block_len)
            native = seq.native
            blocks = seq.block_table
            n_blocks = len(blocks)
            if native.n_known != n_blocks or native.known is not blocks:
                native.copy(blocks)
            if n_blocks > longest:
                longest = n_blocks
            start = seq.num_computed_tokens
            n = seq.num_scheduled_tokens
            wanted = seq.wanted
            facts += (native.address, start, n, seq.num_cached_tokens, n_new, wanted)
            n_logits += wanted + max(0, n_new - 1)
        most = max(1, *steps)
        self._grow(sum(facts[2::6]), n_logits, longest)
        turns = array("q", facts)
        drawn = array("q", bytes(8 * len(batch) * most))
        where = turns.buffer_info()[0], len(batch), most, drawn.buffer_info()[0]
        self.library.run_steps(ctypes.byref(self.step), *where)
        return [
            drawn[row : row + n_new].tolist()
            for row, n_new in zip(range(0, len(drawn), most), steps, strict=True)
        ]

    def _grow(self, N: int, W: int, longest: int) -> None:
        """Memory for a step of N tokens, of sequences of at most `longest` blocks, and W logits."""
        need = self.library.work_size(N, longest, self.step.padded_len)
        if need > self.n_work:
            self.work = torch.empty(need, **FLOAT)
            self.n_work = need
            self.step.work = self.work.data_ptr()
        if self.n_logits < W:
            self.logits = torch.empty(W, self._up(self.vocab_size), **FLOAT)
            self.n_logits = W
            self.first_logits = self.logits.data_ptr()
        self.step.logits = self.first_logits
        self.step.longest = longest

    def _up(self, n: int) -> int:
        """n, up to whole registers."""
        return -(-n // self.lanes) * self.lanes

    def _weights(self, model: GPT, longest: int) -> list[Tensor]:
        """The model's tensors in the order in which native.cpp reads them, as it reads them."""
        c = model.config
        weights = flatten(model)
        tokens, positions, *others = in_order(weights)
        if c.rope:  # they have no end: as many as the longest sequence that fits
            kind = weights.head_weight.dtype, weights.head_weight.device
            positions = rotations(longest, c.head_size, c.rope_base, *kind)
        tensors = [self._rows(tokens), self._rows(positions)]
        for weight in others:
            tensors.append(panels(weight, self.lanes) if weight.ndim == 2 else self._rows(weight))
        check_float32(tensors)
        return tensors

    def _rows(self, x: Tensor) -> Tensor:
        """Rows that begin at multiples of a register.  (…, n) -> (…, n up to whole registers)"""
        return F.pad(x, (0, self._up(x.shape[-1]) - x.shape[-1])).contiguous()


def panels(weight: Tensor, lanes: int) -> Tensor:
    """A register of rows together, number by number.  (n, K) -> (panels, K, lanes)"""
    padded = F.pad(weight, (0, 0, 0, -len(weight) % lanes))
    return padded.view(-1, lanes, weight.shape[1]).transpose(1, 2).contiguous()


@lru_cache(maxsize=16)
def step_library(
    width: int, n_head: int, vocab: int, form: tuple[str, ...] = LECTURE
) -> ctypes.CDLL:
    """native.cpp compiled for these numbers, now or at an earlier time. Raises CannotBuild."""
    shape = shape_of(width, n_head, vocab, form) | {"L2": 0, "BITS": 32, "INT8_INPUTS": 0}
    lib = load_library("serving", SOURCE, shape, INCLUDED)
    pointer = ctypes.c_void_p
    number = ctypes.c_int64
    lib.lanes.argtypes = []
    lib.lanes.restype = number
    lib.work_size.argtypes = [number] * 3
    lib.work_size.restype = number
    lib.run_steps.argtypes = [pointer, pointer, number, number, pointer]
    lib.run_steps.restype = None
    return lib


BACKENDS = {"native": NativeBackend, "modules": ModuleBackend}


def choose_backend(model: GPT) -> tuple[str, str]:
    """The fastest of BACKENDS for this model here, and why it is not the native one."""
    try:
        reason = NativeBackend.supports(model)
        if not reason:
            NativeBackend(model, 1, 1)
            return "native", ""
    except CannotBuild as error:
        reason = str(error)
    return "modules", reason
