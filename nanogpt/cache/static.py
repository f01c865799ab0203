"""A cache that is allocated once."""

from __future__ import annotations

from torch import Tensor

from .base import KVCache


class StaticCache(KVCache):
    """Allocated once for max_len rows; a token is written at its own position.

    Slots not yet written carry position -1, so `visible` hides them, and hold zeros, because a
    weight of 0 times an uninitialised NaN would still be NaN.
    """

    def update(self, k, v, pos):
        self._check(k, v, pos)
        self._check_room(pos)
        if self.k is None:
            room = (*k.shape[:-2], self.max_len, k.shape[-1])
            self.k, self.v = k.new_zeros(room), v.new_zeros(room)
            self.pos = pos.new_full((self.max_len,), -1)
        self.k.index_copy_(-2, pos, k)
        self.v.index_copy_(-2, pos, v)
        self.pos.index_copy_(0, pos, pos)
        self._count(k, pos)
        return self.k, self.v, self.pos

    def _check_room(self, pos: Tensor) -> None:
        if self.max_len is None:
            raise ValueError(
                "StaticCache needs max_len, the number of rows to reserve: StaticCache(256)"
            )
        last = int(pos[-1]) if pos.device.type == "cpu" and len(pos) else self.length + len(pos) - 1
        if last >= self.max_len:
            raise ValueError(
                f"StaticCache has room for {self.max_len} positions (0 to {self.max_len - 1}) and was "
                f"given position {last}: build it with max_len of at least {last + 1}"
            )
