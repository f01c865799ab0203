"""A cache in pages of fixed size; a table lists the pages of each text.

As in vLLM (Kwon et al. 2023, PagedAttention, arXiv 2309.06180), for one device and in torch
operations. No memory is reserved for a length that may never be reached, at most one page of each
text is partly empty, and texts with a common prefix store it once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..cache import KVCache
from ..config import check_int, too_large
from ..data import send


class PagedCache(KVCache):
    """K and V in pages of `page` tokens (16; a subclass may set another), allocated on demand.

    Copy-on-write: a text that shares a page with another gets its own copy before writing to it.
    """

    page = 16  # tokens

    def reset(self) -> None:
        super().reset()
        self.table: Any = None  # (B, pages of one text): page numbers in the pool
        self.users = torch.zeros(0, dtype=torch.long)  # how many texts use each page of the pool

    @torch.inference_mode(False)  # later steps write to these tensors, in any mode
    def store(self, k: Tensor, v: Tensor, pos: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # 1. Allocate pages for the new tokens: token i is in page i // page of its text, in slot
        #    i % page. A shared last page is copied before it is written to.
        B = k.shape[0]
        T = len(pos)
        end = self.length + T
        if self.table is None:
            self.table = torch.zeros(B, 0, dtype=torch.long)
            self.pos = pos[:0]
        self._own_last_page(k)
        self._add_pages(-(-end // self.page) - self.table.shape[1], k)  # rounded up
        # 2. Write. The table maps each text's pages to pages of the pool.
        i = torch.arange(self.length, end)
        pages = send(self.table[:, i // self.page], k.device)  # (B, T)
        slots = send((i % self.page).expand(B, T), k.device)  # (B, T)
        self.k[pages, slots] = k.movedim(-2, 1)  # (B, T, …, hs)
        self.v[pages, slots] = v.movedim(-2, 1)
        # 3. Attention needs the rows of each text in one tensor, so gather them from their pages.
        #    (vLLM's kernel reads the pages in place.) At the first update they are k and v.
        first = self.length == 0
        self.pos = torch.cat([self.pos, pos])
        if first:
            return k, v, pos
        return *self.held(), self.pos

    def held(self) -> tuple[Tensor, Tensor]:
        """K and V of all texts, gathered from their pages.  (B, …, S, hs), twice"""
        table = send(self.table, self.k.device)
        length = len(self.pos)
        k = self.k[table].flatten(1, 2)[:, :length]
        v = self.v[table].flatten(1, 2)[:, :length]
        return k.movedim(1, -2), v.movedim(1, -2)

    @torch.inference_mode(False)
    def fork(self, n: int) -> None:
        """Turn the single text held into n texts that share its pages.

        Raises ValueError for another number of texts, and MemoryError if the table of their pages
        cannot be allocated.
        """
        texts = 0 if self.table is None else len(self.table)
        if texts != 1:
            raise ValueError(f"fork needs a cache of one text, but this one has {texts}")
        check_int("fork: n", n, 1)
        # No keys are copied: n rows of the table refer to the same pages, and each page has n
        # users. A text that writes into a shared page gets a copy of it, in `store`.
        try:
            table = self.table.expand(n, -1).clone()
        except (RuntimeError, MemoryError):
            n_bytes = n * self.table.nbytes
            raise too_large(f"fork: n={n}: page numbers", n_bytes, "pass a smaller n") from None
        self.users[self.table[0]] += n - 1
        self.table = table
        kind: Any = self.kind
        (_, *others), *form = kind  # leading dimensions, and the rest
        self.kind = ((n, *others), *form)
        self.checked = None

    @torch.inference_mode(False)
    def forget(self, n: int) -> None:
        # Pages are allocated in the order of positions, so those that no text needs any more are at
        # the end of the pool: truncate it after the last page in use.
        length = self.length - n
        self.table = self.table[:, : -(-length // self.page)]  # rounded up
        pages = int(self.table.max()) + 1  # later pages of the texts were allocated later
        self.k = self.k[:pages]
        self.v = self.v[:pages]
        self.users = self.users[:pages]
        self.pos = self.pos[:length]
        end = length % self.page
        if end:  # zero the empty slots of the last pages
            last = send(self.table[:, -1], self.k.device)
            self.k[last, end:] = 0
            self.v[last, end:] = 0

    def _own_last_page(self, like: Tensor) -> None:
        """Copy a shared, partly filled last page for all but one of its texts."""
        # A full page is never written to again, so it can stay shared.
        if self.length % self.page == 0:
            return
        for text in range(len(self.table)):
            old = int(self.table[text, -1])
            if self.users[old] > 1:
                (new,) = self._take(1, like)
                self.k[new] = self.k[old]
                self.v[new] = self.v[old]
                self.users[old] -= 1
                self.table[text, -1] = new

    def _add_pages(self, n: int, like: Tensor) -> None:
        """Give each text n more pages, all first pages before all second ones, for `forget`."""
        new = self._take(n * len(self.table), like).view(n, len(self.table)).t()
        self.table = torch.cat([self.table, new], dim=1)

    def _take(self, n: int, like: Tensor) -> Tensor:
        """Allocate n pages at the end of the pool; returns their numbers. n = 0 copies nothing."""
        if n == 0 and self.k is not None:
            return torch.empty(0, dtype=torch.long)
        fresh = like.new_zeros(n, self.page, *like.shape[1:-2], like.shape[-1])
        if self.k is None:
            self.k = fresh
            self.v = fresh.clone()
        else:
            self.k = torch.cat((self.k, fresh))
            self.v = torch.cat((self.v, fresh))
        self.users = torch.cat([self.users, torch.ones(n, dtype=torch.long)])
        return torch.arange(len(self.users) - n, len(self.users))
