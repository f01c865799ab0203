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
from ..engines.functional import qkv_of
from ..engines.native import FLOAT, Native
from ..engines.native import SOURCE as INCLUDED
from ..engines.toolchain import load_library
from ..model.gpt import GPT
from .request import Sequence
from .step import Step
from .texts import Plan

SOURCE = Path(__file__).with_name("native.cpp")
WORK = 1e8  # multiplications in one call that may take several steps: about ten milliseconds


class Flat(ctypes.Structure):
    """One step, as native.cpp's struct Flat; the fields in its order."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("weights", "keys", "values")),
        *((name, ctypes.c_void_p) for name in Step._fields[:3]),
        *((name, ctypes.c_void_p) for name in ("slots", "tables", "wanted", "work", "logits")),
        *((name, ctypes.c_int64) for name in ("layers", "blocks", "block_len", "places")),
        *((name, ctypes.c_int64) for name in ("N", "longest", "W")),
    ]


class Text(ctypes.Structure):
    """What native code knows of a text, as native.cpp's struct Text; the fields in its order."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("tokens", "blocks", "noise")),
        *((name, ctypes.c_int64) for name in ("n_prompt", "n_blocks", "top_k")),
        *((name, ctypes.c_double) for name in ("temperature", "top_p")),
    ]

    def __init__(self, text: Sequence, block_len: int):
        request, sampling = text.request, text.request.sampling
        length = text.n_prompt + request.max_new_tokens
        self.all_tokens = array("q", text.tokens + [0] * (length - len(text.tokens)))
        self.table = array("q", [0] * -(-length // block_len))
        self.known, self.n_known = None, 0  # the list that `table` copies, and how much of it
        self.numbers = None if sampling.greedy else text.noise.float().contiguous()
        self.address = ctypes.addressof(self)
        super().__init__(
            tokens=self.all_tokens.buffer_info()[0],
            blocks=self.table.buffer_info()[0],
            noise=None if sampling.greedy else self.numbers.data_ptr(),
            n_prompt=text.n_prompt,
            top_k=sampling.top_k or 0,
            temperature=sampling.temperature,
            top_p=1.0 if sampling.top_p is None else sampling.top_p,
        )

    def copy(self, blocks: list[int]) -> None:
        """Where the text lies now. A list of blocks only grows; a new one begins from nothing."""
        start = self.n_known if self.known is blocks else 0
        self.known, self.n_known, self.n_blocks = blocks, len(blocks), len(blocks)
        self.table[start : len(blocks)] = array("q", blocks[start:])


class NativeBackend:
    """The fast backend: the lecture's architecture in float32, one thread of the CPU.

    A request's logits are the same bits alone, in any batch, in any chunking of its prompt, with
    shared blocks or without. Tokens are drawn here, too, so that several steps are one call. It
    packs a copy of the weights: the model must not change while its texts are served. Raises
    CannotBuild where there is no C++ compiler.
    """

    draws = True

    def __init__(self, model: GPT, n_blocks: int, block_len: int):
        c = model.config
        self.library = library(c.n_embd, c.n_head, c.vocab_size)
        self.lanes, self.vocab_size = self.library.lanes(), c.vocab_size
        places = self._up(block_len)
        rows = c.n_layer * n_blocks * c.n_embd
        self.kv = torch.zeros(2, rows * places, **FLOAT)  # values leave some places unused
        self.weights = self._weights(model)
        self.pointers = (ctypes.c_void_p * len(self.weights))(*[w.data_ptr() for w in self.weights])
        self.size = sum(weight.numel() for weight in self.weights)
        self.logits = torch.empty(0, c.vocab_size, **FLOAT)
        self.n_work = self.n_logits = self.first_logits = 0
        self.job = Flat(
            weights=ctypes.addressof(self.pointers),
            keys=self.kv[0].data_ptr(),
            values=self.kv[1].data_ptr(),
            layers=c.n_layer,
            blocks=n_blocks,
            block_len=block_len,
            places=places,
        )

    @classmethod
    def supports(cls, model: GPT) -> str | None:
        """Why it cannot compute this model, in one line; None when it can."""
        weight = model.lm_head.weight
        if (weight.device.type, weight.dtype) != ("cpu", torch.float32):
            return f"native code reads float32 on the CPU, not {weight.dtype} on {weight.device}"
        why = Native.supports(model)
        return why and why.replace(INSTEAD, "use ModuleBackend")

    def read(self, step: Step) -> Tensor:
        N, W, (_, longest) = len(step.tokens), len(step.wanted), step.tables.shape
        self._make_room(N, W, longest)
        for name, tensor in zip(Step._fields, step, strict=True):
            setattr(self.job, name, tensor.data_ptr())
        self.job.N, self.job.W = N, W
        self.library.read_step(ctypes.byref(self.job))
        return self.logits[:W, : self.vocab_size].clone()

    def most_steps(self, n_texts: int) -> int:
        """Steps of so many texts that one call may take, so that nobody waits for long."""
        return max(1, min(64, int(WORK / (self.size * n_texts))))

    def draw(self, plan: Plan, steps: list[int]) -> list[list[int]]:
        """Read the tokens of a plan, and decode. -> the tokens of each text, as many as its steps.

        Where steps is 0 no token is drawn. `logits` then holds a row for each token, those of the
        first step first. Nothing of a text changes here.
        """
        facts, longest = [], 0
        for (text, n), own in zip(plan, steps, strict=True):
            if text.native is None:
                text.native = Text(text, self.job.block_len)
            native, blocks, n_blocks = text.native, text.blocks, len(text.blocks)
            if native.n_known != n_blocks or native.known is not blocks:
                native.copy(blocks)
            if n_blocks > longest:
                longest = n_blocks
            facts += (native.address, text.computed, n, text.shared, own)
        most = max(1, *steps)
        self._make_room(sum(facts[2::5]), sum(steps), longest)
        turns, drawn = array("q", facts), array("q", bytes(8 * len(plan) * most))
        self.compute(turns.buffer_info()[0], len(plan), most, drawn.buffer_info()[0])
        return [
            drawn[row : row + own].tolist()
            for row, own in zip(range(0, len(drawn), most), steps, strict=True)
        ]

    def compute(self, *numbers: int) -> None:
        """Everything but Python."""
        self.library.run_steps(ctypes.byref(self.job), *numbers)

    def _make_room(self, N: int, W: int, longest: int) -> None:
        """Memory for a step of N tokens, of texts of at most `longest` blocks, and W logits."""
        need = self.library.work_size(N, longest, self.job.places)
        if need > self.n_work:
            self.work, self.n_work = torch.empty(need, **FLOAT), need
            self.job.work = self.work.data_ptr()
        if self.n_logits < W:
            self.logits, self.n_logits = torch.empty(W, self._up(self.vocab_size), **FLOAT), W
            self.first_logits = self.logits.data_ptr()
        self.job.logits, self.job.longest = self.first_logits, longest

    def _up(self, n: int) -> int:
        """n, up to whole registers."""
        return -(-n // self.lanes) * self.lanes

    def _weights(self, model: GPT) -> list[Tensor]:
        """The model's tensors in the order in which native.cpp reads them, as it reads them."""
        rows, lanes = self._rows, self.lanes
        named = [rows(model.token_embedding_table.weight)]
        named += [rows(model.position_embedding_table.weight)]
        named += [rows(model.ln_f.weight), rows(model.ln_f.bias)]
        named += [panels(model.lm_head.weight, lanes), rows(model.lm_head.bias)]
        for block in model.blocks:
            sa, (up, _, down, _) = block.sa, block.ffwd.net
            named += [rows(block.ln1.weight), rows(block.ln1.bias)]
            named += [panels(torch.cat([layer.weight for layer in qkv_of(block)]), lanes)]
            named += [panels(sa.proj.weight, lanes), rows(sa.proj.bias)]
            named += [rows(block.ln2.weight), rows(block.ln2.bias)]
            named += [
                panels(up.weight, lanes),
                rows(up.bias),
                panels(down.weight, lanes),
                rows(down.bias),
            ]
        check_float32(named)
        return named

    def _rows(self, x: Tensor) -> Tensor:
        """Rows that begin at multiples of a register.  (…, n) -> (…, n up to whole registers)"""
        x = x.detach()
        return F.pad(x, (0, self._up(x.shape[-1]) - x.shape[-1])).contiguous()


def panels(weight: Tensor, lanes: int) -> Tensor:
    """A register of rows together, number by number.  (n, K) -> (panels, K, lanes)"""
    padded = F.pad(weight.detach(), (0, 0, 0, -len(weight) % lanes))
    return padded.view(-1, lanes, weight.shape[1]).transpose(1, 2).contiguous()


@lru_cache(maxsize=16)
def library(width: int, n_head: int, vocab: int) -> ctypes.CDLL:
    """native.cpp compiled for these numbers, now or at an earlier time. Raises CannotBuild."""
    shape = {"C": width, "H": n_head, "V": vocab, "BITS": 32, "INT8_INPUTS": 0}
    lib = load_library("serving", SOURCE, shape, INCLUDED)
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    lib.lanes.argtypes, lib.lanes.restype = [], number
    lib.work_size.argtypes, lib.work_size.restype = [number] * 3, number
    lib.read_step.argtypes, lib.read_step.restype = [pointer], None
    lib.run_steps.argtypes = [pointer, pointer, number, number, pointer]
    lib.run_steps.restype = None
    lib.multiply.argtypes = [pointer, number, pointer, number, pointer, number]
    lib.multiply.restype = None
    return lib
