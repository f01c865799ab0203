"""https://github.com/GeeeekExplorer/nano-vllm/pull/213 (masks)

For a chunk of a prompt, the kernel gets the length of the whole prompt. The mask is aligned to that
length, so the chunk attends to slots that are not written yet.
"""

import torch.nn.functional as F
from parts import Tiny


class WholeLength(Tiny):
    caches = ("its cache",)  # so `start` is told how many tokens will be read

    def start(self, rows, cache, room, rewinds):
        self.prompt = room
        return super().start(rows)

    def unwritten(self, cache, new, end):
        chunk = self.bug and cache.kept and new > 1
        return max(0, self.prompt - end) if chunk else 0

    def store(self, cache, layer, k, v):
        new = k.shape[2]
        k, v = super().store(cache, layer, k, v)
        more = self.unwritten(cache, new, k.shape[2])
        return F.pad(k, (0, 0, 0, more)), F.pad(v, (0, 0, 0, more))

    def sees(self, cache, ids, mask):
        more = self.unwritten(cache, ids.shape[1], mask.shape[1])
        see = super().sees(cache, ids, mask)
        return F.pad(see, (more, 0), value=True)
