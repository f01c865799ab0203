"""Every parameter of a decoder, declared once: its names, its shape, and the fields that decide.

From these tables come the parameter counts (config.py), the plain tensors of a step (pack.py), and
the structs of native code (engines/decoder_library.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from math import prod
from typing import Any

_Config = Any  # that of config.py, which counts with this module and so cannot be imported


class PartKind(Enum):
    """What a part does with its weight."""

    TABLE = "table"  # one row is read for each token
    MATRIX = "matrix"  # multiplies every token; (out, in), as in nn.Linear
    NORM = "norm"  # scales the elements of a normalised vector


@dataclass(frozen=True)
class WeightPart:
    """A layer with a weight, a bias or both. A decoder without it has the part with neither."""

    name: str  # the field of Weights or Layer in step.py
    path: str  # the module of Decoder that owns it
    kind: PartKind
    shape: tuple[int, ...]  # of its weight
    weight: bool = True
    bias: bool = False  # as many numbers as the weight has rows
    shares: str | None = None  # the part whose weight it uses instead of its own
    stacked: int = 1  # matrices of equal size, one below the other, that its weight consists of

    def parameters(self) -> Iterator[ParameterShape]:
        """The parameters that this part has."""
        table = self.kind is PartKind.TABLE
        if self.weight:
            name = self.name if table else f"{self.name}_weight"
            yield ParameterShape(name, f"{self.path}.weight", self.shape)
        if self.bias:
            yield ParameterShape(f"{self.name}_bias", f"{self.path}.bias", self.shape[:1])

    @property
    def n_weight(self) -> int:
        """Numbers in its weight."""
        return prod(self.shape) if self.weight else 0

    @property
    def n_bias(self) -> int:
        """Numbers in its bias."""
        return self.shape[0] if self.bias else 0


@dataclass(frozen=True)
class ParameterShape:
    """One tensor: `layers_0_qkv_weight` in a step, `blocks.0.sa.qkv.weight` in a state_dict."""

    name: str
    path: str
    shape: tuple[int, ...]


def outer_parts(c: _Config) -> list[WeightPart]:
    """The parts before and after the blocks, in the order of a step."""
    V, C = c.vocab_size, c.n_embd
    tied = "tokens" if c.tied else None
    return [
        WeightPart("tokens", "token_embedding_table", PartKind.TABLE, (V, C)),
        WeightPart(
            "positions",
            "position_embedding_table",
            PartKind.TABLE,
            (c.block_size, C),
            weight=not c.rotary,  # a step then gets a table of rotations, which nobody learns
        ),
        _norm(c, "embed_norm", "embed_norm", on=c.embed_norm),
        _norm(c, "norm", "ln_f"),
        WeightPart("head", "lm_head", PartKind.MATRIX, (V, C), bias=c.head_bias, shares=tied),
    ]


def block_parts(c: _Config) -> list[WeightPart]:
    """The parts of one block, in the order of a step."""
    C = c.n_embd
    heads = c.n_head * c.head_size
    gates = 2 if c.gated else 1  # the gates' rows come first
    up = (gates * c.hidden, C)
    return [
        _norm(c, "norm1", "ln1"),
        # Queries of all heads, then keys, then values.
        WeightPart("qkv", "sa.qkv", PartKind.MATRIX, (c.qkv_rows, C), bias=c.qkv_bias),
        _head_norm(c, "query_norm"),
        _head_norm(c, "key_norm"),
        WeightPart("proj", "sa.proj", PartKind.MATRIX, (C, heads), bias=c.proj_bias),
        _norm(c, "norm2", "ln2"),
        WeightPart("up", "ffwd.up", PartKind.MATRIX, up, bias=c.ffn_bias, stacked=gates),
        WeightPart("down", "ffwd.down", PartKind.MATRIX, (C, c.hidden), bias=c.ffn_bias),
    ]


def _norm(c: _Config, name: str, path: str, on: bool = True) -> WeightPart:
    """A norm of the config's kind over the width."""
    learned = on and c.norm_weights
    return WeightPart(name, path, PartKind.NORM, (c.n_embd,), learned, learned and c.norm_shifts)


def _head_norm(c: _Config, name: str) -> WeightPart:
    """An RMSNorm of every query or key."""
    return WeightPart(
        name, f"sa.{name}", PartKind.NORM, (c.head_size,), c.qk_norm and c.norm_weights
    )


def all_parts(c: _Config) -> Iterator[WeightPart]:
    """The parts before and after the blocks, then those of each block, with their full names."""
    yield from outer_parts(c)
    for i in range(c.n_layer):
        for part in block_parts(c):
            yield replace(part, name=f"layers_{i}_{part.name}", path=f"blocks.{i}.{part.path}")


@lru_cache(maxsize=16)  # every generation asks
def all_parameters(c: _Config) -> tuple[ParameterShape, ...]:
    """Every parameter of a decoder. A tied head is listed too, under its own name."""
    return tuple(parameter for part in all_parts(c) for parameter in part.parameters())


def counted(c: _Config) -> Iterator[tuple[int, WeightPart]]:
    """Each part and how often it occurs, without listing the blocks one by one."""
    for part in outer_parts(c):
        yield 1, part
    for part in block_parts(c):
        yield c.n_layer, part
