"""https://github.com/InternLM/lmdeploy/pull/4569 (batches and seeds)

A graph has rows for a full batch. If fewer texts run, the other rows of its block table are left
over from an earlier step, and padding is written into blocks that have new owners.
"""

from parts import Paged


class StaleRows(Paged):
    def write(self, cache, pool, slots, new):
        super().write(cache, pool, slots, new)
        self.tables = getattr(self, "tables", {})
        rows = self.tables.setdefault(new.dtype, {})
        rows.update(enumerate(cache.table))
        for i in range(len(new), len(rows)) if self.bug else ():
            stale = Paged.slots(self, cache, [rows[i]])[0]
            pool[stale[cache.t : cache.t + new.shape[1]]] = 0
