"""A model that somebody changed decodes to its own tokens on every path, or is refused by name.

The model as it stands is the reference: its whole text through `model(...)` for every token. What
somebody may change is a row of CHANGES, a way to the tokens a row of PATHS. A path gives the tokens
of the reference or raises ValueError, in one line. It never gives others, crashes, or lets an error
of torch through. To add a change or a path, add a row. NANOGPT_PATHS=all tries each change on every
path, and not on every second one of the slower paths.
"""

from __future__ import annotations

import copy
import os
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import NamedTuple
from unittest.mock import patch

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from checkpoint_fixtures import CHARS, meta_of
from conftest import seeded
from decoding_fixtures import V, build
from shapes import ROPE
from torch import Tensor
from torch.nn.utils import parametrizations, prune

import nanogpt
from nanogpt import (
    GPT,
    CausalSelfAttention,
    Decoder,
    Head,
    Request,
    SamplingParams,
    generate,
    pack_heads,
    unpack_heads,
)
from nanogpt.cache import kv_cache
from nanogpt.data import CharTokenizer, Corpus, split
from nanogpt.decoder import layers
from nanogpt.decoder.checkpoint import CheckpointError
from nanogpt.decoder.config import lecture_config
from nanogpt.device import pick_device
from nanogpt.engines.toolchain import CannotBuild
from nanogpt.export.huggingface import ExportError, exported
from nanogpt.export.lecture import lecture_state_dict
from nanogpt.model import LanguageModel
from nanogpt.serving.modules import ModuleBackend
from nanogpt.serving.native_steps import NativeBackend
from nanogpt.training.loop import train
from nanogpt.training.recipes import TrainConfig
from nanogpt.training.trainer import full_loss

N_NEW = 5
PROMPTS = [(5, 1), (9, 3)]  # length and seed
HEADS = "heads"  # the lecture's GPT
PACKED = "packed"  # a Decoder of the same shape
GENERAL = "general"  # a Decoder beyond the lecture
BOTH = (HEADS, PACKED)
DECODERS = (PACKED, GENERAL)
ALL = (HEADS, PACKED, GENERAL)
BEYOND = {**ROPE, "norm": "rms", "qk_norm": True, "n_kv_head": 1, "activation": "silu"}
BEYOND |= {"gated": True, "ffn_dim": 24, "tied": True, "head_bias": False, "window": 7}
BEYOND |= {"full_every": 2, "logit_softcap": 8.0}


# ------------------------------------------------------------------ what somebody changes


class LectureHead(nn.Module):
    """The Head that a reader writes in notebook 02: positions (T,), one cache, one mask."""

    def __init__(self, config):
        super().__init__()
        self.key = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.query = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.value = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.cache = None

    def forward(self, x: Tensor, pos: Tensor) -> Tensor:
        q, k, v = self.query(x), self.key(x), self.value(x)
        k_pos = pos
        if self.cache is not None and not self.training:
            k, v, k_pos = self.cache.update(k, v, pos)
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        hidden = self.hides(pos, k_pos)
        return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v

    def hides(self, pos: Tensor, k_pos: Tensor) -> Tensor:
        assert pos.ndim == 1  # as `generate` calls it
        return (k_pos[None, :] > pos[:, None]) | (k_pos < 0)[None, :]


class NearHead(LectureHead):
    """It looks at the last three positions only."""

    def hides(self, pos, k_pos):
        return super().hides(pos, k_pos) | (k_pos[None, :] <= pos[:, None] - 3)


class WholePromptHead(LectureHead):
    """It takes more than one token for a whole prompt, and a single one for the newest."""

    def hides(self, pos, k_pos):
        T, S = len(pos), len(k_pos)
        if T == 1:
            return k_pos[None, :] < 0
        return (torch.ones(T, T).triu(1) == 1) if T == S else torch.zeros(T, S, dtype=torch.bool)


class CountingHead(LectureHead):
    """It counts positions by what its cache holds."""

    def hides(self, pos, k_pos):
        if self.cache is None:
            return super().hides(pos, k_pos)
        start = self.cache.length - len(pos)
        return super().hides(torch.arange(start, self.cache.length), k_pos)


class OddNeighbours(CausalSelfAttention):
    """A rule of its own, written for the positions (T,) of one text."""

    @staticmethod
    def visible(q_pos, k_pos, window=None, sinks=0):
        gap = q_pos[:, None] - k_pos[None, :]
        return (gap >= 0) & (k_pos >= 0)[None, :] & ((gap % 2 == 0) | (gap < 3))


class Halved(CausalSelfAttention):
    """It attends in its own way."""

    def attend(self, q, k, v, mask, dropout=0.0):
        return 0.5 * super().attend(q, k, v, mask, dropout)


class Forgetful:
    """Attention that has a cache and never calls it."""

    def forward(self, x, pos):
        kept = self.cache
        self.cache = None
        try:
            return super().forward(x, pos)
        finally:
            self.cache = kept


class ForgetfulHead(Forgetful, Head): ...


class ForgetfulAttention(Forgetful, CausalSelfAttention): ...


class HeadWithoutCache(nn.Module):
    """A Head of the lecture, which gets positions and has no cache."""

    def __init__(self, config):
        super().__init__()
        self.key = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.query = nn.Linear(config.n_embd, config.head_size, bias=False)
        self.value = nn.Linear(config.n_embd, config.head_size, bias=False)

    def forward(self, x, pos):
        q, k, v = self.query(x), self.key(x), self.value(x)
        T = x.shape[1]
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        later = torch.ones(T, T).triu(1) == 1
        return scores.masked_fill(later, float("-inf")).softmax(-1) @ v


