"""An x-transformers TransformerWrapper, whose cache is what its last forward pass returned.

`referee(Adapter(model.eval()))`; pass the `net` of an AutoregressiveWrapper. `cache_age` is the
number of new tokens: with its default of 1, a chunk is reduced to its last token.
"""

from x_transformers.autoregressive_wrapper import modify_cached_kv

NEW = {"input_not_include_cache": True, "return_intermediates": True}


class Adapter:
    def __init__(self, model, cache=None):
        self.model, self.cache, self.longest = model, cache, model.max_seq_len

    def plain(self, ids):
        return self.model(ids)

    def start(self, rows):
        return Adapter(self.model)

    def read(self, ids):
        logits, self.cache = self.model(ids, cache=self.cache, cache_age=ids.shape[1], **NEW)
        return logits

    def reorder(self, rows):  # as its beam search does
        modify_cached_kv(self.cache, lambda x: x[rows])

    keep = reorder
