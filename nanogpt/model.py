"""Karpathy's GPT with a KV cache in every head.

Names, parameters and arithmetic match `GPTLanguageModel` in gpt.py of
https://github.com/karpathy/ng-video-lecture, so a checkpoint of one loads into the other.
Shapes: B batch, T tokens, C width, H heads, hs head size, S cached tokens, V vocabulary.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from .attention import attend, check_ascending, visible
from .cache import cache_owners
from .config import GPTConfig, check_type


class Head(nn.Module):
    """One head of causal self-attention with its own KV cache."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.key = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.query = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.value = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.config = config
        self.dropout = config.dropout
        self.cache = None  # set and removed by kv_cache(model)

    def forward(self, x: Tensor, pos: Tensor) -> Tensor:
        # 1. What each new token looks for, what it offers, and what it passes on if attended to.
        q = self.query(x)  # (B, T, hs)
        k = self.key(x)
        v = self.value(x)
        k_pos = pos  # (T,)
        # 2. The cache. Keys and values of earlier tokens never change, because no token sees a
        #    later one. So store the new ones, and get back those of all S tokens so far instead of
        #    recomputing them. T is the whole prompt in prefill, and 1 in decoding. Training reads
        #    whole texts with weights that change at every step, so it stores nothing.
        if self.cache is not None and not self.training:
            k, v, k_pos = self.cache.update(k, v, pos)  # (B, S, hs), (S,)
        # 3. Each query attends to the keys at and before its own position. The mask compares
        #    positions, not rows: with a cache the T queries are the last of the S tokens, so a
        #    T × T triangle would mask the wrong keys.
        dropout = self.dropout if self.training else 0.0
        return attend(q, k, v, visible(pos, k_pos), dropout)  # (B, T, hs)


class MultiHeadAttention(nn.Module):
    """The lecture's attention: run the heads one by one, concatenate their outputs, project."""

    def __init__(self, config: GPTConfig, head=Head):
        super().__init__()
        self.heads = nn.ModuleList([head(config) for _ in range(config.n_head)])
        self.proj = nn.Linear(config.n_embd, config.n_embd)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, pos: Tensor) -> Tensor:
        # Each head reads all of x and returns hs numbers for each token. Concatenated, the H
        # outputs are as wide as x again.
        out = torch.cat([head(x, pos) for head in self.heads], dim=-1)  # (B, T, C)
        # The heads have not seen each other's outputs: the projection mixes them.
        return self.dropout(self.proj(out))


class FeedForward(nn.Module):
    """Two linear layers with a ReLU between them, four times as wide inside."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(config.n_embd, 4 * config.n_embd),
            nn.ReLU(),
            nn.Linear(4 * config.n_embd, config.n_embd),
            nn.Dropout(config.dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        # Each token is processed separately. A new token needs nothing from old ones: no cache.
        return self.net(x)


class Block(nn.Module):
    """Communication, then computation, each added to its input."""

    def __init__(self, config: GPTConfig, head=Head):
        super().__init__()
        self.sa = MultiHeadAttention(config, head)
        self.ffwd = FeedForward(config)
        self.ln1 = nn.LayerNorm(config.n_embd)
        self.ln2 = nn.LayerNorm(config.n_embd)

    def forward(self, x: Tensor, pos: Tensor) -> Tensor:
        # Residual connections: a block adds to x and never replaces it.
        # 1. communication: the only place where a token sees other tokens, and the only one cached
        x = x + self.sa(self.ln1(x), pos)
        # 2. computation: each token processes what it has gathered
        return x + self.ffwd(self.ln2(x))


class LanguageModel(nn.Module):
    """Base class: what generation, training and serving need from a model besides `forward`."""

    config: Any  # a GPTConfig, or a DecoderConfig of nanogpt.decoder
    token_embedding_table: nn.Embedding
    blocks: nn.ModuleList
    ln_f: nn.Module
    lm_head: nn.Linear

    @property
    def n_params(self) -> int:
        """Number of parameters in the tensors: config.n_params, unless your own class adds some."""
        return sum(p.numel() for p in self.parameters())

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights; that of the first one if they differ."""
        return next(self.parameters()).dtype

    @property
    def device(self) -> torch.device:
        """The device of the weights; that of the first one if they differ."""
        return next(self.parameters()).device

    @property
    def caching(self) -> bool:
        """Whether any attention module has its KV cache enabled."""
        return any(owner.cache is not None for owner in cache_owners(self))

    def cache_bytes(self, length: int, batch: int = 1) -> int:
        """Bytes of KV cache for `batch` texts of `length` tokens, in this model's dtype."""
        return self.config.cache_bytes(length, batch, self.dtype.itemsize)

    def checked_positions(self, idx: Tensor, pos: Tensor | None) -> Tensor:
        """The positions of these tokens, checked.  (B, T) -> (T,) or (B, T)

        Raises ValueError as `forward` does.
        """
        # 1. Are these tokens, and no more of them than the table has positions?
        check_type("idx", idx, Tensor)
        if idx.ndim != 2 or 0 in idx.shape or idx.is_floating_point():
            raise ValueError(f"tokens {tuple(idx.shape)}, {idx.dtype}: pass (B, T) integers")
        T = idx.shape[1]
        limit = self.config.max_positions
        if limit is not None and limit < T:
            raise ValueError(f"{T} tokens > block_size {limit}: the position table ends there")
        # 2. Without a cache a text begins at 0. With one, these tokens continue the cached text,
        #    and only the caller knows where: counting from 0 again would be silently wrong.
        if pos is None:
            if not self.training and self.caching:
                raise ValueError("a KV cache is on: pass pos, positions as in torch.tensor([9])")
            return torch.arange(T, device=idx.device)
        check_type("pos", pos, Tensor)
        if pos.shape not in ((T,), idx.shape):
            raise ValueError(f"pos has shape {tuple(pos.shape)}: {T} tokens need one position each")
        # 3. Are the positions ascending, and within the table? Checked only on the CPU: reading the
        #    numbers would sync with a GPU at every step, or break a graph.
        if pos.device.type == "cpu" and pos.numel() and not torch.compiler.is_compiling():
            check_ascending(pos)
            low, high = map(int, pos.aminmax())
            if low < 0 or (limit is not None and high >= limit):
                end = (limit or math.inf) - 1
                raise ValueError(f"positions {low} to {high}, but the model has 0 to {end}")
        return pos


