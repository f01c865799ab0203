"""Nemotron-H clamps the time step at `time_step_min` in the prompt and not in decoding.

Expected: a decoded token has the logits of one forward pass, whatever `dt_bias` is.
Got: other logits where softplus(dt + dt_bias) is below `time_step_min`.
Cause: `mamba2_chunk_scan` clamps and `mamba2_selective_state_update` does not; the limit is
(time_step_min, inf), not `config.time_step_limit` (`NemotronHMamba2Mixer`, modeling_nemotron_h.py).
"""

import torch
from transformers import NemotronHConfig, NemotronHForCausalLM

torch.manual_seed(0)
config = NemotronHConfig(
    vocab_size=97, hidden_size=32, intermediate_size=48, num_attention_heads=4,
    num_key_value_heads=2, head_dim=8, mamba_num_heads=8, mamba_head_dim=8, n_groups=1,
    layers_block_type=["mamba", "attention", "mlp", "mamba"], initializer_range=0.3,
)
model = NemotronHForCausalLM(config).eval().double()
ids = torch.randint(97, (1, 24))
print("time_step_limit", config.time_step_limit, "time_step_min", config.time_step_min)
with torch.no_grad():
    for layer in (model.model.layers[0], model.model.layers[3]):
        layer.mixer.dt_bias.fill_(-8)  # softplus(-8) is 0.0003
    plain = model(ids, use_cache=False).logits[:, 8:]
    cache = model(ids[:, :8], use_cache=True).cache
    cached = [model(ids[:, i : i + 1], use_cache=True, cache=cache).logits for i in range(8, 24)]
difference = (torch.cat(cached, 1) - plain).abs().max()
print(f"difference {difference:.1e} of logits up to {plain.abs().max():.1e}")
assert difference < 1e-4

# transformers 5.24.0 with torch 2.14.1 prints, before the AssertionError:
#
#     time_step_limit (0.0, inf) time_step_min 0.001
#     difference 1.5e-01 of logits up to 7.5e+00
