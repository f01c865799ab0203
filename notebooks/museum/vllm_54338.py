"""https://github.com/vllm-project/vllm/pull/54338 (storing)

Rows are stored as bits of one type of 16 bits, and read as bits of the other.
"""

import torch
from parts import Tiny


class OtherBits(Tiny):
    def store(self, cache, layer, k, v):
        if self.bug and cache.kept:
            k, v = (x.bfloat16().view(torch.float16).to(x.dtype) for x in (k, v))
        return super().store(cache, layer, k, v)
