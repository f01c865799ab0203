"""A causal language model of transformers, with a DynamicCache.

`referee(Adapter(model.eval()))`. `referee(model)` needs no adapter, and also tries static caches
and padded batches; copy this adapter to test another cache class.
"""

import torch
from transformers import DynamicCache, LlamaForCausalLM

# The argument was renamed in transformers 5.24. A wrong name is ignored and the cache stays empty.
NAME = "cache" if "cache" in LlamaForCausalLM.forward.__annotations__ else "past_key_values"


class Adapter:
    def __init__(self, model, cache=None):
        self.model, self.cache = model, cache
        self.longest = model.config.max_position_embeddings

    def plain(self, ids):
        return self.model(ids, use_cache=False)

    def start(self, rows):
        return Adapter(self.model, DynamicCache(config=self.model.config))

    def read(self, ids):
        return self.model(ids, use_cache=True, **{NAME: self.cache})

    def rewind(self, n):
        self.cache.crop(-n)

    def reorder(self, rows):
        self.cache.reorder_cache(torch.tensor(rows))
