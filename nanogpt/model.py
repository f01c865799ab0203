"""Karpathy's GPT in two forms of equal arithmetic: a list of Heads, and all heads in one matmul.

Names, parameters and arithmetic are those of `GPTLanguageModel` in gpt.py of
https://github.com/karpathy/ng-video-lecture, so a checkpoint of one loads into the other.
Shapes: B batch, T tokens, C width, H heads, hs head size, S cached tokens, V vocabulary.
"""

import math
from collections.abc import Callable
from types import MethodType

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from .attention import (
    RMSNorm,
    SquaredReLU,
    attend,
    attend_shared,
    check_ascending,
    is_causal,
    norm_and_rotate,
    rms_norm,
    visible,
)
from .cache import cache_owners
from .config import GPTConfig, check_type


class Head(nn.Module):
    """One head of causal self-attention, with a KV cache of its own."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.key = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.query = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.value = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.config = config
        self.dropout = config.dropout
        self.cache = None  # set and removed by kv_cache(model)

    def forward(self, x: Tensor, pos: Tensor) -> Tensor:
        q = self.query(x)  # (B, T, hs)
        k = self.key(x)
        v = self.value(x)
        k_pos = pos  # (T,)
        # The next two lines change nothing in the lecture's model.
        q = norm_and_rotate(q, pos, self.config)
        k = norm_and_rotate(k, pos, self.config)
        if self.cache is not None and not self.training:
            k, v, k_pos = self.cache.update(k, v, pos)  # (B, S, hs), (S,)
        dropout = self.dropout if self.training else 0.0
        return attend(q, k, v, visible(pos, k_pos), dropout)  # (B, T, hs)


class MultiHeadAttention(nn.Module):
    """The lecture's attention: run the heads one by one, concatenate what they give, and mix it."""

    def __init__(self, config: GPTConfig, head=Head):
        super().__init__()
        self.heads = nn.ModuleList([head(config) for _ in range(config.n_head)])
        self.proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, pos: Tensor) -> Tensor:
        out = torch.cat([head(x, pos) for head in self.heads], dim=-1)  # (B, T, C)
        return self.dropout(self.proj(out))


class CausalSelfAttention(nn.Module):
    """The same attention with the heads in one matmul and one cache for all of them.

    With n_kv_head < n_head, groups of query heads share keys and values (GQA, Ainslie et al. 2023,
    arXiv 2305.13245; MQA where all share one, Shazeer 2019, arXiv 1911.02150). The cache holds the
    shared ones only.
    """

    visible = staticmethod(visible)  # who sees whom; a subclass may bring another rule
    attend = staticmethod(attend_shared)  # how queries meet keys; an instance may have its own

    def __init__(self, config: GPTConfig, layer: int = 0):
        super().__init__()
        self.config = config
        self.n_head = config.n_head
        self.window = config.window_of(layer)
        n_rows = (config.n_head + 2 * config.kv_heads) * config.head_size
        self.qkv = nn.Linear(config.n_embd, n_rows, bias=False)
        self.proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.attn_dropout = config.dropout
        self.dropout = nn.Dropout(config.dropout)
        self.cache = None

    def forward(self, x: Tensor, pos: Tensor) -> Tensor:
        B, T, C = x.shape
        c = self.config
        pos = pos if pos.ndim == 1 else pos[:, None]  # (B, 1, T): the heads of a text share its own
        qkv = self.qkv(x).view(B, T, -1, c.head_size).transpose(1, 2)  # (B, H + 2 Hkv, T, hs)
        qk, v = qkv.split([c.n_head + c.kv_heads, c.kv_heads], dim=1)
        q, k = norm_and_rotate(qk, pos, c).split([c.n_head, c.kv_heads], dim=1)
        k_pos = pos
        if self.cache is not None and not self.training:
            k, v, k_pos = self.cache.update(k, v, pos)  # (B, Hkv, S, hs), (S,)
        # Without a cache PyTorch's causal kernel needs no mask, and is faster.
        causal = k_pos is pos and is_causal(self.visible, self.window)
        mask = None if causal else self.visible(pos, k_pos, self.window, c.sinks)  # (T, S)
        dropout = self.attn_dropout if self.training else 0.0
        y = self.attend(q, k, v, mask, dropout)  # (B, H, T, hs)
        return self.dropout(self.proj(y.transpose(1, 2).reshape(B, T, C)))


