"""Memory for KV blocks: how many blocks fit, and zeros that are allocated lazily."""

from __future__ import annotations

import mmap
from math import prod

import torch
from torch import Tensor

from ..kv_referee.memory import available_memory
from ..model import LanguageModel


def fitting_blocks(model: LanguageModel, block_len: int, most: int) -> int:
    """How many blocks fit into half of the available memory, at most `most`.

    The other half is for the steps' own tensors and for other programs. Raises ValueError if not
    even one fits.
    """
    # 1. How much memory is there, where the model is?
    if model.device.type == "cuda":
        available: int | None = torch.cuda.mem_get_info(model.device)[0]
    else:
        available = available_memory()
    if available is None:  # the system does not report it
        return most
    # 2. How many blocks is half of it? A block holds keys and values of all layers.
    size = model.cache_bytes(block_len)
    if available < 2 * size:
        raise ValueError(
            f"a block of {block_len} positions takes {size:,} bytes, more than half of the "
            f"{available:,} available: close other programs, or set n_blocks"
        )
    return min(most, available // (2 * size))


def unused_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros that, on the CPU, the system allocates page by page when first written to.

    torch.zeros would write to all pages at once. A server's blocks take gigabytes for a large
    model, and the first chats need only a few of them.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    n_bytes = prod(shape) * dtype.itemsize
    pages = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=dtype).view(shape)
