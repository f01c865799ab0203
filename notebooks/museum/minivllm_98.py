"""https://github.com/Wenyueh/MinivLLM/issues/98 (reuse)

A known prefix is skipped. The prefill of the rest attends only to itself, and its positions start
at 0.
"""

from parts import Session


class Alone(Session):
    def reuse(self, cache, ids):
        n = super().reuse(cache, ids)
        cache.skipped = n if self.bug else 0  # until the prefill is over
        return n

    def positions(self, cache, ids, mask):
        return super().positions(cache, ids, mask) - getattr(cache, "skipped", 0)

    def sees(self, cache, ids, mask):
        see = super().sees(cache, ids, mask)
        see[..., : getattr(cache, "skipped", 0)] = False
        return see

    def step(self, cache, ids, mask):
        logits = super().step(cache, ids, mask)
        cache.skipped = 0
        return logits