class HeadWithoutPositions(HeadWithoutCache):
    def forward(self, x):
        return super().forward(x, None)


class Scaled(nn.Module):
    """A layer that somebody wrapped."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *args):
        return 0.7 * self.inner(*args)


class Mirrored(nn.Module):
    """A feed-forward layer that also calls a module which it keeps in a plain list."""

    def __init__(self, inner, other):
        super().__init__()
        self.inner = inner
        self.others = [other]

    def forward(self, x):
        return self.inner(x) + 0.3 * self.others[0](x)


class Doubled(Tensor):
    """A weight by which F.linear multiplies twice, as one of a library that quantises may."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        out = super().__torch_function__(func, types, args, kwargs or {})
        return 2 * out.as_subclass(Tensor) if func is F.linear else out


def rebuilt(changed: LanguageModel, model: LanguageModel) -> LanguageModel:
    """A model of other classes, with the weights of this one."""
    changed.load_state_dict(model.state_dict())
    return changed.to(model.dtype).eval()


def own_heads(kind: type) -> Callable[[GPT], GPT]:
    """The model with another class of heads, over the same weights."""
    return lambda model: rebuilt(GPT(model.config, head=kind), model)


def own_attention(kind: type) -> Callable[[Decoder], Decoder]:
    return lambda model: rebuilt(Decoder(model.config, attention=kind), model)


def own_class(module: nn.Module, forward: Callable, *, slots: tuple[str, ...] = ()) -> None:
    """Make the module one of a subclass with this forward, in place."""
    parts = {"forward": forward, **({"__slots__": slots} if slots else {})}
    module.__class__ = type("Own", (type(module),), parts)


def linear(like: nn.Linear, n_in=None, n_out=None, bias=True) -> nn.Linear:
    """A layer with drawn weights that are large enough to be noticed."""
    made = nn.Linear(n_in or like.in_features, n_out or like.out_features, bias=bias)
    nn.init.normal_(made.weight, std=0.3, generator=seeded(5))
    if bias:
        nn.init.normal_(made.bias, std=0.5, generator=seeded(6))
    return made.to(like.weight.dtype)


def layer_norm(**settings) -> Callable[[GPT], None]:
    def change(model):
        c = model.config
        model.blocks[1].ln1 = nn.LayerNorm(c.n_embd, **settings).to(model.lm_head.weight.dtype)

    return change


def first_layer(model) -> nn.Linear:
    part = model.blocks[0].ffwd
    return part.net[0] if isinstance(model, GPT) else part.up


def wider_feed_forward(model):
    part = model.blocks[0].ffwd
    if isinstance(model, GPT):
        net = part.net
        net[0] = linear(net[0], n_out=48)
        net[2] = linear(net[2], n_in=48)
    else:
        part.up = linear(part.up, n_out=96 if model.config.gated else 48)
        part.down = linear(part.down, n_in=48)


def bias_of_queries(model):
    attn = model.blocks[0].sa
    layer = attn.qkv if hasattr(attn, "qkv") else attn.heads[1].query
    layer.bias = nn.Parameter(torch.linspace(-1, 1, layer.out_features, dtype=layer.weight.dtype))


def bias_of_the_head(model):
    model.lm_head.bias = nn.Parameter(torch.linspace(-2, 2, V, dtype=model.dtype))


def bias_registered_nowhere(model):
    layer = first_layer(model)
    values = torch.linspace(-1, 1, layer.out_features, dtype=layer.weight.dtype)
    del layer.bias
    layer.bias = values


def own_attend(model):
    layer = model.blocks[0].sa
    layer.attend = lambda *args: 0.5 * CausalSelfAttention.attend(layer, *args)


def near_visible(q_pos, k_pos, window=None, sinks=0):
    return layers.visible(q_pos, k_pos, 3)


def set_on_attention(name, value):
    return lambda model: setattr(model.blocks[0].sa, name, value)


def hooked(register: str, where: Callable[[GPT], nn.Module], hook: Callable, **settings):
    return lambda model: getattr(where(model), register)(hook, **settings) and None


def feed_forward(model) -> nn.Module:
    return model.blocks[0].ffwd


def halve_output(module, args, output):
    return 0.5 * output


def halve_input(module, args):
    return (0.5 * args[0], *args[1:])


def global_hook(model, stack):
    def halve(module, args, output):
        return 0.5 * output if type(module).__name__ == "FeedForward" else None

    stack.callback(nn.modules.module.register_module_forward_hook(halve).remove)


def patched(target: object, name: str, value: object) -> Callable:
    return lambda model, stack: stack.enter_context(patch.object(target, name, value)) and None


def use_twice(model):
    model.blocks[1] = model.blocks[0]


def share_attention(model):
    model.blocks[1].sa = model.blocks[0].sa


def share_feed_forward(model):
    model.blocks[1].ffwd = model.blocks[0].ffwd


def tie_weights(model):
    model.lm_head.weight = model.token_embedding_table.weight


def tie_heads(model):
    heads = model.blocks[0].sa.heads
    heads[1].value.weight = heads[0].value.weight


def gelu(model):
    part = model.blocks[0].ffwd
    if isinstance(model, GPT):
        part.net[1] = nn.GELU()
    else:
        part.config = replace(model.config, activation="gelu")


def drop_a_layer(model):
    del model.blocks[1]


def another_block(model):
    model.blocks.append(copy.deepcopy(model.blocks[0]))


def wrapped(model):
    model.blocks[0].ffwd = Scaled(model.blocks[0].ffwd)


def mirrored(model):
    model.blocks[0].ffwd = Mirrored(model.blocks[0].ffwd, model.blocks[1].ffwd)


