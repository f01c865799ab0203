"""https://github.com/oobabooga/textgen/issues/4145 (reuse)

The same prompt comes again. Its last token is evaluated once more because its logits are needed,
but it was not removed from the cache first: the model reads it twice.
"""

import torch
from parts import Session


class LastTwice(Session):
    longest = 4096

    def reuse(self, cache, ids):
        n = super().reuse(cache, ids)
        if self.bug and 0 < n == ids.shape[1] - 1:
            mask = torch.ones(len(ids), n + 1, dtype=int)
            self.step(cache, ids[:, n:], mask)  # still in the cache
        return n
