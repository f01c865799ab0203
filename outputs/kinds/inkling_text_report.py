"""Inkling has wrong relative positions with a StaticCache after the first forward pass.

Expected: a prompt in two chunks through a static cache has the logits of one forward pass.
Got: other logits from the second chunk on; `generate(cache_implementation="static")` is wrong too.
Cause: `InklingAttention.forward` (models/inkling/modeling_inkling.py) keeps `get_query_offset()`,
which for a StaticLayer is the counter itself; `cache.update` adds to it before it is used.
"""

import torch
from transformers import InklingForCausalLM, InklingTextConfig, StaticCache

torch.manual_seed(0)
config = InklingTextConfig(
    vocab_size=97, hidden_size=32, intermediate_size=48, head_dim=8, num_attention_heads=4,
    num_key_value_heads=2, swa_head_dim=8, swa_num_attention_heads=4, swa_num_key_value_heads=2,
    num_hidden_layers=2, layer_types=["hybrid", "hybrid"], mlp_layer_types=["dense", "dense"],
    logits_mup_width_multiplier=1.0, initializer_range=0.3,
)
model = InklingForCausalLM(config).eval().double()
ids = torch.randint(3, 97, (1, 16))
with torch.no_grad():
    plain = model(ids, use_cache=False).logits[:, 8:]
    cache = StaticCache(config=config, max_cache_len=32)
    model(ids[:, :8], use_cache=True, cache=cache)
    cached = model(ids[:, 8:], use_cache=True, cache=cache).logits
difference = (cached - plain).abs().max()
print(f"difference {difference:.1e} of logits up to {plain.abs().max():.1e}")
assert difference < 1e-4

# transformers 5.24.0 with torch 2.14.1 prints, before the AssertionError:
#
#     difference 8.7e+00 of logits up to 5.2e+00