def own_forward(model):
    inner = model.blocks[0].ffwd
    original = inner.forward
    inner.forward = lambda x: 0.5 * original(x)


def own_positions(model):
    original = model.checked_positions
    model.checked_positions = lambda idx, pos: 1 + original(idx, pos)


def wrapped_embedding(model):
    model.token_embedding_table = Scaled(model.token_embedding_table)


def own_buffer(model):
    part = model.blocks[0].ffwd
    own_class(part, lambda self, x: self.scale * super(type(self), self).forward(x))
    part.register_buffer("scale", torch.tensor(0.3, dtype=model.dtype))


def untied(model):
    model.lm_head.weight = nn.Parameter(0.5 * model.lm_head.weight.detach().flip(0))


def other_epsilon(model):
    model.blocks[1].ln1.eps = 0.1


def other_epsilon_of_queries(model):
    model.blocks[0].sa.query_norm.eps = 0.1


def unnormalised_queries(model):
    model.blocks[0].sa.query_norm = nn.Identity()


# What holds on to modules where the package does not look for them.


def each_block(forward: Callable, **parts: Callable) -> Callable:
    """Blocks with this forward; `parts` make its attributes of the block."""

    def change(model):
        for block in model.blocks:
            own_class(block, forward)
            for name, make in parts.items():
                setattr(block, name, make(block))

    return change


class Parts(NamedTuple):
    attention: nn.Module
    feed_forward: nn.Module


def attended_by(get: Callable) -> Callable:
    """A block's forward that gets its attention from somewhere."""

    def forward(self, x, pos):
        x = x + get(self)(self.ln1(x), pos)
        return x + self.ffwd(self.ln2(x))

    return forward


def run_steps(self, x, pos):
    for step in self.steps:
        x = x + step(x, pos)
    return x


def closures(block) -> list[Callable]:
    return [
        lambda x, pos: block.sa(block.ln1(x), pos),
        lambda x, pos: block.ffwd(block.ln2(x)),
    ]


def blocks_in_a_deque(model):
    def forward(self, idx, targets=None, pos=None):
        pos = self.checked_positions(idx, pos)
        x = self.token_embedding_table(idx)
        for block in self.order:
            x = block(x, pos)
        return self.lm_head(self.ln_f(x)), None

    own_class(model, forward)
    model.order = deque(reversed(model.blocks))


def one_head_without_cache(model):
    made = HeadWithoutCache(model.config)
    made.load_state_dict(model.blocks[0].sa.heads[0].state_dict())
    model.blocks[0].sa.heads[0] = made.to(model.dtype)


# What the whole model gives or takes.


def own_model(forward: Callable) -> Callable:
    return lambda model: own_class(model, forward)


def last_logits_only(self, *args, **how):
    logits, loss = super(type(self), self).forward(*args, **how)
    return logits[:, [-1]], loss


def logits_alone(self, *args, **how):
    return super(type(self), self).forward(*args, **how)[0]


def without_positions(self, idx, targets=None):
    return super(type(self), self).forward(idx, targets)


def capped(self, *args, **how):
    logits, loss = super(type(self), self).forward(*args, **how)
    return 3 * torch.tanh(logits / 3), loss


def head_of(rows: int) -> Callable:
    def change(model):
        model.lm_head = linear(model.lm_head, n_out=rows, bias=model.config.vocab_size != rows)

    return change


def head_of_two_layers(model):
    first = linear(model.lm_head, n_out=24)
    model.lm_head = nn.Sequential(first, nn.Tanh(), linear(model.lm_head, n_in=24))


def cast_head(model):
    layer = model.lm_head.double()
    own_class(layer, lambda self, x: super(type(self), self).forward(x.double()))


def smaller_vocabulary(model):
    model.config = replace(model.config, vocab_size=V - 1)


def longer_table(model):
    table = nn.Embedding(64, model.config.n_embd)
    nn.init.normal_(table.weight, generator=seeded(5))
    model.position_embedding_table = table


# Weights that are no plain numbers.


def weight_of_a_class(model):
    layer = first_layer(model)
    weight = layer.weight.detach().clone().as_subclass(Doubled)
    layer.weight = nn.Parameter(weight, requires_grad=False)


def sparse_weight(model):
    layer = first_layer(model)
    layer.weight = nn.Parameter(layer.weight.detach().to_sparse_csr(), requires_grad=False)


def expanded_weight(model):
    layer = first_layer(model)
    rows = layer.weight.detach()[:1].expand_as(layer.weight)
    layer.weight = nn.Parameter(rows, requires_grad=False)


def put(get: Callable, value: float) -> Callable:
    """One number of a weight, set."""

    def change(model):
        with torch.no_grad():
            get(model)[3] = value

    return change


def shorter_table(model):
    table = model.position_embedding_table
    table.weight = nn.Parameter(table.weight[:24].detach().clone())


def other_config(model):
    model.blocks[0].sa.config = replace(model.config, **ROPE | {"rope_base": 50.0})


def other_config_of_a_head(model):
    model.blocks[0].sa.heads[0].config = replace(model.config, block_size=16)


def transposed_head(model):
    w = model.lm_head.weight
    model.lm_head.weight = nn.Parameter(w.detach().t().contiguous().t())


def renormalised_embedding(model):
    model.token_embedding_table.max_norm = 0.5


def weight_norm(model):
    parametrizations.weight_norm(first_layer(model))
    first_layer(model).parametrizations.weight.original0.data *= 0.3


def old_weight_norm(model):
    with pytest.warns(FutureWarning):
        nn.utils.weight_norm(first_layer(model))
    first_layer(model).weight_g.data *= 0.3


def old_spectral_norm(model):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        nn.utils.spectral_norm(first_layer(model))
    model.eval()