@torch.no_grad()
def draw_weights(weight: Tensor, generator: torch.Generator) -> None:
    """Initialise a weight from normal(0, 0.02), as the lecture does."""
    # Draw on the generator's device, so that one seed gives the same weights on every device.
    drawn = torch.empty(weight.shape, dtype=weight.dtype, device=generator.device)
    weight.copy_(nn.init.normal_(drawn, std=0.02, generator=generator))


class GPT(LanguageModel):
    """The lecture's language model: characters in, logits for the next character out.

    `head` is the class of the attention heads, so a notebook can pass its own. Weights are
    initialised as in the lecture, normal(0, 0.02) with biases 0, from `generator` (on the CPU with
    seed 1337 if None): the global random state is neither read nor changed.
    """

    def __init__(self, config: GPTConfig, head=Head, generator: torch.Generator | None = None):
        super().__init__()
        check_type("config", config, GPTConfig)
        check_type("head", head, Callable)
        check_type("generator", generator, (torch.Generator, type(None)))
        self.config = config
        # The layers draw weights from the global generator; they are overwritten below. The fork
        # restores the generator's state, so building a model affects no other random numbers.
        with torch.random.fork_rng(devices=[]):
            # A row for each character, and a row for each position.
            self.token_embedding_table = nn.Embedding(config.vocab_size, config.n_embd)
            self.position_embedding_table = nn.Embedding(config.block_size, config.n_embd)
            self.blocks = nn.ModuleList([Block(config, head) for _ in range(config.n_layer)])
            self.ln_f = nn.LayerNorm(config.n_embd)
            self.lm_head = nn.Linear(config.n_embd, config.vocab_size)
        self._init_weights(generator or torch.Generator().manual_seed(1337))
        self.register_load_state_dict_pre_hook(_ignore_masks)

    def _init_weights(self, generator: torch.Generator) -> None:
        # In the order in which the modules were created: one seed always gives the same weights.
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                draw_weights(module.weight, generator)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(
        self, idx: Tensor, targets: Tensor | None = None, pos: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Logits and, with targets, the mean cross-entropy in nats.  (B, T) -> (B, T, V), ()

        `pos` (T,) holds the positions of idx in the whole text, ascending; 0 … T-1 if None. It is
        required with a KV cache enabled, and is (B, T) if each text has its own positions. Raises
        ValueError for an empty sequence, for missing positions, for positions out of order or past
        the position table, and IndexError (on a CPU) for a token outside the vocabulary.
        """
        # With a cache, idx holds only the new tokens, and pos says where they are in the text.
        pos = self.checked_positions(idx, pos)
        # 1. what each character is plus where it is: a row of each table
        x = self.token_embedding_table(idx) + self.position_embedding_table(pos)  # (B, T, C)
        # 2. each block lets characters look back, then think. The caches are inside, one per head.
        for block in self.blocks:
            x = block(x, pos)
        # 3. at each of the T positions, a score for every character that could come next. Training
        #    learns from all T; generation uses the last.
        logits = self.lm_head(self.ln_f(x))  # (B, T, V)
        # 4. with targets, how surprised the model is by them: -log of the probability it gave
        loss = None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss


def _ignore_masks(module, state_dict, prefix, *args) -> None:
    """Replace the masks of a checkpoint by the model's own: ours has none."""
    # The lecture's Head saves its mask as a buffer; ours computes it from positions.
    for name in [name for name in state_dict if name.endswith(".tril")]:
        del state_dict[name]
    # A head class that has such a buffer keeps it, whatever the checkpoint says.
    for name, mask in module.named_buffers(prefix.removesuffix(".")):
        if name.endswith(".tril"):
            state_dict[name] = mask
