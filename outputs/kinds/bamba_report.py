"""Bamba restarts its positions at 0 in every call that has a cache and no `position_ids`.

Expected: the next token through the cache has the logits of one forward pass, as with Llama.
Got: other logits in a hand-written decoding loop; `generate` passes `position_ids` and is right.
Cause: `BambaModel.forward` (models/bamba/modeling_bamba.py) sets `position_ids` to
`torch.arange(length)` and does not add `cache.get_seq_length()`.
"""

import torch
from transformers import BambaConfig, BambaForCausalLM

torch.manual_seed(0)
config = BambaConfig(
    vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, mamba_n_heads=8, mamba_d_state=8, attn_layer_indices=[1],
    initializer_range=0.3,
)
model = BambaForCausalLM(config).eval().double()
ids = torch.randint(97, (1, 9))
with torch.no_grad():
    plain = model(ids, use_cache=False).logits[:, 8:]
    cache = model(ids[:, :8], use_cache=True).cache
    cached = model(ids[:, 8:], use_cache=True, cache=cache).logits
difference = (cached - plain).abs().max()
print(f"difference {difference:.1e} of logits up to {plain.abs().max():.1e}")
assert difference < 1e-4

# transformers 5.24.0 with torch 2.14.1 prints, before the AssertionError:
#
#     difference 2.3e+00 of logits up to 4.0e+00
