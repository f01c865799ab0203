"""https://github.com/sgl-project/mini-sglang/issues/142 (reuse)

Blocks of an already known prefix are freed as duplicates. The running request's table still refers
to them, and they are the next blocks to be allocated.
"""

from parts import Paged


class Duplicates(Paged):
    blocks = 1024

    def begin(self):
        self.known = getattr(self, "known", {})
        self.used = []  # known blocks are not freed
        return super().begin()

    def step(self, cache, ids, mask):
        logits, first = super().step(cache, ids, mask), cache.t == ids.shape[1]
        for row, text in zip(
            cache.table if cache.kept and first else [], ids.tolist(), strict=False
        ):
            for i in range(cache.t // self.size_of_block):
                key = (logits.dtype, *text[: (i + 1) * self.size_of_block])
                known = self.known.setdefault(key, row[i])
                if known != row[i]:
                    self.free.append(row[i])
                    row[i] = row[i] if self.bug else known
        return logits
