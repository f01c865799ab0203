"""https://github.com/rasbt/LLMs-from-scratch/issues/1008 (storing)

A cache for a window of W keeps the last W rows, cut before the chunk attends. The first queries of
a chunk of c tokens lose keys that are still in their window: W + c - 1 rows are needed.
"""

from parts import small

from nanogpt.cache import DynamicCache

WINDOW = 8


class CutEarly(DynamicCache):
    def store(self, k, v, pos):
        k, v, pos = super().store(k, v, pos)
        self.k, self.v, self.pos = k[..., -WINDOW:, :], v[..., -WINDOW:, :], pos[-WINDOW:]
        return self.k, self.v, self.pos


def model(seed, bug):
    cache = CutEarly if bug else DynamicCache
    return small(seed, caches=[cache], positions="rotary", window=WINDOW)
