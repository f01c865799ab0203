"""https://github.com/google/gemma.cpp/issues/608 (masks)

A layer counts as global if its window equals the context length. The context length became an
option, the layer's window did not: with any other length the layer becomes local.
"""

from parts import Tiny


class ByLength(Tiny):
    window = 8
    WINDOWS = (24, 8)  # the first is global, in a context of 24

    def sees(self, cache, ids, mask):
        context = 96 if self.bug and cache.kept else 24
        window = self.WINDOWS[cache.layer]
        self.window = None if window == context else window
        return super().sees(cache, ids, mask)
