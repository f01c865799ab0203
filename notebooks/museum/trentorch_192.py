"""https://github.com/TrenTorch/TrenTorch/pull/192 (storing)

The first token is counted but never written: its slot stays zero, and all later tokens attend to
it.
"""

from parts import small

from nanogpt.cache import StaticCache


class FirstLost(StaticCache):
    def store(self, k, v, pos):
        first = self.k is None
        k, v, pos = super().store(k, v, pos)
        if first:
            k[..., 0, :] = v[..., 0, :] = 0
        return k, v, pos


def model(seed, bug):
    return small(seed, caches=[FirstLost if bug else StaticCache], positions="rotary")
