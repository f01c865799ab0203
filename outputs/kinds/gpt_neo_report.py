"""GPT-Neo masks the wrong tokens if a StaticCache is longer than `config.window_size`.

Expected: the room of a static cache does not change the logits.
Got: other logits from the first token on; `generate(cache_implementation="static")` is wrong too.
Cause: `GPTNeoSelfAttention._attn` (models/gpt_neo/modeling_gpt_neo.py) places the queries at the
end of the keys, but a static cache returns all its slots, most of them still empty.
"""

import torch
from transformers import GPTNeoConfig, GPTNeoForCausalLM, StaticCache

torch.manual_seed(0)
config = GPTNeoConfig(
    vocab_size=97, hidden_size=32, num_layers=2, num_heads=4, max_position_embeddings=512,
    attention_types=[[["global", "local"], 1]], initializer_range=0.3,
)
model = GPTNeoForCausalLM(config).eval().double()
ids = torch.randint(97, (1, 16))
with torch.no_grad():
    plain = model(ids, use_cache=False).logits
    for room in (256, 300):  # config.window_size is 256
        cache = StaticCache(config=config, max_cache_len=room)
        difference = (model(ids, use_cache=True, cache=cache).logits - plain).abs().max()
        print(f"a static cache of {room}: difference {difference:.1e}")
assert difference < 1e-4

# transformers 5.24.0 with torch 2.14.1 prints, before the AssertionError:
#
#     a static cache of 256: difference 0.0e+00
#     a static cache of 300: difference 3.8e+00
