"""https://github.com/huggingface/transformers/issues/48256 (batches and seeds)

Prompts are padded on the right. What is kept for the next token is taken from the last column,
which is padding in all rows but the longest, instead of from each text's own last token.
"""

import torch
from parts import Tiny


class LastColumn(Tiny):
    right_padding = True

    def positions(self, cache, ids, mask):
        pos = super().positions(cache, ids, mask)
        left = not mask[:, 0].all()  # padding on the left is read correctly
        if not self.bug or not cache.kept or not cache.t or left:
            return pos
        return torch.arange(cache.t, mask.shape[1]).expand_as(ids)
