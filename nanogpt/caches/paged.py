"""A cache in pages of fixed size; a table says which pages a text consists of.

As in vLLM (Kwon et al. 2023, PagedAttention, arXiv 2309.06180), for one device and in torch
operations. No memory is reserved for a length that may never come, at most one page of each text is
partly empty, and texts with a common beginning hold it once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..cache import KVCache
from ..config import check_int
from ..data import send


class PagedCache(KVCache):
    """K and V in pages of `page` tokens, taken when they are needed.

    A text of the batch that shares a page with another gets its own copy before it writes there.
    """

    page = 16  # tokens

    def reset(self):
        super().reset()
        self.table = None  # (B, pages of one text): which page of the pool
        self.users = torch.zeros(0, dtype=torch.long)  # how many texts hold each page of the pool

    def store(self, k, v, pos):
        B, T, start = k.shape[0], len(pos), self.length
        if self.table is None:
            self.table, self.pos = torch.zeros(B, 0, dtype=torch.long), pos[:0]
        self._own_last_page(k)
        self._add_pages(-(-(start + T) // self.page) - self.table.shape[1], k)
        i = torch.arange(start, start + T)
        pages, slots = self.table[:, i // self.page], (i % self.page).expand(B, T)  # (B, T) each
        pages, slots = send(pages, k.device), send(slots, k.device)
        self.k[pages, slots] = k.movedim(-2, 1)  # (B, T, …, hs)
        self.v[pages, slots] = v.movedim(-2, 1)
        self.pos = torch.cat([self.pos, pos])
        return *self.tensors(), self.pos

    def tensors(self):
        """K and V of all texts, gathered from their pages.  (B, …, S, hs), twice"""
        table, length = send(self.table, self.k.device), len(self.pos)
        texts = (pool[table].flatten(1, 2)[:, :length] for pool in (self.k, self.v))
        return tuple(x.movedim(1, -2) for x in texts)

    def fork(self, n: int) -> None:
        """Turn the one text held into n texts that share it; it is held once. Raises ValueError."""
        held = 0 if self.table is None else len(self.table)
        if held != 1:
            raise ValueError(f"fork needs a cache of one text, and there are {held}")
        check_int("fork: n", n, 1)
        self.users[self.table[0]] += n - 1
        self.table = self.table.expand(n, -1).clone()
        self.kind, self.checked = ((n, *self.kind[0][1:]), *self.kind[1:]), None

    def forget(self, n):
        left = self.length - n
        self.table = self.table[:, : -(-left // self.page)]  # rounded up
        pages = int(self.table.max()) + 1  # pages further on in the texts were taken later
        self.k, self.v, self.users = self.k[:pages], self.v[:pages], self.users[:pages]
        self.pos = self.pos[:left]
        if left % self.page:  # empty slots of the last pages hold zeros
            last = send(self.table[:, -1], self.k.device)
            self.k[last, left % self.page :] = 0
            self.v[last, left % self.page :] = 0

    def _own_last_page(self, like: Tensor) -> None:
        """Copy a partly filled last page that texts share, for all of them but one."""
        if self.length % self.page == 0:
            return
        for text in range(len(self.table)):
            old = int(self.table[text, -1])
            if self.users[old] > 1:
                (new,) = self._take(1, like)
                self.k[new], self.v[new] = self.k[old], self.v[old]
                self.users[old] -= 1
                self.table[text, -1] = new

    def _add_pages(self, n: int, like: Tensor) -> None:
        """Give each text n more pages, all first pages before second ones, as `forget` needs."""
        new = self._take(n * len(self.table), like).view(n, len(self.table)).t()
        self.table = torch.cat([self.table, new], dim=1)

    def _take(self, n: int, like: Tensor) -> Tensor:
        """Numbers of n new pages, at the end of the pool; with none, nothing is copied."""
        if n == 0 and self.k is not None:
            return self.table.new_empty(0)
        fresh = like.new_zeros(n, self.page, *like.shape[1:-2], like.shape[-1])
        self.k, self.v = (
            fresh.clone() if x is None else torch.cat([x, fresh]) for x in (self.k, self.v)
        )
        self.users = torch.cat([self.users, torch.ones(n, dtype=torch.long)])
        return torch.arange(len(self.users) - n, len(self.users))
