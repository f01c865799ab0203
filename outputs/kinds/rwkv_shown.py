"""RwkvForCausalLM (rwkv) of transformers 5.24.0: its cache, three texts in a batch, against each alone.

logits (3, 50, 97), where (3, 40, 97) are wanted
"""

import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, StaticCache

config = AutoConfig.for_model('rwkv', **{'vocab_size': 97, 'hidden_size': 32, 'intermediate_size': 48, 'num_hidden_layers': 4, 'max_position_embeddings': 512, 'bos_token_id': 1, 'eos_token_id': 2})
torch.manual_seed(0)
model = AutoModelForCausalLM.from_config(config)
for p in model.parameters():
    if p.ndim > 1:
        torch.nn.init.normal_(p, std=0.3)
model = model.eval().double()
ids = torch.tensor([[52, 56, 8, 36, 68, 67, 52, 56, 8, 36, 68, 39, 52, 56, 8, 36, 68, 15, 65, 54, 41, 64, 48, 71, 52, 56, 8, 36, 68, 42, 52, 56, 8, 36, 68, 96, 52, 56, 8, 36], [58, 43, 81, 84, 29, 59, 58, 43, 81, 84, 29, 10, 45, 63, 74, 15, 48, 14, 58, 43, 81, 84, 29, 93, 45, 63, 74, 15, 48, 81, 58, 43, 81, 84, 29, 45, 45, 63, 74, 15], [44, 93, 11, 27, 75, 13, 31, 33, 21, 72, 60, 68, 31, 33, 21, 72, 60, 16, 31, 33, 21, 72, 60, 73, 31, 33, 21, 72, 60, 93, 44, 93, 11, 27, 75, 73, 31, 33, 21, 72]])

# What is read in turn: tokens, or how many of the last ones are taken back.
pieces = [[[52, 56, 8, 36, 68, 67, 52, 56, 8, 36, 68, 39, 52, 56, 8, 36, 68], [58, 43, 81, 84, 29, 59, 58, 43, 81, 84, 29, 10, 45, 63, 74, 15, 48], [44, 93, 11, 27, 75, 13, 31, 33, 21, 72, 60, 68, 31, 33, 21, 72, 60]], [[15], [14], [16]], [[65], [58], [31]], [[54, 41, 64, 48], [43, 81, 84, 29], [33, 21, 72, 60]], [[71], [93], [73]], [[52], [45], [31]], [[56], [63], [33]], [[8, 36, 68, 42, 52, 56, 8, 36, 68, 96, 52, 56, 8, 36], [74, 15, 48, 81, 58, 43, 81, 84, 29, 45, 45, 63, 74, 15], [21, 72, 60, 93, 44, 93, 11, 27, 75, 73, 31, 33, 21, 72]]]
state, kept = {}, []
with torch.no_grad():
    for piece in pieces:
        out = model(torch.tensor(piece), use_cache=True, **state)
        kept.append(out.logits)
        for name in ['cache', 'past_key_values', 'cache_params', 'state']:
            if getattr(out, name, None) is not None:
                state = {name: out[name]}
                break
    wanted = model(ids, use_cache=False).logits
got = torch.cat(kept, 1)
print("logits:", tuple(got.shape), "of a text:", tuple(wanted.shape))
n = min(got.shape[1], wanted.shape[1])
print((got[:, :n] - wanted[:, :n]).abs().amax((0, 2)))  # one difference for each token