def pruned(model):
    prune.l1_unstructured(first_layer(model), "weight", amount=0.5)


def extra_attribute(model):
    model.blocks[0].note = "a remark"


def in_training(model):
    model.train()


def compiled_in_place(model):
    model._compiled_call_impl = model._call_impl  # as model.compile() sets it, but not compiled


def in_double(model):
    model.double()


def half_of_it_in_double(model):
    model.blocks[0].ln1.double()


def head_in_double(model):
    model.lm_head.double()


def frozen(model):
    model.token_embedding_table.requires_grad_(False)


def called_by_halves(self, *args, **how):
    out = self.forward(*args, **how)
    return 0.5 * out if type(self).__name__ == "FeedForward" else out


def softer(self, dim, softmax=Tensor.softmax):
    return softmax(0.5 * self, dim)


@dataclass(frozen=True)
class Change:
    """What somebody did, and the forms of the model on which they can do it."""

    do: Callable
    forms: tuple[str, ...] = BOTH
    plain: bool = False  # the lecture's arithmetic still: no path but a compiled one may refuse
    refused: bool = False  # `generate` itself may refuse it
    runs: bool = True  # the model itself returns logits of every token and of the vocabulary
    paths: Iterable[str] = ()  # those that keep what the change relies on; none: all of them


# Here a prompt is read whole, and the cache returns what it was given and no empty slots.
WHOLE_PROMPTS = (
    "no cache",
    "DynamicCache",
    "PagedCache",
    "Uncached",
    "PerHead",
    "Native",
    "a draft",
)
WHOLE_PROMPTS += ("serve", "serve in chunks", "serve natively", "save and load")


class AllBut(tuple):
    """Paths that are left out: in them somebody calls the model, and nothing looks at it."""

    def __contains__(self, path):
        return not super().__contains__(path)

    def __iter__(self):
        return iter([path for path in PATHS if path in self])


BY_HAND = AllBut(("a loop by hand", "a loop by hand, StaticCache", "exact mode"))
halves_output = hooked("register_forward_hook", feed_forward, halve_output)

