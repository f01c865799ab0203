"""Karpathy's GPT, with a KV cache in every head.

Names, parameters and arithmetic are those of `GPTLanguageModel` in gpt.py of
https://github.com/karpathy/ng-video-lecture, so a checkpoint of one loads into the other.
Shapes: B batch, T tokens, C width, H heads, hs head size, S cached tokens, V vocabulary.
"""

import math
from collections import deque
from collections.abc import Callable
from copy import copy
from functools import lru_cache, partial
from inspect import signature
from types import MethodType
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from .attention import attend, check_ascending, visible
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
        # 1. What each new token looks for, what it offers, and what it gives to those who take it.
        q = self.query(x)  # (B, T, hs)
        k = self.key(x)
        v = self.value(x)
        k_pos = pos  # (T,)
        # 2. The cache. Keys and values of earlier tokens never change, because no token sees a
        #    later one. So they are not computed again: the new ones are stored, and those of all S
        #    tokens so far come back. T is the whole prompt in prefill, and 1 in decoding. Training
        #    reads whole texts with weights that change at every step, and stores nothing.
        if self.cache is not None and not self.training:
            k, v, k_pos = self.cache.update(k, v, pos)  # (B, S, hs), (S,)
        # 3. Each query attends to the keys at its own position and before it. Positions decide, not
        #    rows: with a cache the T queries are the last of the S tokens, so a T × T triangle
        #    would hide the wrong keys.
        dropout = self.dropout if self.training else 0.0
        return attend(q, k, v, visible(pos, k_pos), dropout)  # (B, T, hs)


class MultiHeadAttention(nn.Module):
    """The lecture's attention: run the heads one by one, concatenate what they give, and mix it."""

    def __init__(self, config: GPTConfig, head=Head):
        super().__init__()
        self.heads = nn.ModuleList([head(config) for _ in range(config.n_head)])
        self.proj = nn.Linear(config.n_embd, config.n_embd)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, pos: Tensor) -> Tensor:
        # Each head reads all of x and answers with hs numbers for each token. Side by side, the H
        # answers are as wide as x again.
        out = torch.cat([head(x, pos) for head in self.heads], dim=-1)  # (B, T, C)
        # The heads have not seen each other's answers: the projection is where they meet.
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
        # Every token by itself. A new token needs nothing of the old ones here, so no cache.
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
        # x is added to, never replaced: what a block does not touch reaches the next one unchanged.
        # 1. communication: the only place where a token learns of others, and the only one cached
        x = x + self.sa(self.ln1(x), pos)
        # 2. computation: each token works on what it has gathered
        return x + self.ffwd(self.ln2(x))


class LanguageModel(nn.Module):
    """What generation, training and serving ask of a model beside its `forward`."""

    config: Any  # a GPTConfig, or a DecoderConfig of nanogpt.decoder
    token_embedding_table: nn.Embedding
    blocks: nn.ModuleList
    ln_f: nn.Module
    lm_head: nn.Linear

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

    @property
    def caching(self) -> bool:
        """Whether any attention module has a KV cache on."""
        return any(owner.cache is not None for owner in cache_owners(self))

    def cache_bytes(self, length: int, batch: int = 1) -> int:
        """Bytes that caches of `length` tokens of `batch` texts take, in this model's dtype."""
        return self.config.cache_bytes(length, batch, self.dtype.itemsize)

    def checked_positions(self, idx: Tensor, pos: Tensor | None) -> Tensor:
        """The positions of these tokens, checked.  (B, T) -> (T,) or (B, T)

        Raises ValueError as `forward` does.
        """
        # 1. Are these tokens at all, and not more of them than the table has positions?
        if idx.ndim != 2 or 0 in idx.shape or idx.is_floating_point():
            raise ValueError(f"tokens {tuple(idx.shape)}, {idx.dtype}: pass (B, T) integers")
        T = idx.shape[1]
        limit = self.config.max_positions
        if limit is not None and limit < T:
            raise ValueError(f"{T} tokens > block_size {limit}: the position table ends there")
        # 2. Without a cache a text begins at 0. With one, these tokens go on after those that it
        #    holds, and only the caller knows where: counting from 0 again would be silently wrong.
        if pos is None:
            if not self.training and self.caching:
                raise ValueError("a KV cache is on: pass pos, positions as in torch.tensor([9])")
            return torch.arange(T, device=idx.device)
        if pos.shape not in ((T,), idx.shape):
            raise ValueError(f"pos has shape {tuple(pos.shape)}: {T} tokens need one position each")
        # 3. Are the numbers in order, and within the table? That is looked at on the CPU only.
        # Reading the numbers would make the CPU wait for a GPU at every step, or break a graph.
        if pos.device.type == "cpu" and pos.numel() and not torch.compiler.is_compiling():
            check_ascending(pos)
            low, high = map(int, pos.aminmax())
            if low < 0 or (limit is not None and high >= limit):
                end = (limit or math.inf) - 1
                raise ValueError(f"positions {low} to {high}, but the model has 0 to {end}")
        return pos


