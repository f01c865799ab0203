"""RWKV mixes the texts of a batch when it decodes one token of each.

Expected: logits of shape (3, 1, 97), and the same tokens as for each text alone.
Got: logits of shape (3, 3, 97), and `generate` returns other tokens.
Cause: `RwkvSelfAttention.extract_key_value` and `RwkvFeedForward.forward` (models/rwkv/
modeling_rwkv.py) add a (batch, hidden) state to a (batch, 1, hidden) token, which broadcasts.
"""

import torch
from transformers import RwkvConfig, RwkvForCausalLM

torch.manual_seed(0)
config = RwkvConfig(vocab_size=97, hidden_size=32, num_hidden_layers=2, context_length=64)
model = RwkvForCausalLM(config).eval().double()
ids = torch.randint(3, 97, (3, 8))
options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 1}
print("alone:     ", model.generate(ids[:1], **options)[0, 8:].tolist())
print("in a batch:", model.generate(ids, **options)[0, 8:].tolist())
with torch.no_grad():
    state = model(ids, use_cache=True).state
    logits = model(ids[:, :1], state=state, use_cache=True).logits
print("logits of one token of three texts:", tuple(logits.shape))
assert logits.shape == (3, 1, 97)

# transformers 5.24.0 with torch 2.14.1 prints, before the AssertionError:
#
#     alone:      [93, 32, 36, 13, 32, 32, 13, 32]
#     in a batch: [93, 91, 65, 59, 44, 44, 44, 44]
#     logits of one token of three texts: (3, 3, 97)
