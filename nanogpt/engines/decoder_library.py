"""ctypes bindings of decoder.cpp: its structs, and a decoder's weights in its memory layout.

The structs and functions declared here are all that Python and C++ share. Their C++ text is written
from these declarations when decoder.cpp is compiled (shared_types.py).
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable
from dataclasses import fields
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

import torch
from torch import Tensor

from ..decoder.config import DecoderConfig
from ..decoder.layout import PartKind, WeightPart, block_parts, outer_parts
from ..decoder.step import Affine, Weights, named_tensors
from ..timing import CPU
from .shared_types import Function, address, declarations, declare, index
from .toolchain import load_library

SOURCE = Path(__file__).with_name("decoder.cpp")
HELPERS = Path(__file__).with_name("helpers.cpp")

INT = ctypes.c_int64
DOUBLE = ctypes.c_double
FLOATS = address("float *")
FLOATS_READ = address("const float *")
INTS = address("int64_t *")
INTS_READ = address("const int64_t *")
BYTES = address("void *")
BYTES_READ = address("const void *")

# ------------------------------------------------------------------ the config

# Fields that may be None, and the properties that then have the usual number.
NUMBER_OF = {"n_kv_head": "kv_heads", "head_dim": "head_size", "ffn_dim": "hidden"}


def config_fields() -> dict[str, Any]:
    """The fields of a DecoderConfig that native code can read, with their ctypes types.

    Left out is what is no number, a truth value or an enum: RopeScaling, which only the table of
    rotations depends on.
    """
    hints = get_type_hints(DecoderConfig)
    plain: dict[Any, Any] = {int: INT, float: DOUBLE, bool: ctypes.c_bool}
    found: dict[str, Any] = {}
    for field in fields(DecoderConfig):
        hint = hints[field.name]
        # `int | None` is an int: None becomes 0, or the usual number.
        kind = (get_args(hint) or (hint,))[0]
        name = NUMBER_OF.get(field.name, field.name)
        if issubclass(kind, Enum):
            found[name] = index(kind)
        elif kind in plain:
            found[name] = plain[kind]
    return found


def enums_of_config() -> list[type[Enum]]:
    """The enums of a DecoderConfig's fields."""
    kinds = get_type_hints(DecoderConfig).values()
    return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Enum)]


class CConfig(ctypes.Structure):
    """A DecoderConfig. 0 stands for None: no window, no softcap."""

    _fields_ = list(config_fields().items())

    @classmethod
    def of(cls, c: DecoderConfig) -> CConfig:
        """The struct of a config."""
        values = {name: getattr(c, name) for name in config_fields()}
        if c.norm_eps is None:  # PyTorch's default
            values["norm_eps"] = torch.finfo(torch.float32).eps
        return cls(**{name: _number(value) for name, value in values.items()})


def _number(value: Any) -> Any:
    """A field's value in C++: an enum's index, and 0 for None."""
    if isinstance(value, Enum):
        return list(type(value)).index(value)
    return 0 if value is None else value


# ------------------------------------------------------------------ weights


class CMatrix(ctypes.Structure):
    """A matrix (n, K) in panels."""

    _fields_ = [
        ("w", BYTES_READ),
        ("scales", FLOATS_READ),  # with 8 bits: of each row
        ("bias", FLOATS_READ),  # zero-padded to whole panels; or null
    ]


class CSource(ctypes.Structure):
    """What a matrix is packed from and into."""

    _fields_ = [
        ("weight", FLOATS_READ),  # (n, K)
        ("bias", FLOATS_READ),  # (n,) or null
        ("panels", BYTES),
        ("scales", FLOATS),  # null: panels of float32
        ("padded_bias", FLOATS),
        ("n", INT),
        ("K", INT),
        ("parts", INT),  # matrices of equal size, one below the other, each of whole panels
    ]


class CAffine(ctypes.Structure):
    """The weight and bias of a norm; each may be null."""

    _fields_ = [("weight", FLOATS_READ), ("bias", FLOATS_READ)]


# How native code holds a part of the layout.
HELD = {PartKind.TABLE: FLOATS_READ, PartKind.NORM: CAffine, PartKind.MATRIX: CMatrix}


