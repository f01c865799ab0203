"""A model that somebody modified decodes to its own tokens on every path, or is refused by name.

The model as it stands is the reference: its whole text through `model(...)` for every token. A
modification is a row of MODIFIED, with who has met it; a way to the tokens is a row of PATHS. A
path gives the tokens of the reference or raises ValueError, in one line. It never gives other
tokens, crashes, or lets an error of torch through. Replaced functions of torch are outside
(SUPPORT.md).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache

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
    Request,
    SamplingParams,
    generate,
    pack_heads,
    unpack_heads,
)
from nanogpt.cache import kv_cache
from nanogpt.data import CharTokenizer, Corpus, split
from nanogpt.decoder.checkpoint import CheckpointError
from nanogpt.decoder.config import lecture_config
from nanogpt.device import pick_device
from nanogpt.engines.toolchain import CannotBuild
from nanogpt.model import LanguageModel
from nanogpt.pretrained.form import ExportError, family_form
from nanogpt.pretrained.lecture import lecture_state_dict
from nanogpt.serving.modules import ModuleBackend
from nanogpt.serving.native_steps import NativeBackend
from nanogpt.training.evaluation import full_loss
from nanogpt.training.loop import train
from nanogpt.training.recipes import TrainConfig

N_NEW = 5
PROMPTS = [(5, 1), (9, 3)]  # length and seed
HEADS = "heads"  # the lecture's GPT
PACKED = "packed"  # a Decoder of the same shape
GENERAL = "general"  # a Decoder beyond the lecture
EITHER = (HEADS, GENERAL)
BEYOND = {**ROPE, "norm": "rms", "qk_norm": True, "n_kv_head": 1, "activation": "silu"}
BEYOND |= {"gated": True, "ffn_dim": 24, "tied": True, "head_bias": False, "window": 7}
BEYOND |= {"full_every": 2, "logit_softcap": 8.0}


# ------------------------------------------------------------------ what somebody modifies


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


class OddNeighbours(CausalSelfAttention):
    """A rule of its own, written for the positions (T,) of one text."""

    @staticmethod
    def visible(q_pos, k_pos, window=None, sinks=0):
        gap = q_pos[:, None] - k_pos[None, :]
        return (gap >= 0) & (k_pos >= 0)[None, :] & ((gap % 2 == 0) | (gap < 3))


class Forgetful:
    """Attention that has a cache and never calls it."""

    def forward(self, x, pos):
        kept = self.cache
        self.cache = None
        try:
            return super().forward(x, pos)
        finally:
            self.cache = kept


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


class Scaled(nn.Module):
    """A layer that somebody wrapped."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *args):
        return 0.7 * self.inner(*args)


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


def set_on_attention(name, value):
    return lambda model: setattr(model.blocks[0].sa, name, value)


def feed_forward(model) -> nn.Module:
    return model.blocks[0].ffwd


def halve_output(module, args, output):
    return 0.5 * output


def global_hook(model, stack):
    def halve(module, args, output):
        return 0.5 * output if type(module).__name__ == "FeedForward" else None

    stack.callback(nn.modules.module.register_module_forward_hook(halve).remove)


def use_twice(model):
    model.blocks[1] = model.blocks[0]


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


def wrapped(model):
    model.blocks[0].ffwd = Scaled(model.blocks[0].ffwd)


def own_forward(model):
    inner = model.blocks[0].ffwd
    original = inner.forward
    inner.forward = lambda x: 0.5 * original(x)


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


def weight_of_a_class(model):
    layer = first_layer(model)
    weight = layer.weight.detach().clone().as_subclass(Doubled)
    layer.weight = nn.Parameter(weight, requires_grad=False)


def put(get: Callable, value: float) -> Callable:
    """One number of a weight, set."""

    def change(model):
        with torch.no_grad():
            get(model)[3] = value

    return change


def longer_table(model):
    table = nn.Embedding(64, model.config.n_embd)
    nn.init.normal_(table.weight, generator=seeded(5))
    model.position_embedding_table = table


# Weights that are no plain numbers.


def weight_norm(model):
    parametrizations.weight_norm(first_layer(model))
    first_layer(model).parametrizations.weight.original0.data *= 0.3


def old_weight_norm(model):
    with pytest.warns(FutureWarning):
        nn.utils.weight_norm(first_layer(model))
    first_layer(model).weight_g.data *= 0.3


def pruned(model):
    prune.l1_unstructured(first_layer(model), "weight", amount=0.5)


