"""https://github.com/vllm-project/vllm/pull/54338 (storing)

Rows are stored as the bits of one 16-bit type and read as those of the other.
"""

import torch
from parts import Tiny


class OtherBits(Tiny):
    def store(self, cache, layer, k, v):
        if self.bug and cache.kept:
            k, v = (x.bfloat16().view(torch.float16).to(x.dtype) for x in (k, v))
        return super().store(cache, layer, k, v)
