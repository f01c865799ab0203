"""The parameters of a Decoder, and the tensors of a file that hold them, by the rows of `Names`.

A file may store a parameter in pieces, transposed, with its rows in another order, or below rows
that no token reads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..decoder.config import DecoderConfig
from ..decoder.layout import PartKind, WeightPart, block_parts, outer_parts
from .families import Names, Rotation


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


# ------------------------------------------------------------------ between a file and a Decoder


def stored_shapes(
    part: Part, names: Names, tensors: Collection[str] = ()
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The name and shape, in a file, of each tensor that makes up a parameter.

    `tensors` are the names in the file: where it has the name of a whole stack, that is the one.
    """
    modules = names.modules[part.module]
    stacked = names.stacked.get(part.module, "").format(i=part.layer)
    if f"{stacked}.{part.kind}" in tensors:
        modules = (stacked,)
    rows = [shape[0] for shape in part.shapes]
    if len(modules) != len(rows):  # the file also stacks them, or has each head on its own
        rows = [sum(rows) // len(modules)] * len(modules)
    unread = names.unread_rows.get(part.module, 0)
    for module, n in zip(modules, rows, strict=True):
        shape = (n + unread, *part.shapes[0][1:])
        turned = names.transposed and part.matrix
        yield f"{module.format(i=part.layer)}.{part.kind}", shape[::-1] if turned else shape


def from_file(
    part: Part, pieces: Iterator[Tensor], names: Names, c: DecoderConfig, dtype: torch.dtype
) -> Tensor:
    """A Decoder's parameter, its pieces in the file stacked along the rows.

    The pieces come one at a time, so that no two are in memory.
    """
    rows = sum(shape[0] for shape in part.shapes)
    filled = torch.empty((rows, *part.shapes[0][1:]), dtype=dtype)
    start = 0
    for piece in pieces:
        tensor = piece.t() if names.transposed and part.matrix else piece
        tensor = tensor[names.unread_rows.get(part.module, 0) :]
        filled[start : start + len(tensor)] = tensor
        start += len(tensor)
    if part.module.endswith(".sa.qkv"):
        turned = part.shapes[0][0] + part.shapes[1][0]  # rows of queries and keys
        _turn(filled[:turned], names.rotation, c.head_size)
    return filled


def to_file(part: Part, tensor: Tensor, names: Names, c: DecoderConfig) -> dict[str, Tensor]:
    """The tensors of a file that make up a Decoder's parameter: the inverse of `from_file`."""
    if part.module.endswith(".sa.qkv") and names.rotation is not Rotation.HALVES:
        if names.rotation is not Rotation.BACKWARDS:
            raise NotImplementedError(f"no file is written with rotations {names.rotation.value}")
        tensor = tensor.clone()
        _turn(tensor[: part.shapes[0][0] + part.shapes[1][0]], names.rotation, c.head_size)
    found: dict[str, Tensor] = {}
    start = 0
    unread = names.unread_rows.get(part.module, 0)
    for name, shape in stored_shapes(part, names):
        turned = names.transposed and part.matrix
        rows = (shape[::-1] if turned else shape)[0] - unread
        piece = tensor[start : start + rows]
        start += rows
        if turned:
            piece = piece.t()
        if unread:
            piece = torch.cat([piece.new_zeros(unread, *piece.shape[1:]), piece])
        found[name] = piece.contiguous()
    return found


def _turn(rows: Tensor, rotation: Rotation, head_size: int) -> None:
    """Reorder or negate rows of queries and keys in place.  (heads · hs, …)"""
    if rotation is Rotation.NEIGHBOURS:
        pairs = rows.unflatten(0, (-1, head_size // 2, 2))  # (heads, hs / 2, 2, …)
        rows.copy_(pairs.transpose(1, 2).reshape(rows.shape))
    elif rotation is Rotation.BACKWARDS:
        # Negating the second coordinate of each pair turns θ into -θ. It is its own inverse.
        heads = rows.unflatten(0, (-1, 2, head_size // 2))  # (heads, 2, hs / 2, …)
        heads[:, 1].neg_()
