"""https://github.com/ggml-org/llama.cpp/issues/1585 (reuse)

A prompt that the session already holds needs no evaluation, so its last token gets none either: the
next token is sampled from the session's last logits, and the old continuation stays.
"""

from parts import Session


class NotEvaluated(Session):
    longest = 4096

    def reuse(self, cache, ids):
        n = ids.shape[1]
        if self.bug and self.shared(cache, ids) == n:
            cache.out[:, n - 1] = cache.out[:, -1]
            return n
        return super().reuse(cache, ids)

    def step(self, cache, ids, mask):
        if ids.shape[1] == 0:
            return self.w["tokens"].new_zeros(*ids.shape, self.vocab_size)
        return super().step(cache, ids, mask)