CHANGES = {
    "nothing": Change(lambda model: None, ALL, plain=True),
    "an attribute that nobody reads": Change(extra_attribute, plain=True),
    "in training mode": Change(in_training, ALL, plain=True),
    "compiled in place": Change(compiled_in_place),
    "frozen embeddings": Change(frozen, plain=True),
    "a transposed head": Change(transposed_head, plain=True),
    "an expanded weight": Change(expanded_weight, ALL, plain=True),
    "tied weights": Change(tie_weights, plain=True),
    "tied weights of heads": Change(tie_heads, (HEADS,), plain=True),
    "weights that were tied": Change(untied, (GENERAL,)),
    "in float64": Change(in_double, ALL),
    "a norm in float64": Change(half_of_it_in_double, runs=False),
    "a norm without bias": Change(layer_norm(bias=False)),
    "a norm without weights": Change(layer_norm(elementwise_affine=False)),
    "a norm of another epsilon": Change(layer_norm(eps=0.1), ALL),
    "another epsilon": Change(other_epsilon, ALL),
    "another epsilon of queries": Change(other_epsilon_of_queries, (GENERAL,)),
    "queries without a norm": Change(unnormalised_queries, (GENERAL,)),
    "an RMSNorm": Change(lambda model: setattr(model, "ln_f", nn.RMSNorm(16, eps=1e-3)), ALL),
    "a head without bias": Change(lambda model: setattr(model.lm_head, "bias", None)),
    "a head with a bias": Change(bias_of_the_head, (GENERAL,)),
    "a projection without bias": Change(lambda m: setattr(m.blocks[0].sa.proj, "bias", None), ALL),
    "a bias of queries": Change(bias_of_queries, ALL),
    "a bias that is no parameter": Change(bias_registered_nowhere),
    "a wider feed-forward": Change(wider_feed_forward, ALL),
    "GELU": Change(gelu, ALL),
    "a wrapped layer": Change(wrapped, ALL),
    "a wrapped embedding": Change(wrapped_embedding, ALL),
    "a module in a plain list": Change(mirrored, ALL),
    "a buffer": Change(own_buffer, ALL),
    "an attend of its own": Change(own_attend, DECODERS),
    "a rule of its own": Change(set_on_attention("visible", near_visible), DECODERS),
    "a window of its own": Change(set_on_attention("window", 3), DECODERS),
    "a class of attention": Change(own_attention(OddNeighbours), DECODERS),
    "a class of attention that attends": Change(own_attention(Halved), DECODERS),
    "a Head of the reader": Change(own_heads(LectureHead), (HEADS,)),
    "a Head that sees three positions": Change(own_heads(NearHead), (HEADS,)),
    "a Head for whole prompts": Change(own_heads(WholePromptHead), (HEADS,), paths=WHOLE_PROMPTS),
    "a Head that counts by its cache": Change(own_heads(CountingHead), (HEADS,)),
    "another config of an attention": Change(other_config, DECODERS),
    "another config of a Head": Change(other_config_of_a_head, (HEADS,)),
    "a forward hook": Change(halves_output, ALL),
    "a forward hook of the head": Change(
        hooked("register_forward_hook", lambda m: m.lm_head, halve_output)
    ),
    "a forward pre-hook": Change(hooked("register_forward_pre_hook", first_layer, halve_input)),
    "a global hook": Change(global_hook, ALL),
    "weight_norm": Change(weight_norm, ALL),
    "weight_norm by hooks": Change(old_weight_norm),
    "spectral_norm": Change(lambda m: parametrizations.spectral_norm(first_layer(m)) and None),
    "spectral_norm by hooks": Change(old_spectral_norm),
    "pruned weights": Change(pruned),
    "a block used twice": Change(use_twice, ALL),
    "an attention used twice": Change(share_attention, ALL),
    "a feed-forward used twice": Change(share_feed_forward, ALL),
    "a layer less": Change(drop_a_layer, ALL),
    "a layer more": Change(another_block, ALL),
    "a forward of its own": Change(own_forward, refused=True),
    "positions of its own": Change(own_positions, refused=True, paths=BY_HAND),
    "a shorter position table": Change(shorter_table),
    "a longer position table": Change(longer_table),
    "an embedding that renormalises": Change(renormalised_embedding),
    "a patched forward of a class": Change(
        patched(nanogpt.model.FeedForward, "forward", lambda self, x: 0.5 * self.net(x)), (HEADS,)
    ),
    "a patched function": Change(patched(nanogpt.model, "visible", near_visible), (HEADS,)),
    "a patched rule of the class": Change(
        patched(CausalSelfAttention, "visible", staticmethod(near_visible)), DECODERS
    ),
    "a patched activation": Change(
        patched(nanogpt.decoder.model, "activate", lambda x, _: x.tanh()), DECODERS
    ),
    "a patched call of modules": Change(patched(nn.Module, "_call_impl", called_by_halves), ALL),
    "a patched method of tensors": Change(
        patched(Tensor, "softmax", softer), (HEADS,), paths=AllBut(("exact mode",))
    ),
    "attention in a partial": Change(
        each_block(attended_by(lambda b: b.first), first=lambda b: partial(b.sa)), ALL, refused=True
    ),
    "attention in a private list": Change(
        each_block(attended_by(lambda b: b._own[0]), _own=lambda b: [b.sa]), ALL
    ),
    "attention in a dictionary": Change(
        each_block(attended_by(lambda b: b.own["a"]), own=lambda b: OrderedDict(a=b.sa)),
        refused=True,
    ),
    "attention in a namedtuple": Change(
        each_block(attended_by(lambda b: b.own.attention), own=lambda b: Parts(b.sa, b.ffwd)),
        refused=True,
    ),
    "attention in closures": Change(each_block(run_steps, steps=closures), ALL, refused=True),
    "blocks in a deque": Change(blocks_in_a_deque, BOTH, refused=True),
    "a Head without a cache": Change(one_head_without_cache, (HEADS,), refused=True),
    "a Head that forgets": Change(own_heads(ForgetfulHead), (HEADS,), refused=True, paths=BY_HAND),
    "attention that forgets": Change(
        own_attention(ForgetfulAttention), DECODERS, refused=True, paths=BY_HAND
    ),
    "a Head without positions": Change(
        own_heads(HeadWithoutPositions), (HEADS,), refused=True, runs=False
    ),
    "a forward without positions": Change(
        own_model(without_positions), ALL, refused=True, paths=BY_HAND
    ),
    "the last logits only": Change(own_model(last_logits_only), ALL, refused=True, paths=BY_HAND),
    "logits alone": Change(own_model(logits_alone), runs=False, paths=BY_HAND),
    "capped logits": Change(own_model(capped), ALL),
    "a head of more rows": Change(head_of(20), ALL, runs=False, paths=BY_HAND),
    "a head of fewer rows": Change(head_of(10), ALL, runs=False, paths=BY_HAND),
    "a head of two layers": Change(head_of_two_layers, ALL),
    "a smaller vocabulary": Change(smaller_vocabulary, runs=False, paths=BY_HAND),
    "a head in float64": Change(head_in_double, BOTH, runs=False),
    "a head that casts": Change(cast_head, BOTH),
    "a weight of another class": Change(weight_of_a_class, ALL),
    "a sparse weight": Change(sparse_weight),
    "a weight that is NaN": Change(put(lambda m: first_layer(m).weight, float("nan")), ALL),
    "a logit that is infinite": Change(put(lambda m: m.lm_head.bias, float("inf"))),
    "a token that never comes": Change(put(lambda m: m.lm_head.bias, -float("inf"))),
}


# ------------------------------------------------------------------ ways to the tokens


class OtherShape(Exception):
    """The model returned something else than logits of each token over the vocabulary."""


@torch.no_grad()
def reference(model: LanguageModel, prompt: Tensor, seed: int) -> list[int]:
    """The lecture's loop: the whole text again for every token, by the model's own call."""
    training = {module: module.training for module in model.modules()}
    model.eval()
    noise = nanogpt.draw_noise(N_NEW, 1, V, seeded(seed))
    text = prompt
    for row in noise:
        logits = model(text)[0]
        if logits.ndim != 3 or logits.shape[-1] != model.config.vocab_size:
            raise OtherShape(logits.shape)
        probs = logits[:, -1].softmax(-1)
        text = torch.cat([text, (probs / row).argmax(-1, keepdim=True)], dim=1)
    for module, mode in training.items():
        module.training = mode
    return text[0, prompt.shape[1] :].tolist()


def texts_of(model: LanguageModel) -> list[list[int]] | type[Exception]:
    """The texts that every path must give, or the class of the error that its own code raises."""
    try:
        return [reference(model, prompt_of(length, seed), seed) for length, seed in PROMPTS]
    except Exception as error:
        return type(error)


@cache
def small_model(form: str = PACKED) -> LanguageModel:
    """A model that nobody changed: copy it."""
    packed = build(torch.float32, n_head=2, n_embd=16, **(BEYOND if form == GENERAL else {}))
    return unpack_heads(packed) if form == HEADS else packed


def prompt_of(length: int, seed: int) -> Tensor:
    return torch.randint(V, (1, length), generator=seeded(seed))


