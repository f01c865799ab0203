"""xLSTMForCausalLM (xlstm) of transformers 5.24.0: its cache, a prompt of 2, then 8 tokens.

it stops with ValueError: matC_old has wrong shape, got torch.Size([1, 8, 8, 8])
"""

import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, StaticCache

config = AutoConfig.for_model('xlstm', **{'vocab_size': 97, 'hidden_size': 32, 'num_hidden_layers': 4, 'pad_token_id': 0, 'bos_token_id': 1, 'eos_token_id': 2, 'chunk_size': 16})
torch.manual_seed(0)
model = AutoModelForCausalLM.from_config(config)
for p in model.parameters():
    if p.ndim > 1:
        torch.nn.init.normal_(p, std=0.3)
model = model.eval().double()
ids = torch.tensor([[52, 56, 8, 36, 68, 67, 52, 56, 8, 36]])

# What is read in turn: tokens, or how many of the last ones are taken back.
pieces = [[[52, 56]], [[8]], [[36]], [[68]], [[67]], [[52]], [[56]], [[8]], [[36]]]
state, kept = {}, []
with torch.no_grad():
    for piece in pieces:
        out = model(torch.tensor(piece), use_cache=True, **state)
        kept.append(out.logits)
        for name in ['cache', 'cache_params', 'state']:
            if getattr(out, name, None) is not None:
                state = {name: out[name]}
                break
    wanted = model(ids, use_cache=False).logits
got = torch.cat(kept, 1)
print("logits:", tuple(got.shape), "of a text:", tuple(wanted.shape))
n = min(got.shape[1], wanted.shape[1])
print((got[:, :n] - wanted[:, :n]).abs().amax((0, 2)))  # one difference for each token
