"""Jamba loses its recurrent state if several tokens follow a cache that is not empty.

Expected: a prompt in two chunks through the cache has the logits of one forward pass.
Got: other logits, and `generate` with `prefill_chunk_size` returns other tokens.
Cause: `JambaMambaMixer.forward` (models/jamba/modeling_jamba.py) uses the cached state in the
one-token update only; `mamba_selective_scan` starts from zeros.
"""

import torch
from transformers import JambaConfig, JambaForCausalLM

torch.manual_seed(0)
config = JambaConfig(
    vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, attn_layer_period=2, attn_layer_offset=1, num_experts=2,
    initializer_range=0.3,
)
model = JambaForCausalLM._from_config(config, experts_implementation="eager").eval().double()
ids = torch.randint(3, 97, (1, 24))
with torch.no_grad():
    plain = model(ids, use_cache=False).logits[:, 8:]
    cache = model(ids[:, :8], use_cache=True).cache
    cached = model(ids[:, 8:], use_cache=True, cache=cache).logits
difference = (cached - plain).abs().max()
print(f"difference {difference:.1e} of logits up to {plain.abs().max():.1e}")
options = {"max_new_tokens": 8, "do_sample": False}
print("whole:    ", model.generate(ids, **options)[0, 24:].tolist())
print("in chunks:", model.generate(ids, prefill_chunk_size=8, **options)[0, 24:].tolist())
assert difference < 1e-4

# transformers 5.24.0 with torch 2.14.1 prints, before the AssertionError:
#
#     difference 8.2e-01 of logits up to 6.3e+00
#     whole:     [69, 95, 39, 39, 70, 71, 17, 91]
#     in chunks: [69, 86, 41, 15, 37, 95, 66, 69]
