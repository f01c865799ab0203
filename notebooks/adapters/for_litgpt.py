"""A litgpt GPT, whose caches are buffers inside the model.

`referee(Adapter(model.eval()))`. A new session replaces these buffers, which ends the previous
session: `sessions = 1` says so, and texts are not interleaved.
"""

import torch


class Adapter:
    sessions = 1

    def __init__(self, model):
        self.model, self.length, self.longest = model, 0, model.max_seq_length

    def plain(self, ids):
        return self.model(ids)

    def start(self, rows):
        self.model.set_kv_cache(rows, dtype=self.model.lm_head.weight.dtype)
        return Adapter(self.model)

    def read(self, ids):
        start, self.length = self.length, self.length + ids.shape[1]
        return self.model(ids, torch.arange(start, self.length), self.length)

    def rewind(self, n):
        self.length -= n
