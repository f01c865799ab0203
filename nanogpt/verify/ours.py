"""This package's models as the referee sees them, with every cache that they support."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..cache import DynamicCache, StaticCache, build_caches, require_owners
from ..caches.paged import PagedCache
from ..caches.rolling import RollingCache
from ..generation import CachedReader, ModuleReader
from ..kv_referee.subjects import NotOffered, Pieces, Session, Subject, copied, through
from ..kv_referee.texts import high_water


class Ours(Subject):
    """A GPT of this package, or a model that is called like one, with every cache it supports.

    `caches` are classes. The same cache objects serve successive requests, with reset() in between.
    Raises ValueError for a model whose blocks hold no cache, and whatever build_caches raises.
    """

    rewinds = True
    copies = True
    wraps = (
        "from nanogpt.verify.ours import Ours\n\n"
        "# MODEL is the model that was judged, CACHES the cache classes passed.\n"
        "SUBJECT = Ours(MODEL, CACHES)"
    )

    def __init__(self, model: Any, caches: Sequence[Any] = (DynamicCache, StaticCache, PagedCache)):
        owners = require_owners(model)
        config = model.config
        self.model = model
        self.name = type(model).__name__
        self.vocab_size = config.vocab_size
        self.window = getattr(config, "window", None)
        self.longest = getattr(config, "max_positions", getattr(config, "block_size", None))
        rolling = [RollingCache] if self.window and RollingCache not in caches else []
        self.kinds = {getattr(kind, "__name__", str(kind)): kind for kind in (*caches, *rolling)}
        self.caches = tuple(self.kinds)
        self._held: dict[tuple[str, int], CachedReader] = {}
        for kind in caches:
            build_caches(owners, kind, 1)

    @torch.no_grad()
    def plain(self, ids: Tensor) -> Tensor:
        ids = ids.to(next(self.model.parameters()).device)
        return ModuleReader(self.model).forward(ids, 0)

    @torch.no_grad()
    def cached(self, pieces: Pieces, cache: str | None = None) -> Tensor:
        name = cache or self.caches[0]
        capacity = self._capacity(high_water(pieces))
        reader = self._held.get((name, capacity))
        if reader is None:
            reader = CachedReader(self.model, self.kinds[name], capacity)
        if all(hasattr(one, "reset") for one in reader.caches):  # else each text gets new ones
            self._held[name, capacity] = reader
            reader.length = 0
            for one in reader.caches:
                one.reset()

        def rewind(n: int) -> None:
            if not all(hasattr(one, "rewind") for one in reader.caches):
                raise NotOffered("it has no rewind(n)")
            reader.rewind(n)

        return through(reader.read, rewind, pieces)

    @torch.no_grad()
    def placed(self, ids: Tensor, pos: Tensor) -> Tensor:
        device = next(self.model.parameters()).device
        logits: Tensor = ModuleReader(self.model).model(ids.to(device), pos=pos.to(device))[0]
        return logits

    def _capacity(self, needed: int) -> int:
        """Slots for this many tokens: the model's maximum, unless most would stay empty."""
        if self.longest and self.longest <= 3 * needed:
            return self.longest
        return needed

    def session(self, cache: str | None = None, rows: int = 1) -> Session:
        capacity = self.longest or 1024
        return Decoding(CachedReader(self.model, self.kinds[cache or self.caches[0]], capacity))

    def to(self, dtype: torch.dtype) -> Subject:
        return Ours(copied(self.model, dtype), tuple(self.kinds.values()))


class Decoding(Session):
    """A reader as a session: it reads and rewinds, but does not reorder its texts."""

    def __init__(self, reader: CachedReader):
        self.reader = reader

    @torch.no_grad()
    def read(self, ids: Tensor) -> Tensor:
        return self.reader.read(ids)

    def rewind(self, n: int) -> None:
        if not all(hasattr(one, "rewind") for one in self.reader.caches):
            raise NotOffered("it has no rewind(n)")
        self.reader.rewind(n)
