"""https://github.com/Blaizzy/mlx-vlm/issues/1715 (rollback)

A ring is cut back to fewer tokens, but its write index stays where it was: its rows are no longer
in the order of the tokens.
"""

from parts import Ring


class IndexKept(Ring):
    def slot(self, cache, columns):
        return (columns + getattr(cache, "ahead", 0)) % self.slots

    def forget(self, cache, n):
        super().forget(cache, n)
        cache.ahead = getattr(cache, "ahead", 0) + (n if self.bug else 0)
