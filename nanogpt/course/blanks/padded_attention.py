"""Notebook 12, blank 3: padded_attention."""

import torch.nn.functional as F

from ...attention import attend
from ..page import Blank


def padded_attention(q, k, v, mask, length):
    """attend over exactly `length` keys.  (T, hs), (S, hs), (S, hs), (T, S) -> (T, hs)"""
    more = length - k.shape[-2]
    k, v = (F.pad(x, (0, 0, 0, more)) for x in (k, v))
    return attend(q, k, v, F.pad(mask, (0, more)))


BLANK = Blank(
    number="12.3",
    solution=padded_attention,
    cases=[],
    mistakes={},
    hints=(
        "A key of zeros has a score of 0. Is its weight also 0, and what makes it 0?",
        "`F.pad` fills a boolean mask with False, which means hidden, as it should be. Keys and values get extra rows at the bottom, the mask gets extra columns on the right, as many as are missing.",
        "more = length - len(k); return attend(q, F.pad(k, (0, 0, 0, more)), F.pad(v, (0, 0, 0, more)), F.pad(mask, (0, more)))",
    ),
    advice={
        "the shape of the output": "It has a row for each of the T queries.",
        "the number of keys": "Pad keys, values and mask to exactly `length` keys: scores, softmax and the sum over the values run over all of them.",
        "the output": "It must equal attend's without padding: hide what is not there.",
        "at the end of the keys": "A key must keep its position in the sum as the text grows: pad at the end.",
        "your code raised": "Keys and values get extra rows, F.pad(x, (0, 0, 0, n)), and the mask extra columns, F.pad(mask, (0, n)).",
    },
    axes=[("query", "number")],
)
