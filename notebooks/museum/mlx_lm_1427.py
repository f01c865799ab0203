"""https://github.com/ml-explore/mlx-lm/pull/1427 (rollback)

A full ring is trimmed by moving its index. The rows overwritten by the rejected tokens are gone, so
the window lacks its beginning.
"""

from parts import Ring


class Overwritten(Ring):
    @property
    def slots(self):
        return self.window * (1 if self.bug else 2)
