"""DeepSeek-V4's cache keeps the compressor's buffers of texts that have left the batch.

Expected: after `cache.batch_select_indices`, the texts that stay continue as before.
Got: RuntimeError in the next pass, because the buffers still have a row for each text.
Cause: `DeepseekV4HCACache` (models/deepseek_v4/modeling_deepseek_v4.py) inherits a
`batch_select_indices` that selects keys and values, and leaves out `buffer_kv`, `buffer_gate` and
`compressed_kv`; its own `reorder_cache` has them. `generate` does not call it.
"""

import torch
from transformers import AutoConfig, AutoModelForCausalLM

torch.manual_seed(0)
config = AutoConfig.for_model(
    "deepseek_v4", vocab_size=97, hidden_size=32, head_dim=8, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, sliding_window=12, n_routed_experts=4,
    num_experts_per_tok=2, moe_intermediate_size=16, q_lora_rank=16, qk_rope_head_dim=8,
    index_n_heads=2, index_head_dim=16, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    layer_types=["heavily_compressed_attention", "compressed_sparse_attention"],
    mlp_layer_types=["hash_moe", "moe"],
)
model = AutoModelForCausalLM.from_config(config, experts_implementation="eager").eval().double()
ids = torch.randint(3, 97, (3, 9))
stay = torch.tensor([0, 2])
with torch.no_grad():
    plain = model(ids[stay], use_cache=False).logits[:, -1:]
    cache = model(ids[:, :-1], use_cache=True).cache
    cache.batch_select_indices(stay)  # the second text has ended
    try:
        cached = model(ids[stay, -1:], use_cache=True, cache=cache).logits
    except RuntimeError as error:
        print(f"the next pass fails: {type(error).__name__}")
        cached = torch.full_like(plain, torch.inf)
difference = (cached - plain).abs().max()
print(f"difference {difference:.1e} of logits up to {plain.abs().max():.1e}")
assert difference < 1e-4

# transformers 5.24.0 with torch 2.14.1 prints, before the AssertionError:
#
#     the next pass fails: RuntimeError
#     difference inf of logits up to 3.7e-01
