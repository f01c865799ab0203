"""A cache as long as the attention window: a ring."""

from __future__ import annotations

import torch
from torch import Tensor

from ..cache import KVCache
from ..config import check_int
from ..data import send


class RollingCache(KVCache):
    """A ring of the last `window` tokens, and the first `sinks` beside it: it does not grow.

    For attention with that window and those sinks (DecoderConfig.window). A new token takes the
    slot of the oldest, which no later query sees. The first of several new tokens may see what the
    last pushes out, so `update` returns the ring as it was and all new tokens. They are kept until
    the next update, beside `nbytes`, so the last update can be rewound, but no earlier one. An
    update of one token returns the ring, keeps nothing, and cannot be rewound: every step would
    pay.
    """

    rolls = True  # build_caches passes it the window of its module

    def __init__(self, window: int, sinks: int = 0):
        check_int("window", window, 1)
        check_int("sinks", sinks, 0)
        self.window = window
        self.sinks = sinks
        super().__init__(sinks + window)

    def reset(self) -> None:
        super().reset()
        # k, v and pos: the ring before the last update, then its tokens.
        self.undo: tuple[Tensor, Tensor, Tensor] | None = None

    @torch.inference_mode(False)  # what it allocates is written to in later steps, in any mode
    def store(self, k: Tensor, v: Tensor, pos: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # 1. The slots are made at the first tokens, `sinks` fixed ones and a ring of `window`.
        first = self.k is None
        if first:
            self.reserve(k, v, pos)
        # 2. Several new tokens: the ring as it is, and they behind it, are what attention needs,
        #    since the first of them still sees tokens that the last of them pushes out.
        self.undo = None
        if pos.shape[0] > 1:
            ring_k = torch.cat([self.k, k], dim=-2)
            ring_v = torch.cat([self.v, v], dim=-2)
            ring_pos = torch.cat([self.pos, pos])
            self.undo = (ring_k, ring_v, ring_pos)
        # 3. Write those that stay into their slots, over the oldest.
        new, slots = (send(x, k.device) for x in self._slots(pos.shape[0]))
        self.k.index_copy_(-2, slots, k.index_select(-2, new))
        self.v.index_copy_(-2, slots, v.index_select(-2, new))
        self.pos.index_copy_(0, slots, pos.index_select(0, new))
        # 4. Positions travel with the rows, so it does not matter that a ring is out of order.
        if first:  # without the empty slots
            return k, v, pos
        return self.undo or (self.k, self.v, self.pos)

    def _slots(self, n: int) -> tuple[Tensor, Tensor]:
        """The numbers of those of n new tokens that stay, and the slot of each."""
        # Tokens are counted from the beginning of the text: these are numbers start … end - 1.
        start = self.length
        end = start + n
        # The first of the text stay for good. Of the others, the last `window` stay, each in the
        # slot that its number gives: the token `window` before it had the same one.
        sinks = range(start, min(end, self.sinks))
        recent = range(max(start, self.sinks, end - self.window), end)
        slots = [*sinks, *(self.sinks + (i - self.sinks) % self.window for i in recent)]
        numbers = torch.tensor([*sinks, *recent], dtype=torch.long) - start
        return numbers, torch.tensor(slots, dtype=torch.long)

    @property
    def rewindable(self) -> int:
        return 0 if self.undo is None else len(self.undo[2]) - self.sinks - self.window

    @torch.inference_mode(False)
    def forget(self, n: int) -> None:
        # The ring has been written over, so it is put back as it was before the last update; then
        # those of its T tokens that are not forgotten are read in again.
        T = self.rewindable
        assert self.undo is not None  # `rewind` asks for no more than `rewindable`
        k, v, pos = self.undo
        ring = slice(self.capacity)
        self.k = k[..., ring, :].clone()
        self.v = v[..., ring, :].clone()
        self.pos = pos[ring].clone()
        self.undo = None
        self.length -= T
        self.last = int(self.pos.max()) if pos.is_cpu else self.last - T
        if n < T:
            again = slice(self.capacity, len(pos) - n)
            self.update(k[..., again, :], v[..., again, :], pos[again])
