"""LFM2-MoE with sdpa attends to empty slots of a StaticCache in assisted generation.

Expected: the token after the prompt has the logits of one forward pass.
Got: other logits with sdpa once the cache records its past; eager is right; LFM2 has the same bug.
Cause: `create_causal_mask` (masking_utils.py) drops the mask of a single token unless
`cache.is_compileable`; a conv layer that records its past (cache_utils.py) sets that to False.
"""

import torch
from transformers import Lfm2MoeConfig, Lfm2MoeForCausalLM, StaticCache

torch.manual_seed(0)
config = Lfm2MoeConfig(
    vocab_size=97, hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_experts=4,
    num_experts_per_tok=2, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    layer_types=["conv", "full_attention"], initializer_range=0.3,
)
model = Lfm2MoeForCausalLM._from_config(config, experts_implementation="eager").eval().double()
ids = torch.randint(97, (1, 9))
for attention in ("eager", "sdpa"):
    model.set_attn_implementation(attention)
    cache = StaticCache(config=config, max_cache_len=32)
    with torch.no_grad():
        plain = model(ids, use_cache=False).logits[:, 8:]
        model(ids[:, :8], use_cache=True, cache=cache)
        cache.activate_past_recording()  # as assisted generation does after the prompt
        cached = model(ids[:, 8:], use_cache=True, cache=cache).logits
    difference = (cached - plain).abs().max()
    print(f"{attention}: difference {difference:.1e} of logits up to {plain.abs().max():.1e}")
assert difference < 1e-4

# transformers 5.24.0 with torch 2.14.1 prints, before the AssertionError:
#
#     eager: difference 5.5e-07 of logits up to 3.6e+00
#     sdpa: difference 6.3e-01 of logits up to 3.6e+00
