"""https://github.com/karpathy/nanochat/commit/f9a7e0f (storing)

The cache is in bfloat16 whatever dtype the model computes in. The logits of a float32 model are off
by a hundredth, and texts diverge where two tokens nearly tie.
"""

from parts import Tiny


class Hardwired(Tiny):
    def store(self, cache, layer, k, v):
        if self.bug and cache.kept:
            k, v = k.bfloat16().to(k.dtype), v.bfloat16().to(v.dtype)
        return super().store(cache, layer, k, v)
