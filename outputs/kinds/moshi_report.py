"""Moshi has a sliding window with a cache and none without it.

Expected: a decoded token has the logits of one forward pass.
Got: other logits from the first token past `sliding_window` (3,000 by default).
Cause: `MoshiModel.forward` (models/moshi/modeling_moshi.py) calls `create_causal_mask` and not
`create_sliding_window_causal_mask`; only the cache drops tokens.
"""

import torch
from transformers import MoshiConfig, MoshiForCausalLM

torch.manual_seed(0)
config = MoshiConfig(
    vocab_size=97, hidden_size=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=4,
    sliding_window=12, initializer_range=0.3,
)
model = MoshiForCausalLM(config).eval().double()
ids = torch.randint(97, (1, 16))
cache = None
with torch.no_grad():
    plain = model(ids, use_cache=False).logits
    for i in range(16):
        out = model(ids[:, i : i + 1], use_cache=True, cache=cache)
        cache = out.cache
        difference = (out.logits[:, 0] - plain[:, i]).abs().max()
        if i >= 10:
            print(f"token {i + 1}, a window of 12: difference {difference:.1e}")
assert difference < 1e-4

# transformers 5.24.0 with torch 2.14.1 prints, before the AssertionError:
#
#     token 11, a window of 12: difference 1.8e-15
#     token 12, a window of 12: difference 8.9e-16
#     token 13, a window of 12: difference 1.1e+00
#     token 14, a window of 12: difference 2.1e+00
#     token 15, a window of 12: difference 2.2e+00
#     token 16, a window of 12: difference 2.0e+00
