"""https://github.com/keras-team/keras-hub/pull/2861

ALiBi's bias is built over the queries of the call, not over the keys. When one token is decoded
that is one number, 0, which broadcasts: cached tokens have no positions at all.
"""

import torch
from museum_fixtures import small

from nanogpt.model.attention import visible
from nanogpt.model.gpt import CausalSelfAttention


class ALiBi(CausalSelfAttention):
    bug = False

    def forward(self, x, pos):
        (B, T, C), c = x.shape, self.config
        q, k, v = self.qkv(x).view(B, T, 3, c.n_head, c.head_size).permute(2, 0, 3, 1, 4)
        k_pos = pos
        if self.cache is not None:
            k, v, k_pos = self.cache.update(k, v, pos)
        slopes = 2.0 ** -torch.arange(1, c.n_head + 1, dtype=x.dtype)
        far = pos if self.bug and T == 1 else k_pos  # (S,), or (1,) and then broadcast
        bias = slopes[:, None, None] * (far - pos[:, None])
        scores = q @ k.mT * c.head_size**-0.5 + bias
        y = scores.masked_fill(~visible(pos, k_pos), -torch.inf).softmax(-1) @ v
        return self.proj(y.transpose(1, 2).reshape(B, T, C))


class Buggy(ALiBi):
    bug = True


def model(seed, bug):
    return small(seed, attention=Buggy if bug else ALiBi, n_kv_head=None)
