"""https://github.com/paiml/aprender/pull/2014 (rollback)

Before drafts are verified, the cache is emptied instead of going back to the last accepted token,
so the prompt is lost.
"""

from parts import Tiny


class Emptied(Tiny):
    def forget(self, cache, n):
        super().forget(cache, cache.t if self.bug else n)