def extra_attribute(model):
    model.blocks[0].note = "a remark"


def compiled_in_place(model):
    model._compiled_call_impl = model._call_impl  # as model.compile() sets it, but not compiled


def half_of_it_in_double(model):
    model.blocks[0].ln1.double()


def frozen(model):
    model.token_embedding_table.requires_grad_(False)


# What other code than the model's own would read from it.


def forward_hook(model):
    feed_forward(model).register_forward_hook(halve_output)


def in_16_bits(module, state, prefix, metadata):
    for name in state:
        state[name] = state[name].to(torch.bfloat16)


def state_dict_hook(model):
    model.register_state_dict_post_hook(in_16_bits)


def state_dict_hook_of_a_layer(model):
    first_layer(model).register_state_dict_post_hook(in_16_bits)


def hidden_weight(model):
    layer = first_layer(model)
    object.__setattr__(layer, "weight", 0.3 * layer.weight.detach())


def negative_bit(model):
    layer = first_layer(model)
    negated = torch._neg_view(layer.weight.detach())
    layer.weight = nn.Parameter(negated, requires_grad=False)


def weight_without_memory(model):
    first_layer(model).weight.untyped_storage().resize_(0)


def transposed_head(model):
    weight = model.lm_head.weight
    model.lm_head.weight = nn.Parameter(weight.detach().t().contiguous().t())


@dataclass(frozen=True)
class Modified:
    """What somebody did, and the forms of the model on which it is tried."""

    witness: str  # who has met it
    do: Callable
    forms: tuple[str, ...] = (HEADS,)
    plain: bool = False  # the package's arithmetic still: no path may refuse it
    refused: bool = False  # `generate` itself may refuse it
    runs: bool = True  # the model itself returns logits of every token over the vocabulary
    crashes: bool = False  # torch itself would crash in the model's own modules: never call them
    paths: Iterable[str] = ()  # those that keep what the modification relies on; none: all of them


class AllBut(tuple):
    """Paths that are left out: in them somebody calls the model, and nothing looks at it."""

    def __contains__(self, path):
        return not super().__contains__(path)

    def __iter__(self):
        return iter([path for path in PATHS if path in self])


BY_HAND = AllBut(("a loop by hand", "exact mode"))
# These never call the model's own modules: torch itself crashes on a weight without memory.
OTHER_CODE = ("Flat", "Native", "serve natively", "save and load", "pack", "export")

