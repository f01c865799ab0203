"""https://github.com/huggingface/transformers/issues/33129 (positions)

Long texts use other rotary factors than short ones. A text that crosses the limit during generation
continues with the long factors, over keys that were rotated with the short ones.
"""

from parts import Tiny, rotate


class Crossing(Tiny):
    rotary, trained = True, 64

    def turn(self, cache, q, k, pos):
        long = self.bug and cache.kept and cache.t + q.shape[2] > self.trained
        factor = 0.5 if long else 1.0
        return rotate(q, pos * factor), rotate(k, pos * factor)