def by(**how) -> Callable:
    """The texts that `generate` writes with these settings."""

    def path(model, tmp_path):
        texts = []
        for length, seed in PROMPTS:
            how_now = {name: make() if name == "draft" else make for name, make in how.items()}
            steps = generate(
                model, prompt_of(length, seed), N_NEW, generator=seeded(seed), **how_now
            )
            texts.append(torch.cat(list(steps), dim=1)[0].tolist())
        return texts

    return path


def by_hand(cache):
    """The texts of a loop that somebody writes around kv_cache, over the model itself."""

    @torch.no_grad()
    def path(model, tmp_path):
        model.eval()
        texts = []
        for length, seed in PROMPTS:
            prompt = prompt_of(length, seed)
            noise = nanogpt.draw_noise(N_NEW, 1, V, seeded(seed))
            text = prompt
            with kv_cache(model, cache):
                read = 0
                for row in noise:
                    pos = torch.arange(read, text.shape[1])
                    probs = model(text[:, read:], pos=pos)[0][:, -1].softmax(-1)
                    read = text.shape[1]
                    text = torch.cat([text, (probs / row).argmax(-1, keepdim=True)], dim=1)
            texts.append(text[0, length:].tolist())
        return texts

    return path


def served(**settings) -> Callable:
    """The texts of one BatchEngine that serves all of them, and two equal prompts, at once."""

    def path(model, tmp_path):
        plain = SamplingParams()
        requests = [
            Request(prompt_of(length, seed)[0], N_NEW, plain, seed=seed, id=i)
            for i, (length, seed) in enumerate(2 * PROMPTS)
        ]
        texts = {request.id: [] for request in requests}
        for output in nanogpt.serve(model, requests, block_len=4, **settings):
            texts[output.request.id].append(output.token)
        assert [texts[i] for i in range(2)] == [texts[i] for i in range(2, 4)]
        return [texts[i] for i in range(2)]

    return path


def saved(model, tmp_path):
    """Saved and loaded. A refusal leaves no file."""
    path = tmp_path / "saved"
    try:
        nanogpt.save_checkpoint(path, model, meta_of(model))
    except ValueError:
        assert not list(tmp_path.iterdir())
        raise
    loaded = nanogpt.load_checkpoint(path).model
    assert loaded.dtype == model.dtype
    return by(cache=nanogpt.DynamicCache)(loaded, tmp_path)


def converted(model, tmp_path):
    other = pack_heads(model) if isinstance(model, GPT) else unpack_heads(model)
    return by(cache=nanogpt.DynamicCache)(other, tmp_path)


def exactly(model, tmp_path):
    """In exact mode cached logits are the bits of uncached ones, with the prompt in pieces."""
    model.eval()
    idx = prompt_of(12, 4)
    with nanogpt.exact(model), torch.no_grad():
        whole = model(idx)[0]
        with kv_cache(model, nanogpt.StaticCache):
            parts = torch.arange(12).split([5, 1, 4, 1, 1])
            pieces = torch.cat([model(idx[:, pos], pos=pos)[0] for pos in parts], dim=1)
        torch.testing.assert_close(whole, pieces, rtol=0, atol=0, equal_nan=True)
        return by(cache=nanogpt.DynamicCache)(model, tmp_path)


def export_of(model, tmp_path):
    """What is exported computes what the model computes: its tensors make the same model again."""
    exported(model)
    return lecture_export_of(model, tmp_path)


def lecture_export_of(model, tmp_path):
    state = lecture_state_dict(model)
    plain = model.config if isinstance(model, GPT) else lecture_config(model.config)
    return by(cache=nanogpt.DynamicCache)(rebuilt_from(state, GPT(plain)), tmp_path)


def rebuilt_from(state: dict[str, Tensor], model: LanguageModel) -> LanguageModel:
    model.load_state_dict(state, assign=True)
    return model.eval()


def as_a_draft(engine):
    """The tokens of an unchanged model do not depend on the draft."""

    def path(model, tmp_path):
        target = small_model()
        how = {} if engine is None else {"engine": engine}
        found = by(draft=lambda: nanogpt.DraftModel(model, k=2), **how)(target, tmp_path)
        assert found == texts_of(target)
        return texts_of(model)

    return path


PATHS = {
    "no cache": by(cache=None),
    "DynamicCache": by(cache=nanogpt.DynamicCache),
    "StaticCache": by(cache=nanogpt.StaticCache),
    "RollingCache": by(cache=nanogpt.RollingCache),
    "PagedCache": by(cache=nanogpt.PagedCache),
    "prompt lookup": by(draft=nanogpt.PromptLookup),
    "a loop by hand": by_hand(nanogpt.DynamicCache),
    "a loop by hand, StaticCache": by_hand(nanogpt.StaticCache),
    "Uncached": by(engine=nanogpt.Uncached),
    "PerHead": by(engine=nanogpt.PerHead),
    "Batched": by(engine=nanogpt.Batched),
    "Static": by(engine=nanogpt.Static),
    "Flat": by(engine=nanogpt.Flat),
    "Native": by(engine=nanogpt.Native),
    "a draft": as_a_draft(None),
    "a draft of Native": as_a_draft(nanogpt.Native),
    "serve": served(backend=ModuleBackend),
    "serve in chunks": served(backend=ModuleBackend, budget=3),
    "serve in little memory": served(backend=ModuleBackend, n_blocks=6),
    "serve natively": served(backend=NativeBackend),
    "exact mode": exactly,
    "save and load": saved,
    "pack": converted,
    "export": export_of,
    "export, lecture": lecture_export_of,
}
QUICK = ("DynamicCache", "Flat", "serve")  # the others are slow tests
OWN_CODE = (  # the model's own modules run: every change is computed
    *("no cache", "DynamicCache", "StaticCache", "RollingCache", "PagedCache", "prompt lookup"),
    *("serve", "serve in chunks", "serve in little memory"),
)
# Here what torch says of the model's own code comes through, if the model itself does not run.
CALLED = (*OWN_CODE, "Uncached", "PerHead", "Batched", "Static", "a draft", "a draft of Native")
CALLED += ("a loop by hand", "a loop by hand, StaticCache", "exact mode")
LECTURE_ONLY = ("PerHead", "pack", "export", "export, lecture")  # they refuse all that is beyond it


