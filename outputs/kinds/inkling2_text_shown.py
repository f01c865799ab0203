"""Inkling2ForCausalLM: its cache, texts that leave a batch, of 24 tokens.

In the report: it fails with RuntimeError: Sizes of tensors must match except in dimension 2. Expected size 3 but got size 2 for tensor number 1 in the list.
Below is the shortest way found that still shows it: there, size and tokens may differ.
"""

import torch
import copy
from transformers import AutoConfig, AutoModelForCausalLM
from transformers import DynamicCache, StaticCache


def logits_of(out, rows):
    """(rows, tokens, vocabulary): of an array, by itself, in a tuple, in a dict or on an object."""
    out = out["logits"] if isinstance(out, dict) else getattr(out, "logits", out)
    out = torch.as_tensor(out[0] if isinstance(out, (tuple, list)) else out)
    return out.reshape(rows, -1, out.shape[-1])


config = AutoConfig.for_model('inkling2_text', **{'vocab_size': 97, 'hidden_size': 32, 'head_dim': 8, 'num_hidden_layers': 4, 'num_attention_heads': 4, 'num_key_value_heads': 2, 'max_position_embeddings': 512, 'sliding_window': 12, 'pad_token_id': 0, 'bos_token_id': 1, 'eos_token_id': 2, 'attention_dropout': 0.0, 'n_routed_experts': 4, 'num_experts_per_tok': 2, 'moe_intermediate_size': 16, 'layer_types': ['hybrid_sliding', 'hybrid', 'hybrid_sliding', 'hybrid']})
torch.manual_seed(0)
model = AutoModelForCausalLM.from_config(config, experts_implementation="eager")
for p in model.parameters():
    if p.ndim > 1:
        torch.nn.init.normal_(p, std=0.3)
model = model.eval()


def read(cache, ids, **more):
    """The logits of the next tokens; `cache` gets what to pass back with those after them."""
    out = model(torch.tensor(ids), use_cache=True, **cache, **more)
    name = next(name for name in ('cache', 'cache_params', 'state') if getattr(out, name, None) is not None)
    cache.clear()
    cache[name] = getattr(out, name)
    return out.logits


def read_and_record(cache, ids):
    """The same; then the cache keeps what drafts push out, as generation does."""
    logits = read(cache, ids)
    (held,) = cache.values()
    if hasattr(held, "activate_past_recording"):
        held.activate_past_recording()
    return logits


def padded(ids, mask, lengths):
    """A padded batch in pieces of these lengths, or in one pass without a cache (None)."""
    ids, mask = torch.tensor(ids), torch.tensor(mask)
    pos = (mask.cumsum(1) - 1).clamp(min=0)
    if lengths is None:
        return model(ids, attention_mask=mask, position_ids=pos, use_cache=False).logits
    cache, logits, end = {}, [], 0
    for piece in ids.split(lengths, 1):
        start, end = end, end + piece.shape[1]
        more = {"attention_mask": mask[:, :end], "position_ids": pos[:, start:end]}
        logits.append(read(cache, piece.tolist(), **more))
    return torch.cat(logits, 1)


with torch.no_grad():
    session_0 = {}
    read(session_0, [[68], [63], [88]])
    next(iter(session_0.values())).batch_select_indices(torch.tensor([0, 2]))
    read(session_0, [[52], [69]])
    # RuntimeError: Sizes of tensors must match except in dimension 2. Expected size 3 but got size 2 for tensor number 1 in the list.
