"""A nanochat GPT, with its engine's KVCache.

`from nanochat.engine import KVCache`, then `referee(Adapter(model.eval(), KVCache))`. Use a trained
model: its output projections are initialised to zero, so a cache has no influence.
"""


class Adapter:
    chunks = False  # after the prompt, the engine reads single tokens

    def __init__(self, model, kind, cache=None):
        self.model, self.kind, self.cache = model, kind, cache
        self.longest = model.config.sequence_len

    def plain(self, ids):
        return self.model(ids)

    def start(self, rows):
        c, like = self.model.config, self.model.cos  # keys and values have the dtype of cos
        sizes = (rows, c.n_kv_head, c.sequence_len, c.n_embd // c.n_head, c.n_layer)
        return Adapter(self.model, self.kind, self.kind(*sizes, like.device, like.dtype))

    def read(self, ids):
        return self.model(ids, kv_cache=self.cache)