def part_fields(parts: list[WeightPart]) -> list[tuple[str, Any]]:
    """A field for each part, by its name in the layout."""
    return [(part.name, HELD[part.kind]) for part in parts]


class CLayer(ctypes.Structure):
    """One block: the parts of `block_parts`."""

    _fields_ = [
        *part_fields(block_parts(DecoderConfig())),
        ("window", INT),  # positions that a query sees, including its own; 0: all
    ]


class CDecoder(ctypes.Structure):
    """A decoder: its config, the parts of `outer_parts`, and its blocks."""

    _fields_ = [
        ("config", CConfig),
        ("bits", INT),  # of a weight in a matrix: 32 or 8
        # tokens (vocab_size, n_embd), positions (…, n_embd) or rotations (…, 2 · head_size)
        *part_fields(outer_parts(DecoderConfig())),
        ("layer", address("const Layer *")),
    ]


# ------------------------------------------------------------------ texts


class CCache(ctypes.Structure):
    """Keys and values of all sequences."""

    _fields_ = [
        ("keys", FLOATS),  # (layers, blocks, kv_heads, panels, head_size, LANES)
        ("values", FLOATS),  # (layers, blocks, kv_heads, panels · LANES, value_size)
        ("blocks", INT),
        ("block_len", INT),  # positions in a block
    ]


class CSequence(ctypes.Structure):
    """One text, how to sample its tokens, and where its keys and values are."""

    _fields_ = [
        ("tokens", INTS),  # the prompt, followed by the sampled tokens
        ("table", INTS_READ),  # the numbers of its blocks
        ("noise", FLOATS_READ),  # a row for each new token, or null for greedy decoding
        ("noise_stride", INT),
        ("noise_from", INT),  # the position whose token the first row of noise samples
        ("top_k", INT),  # 0: all tokens
        ("temperature", DOUBLE),
        ("top_p", DOUBLE),
        ("stops", INTS_READ),  # tokens that may not be sampled before `stops_from`
        ("n_stops", INT),
        ("stops_from", INT),
    ]


class CTurn(ctypes.Structure):
    """What a sequence does in a call.

    It reads its tokens start … start + count - 1; the keys and values of the first `cached` tokens
    are already in the cache. Then it decodes until `steps` tokens are sampled; 0: it only reads.
    The last `wanted` of the rows that it reads first produce logits.
    """

    _fields_ = [
        ("sequence", address("Sequence *")),
        ("start", INT),
        ("count", INT),
        ("cached", INT),
        ("steps", INT),
        ("wanted", INT),
    ]


# ------------------------------------------------------------------ the libraries

STRUCTS: list[type[ctypes.Structure]] = [CConfig, CMatrix, CSource, CAffine, CLayer, CDecoder]
STRUCTS += [CCache, CSequence, CTurn]
# The decoder, the cache, the working memory, the turns and their number.
_PASS = [address("const Decoder *"), address("const Cache *"), BYTES, address("const Turn *"), INT]
DECODER_FUNCTIONS = {
    "lanes": Function(INT, []),
    "are_numbers": Function(INT, [FLOATS_READ, INT, INT]),
    "set_least_work": Function(INT, [INT]),
    "fingerprint_of": Function(ctypes.c_uint64, [BYTES_READ, INT, INT]),
    "new_work": Function(BYTES, []),
    "delete_work": Function(None, [BYTES]),
    "use_huge_pages": Function(None, [address("char *"), INT]),
    "pack_matrix": Function(None, [address("const Source *"), INT]),
    "run_steps": Function(None, [*_PASS, INT, INT, FLOATS, INTS, INT]),
    "check": Function(None, [*_PASS, FLOATS, INTS, INT]),
}
HELPER_FUNCTIONS = {
    "quantize": Function(None, [FLOATS_READ, INT, INT, address("int8_t *"), FLOATS]),
    "read_all": Function(ctypes.c_float, [FLOATS_READ, INT, INT]),
    "multiply_adds": Function(INT, [INT, FLOATS]),
}


