"""A cache in pages of fixed size; a table says which pages a text consists of.

As in vLLM (Kwon et al. 2023, PagedAttention, arXiv 2309.06180), for one device and in torch
operations. No memory is reserved for a length that may never come, at most one page of each text is
partly empty, and texts with a common beginning hold it once.
"""

from __future__ import annotations

from typing import Any

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

    def reset(self) -> None:
        super().reset()
        self.table: Any = None  # (B, pages of one text): which page of the pool
        self.users = torch.zeros(0, dtype=torch.long)  # how many texts hold each page of the pool

    @torch.inference_mode(False)  # what it allocates is written to in later steps, in any mode
    def store(self, k: Tensor, v: Tensor, pos: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # 1. Pages for the new tokens: token i is in page i // page of its text, in slot i % page. A
        #    last page that is shared becomes the text's own before it is written to.
        B = k.shape[0]
        T = len(pos)
        end = self.length + T
        if self.table is None:
            self.table = torch.zeros(B, 0, dtype=torch.long)
            self.pos = pos[:0]
        self._own_last_page(k)
        self._add_pages(-(-end // self.page) - self.table.shape[1], k)  # rounded up
        # 2. Write. The table says which page of the pool each text's page is.
        i = torch.arange(self.length, end)
        pages = send(self.table[:, i // self.page], k.device)  # (B, T)
        slots = send((i % self.page).expand(B, T), k.device)  # (B, T)
        self.k[pages, slots] = k.movedim(-2, 1)  # (B, T, …, hs)
        self.v[pages, slots] = v.movedim(-2, 1)
        # 3. Attention wants the rows of each text side by side, so they are gathered from their
        #    pages. (vLLM's kernel reads the pages where they are.) At the first tokens they are k
        #    and v.
        first = self.length == 0
        self.pos = torch.cat([self.pos, pos])
        if first:
            return k, v, pos
        return *self.tensors(), self.pos

    def tensors(self) -> tuple[Tensor, Tensor]:
        """K and V of all texts, gathered from their pages.  (B, …, S, hs), twice"""
        table = send(self.table, self.k.device)
        length = len(self.pos)
        k = self.k[table].flatten(1, 2)[:, :length]
        v = self.v[table].flatten(1, 2)[:, :length]
        return k.movedim(1, -2), v.movedim(1, -2)

    @torch.inference_mode(False)
    def fork(self, n: int) -> None:
        """Turn the one text held into n texts that share it; it is held once. Raises ValueError."""
        texts = 0 if self.table is None else len(self.table)
        if texts != 1:
            raise ValueError(f"fork needs a cache of one text, and there are {texts}")
        check_int("fork: n", n, 1)
        # No key is copied: n rows of the table name the same pages, and each page has n users. The
        # first text that writes into a shared page gets a copy of it, in `store`.
        self.users[self.table[0]] += n - 1
        self.table = self.table.expand(n, -1).clone()
        kind: Any = self.kind
        (_, *others), *form = kind  # leading dimensions, and the rest
        self.kind = ((n, *others), *form)
        self.checked = None

    @torch.inference_mode(False)
    def forget(self, n: int) -> None:
        # Pages that no text needs any more are at the end of the pool, in the order in which they
        # were taken, so the pool is cut behind the last one that is in use.
        length = self.length - n
        self.table = self.table[:, : -(-length // self.page)]  # rounded up
        pages = int(self.table.max()) + 1  # pages further on in the texts were taken later
        self.k = self.k[:pages]
        self.v = self.v[:pages]
        self.users = self.users[:pages]
        self.pos = self.pos[:length]
        end = length % self.page
        if end:  # empty slots of the last pages hold zeros
            last = send(self.table[:, -1], self.k.device)
            self.k[last, end:] = 0
            self.v[last, end:] = 0

    def _own_last_page(self, like: Tensor) -> None:
        """Copy a partly filled last page that texts share, for all of them but one."""
        # A full page is never written to again, so it may stay shared.
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
        """Give each text n more pages, all first pages before second ones, as `forget` needs."""
        new = self._take(n * len(self.table), like).view(n, len(self.table)).t()
        self.table = torch.cat([self.table, new], dim=1)

    def _take(self, n: int, like: Tensor) -> Tensor:
        """Numbers of n new pages, at the end of the pool; with none, nothing is copied."""
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
