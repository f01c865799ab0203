"""Read GGUF, llama.cpp's format: the header here, the tensors with the `gguf` package.

The package's own reader trusts the header: a file of a few bytes that announces 2⁶⁰ numbers keeps
it busy until memory runs out, so a check would have to read the whole header first. And it makes
several NumPy arrays of every token: for a vocabulary of 150,000, 9.4 s and 600 MB against 0.2 s and
30 MB here. So the header is read here, each length with an upper bound. Layout of the format:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import re
import shlex
import struct
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from ..console import first_line
from ..decoder.identify import identify
from .needs import PretrainedError, needed, shown, shown_value
from .stored import AGAIN, Stored, Tensors

MAGIC = b"GGUF"
# The names that llama.cpp gives the parts of a split model.
SPLIT_NAME = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)
VERSIONS = (2, 3)
LONGEST_HEADER = 64 * 2**20  # bytes; a vocabulary of 256,000 tokens takes 10 MB
MOST_ELEMENTS = 2**22  # of one array
MOST_TENSORS = 2**16
STRING = 8
ARRAY = 9
# The value types of metadata by their numbers, as numpy reads them.
NUMBERS = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?"}
NUMBERS |= {10: "<u8", 11: "<i8", 12: "<f8"}


def how_to_join(part: str) -> str:
    """What to do about one part of a split model: the command that joins them."""
    named = SPLIT_NAME.search(part)
    stem = part[: named.start()] if named else Path(part).stem
    first = f"{stem}-00001-of-{named[2]}.gguf" if named else "FIRST.gguf"
    command = shlex.join(["llama-gguf-split", "--merge", first, f"{stem}.gguf"])
    return f"run `{command}` (it comes with llama.cpp), and name the joined file"


@dataclass(frozen=True)
class GGUF:
    """A GGUF file: its metadata by name, and its tensors."""

    path: Path
    metadata: dict[str, Any]
    tensors: Tensors


class _Damaged(Exception):
    """A short description of what is wrong with a header."""


class _Header:
    """Reads a header sequentially, never past its end or its bound."""

    def __init__(self, file: BinaryIO, size: int):
        self.file = file
        self.left = min(size, LONGEST_HEADER)
        self.cut = size <= LONGEST_HEADER

    def take(self, n: int) -> bytes:
        if n > self.left:
            what = "the file ends there" if self.cut else "that is beyond any header"
            raise _Damaged(f"{n:,} bytes announced at {self.file.tell():,}, and {what}")
        self.left -= n
        data = self.file.read(n)
        if len(data) != n:
            raise _Damaged(f"the file ends at {self.file.tell():,}")
        return data

    def number(self, kind: str = "<u8") -> Any:
        return np.frombuffer(self.take(np.dtype(kind).itemsize), kind)[0].item()

    def text(self) -> str:
        """A string. What is not UTF-8 becomes a replacement character."""
        length = int.from_bytes(self.take(8), "little")  # a vocabulary has many: faster than number
        return self.take(length).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.text()
        if kind in NUMBERS:
            return self.number(NUMBERS[kind])
        if kind != ARRAY:
            raise _Damaged(f"a value of the unknown type {kind}")
        inner = self.number("<u4")
        n = self.number()
        if n > MOST_ELEMENTS:
            raise _Damaged(f"an array of {n:,} elements, and the limit is {MOST_ELEMENTS:,}")
        if inner in NUMBERS:
            dtype = np.dtype(NUMBERS[inner])
            return np.frombuffer(self.take(n * dtype.itemsize), dtype).tolist()
        if inner == STRING:
            return [self.text() for _ in range(n)]
        raise _Damaged(f"an array of the type {inner}, which holds neither numbers nor strings")


def read_gguf(path: Path) -> GGUF:
    """The metadata and tensors of a GGUF file. Raises PretrainedError, and ModuleNotFoundError."""
    with needed("a GGUF file"):
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            header = _Header(file, size)
            metadata, announced = _read_header(header)
            start = file.tell()
    except (_Damaged, OSError, struct.error) as error:
        what = identify(path)[0]
        reason = f"is {what}" if what and "GGUF" not in what else f"is damaged: {error}"
        raise PretrainedError(f"{path} {reason}; name a whole GGUF file") from error
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 1 <= alignment <= 2**16:
        raise PretrainedError(
            f"{path}: general.alignment={shown_value(alignment)} is invalid: {AGAIN}"
        )
    start += -start % alignment
    tensors: Tensors = {}
    for name, shape, number, offset in announced:
        try:
            kind = GGMLQuantizationType(number)
        except ValueError:
            raise PretrainedError(
                f"{path}: {shown(name)} has the type {number}, unknown to the installed gguf "
                f"package: pip install -U gguf"
            ) from None
        per_block, block_bytes = GGML_QUANT_SIZES[kind]
        n_bytes = math.prod(shape) // per_block * block_bytes
        if shape[-1] % per_block:
            raise PretrainedError(
                f"{path}: {shown(name)} has rows of {shape[-1]:,} numbers, and {kind.name} has "
                f"blocks of {per_block}: {AGAIN}"
            )
        if start + offset + n_bytes > size:
            end = start + offset + n_bytes
            raise PretrainedError(
                f"{path} is truncated: {shown(name)} should end at byte {end:,}, and the file has "
                f"{size:,}: {AGAIN}"
            )
        floating = kind.name not in ("I8", "I16", "I32", "I64")
        read = partial(_expanded, path, name, shape, number, start + offset, n_bytes)
        tensors[name] = Stored(name, shape, kind.name, floating, read)
    return GGUF(path, metadata, tensors)


Announced = list[tuple[str, tuple[int, ...], int, int]]  # name, shape, number of the type, offset


def _read_header(header: _Header) -> tuple[dict[str, Any], Announced]:
    """The metadata, and the names, shapes, types and offsets of the tensors. Raises _Damaged."""
    if header.take(4) != MAGIC:
        raise _Damaged("it does not begin with GGUF")
    version = header.number("<u4")
    if version not in VERSIONS:
        swapped = "; it is a big-endian file" if version >= 2**16 else ""
        raise _Damaged(f"version {version} is not 2 or 3{swapped}")
    n_tensors = header.number()
    n_values = header.number()
    if n_tensors > MOST_TENSORS:
        raise _Damaged(f"{n_tensors:,} tensors, and the limit is {MOST_TENSORS:,}")
    metadata: dict[str, Any] = {}
    for _ in range(n_values):  # each takes bytes, so the loop ends with the file
        name = header.text()
        if name in metadata:
            raise _Damaged(f"{name!r:.80} occurs twice")
        metadata[name] = header.value(header.number("<u4"))
    announced: Announced = []
    for _ in range(n_tensors):
        name = header.text()
        n_dims = header.number("<u4")
        if not 1 <= n_dims <= 4:
            raise _Damaged(f"{name!r:.80} has {n_dims:,} dimensions, not 1 to 4")
        sizes = [header.number() for _ in range(n_dims)]
        if not all(1 <= size < 2**31 for size in sizes):
            raise _Damaged(f"{name!r:.80} has the sizes {sizes}")
        kind = header.number("<u4")
        offset = header.number()
        announced.append((name, tuple(reversed(sizes)), kind, offset))
    if len({name for name, *_ in announced}) != len(announced):
        raise _Damaged("a tensor occurs twice")
    return metadata, announced


def _expanded(
    path: Path, name: str, shape: tuple[int, ...], number: int, start: int, n_bytes: int
) -> Tensor:
    """The values of one tensor, dequantized to float32 if it is stored in blocks."""
    from gguf import quants
    from gguf.constants import GGMLQuantizationType

    kind = GGMLQuantizationType(number)
    data = np.fromfile(path, np.uint8, n_bytes, offset=start)
    if len(data) != n_bytes:
        raise PretrainedError(f"{path} is truncated in {shown(name)}: {AGAIN}")
    if kind.name == "BF16":
        return torch.from_numpy(data).view(torch.bfloat16).view(shape)
    plain = {"F16": np.float16, "F32": np.float32, "F64": np.float64}
    if kind.name in plain:
        return torch.from_numpy(data.view(plain[kind.name])).view(shape)
    rows = data.reshape(*shape[:-1], -1)
    try:
        with np.errstate(all="ignore"):  # damaged scales: the caller checks for NaN
            return torch.from_numpy(np.ascontiguousarray(quants.dequantize(rows, kind)))
    except (NotImplementedError, ValueError, AssertionError) as error:
        raise PretrainedError(
            f"{path}: {shown(name)} is {kind.name}, which gguf cannot expand "
            f"({first_line(error)}): use a file with another quantization, such as Q8_0"
        ) from error
