"""ctypes bindings of decoder.cpp: its structs, and a decoder's weights in its memory layout."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from ..decoder.config import Activation, DecoderConfig, Norm
from ..decoder.step import Affine, Weights
from .toolchain import load_library

SOURCE = Path(__file__).with_name("decoder.cpp")
HELPERS = Path(__file__).with_name("helpers.cpp")
# Explicit, so that torch's default dtype and device do not matter.
FLOAT = {"dtype": torch.float32, "device": "cpu"}
INT8 = {"dtype": torch.int8, "device": "cpu"}

POINTER = ctypes.c_void_p
INT = ctypes.c_int64
DOUBLE = ctypes.c_double


def _fields(kind, names: str) -> list:
    return [(name, kind) for name in names.split()]


class CShape(ctypes.Structure):
    """struct Shape."""

    _fields_ = _fields(
        INT,
        "layers width heads kv_heads head_size hidden vocab "
        "bits norm activation gated rotary embed_norm qk_norm",
    )


class CMatrix(ctypes.Structure):
    """struct Matrix."""

    _fields_ = _fields(POINTER, "w scales bias")


class CSource(ctypes.Structure):
    """struct Source."""

    _fields_ = [
        *_fields(POINTER, "weight bias panels scales padded_bias"),
        *_fields(INT, "n K parts group"),
    ]


class CAffine(ctypes.Structure):
    """struct Affine."""

    _fields_ = _fields(POINTER, "weight bias")


class CLayer(ctypes.Structure):
    """struct Layer."""

    _fields_ = [
        *_fields(CAffine, "norm1 norm2 query_norm key_norm"),
        *_fields(CMatrix, "qkv proj up down"),
        ("window", INT),
    ]


class CDecoder(ctypes.Structure):
    """struct Decoder."""

    _fields_ = [
        ("shape", CShape),
        *_fields(DOUBLE, "norm_eps softcap"),
        ("sinks", INT),
        *_fields(POINTER, "tokens positions"),
        *_fields(CAffine, "embed_norm norm"),
        ("head", CMatrix),
        ("layer", POINTER),
    ]


class CCache(ctypes.Structure):
    """struct Cache."""

    _fields_ = [*_fields(POINTER, "keys values"), *_fields(INT, "blocks block_len")]


class CSequence(ctypes.Structure):
    """struct Sequence."""

    _fields_ = [
        *_fields(POINTER, "tokens table noise"),
        *_fields(INT, "noise_stride n_prompt top_k"),
        *_fields(DOUBLE, "temperature top_p"),
        *_fields(POINTER, "stops"),
        *_fields(INT, "n_stops stops_from"),
    ]


class CTurn(ctypes.Structure):
    """struct Turn."""

    _fields_ = [("sequence", POINTER), *_fields(INT, "start count cached steps wanted")]


@lru_cache(maxsize=1)
def decoder_library() -> ctypes.CDLL:
    """The compiled decoder.cpp, built if needed. Raises CannotBuild."""
    signatures = {
        "lanes": (INT, []),
        "group_size": (INT, []),
        "are_numbers": (INT, [POINTER, INT, INT]),
        "set_least_work": (INT, [INT]),
        "fingerprint_of": (ctypes.c_uint64, [POINTER, INT, INT]),
        "new_work": (POINTER, []),
        "delete_work": (None, [POINTER]),
        "use_huge_pages": (None, [POINTER, INT]),
        "pack_matrix": (None, [POINTER, INT]),
        "run_steps": (None, [*[POINTER] * 4, INT, INT, INT, POINTER, POINTER, INT]),
        "check": (None, [*[POINTER] * 4, INT, POINTER, POINTER, INT]),
    }
    return _declared(load_library("decoder", SOURCE, {}), signatures)


@lru_cache(maxsize=1)
def helpers_library() -> ctypes.CDLL:
    """The compiled helpers.cpp (functions without a model), built if needed. Raises CannotBuild."""
    signatures = {
        "quantize": (None, [POINTER, INT, INT, POINTER, POINTER]),
        "read_all": (ctypes.c_float, [POINTER, INT, INT]),
        "multiply_adds": (INT, [INT, POINTER]),
    }
    return _declared(load_library("helpers", HELPERS, {}), signatures)


def _declared(lib: ctypes.CDLL, signatures: dict) -> ctypes.CDLL:
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, name)
        function.restype = result
        function.argtypes = arguments
    return lib


def up(n: int, to: int) -> int:
    """n, rounded up to a multiple of `to`."""
    return -(-n // to) * to


class Work:
    """The working memory of decoder.cpp. It grows as needed and is freed with this object."""

    def __init__(self):
        lib = decoder_library()
        self.address = lib.new_work()
        self._free = weakref.finalize(self, lib.delete_work, self.address)
        self._free.atexit = False  # a thread may still be decoding at exit

    @property
    def alive(self) -> bool:
        """Whether the memory still exists. The garbage collector may free it before the generator
        that used it is closed, if both are part of a reference cycle.
        """
        return self._free.alive


class Packed:
    """A decoder's weights in the memory layout of decoder.cpp. Call `pack` before use.

    Matrices are copied into panels (kernels.h). Embeddings, norms and rotations are read from the
    given tensors' own memory. A matrix that has not changed since the last call is not copied
    again: a 64-bit hash of its bits tells, so it also sees edits that no version counter sees.
    """

    def __init__(self, c: DecoderConfig, bits: int = 32, by_group: bool = True):
        self.bits = bits
        self.by_group = by_group  # 8-bit weights: a scale per group instead of per row
        self.lib = decoder_library()
        self.lanes = self.lib.lanes()
        self.config = c
        self.group = self.lib.group_size()
        self.memory: list[Tensor] = []  # the packed copies
        self.matrices: dict[str, tuple[CSource, CMatrix]] = {}
        self.fingerprints: dict[str, list[int]] = {}  # of weight and bias, once packed
        self.held: list[Tensor] = []  # the model's tensors that are read in place, kept alive
        self.layers = (CLayer * c.n_layer)()
        self.decoder = CDecoder(
            shape=CShape(
                layers=c.n_layer,
                width=c.n_embd,
                heads=c.n_head,
                kv_heads=c.kv_heads,
                head_size=c.head_size,
                hidden=c.hidden,
                vocab=c.vocab_size,
                bits=bits,
                norm=list(Norm).index(c.norm),
                activation=list(Activation).index(c.activation),
                gated=c.gated,
                rotary=c.rotary,
                embed_norm=c.embed_norm,
                qk_norm=c.qk_norm,
            ),
            norm_eps=torch.finfo(torch.float32).eps if c.norm_eps is None else c.norm_eps,
            softcap=c.logit_softcap or 0.0,
            sinks=c.sinks,
            layer=ctypes.addressof(self.layers),
        )
        for i, layer in enumerate(self.layers):
            layer.window = c.window_of(i) or 0
        self.address = ctypes.addressof(self.decoder)

    def pack(self, w: Weights) -> None:
        """Pack these weights, (out, in) float32 on the CPU, reusing the memory of the last call.

        Raises ValueError for a weight that is NaN or infinite, as `check_numbers` does.
        """
        self.held = []
        parts = 2 if self.config.gated else 1
        for i, (layer, c) in enumerate(zip(w.layers, self.layers, strict=True)):
            c.norm1 = self._affine(layer.norm1)
            c.norm2 = self._affine(layer.norm2)
            c.query_norm = self._affine(layer.query_norm)
            c.key_norm = self._affine(layer.key_norm)
            c.qkv = self._matrix(f"{i}.qkv", layer.qkv)
            c.proj = self._matrix(f"{i}.proj", layer.proj)
            c.up = self._matrix(f"{i}.up", layer.up, parts)
            c.down = self._matrix(f"{i}.down", layer.down)
        d = self.decoder
        if w.tokens.data_ptr() != w.head.weight.data_ptr():  # a tied head is checked below
            check_numbers([w.tokens])
        if not self.config.rotary:
            check_numbers([w.positions])
        d.tokens = self._pointer(w.tokens)
        d.positions = self._pointer(w.positions)
        d.embed_norm = self._affine(w.embed_norm)
        d.norm = self._affine(w.norm)
        d.head = self._matrix("head", w.head)

    def rotate_to(self, rotations: Tensor) -> None:
        """Use this longer table of rotations from now on."""
        self.decoder.positions = self._pointer(rotations)

    @property
    def value_size(self) -> int:
        """Size of a cached value vector: the head size, rounded up to whole registers."""
        return up(self.config.head_size, self.lanes)

    def cache_sizes(self, blocks: int, block_len: int) -> tuple[int, int]:
        """The number of floats in the keys and in the values of these blocks."""
        slots = self.config.n_layer * blocks * self.config.kv_heads * up(block_len, self.lanes)
        return slots * self.config.head_size, slots * self.value_size

    def _affine(self, a: Affine) -> CAffine:
        check_numbers(t for t in a if t is not None)
        return CAffine(*(None if t is None else self._pointer(t) for t in a))

    def _matrix(self, name: str, a: Affine, parts: int = 1) -> CMatrix:
        """Pack a matrix, if it has changed. With gates it has two parts, each of whole panels."""
        source, packed = self.matrices.get(name) or self._new_matrix(name, a, parts)
        # Read only during this call, so the owner may free the weights afterwards.
        tensors = [t.contiguous() for t in a if t is not None]
        threads = torch.get_num_threads()
        fingerprints = [
            self.lib.fingerprint_of(t.data_ptr(), t.numel() * t.itemsize, threads) for t in tensors
        ]
        if self.fingerprints.get(name) == fingerprints:
            return packed
        check_numbers(tensors)
        source.weight = tensors[0].data_ptr()
        source.bias = None if a.bias is None else tensors[1].data_ptr()
        self.lib.pack_matrix(ctypes.addressof(source), threads)
        source.weight = source.bias = None
        self.fingerprints[name] = fingerprints
        return packed

    def _new_matrix(self, name: str, a: Affine, parts: int) -> tuple[CSource, CMatrix]:
        """Allocate the panels, scales and bias of a matrix."""
        n, K = a.weight.shape
        rows = parts * up(n // parts, self.lanes)
        scales = bias = None
        if self.bits == 32:
            panels = self._memory((rows, K), FLOAT)
        else:
            panels = self._memory((rows, up(K, 2)), INT8)
            scales = self._memory((rows, -(-K // self.group)), FLOAT)
        if a.bias is not None:
            bias = self._memory((rows,), FLOAT)
        group = self.group if self.by_group else K
        source = CSource(None, None, panels, scales, bias, n, K, parts, group)
        self.matrices[name] = source, CMatrix(panels, scales, bias)
        return self.matrices[name]

    def _memory(self, shape: tuple[int, ...], kind: dict) -> int:
        memory = torch.empty(shape, **kind)
        self.lib.use_huge_pages(memory.data_ptr(), memory.nbytes)
        self.memory.append(memory)
        return memory.data_ptr()

    def _pointer(self, x: Tensor) -> int:
        x = x.contiguous()
        self.held.append(x)
        return x.data_ptr()


def weights_of(w: Weights) -> Iterable[Tensor]:
    """All tensors of the weights."""
    affines = [w.embed_norm, w.norm, w.head]
    for layer in w.layers:
        affines += layer
    tensors = [w.tokens, w.positions]
    for affine in affines:
        tensors += affine
    return [t for t in tensors if t is not None]


def check_numbers(weights: Iterable[Tensor]) -> None:
    """Raises ValueError for a weight that is NaN or +inf, which native code does not support.

    Weights are float32 on the CPU. -inf is allowed: as a bias of the head it means a token that is
    never sampled.
    """
    lib = decoder_library()
    threads = torch.get_num_threads()
    for weight in weights:
        weight = weight.contiguous()
        if not lib.are_numbers(weight.data_ptr(), weight.numel(), threads):
            raise ValueError(
                "a weight is NaN or infinite, which native code does not support: use Flat"
            )
