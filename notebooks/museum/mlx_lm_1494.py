"""https://github.com/ml-explore/mlx-lm/issues/1494 (rollback)

To trim lowers the count of tokens, and the next update takes it from the tensor again: keys that
were taken back are there once more, unless all of them went.
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
