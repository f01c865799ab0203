"""https://github.com/unslothai/unsloth/issues/3699 (positions)

During decoding, all rows of a left-padded batch share one position: that of the longest row.
"""

from parts import Tiny


class OneForAll(Tiny):
    def positions(self, cache, ids, mask):
        pos = super().positions(cache, ids, mask)
        return pos.amax(0).expand_as(pos) if self.bug and cache.t else pos
