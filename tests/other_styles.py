"""Small models in the style of nanochat and of gpt-fast, which cannot be installed: for adapters.

Written for these tests: what they share with those projects is how a model is called, what its
cache is, how weights begin, and what is done to logits.
"""

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import flex_attention


def angles(longest, size):
    """Cosines and sines of all positions.  -> (T, D/2) twice"""
    freq = 1000.0 ** (-torch.arange(size // 2) / (size // 2))
    angle = torch.arange(longest)[:, None] * freq
    return angle.cos(), angle.sin()


def rotated(x, cos, sin):
    """Rotate each first half against its second one.  (…, T, D), (T, D/2) twice"""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


# ------------------------------------------------------------------ nanochat


class ChatCache:
    """Keys and values of all layers, allocated at once, and the last embedding for the smear."""

    def __init__(self, batch_size, num_heads, seq_len, head_dim, num_layers, device, dtype):
        shape = (num_layers, batch_size, seq_len, num_heads, head_dim)
        self.k_cache = torch.zeros(shape, device=device, dtype=dtype)
        self.v_cache = torch.zeros(shape, device=device, dtype=dtype)
        self.cache_seqlens = torch.zeros(batch_size, dtype=torch.int32, device=device)
        self.prev_embedding = None

    def get_pos(self):
        return int(self.cache_seqlens[0])

    def insert(self, layer, k, v):
        """Write new keys and values; all up to them.  (B, T, H, D) -> (B, S, H, D) twice"""
        start = self.get_pos()
        end = start + k.shape[1]
        self.k_cache[layer, :, start:end] = k
        self.v_cache[layer, :, start:end] = v
        return self.k_cache[layer, :, :end], self.v_cache[layer, :, :end]

    def advance(self, n):
        self.cache_seqlens += n


class Cast(nn.Linear):
    """A linear layer whose weights follow the dtype of its input."""

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype))


class ChatBlock(nn.Module):
    def __init__(self, width, heads, kv_heads, layer):
        super().__init__()
        self.layer = layer
        self.heads = heads
        self.kv_heads = kv_heads
        size = width // heads
        self.c_q = Cast(width, width, bias=False)
        self.c_k = Cast(width, kv_heads * size, bias=False)
        self.c_v = Cast(width, kv_heads * size, bias=False)
        self.c_proj = Cast(width, width, bias=False)
        self.c_fc = Cast(width, 4 * width, bias=False)
        self.c_out = Cast(4 * width, width, bias=False)

    def forward(self, x, rotation, cache):
        b, t, c = x.shape
        start = cache.get_pos() if cache else 0
        normed = F.rms_norm(x, (c,))
        q = self.c_q(normed).view(b, t, self.heads, -1)
        k = self.c_k(normed).view(b, t, self.kv_heads, -1)
        v = self.c_v(normed).view(b, t, self.kv_heads, -1)
        q, k = (rotated(z.transpose(1, 2), *rotation).transpose(1, 2) for z in (q, k))
        q, k = (F.rms_norm(z, z.shape[-1:]) for z in (q, k))
        if cache:
            k, v = cache.insert(self.layer, k, v)
        q, k, v = (z.transpose(1, 2) for z in (q, k, v))
        see = torch.arange(k.shape[2]) <= torch.arange(start, start + t)[:, None]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=see, enable_gqa=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.c_out(F.relu(self.c_fc(F.rms_norm(x, (c,)))).square())


