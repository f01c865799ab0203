"""https://github.com/huggingface/transformers/issues/25104 (positions)

Beyond the trained length the rotary base grows with the text. Cached keys keep the base of the step
that wrote them, while each query is rotated with the newest one.
"""

from parts import Tiny, rotate


class GrowingBase(Tiny):
    rotary, trained = True, 64

    def turn(self, cache, q, k, pos):
        if not self.bug or not cache.kept or cache.t < self.trained:
            return super().turn(cache, q, k, pos)
        slower = pos * self.trained / (cache.t + 1)
        return rotate(q, slower), rotate(k, slower)
