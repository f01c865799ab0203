"""https://github.com/time-series-foundation-models/lag-llama/issues/81 (reuse)

The reset clears a flag in the blocks, but the flag that counts is the model's. The first call for
the next series is treated as a later step, which needs no mask. Notebook 04's seventh trap.
"""

import torch
from parts import Tiny


class Flag(Tiny):
    begun = False

    def begin(self):
        self.begun = self.begun and self.bug
        return super().begin()

    def sees(self, cache, ids, mask):
        see = super().sees(cache, ids, mask)
        first = cache.t == 0 and not self.begun
        return see if first or cache.t or not cache.kept else torch.ones_like(see)

    def step(self, cache, ids, mask):
        logits = super().step(cache, ids, mask)
        self.begun = self.begun or cache.kept
        return logits

    def forget(self, cache, n):
        super().forget(cache, n)
        self.begun = self.begun and (self.bug or cache.t > 0)