@torch.no_grad()
def draw_weights(weight: Tensor, generator: torch.Generator) -> None:
    """Fill a weight from normal(0, 0.02), as the lecture does."""
    # Drawn where the generator is, so that one seed means the same weights on every device.
    drawn = torch.empty(weight.shape, dtype=weight.dtype, device=generator.device)
    weight.copy_(nn.init.normal_(drawn, std=0.02, generator=generator))


class GPT(LanguageModel):
    """The lecture's language model: characters in, logits for the next character out.

    `head` is the class of the attention heads, so a notebook can bring its own. Weights are drawn
    as in the lecture, normal(0, 0.02) and biases 0, from `generator` (on the CPU with seed 1337 if
    None): the global random state is neither read nor changed.
    """

    def __init__(self, config: GPTConfig, head=Head, generator: torch.Generator | None = None):
        super().__init__()
        check_type("config", config, GPTConfig)
        check_type("head", head, Callable)
        check_type("generator", generator, (torch.Generator, type(None)))
        self.config = config
        # The layers draw weights from the global generator; they are overwritten below. The fork
        # puts the generator's state back, so that building a model changes no other random number.
        with torch.random.fork_rng(devices=[]):
            # A row for each character, and a row for each position.
            self.token_embedding_table = nn.Embedding(config.vocab_size, config.n_embd)
            self.position_embedding_table = nn.Embedding(config.block_size, config.n_embd)
            self.blocks = nn.ModuleList([Block(config, head) for _ in range(config.n_layer)])
            self.ln_f = nn.LayerNorm(config.n_embd)
            self.lm_head = nn.Linear(config.n_embd, config.vocab_size)
        self._init_weights(generator or torch.Generator().manual_seed(1337))
        self.register_load_state_dict_pre_hook(_drop_tril)

    def _init_weights(self, generator: torch.Generator) -> None:
        # In the order in which the modules were made: one seed always means the same weights.
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                draw_weights(module.weight, generator)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(
        self, idx: Tensor, targets: Tensor | None = None, pos: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Logits and, with targets, the mean cross-entropy in nats.  (B, T) -> (B, T, V), ()

        `pos` (T,) are the positions of idx in the whole text, ascending; 0 … T-1 when None. They
        must be given while a KV cache is on: (B, T) where each text has its own. Raises ValueError
        for no tokens, for a missing position, for positions out of order and for one past the
        position table, and IndexError (on a CPU) for a token that the vocabulary does not have.
        """
        # With a cache, idx holds the new tokens only, and pos says where in the text they are.
        pos = self.checked_positions(idx, pos)
        # 1. what each character is, and where: a row of each table, added
        x = self.token_embedding_table(idx) + self.position_embedding_table(pos)  # (B, T, C)
        # 2. every block lets characters look back, then think. The caches are inside, one a head.
        for block in self.blocks:
            x = block(x, pos)
        # 3. a score for each character that may come next, behind each of the T. Training learns
        #    from all of them; generation uses the last.
        logits = self.lm_head(self.ln_f(x))  # (B, T, V)
        # 4. with targets, how surprised the model is by them: -log of the probability it gave
        loss = None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss


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
    # 1. Copy the tree of modules. Parameters stay the very same tensors, so no memory is taken.
    originals: dict[int, nn.Module] = {}  # by the id of the original, its first copy
    copied = _copy_of(model, originals)
    # 2. A class may refer to a module from a plain attribute, a list or a bound method as well.
    #    Such a reference must lead to the copy: a cache set on the copy would not be seen there.
    for module in copied.modules():
        for name, value in vars(module).items():
            if name not in TORCHS_OWN:
                vars(module)[name] = _in_replica(value, originals)
    return copied


# Attributes of every nn.Module: their modules are copied by themselves, their hooks are kept.
TORCHS_OWN = frozenset(vars(nn.Module()))


def _copy_of(module: nn.Module, originals: dict[int, nn.Module]) -> nn.Module:
    """A shallow copy of a module and of its parts: the tensors stay where they are."""
    if "forward" in vars(module):
        kind = type(module).__name__
        raise ValueError(
            f"a {kind} has another forward, set on the instance: "
            f"define it in a class, or take it off"
        )
    # Without __init__, which would draw new weights. Slots and attributes are taken over as they
    # are.
    copied = type(module).__new__(type(module))
    for kind in type(module).__mro__:
        for name in getattr(kind, "__slots__", ()):
            if hasattr(module, name):
                setattr(copied, name, getattr(module, name))
    own = vars(copied)
    own.update(vars(module))
    # Replaced, not changed: this dictionary is still the original's.
    parts = module._modules.items()
    own["_modules"] = {
        name: None if part is None else _copy_of(part, originals) for name, part in parts
    }
    # What is the replica's own: eval mode, and no cache.
    own["training"] = False
    own.pop("_compiled_call_impl", None)  # of model.compile(): it would run the original
    if "cache" in own:
        own["cache"] = None
    originals.setdefault(id(module), copied)
    return copied


def _in_replica(value, originals: dict[int, nn.Module]):
    """What stands in the replica for the value of a plain attribute: modules are copied ones."""
    # A module that is no part of the model has no copy, and stays itself.
    if isinstance(value, nn.Module):
        return originals.get(id(value), value)
    # What may hide a module is rebuilt around its copy, to any depth.
    if isinstance(value, MethodType):
        return MethodType(value.__func__, _in_replica(value.__self__, originals))
    if isinstance(value, partial):
        parts = [_in_replica(part, originals) for part in (value.func, value.args, value.keywords)]
        return partial(parts[0], *parts[1], **parts[2])
    if isinstance(value, tuple) and hasattr(value, "_make"):  # a namedtuple
        return value._make(_in_replica(part, originals) for part in value)
    if type(value) in (list, tuple, set, deque):
        return type(value)(_in_replica(part, originals) for part in value)
    if isinstance(value, dict):
        changed = copy(value)
        changed.update({name: _in_replica(part, originals) for name, part in value.items()})
        return changed
    return value


# ------------------------------------------------------------------ checks of a reader's classes


def check_forwards(model: nn.Module) -> None:
    """Raise ValueError for a forward that takes no positions, which a cache cannot do without."""
    # The model is called as model(tokens, pos=pos), and its heads as head(x, pos).
    if not _takes(type(model), "pos"):
        raise ValueError(
            f"the forward of {type(model).__name__} takes no pos: "
            f"define forward(self, idx, targets=None, pos=None)"
        )
    for module in model.modules():
        for head in getattr(module, "heads", ()) if isinstance(module, MultiHeadAttention) else ():
            if not _takes(type(head), 2):
                raise ValueError(
                    f"the forward of {type(head).__name__} takes no positions: "
                    f"define forward(self, x, pos)"
                )


@lru_cache(maxsize=64)
def _takes(kind: type, argument: str | int) -> bool:
    """Whether that class's forward takes an argument of this name, or this number of them."""
    try:
        known = signature(kind.forward)
        if isinstance(argument, int):
            known.bind(None, *range(argument))
        else:
            known.bind_partial(None, None, **{argument: None})
    except TypeError:
        return False
    except ValueError:  # it has no signature that Python could read
        return True
    return True
