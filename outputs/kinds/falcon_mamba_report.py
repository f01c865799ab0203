"""FalconMamba loses its recurrent state if several tokens follow a cache that is not empty.

Expected: a prompt in two chunks through the cache has the logits of one forward pass.
Got: other logits from the second chunk on, as in a second turn that reuses the first one's cache.
Cause: `FalconMambaMixer.forward` (models/falcon_mamba/modeling_falcon_mamba.py) uses the cached
state in the one-token update only; `mamba_selective_scan` starts from zeros.
"""

import torch
from transformers import FalconMambaConfig, FalconMambaForCausalLM

torch.manual_seed(0)
config = FalconMambaConfig(
    vocab_size=97, hidden_size=32, num_hidden_layers=2, initializer_range=0.3,
)
model = FalconMambaForCausalLM(config).eval().double()
ids = torch.randint(97, (1, 16))
with torch.no_grad():
    plain = model(ids, use_cache=False).logits[:, 8:]
    cache = model(ids[:, :8], use_cache=True).cache
    cached = model(ids[:, 8:], use_cache=True, cache=cache).logits
difference = (cached - plain).abs().max()
print(f"difference {difference:.1e} of logits up to {plain.abs().max():.1e}")
assert difference < 1e-4

# transformers 5.24.0 with torch 2.14.1 prints, before the AssertionError:
#
#     difference 7.4e-01 of logits up to 7.5e+00
