"""Key/value caches. Knows tensors and positions; nothing of models or text.

A cache is one method: `update(k, v, pos) -> k, v, k_pos` stores the new rows and returns all
rows that it holds, with the position of each. `rewind(n)` takes the last n back. Row layout is free:
(B, T, hs) for one of the lecture's heads, (B, H, T, hs) for all heads at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor


class KVCache(ABC):
    """What every design shares: the rows, their positions, and the checks."""

    def __init__(self, max_len: int | None = None):
        if max_len is not None and (not isinstance(max_len, int) or max_len < 1):
            raise ValueError(
                f"max_len={max_len!r}: a cache has room for a whole number of rows, at least 1"
            )
        self.max_len = max_len
        self.reset()

    def reset(self) -> None:
        """Forget everything; the next update starts a new text of any batch size."""
        self.k = self.v = self.pos = None
        self.kind = None  # what every row of this text is: leading dimensions, size, dtype, device
        self.length = 0  # rows written
        self.last = -1  # the position written last, where looking at it is free

    @abstractmethod
    def update(self, k: Tensor, v: Tensor, pos: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(…, T, hs), (…, T, hs), (T,) -> (…, S, hs), (…, S, hs), (S,): all rows and their positions."""

    def rows(self) -> tuple[Tensor, Tensor]:
        """K and V as they are held, reserved rows included."""
        return self.k, self.v

    def rewind(self, n: int) -> None:
        """Forget the last n rows, as if they had never come. Raises ValueError before anything changes."""
        if not isinstance(n, int) or isinstance(n, bool) or not 0 <= n <= self.rewindable:
            raise ValueError(
                f"rewind({n!r}): this {type(self).__name__} can forget a whole number of rows from 0 to "
                f"{self.rewindable}, of {self.length} written"
            )
        length = self.length - n
        if length == 0:
            self.reset()
        elif n:
            self._forget(n)
            self.length = length
            if self.pos.device.type == "cpu":
                self.last = int(self.pos.max())

    @property
    def rewindable(self) -> int:
        """How many rows `rewind` can forget."""
        return self.length

    def _forget(self, n: int) -> None:
        if len(self.pos) > self.length:  # rows are reserved: empty slots again
            slots = self.pos.topk(n).indices
            self.k.index_fill_(-2, slots, 0)
            self.v.index_fill_(-2, slots, 0)
            self.pos.index_fill_(0, slots, -1)
        else:  # grown to its length, or full: only what stays has come
            k, v, pos = self.k[..., :-n, :], self.v[..., :-n, :], self.pos[:-n]
            self.reset()
            self.update(k, v, pos)

    @property
    def nbytes(self) -> int:
        """Bytes of the K and V rows held or reserved, measured from the tensors."""
        return 0 if self.k is None else self.k.nbytes + self.v.nbytes

    def _check(self, k: Tensor, v: Tensor, pos: Tensor) -> None:
        if not all(isinstance(x, Tensor) for x in (k, v, pos)) or k.ndim < 2:
            raise ValueError(
                "keys, values and positions are tensors: rows (…, T, hs), twice, and places (T,)"
            )
        if pos.dtype not in (torch.int64, torch.int32):
            raise ValueError(
                f"the positions are {pos.dtype}: places in a text are integers (torch.int64)"
            )
        if k.shape != v.shape or pos.shape != k.shape[-2:-1]:
            raise ValueError(
                f"keys {tuple(k.shape)}, values {tuple(v.shape)} and positions {tuple(pos.shape)} do "
                f"not belong together: k and v need one shape, pos one entry for each of their rows"
            )
        if k.dtype != v.dtype or k.device != v.device:
            raise ValueError(
                f"the keys are {k.dtype} on {k.device}, the values {v.dtype} on {v.device}: both need one "
                f"dtype and one device"
            )
        self._check_order(pos)
        new = _kind(k)
        held = new if self.k is None else self.kind
        if held[:2] != new[:2]:
            old, rows = (str((*kind[0], "rows", kind[1])).replace("'", "") for kind in (held, new))
            raise ValueError(
                f"this cache holds rows of shape {old}, the new ones are {rows}: one text "
                f"keeps one batch and head size; call reset() before another text"
            )
        if held != new:
            raise ValueError(
                f"this cache holds {held[2]} on {held[3]}, the new rows are {new[2]} on "
                f"{new[3]}: call reset() after moving or casting the model"
            )

    def _check_order(self, pos: Tensor) -> None:
        # Only where looking at the numbers is free: on a GPU it would stop the queue at every layer.
        if pos.device.type != "cpu" or len(pos) == 0:
            return
        if len(pos) > 1 and not bool((pos[1:] > pos[:-1]).all()):
            raise ValueError(
                f"positions {pos.tolist()} do not ascend: pass rows in the order of the text"
            )
        if int(pos[0]) <= self.last:
            raise ValueError(
                f"position {int(pos[0])} comes after position {self.last} is already cached: "
                f"pass the places in the whole text, or reset() before a new one"
            )

    def _count(self, k: Tensor, pos: Tensor) -> None:
        self.kind = _kind(k)
        self.length += len(pos)
        if pos.device.type == "cpu" and len(pos):
            self.last = int(pos[-1])


def _kind(rows: Tensor) -> tuple:
    return tuple(rows.shape[:-2]), rows.shape[-1], rows.dtype, rows.device
