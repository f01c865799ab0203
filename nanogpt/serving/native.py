"""Steps computed in native code (native.cpp), each row the same bits whatever rides along."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from ..engines.base import check_float32
from ..engines.functional import qkv_of
from ..engines.native import Native
from ..engines.native_library import FLOAT, compiled
from ..engines.native_library import SOURCE as INCLUDED
from ..model.gpt import GPT
from .step import Step

SOURCE = Path(__file__).with_name("native.cpp")


class Flat(ctypes.Structure):
    """One step, as native.cpp's struct Flat; the fields in its order."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("weights", "keys", "values")),
        *((name, ctypes.c_void_p) for name in Step._fields[:3]),
        *((name, ctypes.c_void_p) for name in ("slots", "tables", "wanted", "work", "logits")),
        *((name, ctypes.c_int64) for name in ("layers", "blocks", "block_len", "places")),
        *((name, ctypes.c_int64) for name in ("N", "longest", "W")),
    ]


class NativeBackend:
    """The fast backend: the lecture's architecture in float32, one thread of the CPU.

    A request's logits are the same bits alone, in any batch, in any chunking of its prompt, with
    shared blocks or without. It packs a copy of the weights: the model must not change while its
    texts are served. Raises CannotBuild where there is no C++ compiler.
    """

    def __init__(self, model: GPT, n_blocks: int, block_len: int):
        c = model.config
        self.library = library(c.n_embd, c.n_head, c.vocab_size)
        self.lanes, self.vocab_size = self.library.lanes(), c.vocab_size
        places = self._up(block_len)
        rows = c.n_layer * n_blocks * c.n_embd
        self.kv = torch.zeros(2, rows * places, **FLOAT)  # values leave some places unused
        self.weights = self._weights(model)
        self.pointers = (ctypes.c_void_p * len(self.weights))(*[w.data_ptr() for w in self.weights])
        self.work = torch.empty(0, **FLOAT)
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
        return Native.supports(model)

    def read(self, step: Step) -> Tensor:
        N, W, (_, longest) = len(step.tokens), len(step.wanted), step.tables.shape
        need = self.library.work_size(N, longest, self.job.places)
        if len(self.work) < need:
            self.work = torch.empty(need, **FLOAT)
        logits = torch.empty(W, self._up(self.vocab_size), **FLOAT)
        for name, tensor in zip(Step._fields, step, strict=True):
            setattr(self.job, name, tensor.data_ptr())
        self.job.work, self.job.logits = self.work.data_ptr(), logits.data_ptr()
        self.job.N, self.job.longest, self.job.W = N, longest, W
        self.library.read_step(ctypes.byref(self.job))
        return logits[:, : self.vocab_size]

    def _up(self, n: int) -> int:
        """n, up to whole registers."""
        return -(-n // self.lanes) * self.lanes

    def _weights(self, model: GPT) -> list[Tensor]:
        """The model's tensors in the order in which native.cpp reads them, as it reads them."""
        rows, panels = self._rows, self._panels
        named = [rows(model.token_embedding_table.weight)]
        named += [rows(model.position_embedding_table.weight)]
        named += [rows(model.ln_f.weight), rows(model.ln_f.bias)]
        named += [panels(model.lm_head.weight), rows(model.lm_head.bias)]
        for block in model.blocks:
            sa, (up, _, down, _) = block.sa, block.ffwd.net
            named += [rows(block.ln1.weight), rows(block.ln1.bias)]
            named += [panels(torch.cat([layer.weight for layer in qkv_of(block)]))]
            named += [panels(sa.proj.weight), rows(sa.proj.bias)]
            named += [rows(block.ln2.weight), rows(block.ln2.bias)]
            named += [panels(up.weight), rows(up.bias), panels(down.weight), rows(down.bias)]
        check_float32(named)
        return named

    def _rows(self, x: Tensor) -> Tensor:
        """Rows that begin at multiples of a register.  (…, n) -> (…, n up to whole registers)"""
        x = x.detach()
        return F.pad(x, (0, self._up(x.shape[-1]) - x.shape[-1])).contiguous()

    def _panels(self, weight: Tensor) -> Tensor:
        """A register of rows together, number by number.  (n, K) -> (panels, K, lanes)"""
        padded = F.pad(weight.detach(), (0, 0, 0, self._up(len(weight)) - len(weight)))
        return padded.view(-1, self.lanes, weight.shape[1]).transpose(1, 2).contiguous()


@lru_cache(maxsize=16)
def library(width: int, n_head: int, vocab: int) -> ctypes.CDLL:
    """native.cpp compiled for these numbers, now or at an earlier time. Raises CannotBuild."""
    shape = {"C": width, "H": n_head, "V": vocab, "BITS": 32, "INT8_INPUTS": 0}
    lib = compiled("serving", SOURCE, shape, INCLUDED)
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    lib.lanes.argtypes, lib.lanes.restype = [], number
    lib.work_size.argtypes, lib.work_size.restype = [number] * 3, number
    lib.read_step.argtypes, lib.read_step.restype = [pointer], None
    return lib
