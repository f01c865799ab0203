"""https://github.com/NVIDIA/TensorRT-LLM/issues/2983 (reuse)

Layers have windows of different sizes, and each keeps no more than it needs. A known prefix is
reused as long as the largest window covers it, but layers with small windows have lost it.
"""

from parts import Ring, Session, Tiny


class MixedWindows(Session, Ring):
    def store(self, cache, layer, k, v):
        return (Ring if layer else Tiny).store(self, cache, layer, k, v)

    def sees(self, cache, ids, mask):
        self.window = 8 if cache.layer else 96
        return super().sees(cache, ids, mask)

    def reuse(self, cache, ids):
        lost = cache.t - self.shared(cache, ids) > self.slots - 9
        if lost and not self.bug:
            cache.ids = cache.ids[:, :0]
        return super().reuse(cache, ids)

    def forget(self, cache, n):
        for held in (cache.k, cache.v) if cache.t else ():
            held[0] = held[0][:, :, : cache.t - n]
        super().forget(cache, n)
