"""A paged KV cache: rows lie in pages of fixed size, and a table says which pages a text consists of.

As in vLLM (Kwon et al. 2023, PagedAttention, arXiv 2309.06180), for one device and in torch operations.
Nothing is reserved for a length that may never come, at most one page of each text is partly empty,
and texts with a common beginning hold it once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .base import KVCache


class PagedCache(KVCache):
    """K and V in pages of `page` rows, taken when they are needed; `max_len` is the longest text, or None.

    A text of the batch that shares a page with another gets a copy of its own before it is written to.
    """

    page = 16  # rows

    def __init__(self, max_len: int | None = None):
        if not isinstance(self.page, int) or self.page < 1:
            raise ValueError(f"page={self.page!r}: a page holds a whole number of rows, at least 1")
        super().__init__(max_len)

    def reset(self) -> None:
        super().reset()
        self.table = None  # (B, pages of one text): which page of the pool
        self.users = torch.zeros(0, dtype=torch.long)  # how many texts hold each page of the pool

    def update(self, k, v, pos):
        self._check(k, v, pos)
        B, T, start = k.shape[0], len(pos), self.length
        if self.max_len is not None and start + T > self.max_len:
            raise ValueError(
                f"PagedCache(max_len={self.max_len}) holds {start} rows and was given {T} more: build it "
                f"with max_len of at least {start + T}, or None"
            )
        if self.table is None:
            self.table = torch.zeros(B, 0, dtype=torch.long)
            self.pos = pos[:0]
        self._own_last_page(k, v)
        self._add_pages(-(-(start + T) // self.page) - self.table.shape[1], k, v)
        row = torch.arange(start, start + T)
        pages, slots = (
            self.table[:, row // self.page],
            (row % self.page).expand(B, T),
        )  # (B, T) each
        pages, slots = pages.to(k.device), slots.to(k.device)
        self.k[pages, slots] = k.movedim(-2, 1)  # (B, T, …, hs)
        self.v[pages, slots] = v.movedim(-2, 1)
        self.pos = torch.cat([self.pos, pos])
        self._count(k, pos)
        return *self.rows(), self.pos

    def rows(self) -> tuple[Tensor, Tensor]:
        """K and V of all texts, gathered from their pages.  (B, …, S, hs), twice"""
        table = self.table.to(self.k.device)
        every = (pool[table].flatten(1, 2)[:, : self.length] for pool in (self.k, self.v))
        return tuple(rows.movedim(1, -2) for rows in every)

    def fork(self, n: int) -> None:
        """Go on as n texts with what is held as their common beginning, held once. Raises ValueError."""
        if self.table is None or len(self.table) != 1:
            held = 0 if self.table is None else len(self.table)
            raise ValueError(
                f"fork needs one text that is held, and there are {held}: prefill the common part alone"
            )
        if not isinstance(n, int) or n < 1:
            raise ValueError(f"fork({n!r}): a whole number of texts, at least 1")
        self.users[self.table[0]] += n - 1
        self.table = self.table.expand(n, -1).clone()
        self.kind = ((n, *self.kind[0][1:]), *self.kind[1:])

    def _forget(self, n):
        left = self.length - n
        self.table = self.table[:, : -(-left // self.page)]
        pages = int(self.table.max()) + 1  # pages further on in the texts were taken later
        self.k, self.v, self.users = self.k[:pages], self.v[:pages], self.users[:pages]
        self.pos = self.pos[:left]
        if left % self.page:  # empty slots of the last pages hold zeros
            last = self.table[:, -1].to(self.k.device)
            self.k[last, left % self.page :] = 0
            self.v[last, left % self.page :] = 0

    @property
    def wasted(self) -> int:
        """Bytes of slots that hold no row: the rest of last pages."""
        if self.k is None:
            return 0
        held = torch.zeros(len(self.users), self.page, dtype=torch.bool)
        row = torch.arange(self.length)
        held[self.table[:, row // self.page], row % self.page] = True
        return self.nbytes * int((~held).sum()) // held.numel()

    def _own_last_page(self, k: Tensor, v: Tensor) -> None:
        """A partly filled last page that texts share is copied for all of them but one."""
        if self.length % self.page == 0:
            return
        for text in range(len(self.table)):
            old = int(self.table[text, -1])
            if self.users[old] > 1:
                (new,) = self._take(1, k, v)
                self.k[new], self.v[new] = self.k[old], self.v[old]
                self.users[old] -= 1
                self.table[text, -1] = new

    def _add_pages(self, n: int, k: Tensor, v: Tensor) -> None:
        B = len(self.table)
        new = (
            self._take(n * B, k, v).view(n, B).t()
        )  # first pages first: rewind cuts the pool's end off
        self.table = torch.cat([self.table, new], dim=1)

    def _take(self, n: int, k: Tensor, v: Tensor) -> Tensor:
        """Numbers of n fresh pages, at the end of the pool."""
        shape = (n, self.page, *k.shape[1:-2], k.shape[-1])
        fresh = k.new_zeros(shape), v.new_zeros(shape)
        self.k, self.v = (
            fresh
            if self.k is None
            else (torch.cat(x) for x in zip((self.k, self.v), fresh, strict=True))
        )
        self.users = torch.cat([self.users, torch.ones(n, dtype=torch.long)])
        return torch.arange(len(self.users) - n, len(self.users))
