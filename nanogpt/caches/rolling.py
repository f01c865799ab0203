"""A ring buffer as long as the attention window."""

from __future__ import annotations

import torch
from torch import Tensor

from ..cache import KVCache
from ..config import check_int
from ..data import send


class RollingCache(KVCache):
    """A ring buffer of the last `window` tokens, plus the first `sinks` tokens; it never grows.

    For attention with the same window and sinks (DecoderConfig.window). A new token replaces the
    oldest, which no later query sees. The first of several new tokens may still see tokens that the
    last one evicts, so `update` returns the old ring followed by all new tokens. Both are kept
    until the next update, not counted in `nbytes`, so the last update can be rewound, but no
    earlier one. An update of a single token returns the ring, keeps nothing, and cannot be rewound,
    because every decoding step would have to pay for that.
    """

    rolls = True  # build_caches passes the window of its module
    smaller = "pass a smaller window, or fewer sinks"

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

    @torch.inference_mode(False)  # later steps write to these tensors, in any mode
    def store(self, k: Tensor, v: Tensor, pos: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # 1. Allocate the slots at the first update: `sinks` fixed ones and a ring of `window`.
        first = self.k is None
        if first:
            self.reserve(k, v, pos)
        # 2. For several new tokens, attention needs the old ring followed by all of them, because
        #    the first new token still sees tokens that the last one evicts.
        self.undo = None
        if pos.shape[0] > 1:
            ring_k = torch.cat([self.k, k], dim=-2)
            ring_v = torch.cat([self.v, v], dim=-2)
            ring_pos = torch.cat([self.pos, pos])
            self.undo = (ring_k, ring_v, ring_pos)
        # 3. Write the new tokens that stay into their slots, over the oldest.
        new, slots = (send(x, k.device) for x in self._slots(pos.shape[0]))
        self.k.index_copy_(-2, slots, k.index_select(-2, new))
        self.v.index_copy_(-2, slots, v.index_select(-2, new))
        self.pos.index_copy_(0, slots, pos.index_select(0, new))
        # 4. Each row keeps its position, so it does not matter that the ring is out of order.
        if first:  # without the empty slots
            return k, v, pos
        return self.undo or (self.k, self.v, self.pos)

    def _slots(self, n: int) -> tuple[Tensor, Tensor]:
        """Which of n new tokens stay, and the slot of each."""
        # Tokens are numbered from the beginning of the text: these are start … end - 1.
        start = self.length
        end = start + n
        # The first `sinks` tokens of the text stay for good. Of the others, the last `window` stay,
        # each in the slot given by its number, where it replaces the token `window` before it.
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
        # The ring has been overwritten, so restore it to its state before the last update, then
        # store again those of the update's T tokens that are not forgotten.
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
