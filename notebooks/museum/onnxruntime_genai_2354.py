"""https://github.com/microsoft/onnxruntime-genai/pull/2354 (positions)

The first decoded token is positioned, and written, one slot too far. The slot in between is never
written but is read from then on. Related to notebook 04's second trap.
"""

import torch.nn.functional as F
from parts import Tiny


class OneTooFar(Tiny):
    rewinds = False

    def step(self, cache, ids, mask):
        if self.bug and cache.kept and cache.t and not hasattr(cache, "gap"):
            cache.gap = 1
            for held in (cache.k, cache.v):
                held.update({i: F.pad(x, (0, 0, 0, 1)) for i, x in held.items()})
            cache.t, mask = cache.t + 1, F.pad(mask, (0, 1), value=1)
        return super().step(cache, ids, mask)
