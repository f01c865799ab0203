"""https://github.com/ml-explore/mlx-lm/issues/1494 (rollback)

Trimming lowers the token count, but the next update takes the count from the tensor again: trimmed
keys come back, unless all of them were trimmed.
"""

from parts import Tiny


class ComesBack(Tiny):
    def forget(self, cache, n):
        held = {layer: (cache.k[layer], cache.v[layer]) for layer in cache.k}
        super().forget(cache, n)
        if self.bug and cache.t:
            for layer, (k, v) in held.items():  # the trimmed rows come before the new ones
                cache.k[layer] = k[:, :, -cache.t :]
                cache.v[layer] = v[:, :, -cache.t :]
