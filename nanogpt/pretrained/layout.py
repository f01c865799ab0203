"""The parameters of a Decoder as files store them: which matrices are stacked in one of ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ..decoder.config import DecoderConfig
from ..decoder.layout import PartKind, WeightPart, block_parts, outer_parts


class Part(NamedTuple):
    """One parameter of a Decoder, and the shapes stacked in it."""

    module: str  # its key in `Names.modules`
    layer: int  # the index of its block; 0 outside the blocks
    kind: str  # "weight" or "bias"
    shapes: tuple[tuple[int, ...], ...]
    matrix: bool = False  # of a linear layer in a block

    @property
    def path(self) -> str:
        """Its name in the model's state_dict."""
        return f"{self.module.format(i=self.layer)}.{self.kind}"


def layout(c: DecoderConfig) -> Iterator[Part]:
    """Every parameter of a Decoder with this config; a tied head shares the embedding's.

    It is arithmetic, one block at a time, so that a hostile config allocates nothing.
    """
    for part in outer_parts(c):
        yield from _parameters(part, part.path, 0, (part.shape[0],))
    for i in range(c.n_layer):
        for part in block_parts(c):
            rows = _stacked_rows(part, c)
            matrix = part.kind is PartKind.MATRIX
            yield from _parameters(part, f"blocks.{{i}}.{part.path}", i, rows, matrix)


def _stacked_rows(part: WeightPart, c: DecoderConfig) -> tuple[int, ...]:
    """The rows of the matrices that others store on their own and we stack."""
    if part.path == "sa.qkv":
        return (c.n_head * c.head_size, c.kv_heads * c.head_size, c.kv_heads * c.head_size)
    return (part.shape[0] // part.stacked,) * part.stacked  # the gates come first


def _parameters(
    part: WeightPart, module: str, i: int, rows: tuple[int, ...], matrix: bool = False
) -> Iterator[Part]:
    if part.weight and part.shares is None:
        shapes = tuple((n, *part.shape[1:]) for n in rows)
        yield Part(module, i, "weight", shapes, matrix)
    if part.bias:
        yield Part(module, i, "bias", tuple((n,) for n in rows))
