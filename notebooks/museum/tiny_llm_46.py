"""https://github.com/skyzh/tiny-llm/issues/46 (positions)

After the prefill, the loop adds the prompt's length to the position once more. With a prompt of one
token this is hidden if the loop adds one less.
"""

from parts import Tiny


class AddedTwice(Tiny):
    def positions(self, cache, ids, mask):
        if cache.t == 0:
            cache.more = ids.shape[1] - 1
        more = cache.more if self.bug and cache.t else 0
        return super().positions(cache, ids, mask) + more
