"""A cache as long as the attention window: a ring."""

from __future__ import annotations

import torch

from .base import KVCache


class RollingCache(KVCache):
    """A ring of the last `window` rows, and the first `sinks` beside it: it does not grow with the text.

    For attention with that window and those sinks (GPTConfig.window). A new row takes the place of the
    oldest, which no later query sees. Of several new rows the first may need what the last will push
    out, so all are returned, and only then the ring turns. What was returned is held until the next
    update, beside `nbytes`: by it the last update can be rewound, and no earlier one, up to all of its
    rows. Of an update of one row nothing is held, and it cannot be: every step would be slower for it.
    """

    rolls = True  # build_caches tells it the window of its module

    def __init__(self, window: int | None = None, sinks: int = 0):
        super().__init__(window)
        if window is None or not isinstance(sinks, int) or sinks < 0:
            raise ValueError(
                f"window={window!r}, sinks={sinks!r}: RollingCache needs the rows to keep, at least 1, and "
                f"how many of the first beside them: RollingCache(64)"
            )
        self.sinks = sinks

    def reset(self):
        super().reset()
        self.undo = None  # the ring before the last update, then its rows

    @property
    def rewindable(self):
        return 0 if self.undo is None else len(self.undo[2]) - len(self.pos)

    def _forget(self, n):
        T, (k, v, pos) = self.rewindable, self.undo
        held, stays = slice(len(self.pos)), slice(len(self.pos), len(pos) - n)
        self.k, self.v, self.pos = (
            x.clone() for x in (k[..., held, :], v[..., held, :], pos[held])
        )
        self.length, self.undo = self.length - T, None
        self.last = int(self.pos.max()) if pos.device.type == "cpu" else self.last
        if n < T:
            self.update(k[..., stays, :], v[..., stays, :], pos[stays])

    def update(self, k, v, pos):
        self._check(k, v, pos)
        if self.k is None:
            room = (*k.shape[:-2], self.sinks + self.max_len, k.shape[-1])
            self.k, self.v = k.new_zeros(room), v.new_zeros(room)
            self.pos = pos.new_full((room[-2],), -1)
        T, end = len(pos), self.length + len(pos)
        every = None  # of one new row it is enough to look at the ring with the row in it
        if T > 1:
            every = [
                torch.cat([self.k, k], -2),
                torch.cat([self.v, v], -2),
                torch.cat([self.pos, pos]),
            ]
        row = torch.arange(self.length, end)  # of the text; on the CPU, so that no queue is stopped
        slot = torch.where(row < self.sinks, row, self.sinks + (row - self.sinks) % self.max_len)
        stays = ((row < self.sinks) | (row >= end - self.max_len)).nonzero()[:, 0]
        slot, stays = slot[stays].to(k.device), stays.to(k.device)
        self.k.index_copy_(-2, slot, k.index_select(-2, stays))
        self.v.index_copy_(-2, slot, v.index_select(-2, stays))
        self.pos.index_copy_(0, slot, pos.index_select(0, stays))
        self._count(k, pos)
        self.undo = every
        return (self.k, self.v, self.pos) if every is None else tuple(every)
