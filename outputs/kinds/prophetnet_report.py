"""ProphetNet looks ahead: logits without a cache depend on later tokens.

Expected: the logits of a token do not change if later tokens do.
Got: they change, so a teacher-forced loss sees tokens that decoding does not have.
Cause: `get_predict_relative_pos_embeddings` (models/prophetnet/modeling_prophetnet.py) permutes
to (batch, position, ngram, head) and reads (batch, ngram, head, position).
"""

import torch
from transformers import ProphetNetConfig, ProphetNetForCausalLM

torch.manual_seed(0)
config = ProphetNetConfig(
    vocab_size=97, hidden_size=32, num_decoder_layers=2, num_decoder_attention_heads=4,
    decoder_ffn_dim=48, num_encoder_layers=2, init_std=0.3,
)
model = ProphetNetForCausalLM(config).eval().double()
ids = torch.randint(3, 97, (1, 12))
other = ids.clone()
other[:, 3:] = torch.randint(3, 97, (1, 9))
with torch.no_grad():
    difference = (model(ids).logits - model(other).logits)[:, :3].abs().max()
print(f"difference {difference:.1e} before the first token that changed")
assert difference < 1e-4

# transformers 5.24.0 with torch 2.14.1 prints, before the AssertionError:
#
#     difference 8.8e-01 before the first token that changed
