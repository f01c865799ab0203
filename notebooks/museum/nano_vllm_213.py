"""https://github.com/GeeeekExplorer/nano-vllm/pull/213 (masks)

For a chunk of a prompt, the kernel gets the length of the whole prompt. The mask is aligned to that
length, so the chunk attends to slots that are not written yet.
"""

from itertools import takewhile

import torch.nn.functional as F
from parts import Tiny


class WholeLength(Tiny):
    def cached(self, pieces, cache=None):
        prompt = list(takewhile(lambda x: not isinstance(x, int) and x.shape[1] > 1, pieces))
        self.prompt = sum(x.shape[1] for x in prompt)
        return super().cached(pieces)

    def unwritten(self, cache, end):
        return max(0, self.prompt - end) if self.bug and cache.kept else 0

    def store(self, cache, layer, k, v):
        k, v = super().store(cache, layer, k, v)
        more = self.unwritten(cache, k.shape[2])
        return F.pad(k, (0, 0, 0, more)), F.pad(v, (0, 0, 0, more))

    def sees(self, cache, ids, mask):
        more = self.unwritten(cache, mask.shape[1])
        see = super().sees(cache, ids, mask)
        return F.pad(see, (more, 0), value=True)
