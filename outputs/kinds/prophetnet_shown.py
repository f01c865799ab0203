"""ProphetNetForCausalLM (prophetnet) of transformers 5.24.0: the plain pass, with later tokens and without them.

off by 1.1e+00 in float64 from token 0 on, where float32 moves the plain pass by 2.0e-05: it looks ahead, or depends on the length; instead of it the cache is compared with plain passes that end at each token
"""

import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, StaticCache

config = AutoConfig.for_model('prophetnet', **{'vocab_size': 97, 'hidden_size': 32, 'max_position_embeddings': 512, 'pad_token_id': 0, 'bos_token_id': 1, 'eos_token_id': 2, 'attention_dropout': 0.0, 'decoder_ffn_dim': 48, 'encoder_ffn_dim': 48, 'is_decoder': True, 'add_cross_attention': False, 'num_encoder_layers': 4, 'num_decoder_layers': 4, 'num_encoder_attention_heads': 4, 'num_decoder_attention_heads': 4})
torch.manual_seed(0)
model = AutoModelForCausalLM.from_config(config)
for p in model.parameters():
    if p.ndim > 1:
        torch.nn.init.normal_(p, std=0.3)
model = model.eval().double()
ids = torch.tensor([[52, 56, 8, 36, 68, 67, 52, 56, 8, 36, 68, 39, 52, 56, 8, 36, 68, 15, 65, 54, 41, 64, 48, 71, 52, 56, 8, 36, 68, 42, 52, 56, 8, 36, 68, 96, 52, 56, 8, 36]])

# Two passes without a cache: over the first tokens, and over all.
with torch.no_grad():
    got = model(ids[:, :1], use_cache=False).logits
    wanted = model(ids, use_cache=False).logits
print((got - wanted[:, :1]).abs().amax((0, 2)))  # one difference for each token
