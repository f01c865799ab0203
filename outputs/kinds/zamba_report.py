"""Zamba loses its recurrent state if several tokens follow a cache that is not empty.

Expected: a prompt in two chunks through the cache has the logits of one forward pass.
Got: other logits, and `generate` with `prefill_chunk_size` returns other tokens.
Cause: `ZambaMambaMixer.forward` (models/zamba/modeling_zamba.py) uses the cached state in the
one-token update only; `mamba_selective_scan` starts from zeros.
"""

import torch
from transformers import ZambaConfig, ZambaForCausalLM

torch.manual_seed(0)
config = ZambaConfig(
    vocab_size=97, hidden_size=32, attention_hidden_size=64, intermediate_size=48,
    num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=4, n_mamba_heads=2,
    layers_block_type=["linear_attention", "hybrid"] * 3, initializer_range=0.3,
)
model = ZambaForCausalLM(config).eval().double()
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
#     difference 6.2e+00 of logits up to 5.7e+00
#     whole:     [32, 24, 93, 73, 64, 65, 12, 88]
#     in chunks: [23, 34, 16, 49, 27, 16, 16, 18]
