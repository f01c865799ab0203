"""https://github.com/sgl-project/sglang-jax/issues/20 (batches and seeds)

The slots of all texts are concatenated and then cut into pages. A text that does not end at a page
boundary is not rounded up, so the texts after it get the wrong pages.
"""

import torch.nn.functional as F
from parts import Paged


class NotRounded(Paged):
    def slots(self, cache, table):
        size = self.size_of_block
        slots = super().slots(cache, table)
        kept = slots[:, : cache.end] if self.bug else slots
        pages = F.pad(kept.flatten(), (0, slots.numel() - kept.numel()))[::size] // size
        return super().slots(cache, pages.view(len(table), -1).tolist())

    def step(self, cache, ids, mask):
        cache.end = mask.shape[1]
        return super().step(cache, ids, mask)