class Chat(nn.Module):
    """A GPT with QK norm, relu², a smear, logits that are capped, and a padded vocabulary."""

    padding = 24

    def __init__(self, zero=False):
        super().__init__()
        torch.manual_seed(1)
        self.config = SimpleNamespace(
            sequence_len=64, vocab_size=40, n_layer=2, n_head=2, n_kv_head=1, n_embd=16
        )
        c = self.config
        cos, sin = angles(c.sequence_len, c.n_embd // c.n_head)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.wte = nn.Embedding(c.vocab_size + self.padding, c.n_embd)
        self.smear_gate = Cast(8, 1, bias=False)
        self.h = nn.ModuleList(
            ChatBlock(c.n_embd, c.n_head, c.n_kv_head, layer) for layer in range(c.n_layer)
        )
        self.lm_head = Cast(c.n_embd, c.vocab_size + self.padding, bias=False)
        if zero:  # its own initialisation
            for block in self.h:
                nn.init.zeros_(block.c_proj.weight)
                nn.init.zeros_(block.c_out.weight)

    def forward(self, ids, kv_cache=None):
        c = self.config
        start = 0 if kv_cache is None else kv_cache.get_pos()
        rotation = [z[start : start + ids.shape[1]] for z in (self.cos, self.sin)]
        x = F.rms_norm(self.wte(ids), (c.n_embd,))
        before = None if kv_cache is None else kv_cache.prev_embedding
        if kv_cache is None:
            assert ids.shape[1] > 1, "a training pass has more than one token"
        else:
            kv_cache.prev_embedding = x[:, -1:]
        if ids.shape[1] > 1:  # a prompt; of a chunk the first token is not smeared
            gate = torch.sigmoid(self.smear_gate(x[:, 1:, :8]))
            x = torch.cat([x[:, :1], x[:, 1:] + gate * x[:, :-1]], 1)
        elif before is not None:
            x = x + torch.sigmoid(self.smear_gate(x[..., :8])) * before
        for block in self.h:
            x = block(x, rotation, kv_cache)
        if kv_cache is not None:
            kv_cache.advance(ids.shape[1])
        logits = self.lm_head(F.rms_norm(x, (c.n_embd,)))[..., : c.vocab_size].float()
        return 15 * torch.tanh(logits / 15)


# ------------------------------------------------------------------ gpt-fast


class FastCache(nn.Module):
    """Keys and values of one layer as buffers, (B, H, S, D), written at positions."""

    def __init__(self, rows, most, heads, size, dtype):
        super().__init__()
        self.register_buffer("k_cache", torch.zeros(rows, heads, most, size, dtype=dtype))
        self.register_buffer("v_cache", torch.zeros(rows, heads, most, size, dtype=dtype))

    def update(self, input_pos, k, v):
        self.k_cache[:, :, input_pos] = k
        self.v_cache[:, :, input_pos] = v
        return self.k_cache, self.v_cache


class FastNorm(nn.Module):
    """An RMSNorm in float32, whatever the dtype of its input."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return F.rms_norm(x.float(), x.shape[-1:]).type_as(x) * self.weight


class FastLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.wqkv = nn.Linear(width, 3 * width, bias=False)
        self.wo = nn.Linear(width, width, bias=False)
        self.norm = FastNorm(width)
        self.kv_cache = None

    def forward(self, x, input_pos, rotation, attend):
        b, t, c = x.shape
        qkv = self.wqkv(self.norm(x)).view(b, t, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        q, k = (rotated(z, *rotation) for z in (q, k))
        k, v = self.kv_cache.update(input_pos, k, v)
        return x + self.wo(attend(q, k, v).transpose(1, 2).reshape(b, t, c))


class Fast(nn.Module):
    """Static caches inside of the layers, and a causal mask as a buffer of all positions."""

    cache_type = FastCache

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.config = SimpleNamespace(block_size=64, vocab_size=40, dim=16, n_head=2, n_layer=2)
        c = self.config
        self.tok_embeddings = nn.Embedding(c.vocab_size, c.dim)
        self.layers = nn.ModuleList(FastLayer(c.dim, c.n_head) for _ in range(c.n_layer))
        self.norm = FastNorm(c.dim)
        self.output = nn.Linear(c.dim, c.vocab_size, bias=False)
        self.max_batch_size = self.max_seq_length = -1

    def setup_caches(self, max_batch_size, max_seq_length):
        if self.max_seq_length >= max_seq_length and self.max_batch_size >= max_batch_size:
            return
        self.max_batch_size = max_batch_size
        self.max_seq_length = max_seq_length
        c = self.config
        sizes = (max_batch_size, max_seq_length, c.n_head, c.dim // c.n_head)
        for layer in self.layers:
            layer.kv_cache = self.cache_type(*sizes, self.output.weight.dtype)
        self.freqs = angles(max_seq_length, c.dim // c.n_head)
        self.causal_mask = torch.ones(max_seq_length, max_seq_length, dtype=torch.bool).tril()

    def forward(self, idx, input_pos):
        mask = self.causal_mask[input_pos]
        return self.through(
            idx, input_pos, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, mask)
        )

    def through(self, idx, input_pos, attend):
        x = self.tok_embeddings(idx)
        rotation = [z[input_pos].to(x.dtype) for z in self.freqs]
        for layer in self.layers:
            x = layer(x, input_pos, rotation, attend)
        return self.output(self.norm(x))


class Flex(Fast):
    """The same with FlexAttention: a block mask comes first, and is moved to the positions."""

    def forward(self, mask, idx, input_pos):
        causal = mask.mask_mod
        start = input_pos[0]
        mask.mask_mod = lambda b, h, q, k: causal(b, h, q + start, k)
        return self.through(
            idx, input_pos, lambda q, k, v: flex_attention(q, k, v, block_mask=mask)
        )
