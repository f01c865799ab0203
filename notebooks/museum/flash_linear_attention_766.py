"""https://github.com/fla-org/flash-linear-attention/pull/766 (positions)

All layers share one count of tokens, and the first layer's write advances it. In the same step
the others already read the new count, so they rotate by a call too many. With one layer nothing
is wrong; nor is it while all calls have one length.
"""

from parts import Tiny


class CommittedEarly(Tiny):
    rotary = True

    def turn(self, cache, q, k, pos):
        late = q.shape[2] if self.bug and cache.kept and cache.layer else 0
        return super().turn(cache, q, k, pos + late)
