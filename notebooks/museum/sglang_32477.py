"""https://github.com/sgl-project/sglang/pull/32477 (storing)

Rows of padding write NaN into a reserved slot. Columns that have left the window are read from that
slot with weight 0, and 0 times NaN is NaN.
"""

from parts import Paged


class Reserved(Paged):
    window = 8

    def write(self, cache, pool, slots, new):
        super().write(cache, pool, slots, new)
        pool[0] = float("nan") if self.bug and len(slots) % 4 else 0

    def slots(self, cache, table):
        slots = super().slots(cache, table)
        slots[:, : max(0, cache.t - self.window)] = 0
        return slots
