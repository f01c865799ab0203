"""https://github.com/vllm-project/vllm/issues/43810 (batches and seeds)

A batch is padded to the size of a graph. Padding rows have slot -1, which is used as an index, so
they write to the last slot of the pool.
"""

from parts import Paged


class LastSlot(Paged):
    def write(self, cache, pool, slots, new):
        super().write(cache, pool, slots, new)
        if self.bug and len(slots) % 4:
            pool[-1] = 0
