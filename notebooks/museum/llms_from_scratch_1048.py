"""https://github.com/rasbt/LLMs-from-scratch/pull/1048 (plain pass)

The position that cached decoding has reached stays on, and passes without a cache begin there,
too. The cache is right and the reference is not. A relative of notebook 04's fifth trap.
"""

from parts import Tiny


class LeftOn(Tiny):
    pointer = 0

    def positions(self, cache, ids, mask):
        pos = super().positions(cache, ids, mask)
        if cache.kept:
            self.pointer = int(pos.max()) + 1
        return pos + self.pointer if self.bug and not cache.kept else pos
