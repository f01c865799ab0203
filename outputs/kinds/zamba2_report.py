"""Zamba2 clamps the time step at `time_step_min` in the prompt and not in decoding.

Expected: a decoded token has the logits of one forward pass, whatever `dt_bias` is.
Got: other logits where softplus(dt + dt_bias) is below `time_step_min`.
Cause: `mamba2_chunk_scan` clamps and `mamba2_selective_state_update` does not; the limit is
(time_step_min, inf) (`Zamba2MambaMixer`, models/zamba2/modeling_zamba2.py).
"""

import torch
from transformers import Zamba2Config, Zamba2ForCausalLM

torch.manual_seed(0)
config = Zamba2Config(
    vocab_size=97, hidden_size=32, attention_hidden_size=64, intermediate_size=48,
    num_hidden_layers=4, num_attention_heads=4, n_mamba_heads=8, mamba_ngroups=1, num_mem_blocks=1,
    layers_block_type=["linear_attention", "hybrid"] * 2, initializer_range=0.3,
)
model = Zamba2ForCausalLM(config).eval().double()
ids = torch.randint(97, (1, 24))
with torch.no_grad():
    for name, bias in model.named_parameters():
        if name.endswith("dt_bias"):
            bias.fill_(-8)  # softplus(-8) is 0.0003, config.time_step_min is 0.001
    plain = model(ids, use_cache=False).logits[:, 8:]
    cache = model(ids[:, :8], use_cache=True).cache
    cached = [model(ids[:, i : i + 1], use_cache=True, cache=cache).logits for i in range(8, 24)]
difference = (torch.cat(cached, 1) - plain).abs().max()
print(f"difference {difference:.1e} of logits up to {plain.abs().max():.1e}")
assert difference < 1e-4

# transformers 5.24.0 with torch 2.14.1 prints, before the AssertionError:
#
#     difference 2.8e+00 of logits up to 5.3e+00