class FeedForward(nn.Module):
    """Two linear layers with a ReLU between them, four times as wide inside."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias),
            SquaredReLU() if config.relu2 else nn.ReLU(),
            nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias),
            nn.Dropout(config.dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def norm(config: GPTConfig) -> nn.Module:
    """LayerNorm, or RMSNorm (Zhang and Sennrich 2019, arXiv 1910.07467) without weights."""
    return RMSNorm() if config.rms_norm else nn.LayerNorm(config.n_embd)


class Block(nn.Module):
    """Communication, then computation, each added to its input."""

    def __init__(self, config: GPTConfig, head=Head, layer: int = 0, attention=CausalSelfAttention):
        super().__init__()
        self.sa = MultiHeadAttention(config, head) if config.per_head else attention(config, layer)
        self.ffwd = FeedForward(config)
        self.ln1 = norm(config)
        self.ln2 = norm(config)

    def forward(self, x: Tensor, pos: Tensor) -> Tensor:
        x = x + self.sa(self.ln1(x), pos)
        return x + self.ffwd(self.ln2(x))


class GPT(nn.Module):
    """The language model: characters in, logits for the next character out.

    `head` is the class of the attention heads, `attention` that of the batched form, so a notebook
    can bring its own. Weights are drawn as in the lecture, normal(0, 0.02) and biases 0, from the
    CPU `generator` (seed 1337 when None): the global random state is neither read nor changed.
    Raises ValueError for an `attention` where the config wants a list of heads.
    """

    def __init__(
        self,
        config: GPTConfig,
        head=Head,
        generator: torch.Generator | None = None,
        attention=CausalSelfAttention,
    ):
        super().__init__()
        check_type("config", config, GPTConfig)
        check_type("head", head, Callable)
        check_type("generator", generator, (torch.Generator, type(None)))
        if config.per_head and attention is not CausalSelfAttention:
            raise ValueError(f"{attention.__name__} has no heads: set per_head=False")
        self.config = config
        # The layers draw weights from the global generator; they are overwritten below.
        with torch.random.fork_rng(devices=[]):
            self.token_embedding_table = nn.Embedding(config.vocab_size, config.n_embd)
            table = None if config.rope else nn.Embedding(config.block_size, config.n_embd)
            self.position_embedding_table = table
            blocks = [Block(config, head, layer, attention) for layer in range(config.n_layer)]
            self.blocks = nn.ModuleList(blocks)
            self.ln_f = norm(config)
            self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=config.bias)
        self._init_weights(generator or torch.Generator().manual_seed(1337))
        self.register_load_state_dict_pre_hook(_drop_tril)

    def _init_weights(self, generator: torch.Generator) -> None:
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02, generator=generator)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    @property
    def n_params(self) -> int:
        """Parameters, counted from the tensors: config.n_params, if no class of yours adds any."""
        return sum(p.numel() for p in self.parameters())

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its weights: of the first, should they differ."""
        return next(self.parameters()).dtype

    @property
    def device(self) -> torch.device:
        """Where its weights are: the first, should they differ."""
        return next(self.parameters()).device

    def forward(
        self, idx: Tensor, targets: Tensor | None = None, pos: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Logits and, with targets, the mean cross-entropy in nats.  (B, T) -> (B, T, V), ()

        `pos` (T,) are the positions of idx in the whole text, ascending; 0 … T-1 when None. They
        must be given while a KV cache is on: (B, T) where each text has its own. Raises ValueError
        for no tokens, for a missing position, for positions out of order and for one past the
        position table, and IndexError (on a CPU) for a token that the vocabulary does not have.
        """
        pos = self._positions(idx, pos)
        x = self.embed(idx, pos)  # (B, T, C)
        for block in self.blocks:
            x = block(x, pos)
        logits = self.lm_head(self.ln_f(x))  # (B, T, V)
        loss = None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss

    def embed(self, idx: Tensor, pos: Tensor) -> Tensor:
        """What goes into the first block.  (B, T), (T,) or (B, T) -> (B, T, C)"""
        x = self.token_embedding_table(idx)
        if self.position_embedding_table is not None:
            x = x + self.position_embedding_table(pos)
        return rms_norm(x) if self.config.rms_norm else x

    def _positions(self, idx: Tensor, pos: Tensor | None) -> Tensor:
        """The checked positions of these tokens.  (B, T) -> (T,) or (B, T)"""
        if idx.ndim != 2 or 0 in idx.shape or idx.is_floating_point():
            raise ValueError(f"tokens {tuple(idx.shape)}, {idx.dtype}: pass (B, T) integers")
        T = idx.shape[1]
        limit = self.config.positions
        if limit is not None and limit < T:
            raise ValueError(f"{T} tokens > block_size {limit}: the position table ends there")
        if pos is None:
            if not self.training and self.caching:
                raise ValueError("a KV cache is on: pass pos, positions as in torch.tensor([9])")
            return torch.arange(T, device=idx.device)
        if pos.shape not in ((T,), idx.shape):
            raise ValueError(f"pos has shape {tuple(pos.shape)}: {T} tokens need one position each")
        # Reading the numbers would make the CPU wait for a GPU at every step, or break a graph.
        if pos.device.type == "cpu" and pos.numel() and not torch.compiler.is_compiling():
            check_ascending(pos)
            low, high = map(int, pos.aminmax())
            if low < 0 or (limit is not None and high >= limit):
                end = (limit or math.inf) - 1
                raise ValueError(f"positions {low} to {high}, but the model has 0 to {end}")
        return pos

    @property
    def caching(self) -> bool:
        """Whether any attention module has a KV cache on."""
        return any(owner.cache is not None for owner in cache_owners(self))

    def cache_bytes(self, length: int, batch: int = 1) -> int:
        """Bytes that caches of `length` tokens of `batch` texts take, in this model's dtype."""
        return self.config.cache_bytes(length, batch, self.dtype.itemsize)


def _drop_tril(module, state_dict, prefix, *args) -> None:
    # The lecture's Head keeps its mask as a buffer; ours computes it from positions. A class of
    # heads that has such a buffer keeps the one it made.
    for name in [n for n in state_dict if n.endswith(".tril")]:
        del state_dict[name]
    for name, buffer in module.named_buffers():
        if name.endswith(".tril"):
            state_dict[prefix + name] = buffer


def replica(model: nn.Module) -> nn.Module:
    """The model's modules once more, over the very same weights: in eval mode, without caches.

    Code that runs in it neither sees nor changes the modes and the caches of the model, so threads
    do not meet. A module that is used twice becomes two, as each use needs a cache of its own.
    Raises ValueError for a forward that was set on a module: it runs the original.
    """
    originals: dict[int, nn.Module] = {}  # by the id of the original, its first copy
    copied = _copy_of(model, originals)
    for module in copied.modules():
        for name, value in vars(module).items():
            # Modules that are kept in plain attributes are parts of the replica too.
            if not name.startswith("_"):
                vars(module)[name] = _in_replica(value, originals)
    return copied


def _copy_of(module: nn.Module, originals: dict[int, nn.Module]) -> nn.Module:
    """A shallow copy of a module and of its parts: the tensors stay where they are."""
    if "forward" in vars(module):
        kind = type(module).__name__
        raise ValueError(
            f"a {kind} has another forward, set on the instance: "
            f"define it in a class, or take it off"
        )
    copied = type(module).__new__(type(module))
    own = vars(copied)
    own.update(vars(module))
    parts = module._modules.items()
    own["_modules"] = {
        name: None if part is None else _copy_of(part, originals) for name, part in parts
    }
    own["training"] = False
    own.pop("_compiled_call_impl", None)  # of model.compile(): it would run the original
    if "cache" in own:
        own["cache"] = None
    originals.setdefault(id(module), copied)
    return copied


def _in_replica(value, originals: dict[int, nn.Module]):
    """What stands in the replica for the value of a plain attribute: modules are copied ones."""
    if isinstance(value, nn.Module):
        return originals.get(id(value), value)
    if isinstance(value, MethodType):
        return MethodType(value.__func__, _in_replica(value.__self__, originals))
    if type(value) in (list, tuple):
        return type(value)(_in_replica(part, originals) for part in value)
    if type(value) is dict:
        return {name: _in_replica(part, originals) for name, part in value.items()}
    return value
