"""MiniMax does not reorder the states of its linear attention in beam search.

Expected: `generate(num_beams=4)` returns the same tokens with and without a cache.
Got: other tokens; after `reorder_cache` each text continues from another one's states.
Cause: `MiniMaxCache` (models/minimax/modeling_minimax.py) inherits a `reorder_cache` that
reorders `layers` and leaves out `linear_cache`.
"""

import torch
from transformers import MiniMaxConfig, MiniMaxForCausalLM

torch.manual_seed(0)
config = MiniMaxConfig(
    vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, num_local_experts=2, initializer_range=0.3,
)
model = MiniMaxForCausalLM._from_config(config, experts_implementation="eager").eval().double()
ids = torch.randint(3, 97, (2, 8))
with torch.no_grad():
    plain = model(ids.flip(0), use_cache=False).logits[:, -1:]
    cache = model(ids[:, :-1], use_cache=True).cache
    cache.reorder_cache(torch.tensor([1, 0]))  # the two texts change places, as beams do
    cached = model(ids.flip(0)[:, -1:], use_cache=True, cache=cache).logits
difference = (cached - plain).abs().max()
print(f"difference {difference:.1e} of logits up to {plain.abs().max():.1e}")
options = {"num_beams": 4, "max_new_tokens": 8, "do_sample": False}
for use_cache in (False, True):
    tokens = model.generate(ids[:1], use_cache=use_cache, **options)[0, 8:]
    print(f"use_cache={use_cache}: {tokens.tolist()}")
assert difference < 1e-4

# transformers 5.24.0 with torch 2.14.1 prints, before the AssertionError:
#
#     difference 3.0e+00 of logits up to 4.8e+00
#     use_cache=False: [6, 36, 2]
#     use_cache=True: [6, 42, 63, 78, 70, 22, 15, 46]
