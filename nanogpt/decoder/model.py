"""The general decoder as a module, for training and for decoding with a KV cache.

Names and structure are the lecture's, with all heads in one matrix. Most variations of
`DecoderConfig` are one line here. Shapes: B batch, T tokens, C width, H query heads, Hkv key/value
heads, hs head size, S cached tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from ..config import check_int, check_type
from ..model import LanguageModel, draw_weights
from .config import DecoderConfig
from .layers import RMSNorm, activate, attend, build_norm, rotate, visible


class CausalSelfAttention(nn.Module):
    """All heads in one matmul, with one KV cache for all of them.

    With n_kv_head < n_head, groups of query heads share keys and values (GQA, Ainslie et al. 2023,
    arXiv 2305.13245; MQA if all share one, Shazeer 2019, arXiv 1911.02150). The cache holds only
    the shared ones. A subclass may override `visible` or `attend`.
    """

    visible = staticmethod(visible)  # which keys a query may attend to

    def __init__(self, config: DecoderConfig, layer: int = 0):
        super().__init__()
        c = config
        self.config = c
        self.window = c.window_of(layer)
        self.qkv = nn.Linear(c.n_embd, c.qkv_rows, bias=c.qkv_bias)
        self.query_norm = RMSNorm(c.head_size, c.norm_eps, c.norm_weights) if c.qk_norm else None
        self.key_norm = RMSNorm(c.head_size, c.norm_eps, c.norm_weights) if c.qk_norm else None
        self.proj = nn.Linear(c.n_head * c.head_size, c.n_embd, bias=c.proj_bias)
        self.attn_dropout = c.dropout
        self.dropout = nn.Dropout(c.dropout)
        self.cache = None  # set and removed by kv_cache(model)

    def forward(self, x: Tensor, pos: Tensor) -> Tensor:
        B, T, _ = x.shape
        c = self.config
        # If each text has its own positions, (B, T) becomes (B, 1, T), which all heads share.
        if pos.ndim == 2:
            pos = pos[:, None]
        # 1. queries, keys and values of all heads, from one matmul, only for the T new tokens
        qkv = self.qkv(x).view(B, T, -1, c.head_size).transpose(1, 2)  # (B, H + 2 Hkv, T, hs)
        q, k, v = qkv.split_with_sizes([c.n_head, c.kv_heads, c.kv_heads], dim=1)
        # Normalise, so that no query or key wins by its length alone.
        if self.query_norm is not None and self.key_norm is not None:
            q = self.query_norm(q)
            k = self.key_norm(k)
        if c.rotary:
            # Rotate keys before caching them: their angles never change. All heads at once: faster.
            q, k = rotate(torch.cat([q, k], dim=1), pos, c).split([c.n_head, c.kv_heads], dim=1)
        # 2. The cache stores the new keys and values and returns those of all S tokens so far, with
        #    their positions. Training reads whole texts, so it stores nothing.
        k_pos = pos
        if self.cache is not None and not self.training:
            k, v, k_pos = self.cache.update(k, v, pos)  # (B, Hkv, S, hs), (S,)
        # 3. Attention. If all keys belong to the new tokens, as without a cache or in prefill,
        #    PyTorch's causal kernel needs no mask and is faster. Otherwise compute the mask from
        #    positions.
        causal = k_pos is pos and self.is_causal()
        mask = None if causal else self.visible(pos, k_pos, self.window, c.sinks)  # (T, S)
        y = self.attend(q, k, v, mask, self.attn_dropout if self.training else 0.0)
        # 4. concatenate the heads, (B, H, T, hs) -> (B, T, H hs), and mix them
        return self.dropout(self.proj(y.transpose(1, 2).reshape(B, T, -1)))

    def is_causal(self) -> bool:
        """Whether a query sees all keys up to its own, as in PyTorch's causal kernel."""
        return self.visible is visible and self.window is None

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float = 0.0
    ) -> Tensor:
        """softmax(q kᵀ / √hs) v.  (B, H, T, hs), (B, Hkv, S, hs) twice, (…, T, S) -> (B, H, T, hs)

        With `mask` None each query sees the keys up to its own. Each key/value head serves a group
        of query heads.
        """
        B, H, T, hs = q.shape
        group = H // k.shape[1]
        if group == 1:
            return attend(q, k, v, mask, dropout)
        if mask is None:  # PyTorch's causal kernel needs a key for each query
            k = k.repeat_interleave(group, dim=1)
            v = v.repeat_interleave(group, dim=1)
            return attend(q, k, v, None, dropout)
        # Treat the queries of a group as more queries of one head, so that no keys are copied.
        rows = q.reshape(B, H // group, group * T, hs)
        return attend(rows, k, v, torch.cat([mask] * group, dim=-2), dropout).reshape(B, H, T, hs)


class FeedForward(nn.Module):
    """Two linear layers with an activation between them, and gates if the config has them."""

    def __init__(self, config: DecoderConfig):
        super().__init__()
        c = config
        self.config = c
        n_up = c.hidden * (2 if c.gated else 1)  # the gates' rows come first
        self.up = nn.Linear(c.n_embd, n_up, bias=c.ffn_bias)
        self.down = nn.Linear(c.hidden, c.n_embd, bias=c.ffn_bias)
        self.dropout = nn.Dropout(c.dropout)

    def forward(self, x: Tensor) -> Tensor:
        c = self.config
        # Each token is processed separately. With gates, half of the activations scale the others.
        h = self.up(x)
        if c.gated:
            gate, h = h.chunk(2, dim=-1)
            h = activate(gate, c.activation) * h
        else:
            h = activate(h, c.activation)
        return self.dropout(self.down(h))


class Block(nn.Module):
    """Communication, then computation, each added to its input."""

    def __init__(
        self,
        config: DecoderConfig,
        layer: int,
        attention: Callable[[DecoderConfig, int], nn.Module] = CausalSelfAttention,
    ):
        super().__init__()
        self.sa = attention(config, layer)
        self.ffwd = FeedForward(config)
        self.ln1 = build_norm(config, config.n_embd)
        self.ln2 = build_norm(config, config.n_embd)

    def forward(self, x: Tensor, pos: Tensor) -> Tensor:
        # Residual connections: a block adds to x and never replaces it.
        # 1. communication: the only place where a token sees other tokens, and the only one cached
        x = x + self.sa(self.ln1(x), pos)
        # 2. computation: each token processes what it has gathered
        return x + self.ffwd(self.ln2(x))


class Decoder(LanguageModel):
    """A language model of any `DecoderConfig`: tokens in, logits for the next token out.

    `attention` is the class of its attention layers, so a notebook can pass its own. Weights are
    initialised as in the lecture, normal(0, 0.02) with biases 0, from `generator` (on the CPU with
    seed 1337 if None): the global random state is neither read nor changed.
    """

    def __init__(
        self,
        config: DecoderConfig,
        attention: Callable[[DecoderConfig, int], nn.Module] = CausalSelfAttention,
        generator: torch.Generator | None = None,
    ):
        super().__init__()
        check_type("config", config, DecoderConfig)
        check_type("attention", attention, Callable)
        check_type("generator", generator, (torch.Generator, type(None)))
        c = config
        self.config = c
        # The layers draw weights from the global generator; they are overwritten below.
        with torch.random.fork_rng(devices=[]):
            self.token_embedding_table = nn.Embedding(c.vocab_size, c.n_embd)
            table = None if c.rotary else nn.Embedding(c.block_size, c.n_embd)
            self.position_embedding_table = table
            self.embed_norm = build_norm(c, c.n_embd) if c.embed_norm else None
            self.blocks = nn.ModuleList([Block(c, i, attention) for i in range(c.n_layer)])
            self.ln_f = build_norm(c, c.n_embd)
            self.lm_head = nn.Linear(c.n_embd, c.vocab_size, bias=c.head_bias)
        if c.tied:
            self.lm_head.weight = self.token_embedding_table.weight
        self._init_weights(generator or torch.Generator().manual_seed(1337))

    def forward(
        self,
        idx: Tensor,
        targets: Tensor | None = None,
        pos: Tensor | None = None,
        last: int | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Logits and, with targets, the mean cross-entropy in nats.  (B, T) -> (B, T, V), ()

        `pos` (T,) holds the positions of idx in the whole text, ascending; 0 … T-1 if None. It is
        required while a KV cache is on, and is (B, T) if each text has its own positions. With
        `last`, returns only the last tokens' logits, (B, last, V). Raises ValueError for
        an empty sequence, for missing positions, for positions out of order or past the position
        table and for a `last` outside [1, T], and IndexError (on a CPU) for a token outside the
        vocabulary.
        """
        pos = self.checked_positions(idx, pos)
        if last is not None:
            check_int("last", last, 1, idx.shape[1])
        # 1. what each token is and, unless positions are rotary, where
        x = self.token_embedding_table(idx)  # (B, T, C)
        if self.position_embedding_table is not None:
            x = x + self.position_embedding_table(pos)
        if self.embed_norm is not None:
            x = self.embed_norm(x)
        # 2. each block lets tokens look back, then think; it has one cache for all its heads
        for block in self.blocks:
            x = block(x, pos)
        # 3. A score for every token that could come next. After a prompt only the last row is
        #    needed, which matters: with a large vocabulary the head is the largest matrix.
        if last is not None:
            x = x[:, -last:]
        logits = self.lm_head(self.ln_f(x))  # (B, T, V)
        cap = self.config.logit_softcap
        if cap is not None:
            logits = cap * (logits / cap).tanh()
        loss = None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss

    def _init_weights(self, generator: torch.Generator) -> None:
        """Initialise weights in the order of the lecture's heads, so both start identically."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
            if name.endswith(".qkv") and len(module.weight) == self.config.qkv_rows:
                for rows in self._rows_by_head(module.weight):
                    draw_weights(rows, generator)
            elif name == "lm_head" and self.config.tied:
                continue
            elif isinstance(module, (nn.Linear, nn.Embedding)):
                draw_weights(module.weight, generator)

    def _rows_by_head(self, qkv: Tensor) -> list[Tensor]:
        """Views of the rows of each head: its key, its query, its value.  -> each (hs, C)"""
        c = self.config
        heads = qkv.split(c.head_size)
        keys = heads[c.n_head : c.n_head + c.kv_heads]
        values = heads[c.n_head + c.kv_heads :]
        # The lecture creates one head at a time: key, query, value. If heads share a key and a
        # value, the first of them draws both.
        ordered = []
        for h in range(c.n_head):
            shared, first = divmod(h, c.group)
            if first == 0:
                ordered.append(keys[shared])
            ordered.append(heads[h])
            if first == 0:
                ordered.append(values[shared])
        return ordered
