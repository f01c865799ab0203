"""https://github.com/ml-explore/mlx-lm/pull/1109 (rollback)

A cache that cannot be trimmed trims nothing and raises no error. Rejected drafts stay in it, and
the next tokens attend to them.
"""

from parts import small

from nanogpt.cache import DynamicCache


class Untrimmed(DynamicCache):
    def rewind(self, n):
        self.last -= n  # the caller's count is right


def model(seed, bug):
    return small(seed, caches=[Untrimmed if bug else DynamicCache], positions="rotary")