def decoder_header() -> str:
    """The C++ text of what decoder.cpp shares with this module."""
    return declarations(enums_of_config(), STRUCTS, DECODER_FUNCTIONS)


def helpers_header() -> str:
    """The same for helpers.cpp, which knows no model."""
    return declarations(enums_of_config(), [], HELPER_FUNCTIONS)


@lru_cache(maxsize=1)
def decoder_library() -> ctypes.CDLL:
    """The compiled decoder.cpp, built if needed. Raises CannotBuild."""
    library = load_library("decoder", SOURCE, decoder_header())
    return declare(library, DECODER_FUNCTIONS)


@lru_cache(maxsize=1)
def helpers_library() -> ctypes.CDLL:
    """The compiled helpers.cpp (functions without a model), built if needed. Raises CannotBuild."""
    library = load_library("helpers", HELPERS, helpers_header())
    return declare(library, HELPER_FUNCTIONS)


def floats(*shape: int) -> Tensor:
    """Memory for float32 numbers, whatever torch's default dtype is."""
    return torch.empty(shape, dtype=torch.float32, device=CPU)


def integers(*shape: int) -> Tensor:
    """Memory for 64-bit integers."""
    return torch.empty(shape, dtype=torch.int64, device=CPU)


def up(n: int, to: int) -> int:
    """n, rounded up to a multiple of `to`."""
    return -(-n // to) * to


class Work:
    """The working memory of decoder.cpp. It grows as needed and is freed with this object."""

    def __init__(self) -> None:
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

    All of it is a copy, so that a text is decoded with the weights as they were at its start, even
    if the model is trained or loaded meanwhile. A matrix (in panels, see kernels.h) or a table that
    has not changed since the last call is not copied again: a 64-bit hash of its bits tells, so it
    also sees edits that no version counter sees.
    """

    def __init__(self, c: DecoderConfig, bits: int = 32):
        self.bits = bits
        self.lib = decoder_library()
        self.lanes = self.lib.lanes()
        self.config = c
        self.memory: list[Tensor] = []  # the packed copies
        self.matrices: dict[str, tuple[CSource, CMatrix]] = {}
        self.fingerprints: dict[str, list[int]] = {}  # of a part's tensors, once copied
        self.hashes: dict[tuple[int, int], int] = {}  # of this call, by address and size
        self.read: list[Tensor] = []  # what this call has read
        self.tables: dict[str, Tensor] = {}  # the copies of embeddings
        self.held: list[Tensor] = []  # the copies of norms, and the rotations, kept alive
        self.layers = (CLayer * c.n_layer)()
        self.outer_parts = outer_parts(c)
        self.block_parts = block_parts(c)
        self.decoder = CDecoder(
            config=CConfig.of(c), bits=bits, layer=ctypes.addressof(self.layers)
        )
        for i, layer in enumerate(self.layers):
            layer.window = c.window_of(i) or 0
        self.address = ctypes.addressof(self.decoder)

    def pack(self, w: Weights) -> None:
        """Pack these weights, (out, in) float32 on the CPU, reusing the memory of the last call.

        Raises ValueError for a weight that is NaN or infinite; the head's bias may be -inf.
        """
        self.held = []
        self.hashes = {}
        # 1. the blocks
        for i, (layer, struct) in enumerate(zip(w.layers, self.layers, strict=True)):
            for part in self.block_parts:
                held = self._part(f"{i}.{part.name}", part, getattr(layer, part.name))
                setattr(struct, part.name, held)
        # 2. what surrounds them: the head is a matrix too, the embeddings are tables
        for part in self.outer_parts:
            setattr(self.decoder, part.name, self._part(part.name, part, getattr(w, part.name)))
        # 3. The owner of the weights may change or free them from now on.
        self.read = []

    def _part(self, name: str, part: WeightPart, given: Any) -> CMatrix | CAffine | int:
        """A part of the weights as native code holds it."""
        if part.kind is PartKind.MATRIX:
            return self._matrix(name, given, part.stacked)
        if part.kind is PartKind.NORM:
            return self._affine(given)
        # Rotations are numbers of our own, which nobody changes.
        return self._table(name, given) if part.weight else self._pointer(given)

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
        return CAffine(*(None if t is None else self._pointer(t.clone()) for t in a))

    def _table(self, name: str, table: Tensor) -> int:
        """Copy an embedding, if it has changed."""
        table = self._in_order(table)
        fingerprints = self._fingerprints([table])
        if self.fingerprints.get(name) != fingerprints:
            check_numbers([table])
            self.tables[name] = table.clone()
            self.fingerprints[name] = fingerprints
        return self.tables[name].data_ptr()

    def _in_order(self, x: Tensor) -> Tensor:
        """A contiguous tensor, kept until the end of `pack`, so that no other gets its address."""
        x = x.contiguous()
        self.read.append(x)
        return x

    def _fingerprints(self, tensors: list[Tensor]) -> list[int]:
        """A 64-bit hash of the bits of each contiguous tensor."""
        threads = torch.get_num_threads()
        found = []
        for tensor in tensors:
            # A tied table is also the head: its bits are read once for both.
            place = (tensor.data_ptr(), tensor.numel())
            if place not in self.hashes:
                size = tensor.numel() * tensor.itemsize
                self.hashes[place] = self.lib.fingerprint_of(tensor.data_ptr(), size, threads)
            found.append(self.hashes[place])
        return found

    def _matrix(self, name: str, a: Affine, parts: int = 1) -> CMatrix:
        """Pack a matrix, if it has changed. With gates it has two parts, each of whole panels."""
        # 1. Has it changed since the last call?
        source, packed = self.matrices.get(name) or self._new_matrix(name, a, parts)
        tensors = [self._in_order(t) for t in a if t is not None]
        fingerprints = self._fingerprints(tensors)
        if self.fingerprints.get(name) == fingerprints:
            return packed
        # 2. If so, copy it into its panels again.
        weight, *biases = tensors
        check_numbers([weight])
        for bias in biases:
            # A bias of -inf at the head means a token that is never sampled, and is only added.
            check_numbers([bias.masked_fill(bias == -torch.inf, 0) if name == "head" else bias])
        source.weight = tensors[0].data_ptr()
        source.bias = None if a.bias is None else tensors[1].data_ptr()
        self.lib.pack_matrix(ctypes.addressof(source), torch.get_num_threads())
        source.weight = source.bias = None
        self.fingerprints[name] = fingerprints
        return packed

    def _new_matrix(self, name: str, a: Affine, parts: int) -> tuple[CSource, CMatrix]:
        """Allocate the panels, scales and bias of a matrix."""
        assert a.weight is not None  # only norms may have none
        n, K = a.weight.shape
        rows = parts * up(n // parts, self.lanes)
        scales = bias = None
        if self.bits == 32:
            panels = self._memory((rows, K), torch.float32)
        else:
            panels = self._memory((rows, up(K, 2)), torch.int8)
            scales = self._memory((rows,), torch.float32)
        if a.bias is not None:
            bias = self._memory((rows,), torch.float32)
        source = CSource(None, None, panels, scales, bias, n, K, parts)
        self.matrices[name] = source, CMatrix(panels, scales, bias)
        return self.matrices[name]

    def _memory(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        memory = torch.empty(shape, dtype=dtype, device=CPU)
        self.lib.use_huge_pages(memory.data_ptr(), memory.nbytes)
        self.memory.append(memory)
        return memory.data_ptr()

    def _pointer(self, x: Tensor) -> int:
        x = x.contiguous()
        self.held.append(x)
        return x.data_ptr()


def weights_of(w: Weights) -> Iterable[Tensor]:
    """All tensors of the weights."""
    return named_tensors(w).values()


def check_numbers(weights: Iterable[Tensor]) -> None:
    """Raises ValueError for a weight that is NaN or infinite, which native code does not support.

    Weights are float32 on the CPU.
    """
    lib = decoder_library()
    threads = torch.get_num_threads()
    for weight in weights:
        weight = weight.contiguous()
        if not lib.are_numbers(weight.data_ptr(), weight.numel(), threads):
            raise ValueError(
                "a weight is NaN or infinite, which native code does not support: use Flat"
            )
