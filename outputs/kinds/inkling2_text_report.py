"""Inkling 2's caches leave out one half of a layer that has a convolution and attention.

Expected: after `crop(-3)` a static cache has forgotten three tokens, and after
`batch_select_indices` a dynamic one has only the texts that stay.
Got: other logits after the crop, and RuntimeError after the selection.
Cause (cache_utils.py): `LinearAttentionAndStaticFullAttentionLayer` and its sliding-window sister
have no `crop` and no `is_croppable` of their own, so those of the convolution hide the ones of the
keys, whose counter is not moved back. `LinearAttentionAndFullAttentionLayer` and its sister have
no `batch_select_indices` of their own, so the convolution's states keep a row for each text.
`generate` does not call the second.
"""

import torch
from transformers import AutoConfig, AutoModelForCausalLM, StaticCache

torch.manual_seed(0)
config = AutoConfig.for_model(
    "inkling2_text", vocab_size=97, hidden_size=32, head_dim=8, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, sliding_window=12,
    n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, initializer_range=0.3,
    pad_token_id=0, bos_token_id=1, eos_token_id=2, layer_types=["hybrid", "hybrid"],
)
model = AutoModelForCausalLM.from_config(config, experts_implementation="eager").eval()
ids = torch.randint(3, 97, (3, 9))
with torch.no_grad():
    plain = model(ids, use_cache=False).logits[:, -1:]
    # 1. Three rejected drafts, taken back.
    cache = StaticCache(config=config, max_cache_len=32)
    model(ids[:1, :-1], use_cache=True, cache=cache)
    cache.activate_past_recording()
    model(torch.tensor([[5, 6, 7]]), use_cache=True, cache=cache)
    cache.crop(-3)
    cached = model(ids[:1, -1:], use_cache=True, cache=cache).logits
    difference = (cached - plain[:1]).abs().max()
    print(f"difference {difference:.1e} of logits up to {plain.abs().max():.1e}")
    # 2. The second of three texts has ended.
    cache = model(ids[:, :-1], use_cache=True).cache
    stay = torch.tensor([0, 2])
    cache.batch_select_indices(stay)
    try:
        model(ids[stay, -1:], use_cache=True, cache=cache)
    except RuntimeError as error:
        print(f"the next pass fails: {type(error).__name__}")
assert difference < 1e-3  # float32: the router casts to it

# transformers 5.24.0 with torch 2.14.1 prints, before the AssertionError:
#
#     difference 5.5e+00 of logits up to 7.5e+00
#     the next pass fails: RuntimeError