@dataclass
class Outcome:
    """What a path did with a model."""

    kind: str  # equal, refused, its own error, other tokens, or the name of a raw error
    detail: str = ""


def changed(name: str, form: str, stack: ExitStack) -> LanguageModel:
    """A new model with this change, which the stack undoes where it is not the model's own."""
    change = CHANGES[name].do
    model = copy.deepcopy(small_model(form))
    around = (stack,) if change.__code__.co_argcount == 2 else ()
    return change(model, *around) or model


def right_texts(name: str, form: str) -> list[list[int]] | type[Exception]:
    with ExitStack() as stack:
        return texts_of(changed(name, form, stack))


def outcome(name: str, form: str, path: str, right, tmp_path) -> Outcome:
    with ExitStack() as stack:
        model = changed(name, form, stack)
        try:
            found = PATHS[path](model, tmp_path)
        except (ValueError, CheckpointError, ExportError) as error:
            words = str(error)
            return Outcome("refused" if words and "\n" not in words else "many lines", words)
        except CannotBuild:
            raise  # skipped, if there is no compiler
        except Exception as error:
            own = type(error) is right and path in CALLED
            return Outcome("its own error" if own else type(error).__name__, str(error))
        equal = found == right and isinstance(right, list)
        return Outcome("equal" if equal else "other tokens", f"{found} for {right}")


def faults(name: str, form: str, paths, tmp_path) -> list[str]:
    """Each path that does what it must not, in words."""
    change = CHANGES[name]
    right = right_texts(name, form)
    found = []
    if isinstance(right, list) != change.runs:
        found.append(f"the model itself: {right}")
    for path in paths:
        (tmp_path / path).mkdir()
        got = outcome(name, form, path, right, tmp_path / path)
        wrong = got.kind not in ("equal", "refused", "its own error")
        if got.kind == "refused":
            computes = path in OWN_CODE and change.runs and not change.refused
            beyond = form == GENERAL and path in LECTURE_ONLY
            wrong = computes or (change.plain and not beyond)
        if wrong:
            found.append(f"{path}: {got.kind}: {got.detail}")
    return found


ROWS = [(name, form) for name, change in CHANGES.items() for form in change.forms]


