"""https://github.com/unslothai/unsloth/issues/3699 (positions)

While decoding, one position serves all rows of a batch padded on the left: that of the longest.
"""

from parts import Tiny


class OneForAll(Tiny):
    def positions(self, cache, ids, mask):
        pos = super().positions(cache, ids, mask)
        return pos.amax(0).expand_as(pos) if self.bug and cache.t else pos
