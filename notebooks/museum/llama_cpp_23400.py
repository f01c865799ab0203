"""https://github.com/ggml-org/llama.cpp/issues/23400 (reuse)

A saved session lacks the last token's row. The loader evaluates that token again, but one position
off, because it counts the saved ids instead of the rows.
"""

from parts import Tiny


class Saved(Tiny):
    rewinds = False

    def step(self, cache, ids, mask):
        if cache.kept and cache.t:  # saved and loaded between any two calls
            self.forget(cache, 1)
            cache.off = self.bug
            super().step(cache, cache.last, mask[:, : cache.t + 1])
            cache.off = False
        cache.last = ids[:, -1:]
        return super().step(cache, ids, mask)

    def positions(self, cache, ids, mask):
        return super().positions(cache, ids, mask) + getattr(cache, "off", False)
