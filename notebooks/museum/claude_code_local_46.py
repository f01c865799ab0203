"""https://github.com/nicedreamzapp/claude-code-local/issues/46 (reuse)

The number of tokens to trim from a session is computed from the unit in which its buffer grows, not
from what it holds. The number is negative, so nothing is trimmed.
"""

from parts import Session


class Unit(Session):
    longest, unit = 4096, 8

    def reuse(self, cache, ids):
        n = min(self.shared(cache, ids), ids.shape[1] - 1)
        self.forget(cache, max(0, (self.unit if self.bug and n else cache.t) - n))
        return n