MODIFIED = {
    # What is still the package's own arithmetic.
    "nothing": Modified("everybody", lambda model: None, EITHER, plain=True),
    "an attribute that nobody reads": Modified(
        "Lightning and others note things on modules", extra_attribute, plain=True
    ),
    "compiled in place": Modified("model.compile(), PyTorch's own", compiled_in_place),
    "frozen embeddings": Modified("fine-tuning", frozen, plain=True),
    "tied weights": Modified("GPT-2, nanoGPT", tie_weights, plain=True),
    "a transposed head": Modified("GPT-2's Conv1D weights", transposed_head, plain=True),
    # Other settings, layers and classes.
    "a norm of another epsilon": Modified("Llama: 1e-6", layer_norm(eps=0.1), (GENERAL,)),
    "a head without bias": Modified("nanoGPT", lambda m: setattr(m.lm_head, "bias", None)),
    "GELU": Modified("nanoGPT", gelu, (HEADS,)),
    "a window of its own": Modified("notebook 08", set_on_attention("window", 3), (GENERAL,)),
    "a longer position table": Modified("longer contexts of GPT-2", longer_table),
    "a block used twice": Modified("ALBERT", use_twice, EITHER),
    "a wrapped layer": Modified("LoRA of peft", wrapped, (GENERAL,)),
    "a Head of the reader": Modified("notebook 02", own_heads(LectureHead)),
    "a class of attention": Modified(
        "Decoder(attention=…)", own_attention(OddNeighbours), (GENERAL,)
    ),
    "capped logits": Modified("Gemma 2, in a forward of one's own", own_model(capped), (HEADS,)),
    # What runs beside a forward, or instead of it.
    "a forward hook": Modified("TransformerLens and probes", forward_hook, EITHER),
    "a global hook": Modified("PyTorch's profilers", global_hook, (GENERAL,)),
    "a hook on state_dict": Modified("ours: saved 16 bits", state_dict_hook, EITHER),
    "a hook on a layer's state_dict": Modified(
        "ours: packed 16 bits", state_dict_hook_of_a_layer, (GENERAL,)
    ),
    "a forward of its own": Modified("Unsloth's patches", own_forward, refused=True),
    "weight_norm": Modified("PyTorch's parametrizations", weight_norm, (GENERAL,)),
    "weight_norm by hooks": Modified("PyTorch before 2.0", old_weight_norm),
    "pruned weights": Modified("torch.nn.utils.prune", pruned),
    # Weights that are no plain numbers in memory.
    "a weight of another class": Modified(
        "torchao's quantised tensors", weight_of_a_class, (GENERAL,)
    ),
    "a hidden weight": Modified("ours: the weight before was saved", hidden_weight, EITHER),
    "a negated view": Modified("ours: native code read the sign wrong", negative_bit, (GENERAL,)),
    "a weight without memory": Modified(
        "FSDP frees shards like this; ours: a crash",
        weight_without_memory,
        EITHER,
        runs=False,
        crashes=True,
        paths=OTHER_CODE,
    ),
    "a norm in float64": Modified("mixed precision by hand", half_of_it_in_double, runs=False),
    "a weight that is NaN": Modified(
        "a training that diverged", put(lambda m: first_layer(m).weight, float("nan")), (HEADS,)
    ),
    # What no cache can be given to, and what returns something else.
    "a Head without a cache": Modified(
        "the lecture's Head, in one place", one_head_without_cache, refused=True
    ),
    "attention that forgets": Modified(
        "museum: a cache that is never asked",
        own_attention(ForgetfulAttention),
        (GENERAL,),
        refused=True,
        paths=BY_HAND,
    ),
    "a forward without positions": Modified(
        "the lecture's forward(idx, targets)",
        own_model(without_positions),
        refused=True,
        paths=BY_HAND,
    ),
    "the last logits only": Modified(
        "nanoGPT's forward without targets",
        own_model(last_logits_only),
        refused=True,
        paths=BY_HAND,
    ),
    "logits alone": Modified(
        "most forwards but the lecture's", own_model(logits_alone), runs=False, paths=BY_HAND
    ),
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
    """A model that nobody modified: copy it."""
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
    family_form(model)
    return lecture_export_of(model, tmp_path)


def lecture_export_of(model, tmp_path):
    state = lecture_state_dict(model)
    plain = model.config if isinstance(model, GPT) else lecture_config(model.config)
    return by(cache=nanogpt.DynamicCache)(rebuilt_from(state, GPT(plain)), tmp_path)


def rebuilt_from(state: dict[str, Tensor], model: LanguageModel) -> LanguageModel:
    model.load_state_dict(state, assign=True)
    return model.eval()


def as_a_draft(engine):
    """The tokens of an unmodified model do not depend on the draft."""

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
    "Uncached": by(engine=nanogpt.Uncached),
    "PerHead": by(engine=nanogpt.PerHead),
    "Batched": by(engine=nanogpt.Batched),
    "Flat": by(engine=nanogpt.Flat),
    "Native": by(engine=nanogpt.Native),
    "a draft": as_a_draft(None),
    "a draft of Native": as_a_draft(nanogpt.Native),
    "serve": served(backend=ModuleBackend),
    "serve natively": served(backend=NativeBackend),
    "exact mode": exactly,
    "save and load": saved,
    "pack": converted,
    "export": export_of,
    "export, lecture": lecture_export_of,
}
OWN_CODE = (  # the model's own modules run: every modification is computed
    *("no cache", "DynamicCache", "StaticCache", "RollingCache", "PagedCache", "prompt lookup"),
    "serve",
)
# Here what torch says of the model's own code comes through, if the model itself does not run.
CALLED = (*OWN_CODE, "Uncached", "PerHead", "Batched", "a draft", "a draft of Native")
CALLED += ("a loop by hand", "exact mode")
LECTURE_ONLY = ("PerHead", "pack", "export", "export, lecture")  # they refuse all that is beyond it


@dataclass
class Outcome:
    """What a path did with a model."""

    kind: str  # equal, refused, its own error, other tokens, or the name of a raw error
    detail: str = ""


def modified(name: str, form: str, stack: ExitStack) -> LanguageModel:
    """A new modified model; the stack undoes what is not the model's own."""
    change = MODIFIED[name].do
    model = copy.deepcopy(small_model(form))
    around = (stack,) if change.__code__.co_argcount == 2 else ()
    return change(model, *around) or model


