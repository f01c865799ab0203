"""GIT without an image ignores left padding once it has a cache.

Expected: the last token, with mask and cache, has the logits of one forward pass.
Got: other logits in a padded batch of texts; `generate` returns other tokens.
Cause: `GitModel.forward` (models/git/modeling_git.py) widens the mask by the number of image
tokens whenever the cache is not empty, also where it holds no image.
"""

import torch
from transformers import GitConfig, GitForCausalLM

torch.manual_seed(0)
config = GitConfig(
    vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    vision_config={"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4},
    initializer_range=0.3,
)
model = GitForCausalLM(config).eval().double()
ids = torch.randint(3, 97, (1, 12))
ids[:, :4] = config.pad_token_id
mask = (ids != config.pad_token_id).long()
with torch.no_grad():
    plain = model(ids, attention_mask=mask, use_cache=False).logits[:, -1]
    cache = model(ids[:, :-1], attention_mask=mask[:, :-1], use_cache=True).cache
    cached = model(ids[:, -1:], attention_mask=mask, use_cache=True, cache=cache).logits[:, -1]
difference = (cached - plain).abs().max()
print(f"difference {difference:.1e} of logits up to {plain.abs().max():.1e}")
assert difference < 1e-4

# transformers 5.24.0 with torch 2.14.1 prints, before the AssertionError:
#
#     difference 1.1e+00 of logits up to 3.6e+00
