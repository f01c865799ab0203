"""https://github.com/vllm-project/vllm/issues/45704 (reuse)

Blocks are copied to the host concurrently with the pass that fills them, without waiting for it.
The next request loads rows that were empty.
"""

from parts import Session


class Offloaded(Session):
    def reuse(self, cache, ids):
        n = super().reuse(cache, ids)
        for held in (cache.k, cache.v):
            held.update({i: x * (not self.bug) for i, x in held.items()})  # the copied rows
        return n