def right_texts(name: str, form: str) -> list[list[int]] | type[Exception]:
    with ExitStack() as stack:
        return texts_of(modified(name, form, stack))


def outcome(name: str, form: str, path: str, right, tmp_path) -> Outcome:
    with ExitStack() as stack:
        model = modified(name, form, stack)
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
    row = MODIFIED[name]
    right = RuntimeError if row.crashes else right_texts(name, form)
    found = []
    if isinstance(right, list) != row.runs:
        found.append(f"the model itself: {right}")
    for path in paths:
        (tmp_path / path).mkdir()
        got = outcome(name, form, path, right, tmp_path / path)
        wrong = got.kind not in ("equal", "refused", "its own error")
        if got.kind == "refused":
            computes = path in OWN_CODE and row.runs and not row.refused
            beyond = form == GENERAL and path in LECTURE_ONLY
            wrong = computes or (row.plain and not beyond)
        if wrong:
            found.append(f"{path}: {got.kind}: {got.detail}")
    return found


ROWS = [(name, form) for name, row in MODIFIED.items() for form in row.forms]


@pytest.mark.parametrize(("name", "form"), ROWS)
def test_a_modified_model_gives_its_own_tokens_or_is_refused_on_every_path(name, form, tmp_path):
    assert faults(name, form, MODIFIED[name].paths or PATHS, tmp_path) == []


# ------------------------------------------------------------------ what no path can know


def each_block(forward: Callable, **parts: Callable) -> Callable:
    """Blocks with this forward; `parts` make its attributes of the block."""

    def change(model):
        for block in model.blocks:
            own_class(block, forward)
            for name, make in parts.items():
                setattr(block, name, make(block))

    return change


def smeared(self, x, pos):
    before = F.pad(x, (0, 0, 1, 0))[:, :-1]
    return super(type(self), self).forward(x + 0.5 * before, pos)


def by_length(self, x, pos):
    return super(type(self), self).forward(x * (1 + 0.1 * x.shape[1]), pos)


REMEMBERING = {  # the museum has both: a shift of tokens, and a mask or scale by the length read
    "the token before": each_block(smeared),
    "how many tokens come": each_block(by_length),
}


@pytest.mark.parametrize("form", [HEADS, PACKED])
@pytest.mark.parametrize("name", REMEMBERING)
def test_compare_shows_what_a_model_knows_of_earlier_tokens_beside_its_cache(name, form):
    """`generate` warns of it: such a model gives other tokens with a cache than without one."""
    model = copy.deepcopy(small_model(form))
    REMEMBERING[name](model)
    report = nanogpt.compare(model, prompt_of(9, 3), N_NEW, None, nanogpt.DynamicCache)
    assert report.max_logit_diff > report.rounding


# ------------------------------------------------------------------ training


TEXT = "".join(CHARS[(i * i + i // 7) % 5] for i in range(1200))


def scaled_gradient(model):
    first_layer(model).weight.register_hook(lambda gradient: 0 * gradient)


TRAINED = {  # what the packed copy that is trained must not lose, and what is not packed
    "nothing": (lambda model: None, EITHER),
    "tied weights of heads": (tie_heads, (HEADS,)),
    "a block used twice": (use_twice, EITHER),
    "frozen embeddings": (frozen, EITHER),
    "a hook on a gradient": (scaled_gradient, EITHER),
    "a wrapped layer": (wrapped, (HEADS,)),
    "weight_norm": (weight_norm, (HEADS,)),
    "a Head of the reader": (own_heads(LectureHead), (HEADS,)),
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


@pytest.mark.parametrize("cache", ["StaticCache", "RollingCache", "PagedCache"])
@pytest.mark.parametrize("first", [True, False], ids=["begun inside", "begun outside"])
def test_a_generation_goes_on_in_another_inference_mode(cache, first):
    model = build(torch.float64, window=4) if cache == "RollingCache" else build()
    cache = getattr(nanogpt, cache)
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


@pytest.mark.parametrize("engine", [nanogpt.Native, nanogpt.Compiled])
def test_a_compiled_engine_is_refused_under_autocast(engine):
    """Nothing is built for it."""
    autocast = torch.autocast("cpu", torch.bfloat16)
    words = "is compiled, and torch.autocast is on.*or use Flat"
    with autocast, pytest.raises(ValueError, match=words):
        generate(small_model(), prompt_of(3, 1), 2, engine=engine)
