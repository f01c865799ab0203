"""https://github.com/rasbt/LLMs-from-scratch/pull/1048 (plain pass)

The position reached by cached decoding is kept, and passes without a cache also start there. The
cache is correct, but the reference is not. Related to notebook 04's fifth trap.
"""

from parts import Tiny


class LeftOn(Tiny):
    pointer = 0

    def positions(self, cache, ids, mask):
        pos = super().positions(cache, ids, mask)
        if cache.kept:
            self.pointer = int(pos.max()) + 1
        return pos + self.pointer if self.bug and not cache.kept else pos
