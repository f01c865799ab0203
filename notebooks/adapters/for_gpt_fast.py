"""A gpt-fast Transformer, whose caches are buffers in its layers, created by `setup_caches`.

`referee(Adapter(model.eval()))`; `FlexAdapter` if its forward pass takes a block mask first. It has
no pass without a cache, so the plain pass is a single pass with new caches.
"""

import torch
from torch.nn.attention.flex_attention import create_block_mask


class Adapter:
    sessions = 1  # new caches replace those of the previous session

    def __init__(self, model):
        self.model, self.length, self.longest = model, 0, model.config.block_size

    def plain(self, ids):
        return self.start(len(ids)).read(ids)

    def start(self, rows):
        self.model.max_batch_size = -1  # otherwise it keeps its old caches
        self.model.setup_caches(rows, self.longest)
        return type(self)(self.model)

    def read(self, ids):
        start, self.length = self.length, self.length + ids.shape[1]
        return self.model(ids, torch.arange(start, self.length))

    def rewind(self, n):
        self.length -= n


class FlexAdapter(Adapter):
    def read(self, ids):
        start, self.length = self.length, self.length + ids.shape[1]
        sizes = (None, None, ids.shape[1], self.model.max_seq_length)
        mask = create_block_mask(lambda b, h, q, k: q >= k, *sizes, device=ids.device)
        return self.model(mask, ids, torch.arange(start, self.length))
