"""This package's models as the referee sees them, with every cache that they support."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..cache import DynamicCache, StaticCache, build_caches, require_owners
from ..caches.paged import PagedCache
from ..caches.rolling import RollingCache
from ..generation import CachedReader, ModuleReader
from ..kv_referee.errors import NotOffered
from ..kv_referee.objects import check_memory


class Ours:
    """The adapter of a GPT, or of a model that is called like one, with every cache it supports.

    `caches` are classes. The same cache objects serve successive requests, with reset() in between.
    Raises ValueError for a model whose blocks hold no cache, and whatever build_caches raises.
    """

    rewinds = True
    copies = True
    builds = (
        "from nanogpt.verify.ours import Ours\n\n"
        "# MODEL is the model that was judged, CACHES the cache classes passed.\n"
        "MODEL = Ours(MODEL, CACHES)"
    )

    def __init__(self, model: Any, caches: Sequence[Any] = (DynamicCache, StaticCache, PagedCache)):
        owners = require_owners(model)
        config = model.config
        self.config = config
        self.model = model
        self.name = type(model).__name__
        self.vocab_size = config.vocab_size
        self.window = getattr(config, "window", None)
        self.longest = getattr(config, "max_positions", getattr(config, "block_size", None))
        rolling = [RollingCache] if self.window and RollingCache not in caches else []
        self.kinds = {getattr(kind, "__name__", str(kind)): kind for kind in (*caches, *rolling)}
        self.caches = tuple(self.kinds)
        self._idle: dict[tuple[str, int], list[CachedReader]] = {}
        for kind in caches:
            build_caches(owners, kind, 1)

    def plain(self, ids: Tensor) -> Tensor:
        return ModuleReader(self.model).forward(ids, 0)

    def placed(self, ids: Tensor, pos: Tensor) -> Tensor:
        logits: Tensor = ModuleReader(self.model).model(ids, pos=pos)[0]
        return logits

    def start(self, rows: int, cache: str, room: int, rewinds: bool = False) -> Reading:
        """A session with caches of this class: those of an ended session, if they have reset()."""
        capacity = self._capacity(room)
        idle = self._idle.setdefault((cache, capacity), [])
        reader = idle.pop() if idle else CachedReader(self.model, self.kinds[cache], capacity)
        reader.length = 0
        session = Reading(reader)
        if all(hasattr(one, "reset") for one in reader.caches):
            for one in reader.caches:
                one.reset()
            weakref.finalize(session, idle.append, reader)
        return session

    def _capacity(self, needed: int) -> int:
        """Slots for this many tokens: the model's maximum, unless most would stay empty."""
        longest = int(self.longest or 0)
        return longest if 0 < longest <= 3 * needed else needed

    def to(self, dtype: torch.dtype) -> Ours:
        check_memory(self.model, dtype)
        return Ours(copy.deepcopy(self.model).to("cpu", dtype), tuple(self.kinds.values()))


class Reading:
    """A reader as a session: it reads and rewinds, but does not reorder its texts."""

    def __init__(self, reader: CachedReader):
        self.reader = reader

    def read(self, ids: Tensor) -> Tensor:
        return self.reader.read(ids)

    def rewind(self, n: int) -> None:
        if not all(hasattr(one, "rewind") for one in self.reader.caches):
            raise NotOffered("it has no rewind(n)")
        self.reader.rewind(n)
