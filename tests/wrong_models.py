"""Models of the museum's kind that are wrong in some calls only."""

from parts import Tiny


class Long(Tiny):
    longest = 330


def wrong_where(when):
    """A model that halves its keys in a call where when(cache, new keys) is true."""

    class Late(Long):
        def store(self, cache, layer, k, v):
            wrong = cache.kept and when(cache, k)
            k, v = super().store(cache, layer, k, v)
            return (k * 0.5 if wrong else k), v

    return Late()