@pytest.mark.parametrize(("name", "form"), ROWS)
def test_a_changed_model_gives_its_own_tokens_or_is_refused(name, form, tmp_path):
    paths = CHANGES[name].paths or QUICK
    assert faults(name, form, [path for path in paths if path in QUICK], tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(("row", "name", "form"), [(i, *row) for i, row in enumerate(ROWS)])
def test_so_it_does_on_every_path(row, name, form, tmp_path):
    paths = [path for path in CHANGES[name].paths or PATHS if path not in QUICK]
    # Neighbouring rows take turns: one the even paths, the next one the odd ones.
    if os.environ.get("NANOGPT_PATHS") != "all":
        paths = paths[row % 2 :: 2]
    assert faults(name, form, paths, tmp_path) == []


# ------------------------------------------------------------------ what no path can know


def smeared(self, x, pos):
    before = F.pad(x, (0, 0, 1, 0))[:, :-1]
    return super(type(self), self).forward(x + 0.5 * before, pos)


def running_mean(self, x, pos):
    return super(type(self), self).forward(x.cumsum(1) / (pos[:, None] + 1), pos)


def counted_from_zero(self, x, pos):
    places = torch.arange(x.shape[1])[:, None]
    return super(type(self), self).forward(x * (1 + 0.1 * places), pos)


def by_length(self, x, pos):
    return super(type(self), self).forward(x * (1 + 0.1 * x.shape[1]), pos)


def other_attention(model):
    first = model.blocks[0].sa
    model.blocks[1].register_forward_hook(lambda _, args, out: out + 0.5 * first(*args))


REMEMBERING = {
    "the token before": each_block(smeared),
    "a running mean": each_block(running_mean),
    "places from 0": each_block(counted_from_zero),
    "how many tokens come": each_block(by_length),
    "another attention in a hook": other_attention,
}


@pytest.mark.parametrize("form", [HEADS, PACKED])
@pytest.mark.parametrize("name", REMEMBERING)
def test_compare_shows_what_a_model_knows_of_earlier_tokens_beside_its_cache(name, form):
    """`generate` warns of it: such a model gives other tokens with a cache than without one."""
    model = copy.deepcopy(small_model(form))
    REMEMBERING[name](model)
    report = nanogpt.compare(model, prompt_of(9, 3), N_NEW, b=nanogpt.DynamicCache)
    assert report.max_logit_diff > report.rounding


# ------------------------------------------------------------------ training


TEXT = "".join(CHARS[(i * i + i // 7) % 5] for i in range(1200))


def scaled_gradient(model):
    first_layer(model).weight.register_hook(lambda gradient: 0 * gradient)


TRAINED = {
    "nothing": (lambda model: None, ALL),
    "tied weights": (tie_weights, BOTH),
    "tied weights of heads": (tie_heads, (HEADS,)),
    "weights that were tied": (untied, (GENERAL,)),
    "a block used twice": (use_twice, ALL),
    "a feed-forward used twice": (share_feed_forward, BOTH),
    "frozen embeddings": (frozen, BOTH),
    "a hook on a gradient": (scaled_gradient, ALL),
    "a norm without bias": (layer_norm(bias=False), BOTH),
    "a bias of queries": (bias_of_queries, BOTH),
    "a wider feed-forward": (wider_feed_forward, BOTH),
    "GELU": (gelu, BOTH),
    "a forward hook": (halves_output, BOTH),
    "a wrapped layer": (wrapped, BOTH),
    "weight_norm": (weight_norm, ALL),
    "a Head of the reader": (own_heads(LectureHead), (HEADS,)),
    "a Head that sees three positions": (own_heads(NearHead), (HEADS,)),
    "a class of attention": (own_attention(OddNeighbours), DECODERS),
}


@pytest.mark.parametrize(
    ("name", "form"), [(name, form) for name, (_, forms) in TRAINED.items() for form in forms]
)
def test_training_leaves_the_model_that_it_reports(name, form, tmp_path):
    """The losses of the model itself, weights that were frozen as they were, and a resumed run."""
    corpus = Corpus(TEXT, "letters", "0" * 64)
    config = TrainConfig(steps=4, batch_size=4, eval_every=2, eval_batches=2, lr=0.01)
    if name == "a wrapped layer":
        model = copy.deepcopy(small_model(form))
        wrapped(model)
        with pytest.raises(ValueError, match="this model has .*Scaled.*: pass zero_init=False"):
            train(model, corpus, config, tokenizer=CharTokenizer(CHARS))
        config = replace(config, zero_init=False)
    model = copy.deepcopy(small_model(form))
    model = TRAINED[name][0](model) or model
    before = {key: value.clone() for key, value in model.state_dict().items()}
    still = [key for key, weight in model.named_parameters() if not weight.requires_grad]
    if name == "a hook on a gradient":
        watched = first_layer(model).weight
        still += [key for key, weight in model.named_parameters() if weight is watched]
        assert still
    tokenizer = CharTokenizer(CHARS)
    settings = {"tokenizer": tokenizer, "device": pick_device("cpu"), "out": tmp_path / "run"}
    history = train(model, corpus, config, **settings)
    _, val = split(tokenizer.encode(TEXT), model.config.block_size)
    assert full_loss(model.eval(), val) == pytest.approx(history["full_val"], rel=1e-5)
    after = model.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in still)
    assert not torch.equal(before["ln_f.weight"], after["ln_f.weight"])
    assert history["full_val"] != pytest.approx(history["val"][0], rel=1e-3)


@pytest.mark.parametrize("form", [HEADS, PACKED])
def test_training_refuses_a_model_whose_weights_are_all_frozen(form):
    model = copy.deepcopy(small_model(form)).requires_grad_(False)
    corpus = Corpus(TEXT, "letters", "0" * 64)
    with pytest.raises(ValueError, match="all weights are frozen: set requires_grad"):
        train(model, corpus, TrainConfig(steps=1), tokenizer=CharTokenizer(CHARS))


# ------------------------------------------------------------------ modes of torch


@pytest.mark.parametrize(
    "cache", [None, "DynamicCache", "StaticCache", "RollingCache", "PagedCache"]
)
@pytest.mark.parametrize("first", [True, False], ids=["begun inside", "begun outside"])
def test_a_generation_goes_on_in_another_inference_mode(cache, first):
    model = build(torch.float64, window=4) if cache == "RollingCache" else build()
    cache = cache and getattr(nanogpt, cache)
    prompt = prompt_of(5, 1)
    right = nanogpt.complete(model, prompt, 9, cache=cache, generator=seeded(2))[:, 5:]
    steps = generate(model, prompt, 9, cache=cache, generator=seeded(2))
    got = []
    for i in range(9):
        with torch.inference_mode((i % 4 < 2) == first):
            got.append(next(steps).clone())
    assert torch.equal(torch.cat(got, dim=1), right)


@pytest.mark.parametrize("cache", ["StaticCache", "RollingCache", "PagedCache"])
def test_tokens_are_taken_back_in_another_inference_mode(cache):
    model = build(torch.float64, window=4) if cache == "RollingCache" else build()
    idx = prompt_of(12, 3)
    with torch.no_grad():
        right = model(idx)[0][:, -1]
        with kv_cache(model, getattr(nanogpt, cache)):
            with torch.inference_mode():
                model(idx[:, :6], pos=torch.arange(6))
                model(idx[:, 6:9], pos=torch.arange(6, 9))
                for owner in nanogpt.cache.cache_owners(model):
                    owner.cache.rewind(2)
            model(idx[:, 7:11], pos=torch.arange(7, 11))
            got = model(idx[:, 11:], pos=torch.tensor([11]))[0][:, -1]
    torch.testing.assert_close(got, right)


class Doubling(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return 2 * out if func is torch.nn.functional.linear else out


@pytest.mark.slow
@pytest.mark.parametrize("engine", [nanogpt.Native, nanogpt.Native8, nanogpt.Compiled])
@pytest.mark.parametrize("mode", [Doubling, lambda: torch.autocast("cpu", torch.bfloat16)])
def test_a_compiled_engine_is_refused_where_torch_computes_otherwise(engine, mode):
    model = small_model()
    with mode(), pytest.raises(ValueError, match="is compiled, and .* is on.*or use Flat"):
        generate(model, prompt_of(3, 1), 2, engine=engine)
    if engine is nanogpt.Native:
        with torch.device("cpu"):  # this one changes nothing
            nanogpt.complete(model, prompt_of(3, 1), 2, engine=engine)
