"""Memory for the blocks of keys and values: how much there is, and zeros that take none yet."""

from __future__ import annotations

import mmap
import sys
from math import prod

import torch
from torch import Tensor

from ..device import available_memory
from ..model import LanguageModel


def fitting_blocks(model: LanguageModel, block_len: int, most: int) -> int:
    """How many blocks half of the available memory holds, at most `most`.

    The other half is for the steps' own tensors, and for whatever else runs. Raises ValueError when
    it holds none.
    """
    if model.device.type == "cuda":
        available: int | None = torch.cuda.mem_get_info(model.device)[0]
    else:
        available = available_memory()
    if available is None:  # the system does not say
        return most
    size = model.cache_bytes(block_len)
    if available < 2 * size:
        raise ValueError(
            f"a block of {block_len} positions takes {size:,} bytes, and half of the "
            f"{available:,} that are available is less: close other programs, or give n_blocks"
        )
    return min(most, available // (2 * size))


def unused_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros. On the CPU the system gives each page when it is first written to.

    torch.zeros writes to all pages at once. A server's blocks are gigabytes for a large model, and
    the first chats need few of them.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    n_bytes = prod(shape) * dtype.itemsize
    if sys.platform == "win32":
        pages = mmap.mmap(-1, n_bytes)
    else:
        pages = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=dtype).view(shape)
