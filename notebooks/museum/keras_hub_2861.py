"""https://github.com/keras-team/keras-hub/pull/2861 (positions)

The ALiBi bias is built over the queries of the call instead of the keys. When one token is decoded
it is a single number, 0, which broadcasts: cached tokens have no positions at all.
"""

import torch
from parts import Tiny


class ALiBi(Tiny):
    def bias(self, cache, q_pos, k_pos):
        slopes = 2.0 ** -torch.arange(1, self.heads + 1).to(self.w["tokens"].dtype)
        far = q_pos if self.bug and len(q_pos) == 1 else k_pos  # (S,), or (1,) and then broadcast
        return slopes[:, None, None] * (far - q_pos[:, None])
