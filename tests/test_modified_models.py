"""A model that somebody modified decodes to its own tokens on every path, or is refused by name.

The model as it stands is the reference: its whole text through `model(...)` for every token. A
modification is a row of MODIFIED, one for each kind of difference, with who has met it; a way to
the tokens is a row of PATHS, one for each piece of code that computes them. A path gives the tokens
of the reference or raises ValueError, in one line. It never gives other tokens, crashes, or lets an
error of torch through. Replaced functions of torch are outside (SUPPORT.md).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from checkpoint_fixtures import CHARS, meta_of
from conftest import name, seeded
from decoding_fixtures import V, build
from shapes import ROPE
from torch import Tensor
from torch.nn.utils import parametrizations

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
from nanogpt.decoder.config import lecture_config
from nanogpt.decoder.standard import not_standard
from nanogpt.device import pick_device
from nanogpt.model import Block, LanguageModel
from nanogpt.pretrained.form import family_form
from nanogpt.pretrained.lecture import lecture_state_dict
from nanogpt.serving.modules import ModuleBackend
from nanogpt.serving.native_steps import NativeBackend
from nanogpt.training.evaluation import full_loss
from nanogpt.training.loop import train
from nanogpt.training.recipes import TrainConfig

N_NEW = 5
PROMPTS = [(5, 1), (9, 3)]  # length and seed
HEADS = "heads"  # the lecture's GPT
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
        hidden = (k_pos[None, :] > pos[:, None]) | (k_pos < 0)[None, :]
        return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v


class OddNeighbours(CausalSelfAttention):
    """A rule of its own, written for the positions (T,) of one text."""

    @staticmethod
    def visible(q_pos, k_pos, window=None, sinks=0):
        gap = q_pos[:, None] - k_pos[None, :]
        return (gap >= 0) & (k_pos >= 0)[None, :] & ((gap % 2 == 0) | (gap < 3))


class ForgetfulAttention(CausalSelfAttention):
    """It has a cache and never calls it."""

    def forward(self, x, pos):
        kept = self.cache
        self.cache = None
        try:
            return super().forward(x, pos)
        finally:
            self.cache = kept


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


def own_forward_of_the_model(forward: Callable) -> Callable:
    """The model becomes one of a subclass with this forward."""

    def change(model):
        model.__class__ = type("Own", (type(model),), {"forward": forward})

    return change


def first_layer(model) -> nn.Linear:
    part = model.blocks[0].ffwd
    return part.net[0] if isinstance(model, GPT) else part.up


def halve_output(module, args, output):
    return 0.5 * output


def forward_hook(model):
    model.blocks[0].ffwd.register_forward_hook(halve_output)


def global_hook(model, stack):
    def halve(module, args, output):
        return 0.5 * output if type(module).__name__ == "FeedForward" else None

    stack.callback(nn.modules.module.register_module_forward_hook(halve).remove)


def in_16_bits(module, state, prefix, metadata):
    for key in state:
        state[key] = state[key].to(torch.bfloat16)


def state_dict_hook(model):
    first_layer(model).register_state_dict_post_hook(in_16_bits)


def use_twice(model):
    model.blocks[1] = model.blocks[0]


def tie_weights(model):
    model.lm_head.weight = model.token_embedding_table.weight


def tie_heads(model):
    heads = model.blocks[0].sa.heads
    heads[1].value.weight = heads[0].value.weight


def gelu(model):
    model.blocks[0].ffwd.net[1] = nn.GELU()


def other_epsilon(model):
    norm = nn.LayerNorm(model.config.n_embd, eps=0.1)
    model.blocks[1].ln1 = norm.to(model.lm_head.weight.dtype)


def wrapped(model):
    model.blocks[0].ffwd = Scaled(model.blocks[0].ffwd)


def own_forward(model):
    inner = model.blocks[0].ffwd
    original = inner.forward
    inner.forward = lambda x: 0.5 * original(x)


def longer_table(model):
    table = nn.Embedding(64, model.config.n_embd)
    nn.init.normal_(table.weight, generator=seeded(5))
    model.position_embedding_table = table


def weight_norm(model):
    parametrizations.weight_norm(first_layer(model))
    first_layer(model).parametrizations.weight.original0.data *= 0.3


def weight_of_a_class(model):
    layer = first_layer(model)
    weight = layer.weight.detach().clone().as_subclass(Doubled)
    layer.weight = nn.Parameter(weight, requires_grad=False)


def hidden_weight(model):
    layer = first_layer(model)
    object.__setattr__(layer, "weight", 0.3 * layer.weight.detach())


def negative_bit(model):
    layer = first_layer(model)
    negated = torch._neg_view(layer.weight.detach())
    layer.weight = nn.Parameter(negated, requires_grad=False)


def not_a_number(model):
    with torch.no_grad():
        first_layer(model).weight[3] = float("nan")


def transposed_head(model):
    weight = model.lm_head.weight
    model.lm_head.weight = nn.Parameter(weight.detach().t().contiguous().t())


def frozen(model):
    model.token_embedding_table.requires_grad_(False)


def compiled_in_place(model):
    model._compiled_call_impl = model._call_impl  # as model.compile() sets it, but not compiled


def capped(self, *args, **how):
    logits, loss = super(type(self), self).forward(*args, **how)
    return 3 * torch.tanh(logits / 3), loss


def last_logits_only(self, *args, **how):
    logits, loss = super(type(self), self).forward(*args, **how)
    return logits[:, [-1]], loss


@dataclass(frozen=True)
class Modified:
    """What somebody did, and the forms of the model on which it is tried."""

    witness: str  # who has met it
    do: Callable
    forms: tuple[str, ...] = (HEADS,)
    plain: bool = False  # the package's arithmetic still: no path may refuse it
    refused: bool = False  # `generate` itself may refuse it: no cache can be given to it


MODIFIED = {
    # What is still the package's own arithmetic.
    "nothing": Modified("everybody", lambda model: None, EITHER, plain=True),
    "an attribute that nobody reads": Modified(
        "Lightning and others note things on modules",
        lambda model: setattr(model.blocks[0], "note", "a remark"),
        plain=True,
    ),
    "compiled in place": Modified("model.compile(), PyTorch's own", compiled_in_place),
    "frozen embeddings": Modified("fine-tuning", frozen, plain=True),
    "tied weights": Modified("GPT-2, nanoGPT", tie_weights, plain=True),
    "a transposed head": Modified("GPT-2's Conv1D weights", transposed_head, plain=True),
    # Other settings, shapes and classes.
    "a norm of another epsilon": Modified("Llama: 1e-6", other_epsilon, (GENERAL,)),
    "a head without bias": Modified("nanoGPT", lambda m: setattr(m.lm_head, "bias", None)),
    "GELU": Modified("nanoGPT", gelu),
    "a window of its own": Modified(
        "notebook 08", lambda model: setattr(model.blocks[0].sa, "window", 3), (GENERAL,)
    ),
    "a longer position table": Modified("longer contexts of GPT-2", longer_table),
    "a block used twice": Modified("ALBERT", use_twice, EITHER),
    "a wrapped layer": Modified("LoRA of peft", wrapped, (GENERAL,)),
    "a Head of the reader": Modified("notebook 02", own_heads(LectureHead)),
    "a class of attention": Modified(
        "Decoder(attention=…)", own_attention(OddNeighbours), (GENERAL,)
    ),
    "capped logits": Modified("Gemma 2, in one's own forward", own_forward_of_the_model(capped)),
    # What runs beside a forward, or instead of it.
    "a forward hook": Modified("TransformerLens and probes", forward_hook, EITHER),
    "a global hook": Modified("PyTorch's profilers", global_hook, (GENERAL,)),
    "a hook on a layer's state_dict": Modified(
        "ours: saved and packed 16 bits", state_dict_hook, EITHER
    ),
    "a forward of its own": Modified("Unsloth's patches", own_forward, refused=True),
    "weight_norm": Modified("PyTorch's parametrizations", weight_norm, (GENERAL,)),
    # Weights that are no plain numbers in memory.
    "a weight of another class": Modified(
        "torchao's quantised tensors", weight_of_a_class, (GENERAL,)
    ),
    "a hidden weight": Modified("ours: the weight before was saved", hidden_weight, EITHER),
    "a negated view": Modified("ours: native code read the sign wrong", negative_bit, (GENERAL,)),
    "a weight that is NaN": Modified("a training that diverged", not_a_number),
    # What no cache can be given to.
    "attention that forgets": Modified(
        "museum: a cache that is never asked",
        own_attention(ForgetfulAttention),
        (GENERAL,),
        refused=True,
    ),
    "the last logits only": Modified(
        "nanoGPT's forward without targets",
        own_forward_of_the_model(last_logits_only),
        refused=True,
    ),
}


# ------------------------------------------------------------------ ways to the tokens


@torch.no_grad()
def reference(model: LanguageModel, prompt: Tensor, seed: int) -> list[int]:
    """The lecture's loop: the whole text again for every token, by the model's own call."""
    noise = nanogpt.draw_noise(N_NEW, 1, V, seeded(seed))
    text = prompt
    for row in noise:
        probs = model(text)[0][:, -1].softmax(-1)
        text = torch.cat([text, (probs / row).argmax(-1, keepdim=True)], dim=1)
    return text[0, prompt.shape[1] :].tolist()


def texts_of(model: LanguageModel) -> list[list[int]]:
    """The texts that every path must give."""
    return [reference(model, prompt_of(length, seed), seed) for length, seed in PROMPTS]


@cache
def small_model(form: str) -> LanguageModel:
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
            steps = generate(model, prompt_of(length, seed), N_NEW, generator=seeded(seed), **how)
            texts.append(torch.cat(list(steps), dim=1)[0].tolist())
        return texts

    return path


def served(backend) -> Callable:
    """The texts of one BatchEngine that serves all of them at once."""

    def path(model, tmp_path):
        requests = [
            Request(prompt_of(length, seed)[0], N_NEW, SamplingParams(), seed=seed, id=i)
            for i, (length, seed) in enumerate(PROMPTS)
        ]
        texts = [[] for _ in requests]
        for output in nanogpt.serve(model, requests, block_len=4, backend=backend):
            texts[output.request.id].append(output.token)
        return texts

    return path


def as_a_draft(engine) -> Callable:
    """The tokens of an unmodified model do not depend on the draft."""

    def path(model, tmp_path):
        target = small_model(HEADS)
        draft = nanogpt.DraftModel(model, k=2)
        assert by(draft=draft, engine=engine)(target, tmp_path) == texts_of(target)
        return texts_of(model)

    return path


def saved(model, tmp_path):
    """Saved and loaded. A refusal leaves no file."""
    path = tmp_path / "saved"
    try:
        nanogpt.save_checkpoint(path, model, meta_of(model))
    except ValueError:
        assert not list(tmp_path.iterdir())
        raise
    return texts_of(nanogpt.load_checkpoint(path).model)


def converted(model, tmp_path):
    return texts_of(pack_heads(model) if isinstance(model, GPT) else unpack_heads(model))


def exactly(model, tmp_path):
    with nanogpt.exact(model):
        return by(cache=nanogpt.StaticCache)(model, tmp_path)


def exported(model, tmp_path):
    """What is exported makes the same model again."""
    family_form(model)
    return exported_for_the_lecture(model, tmp_path)


def exported_for_the_lecture(model, tmp_path):
    state = lecture_state_dict(model)
    plain = model.config if isinstance(model, GPT) else lecture_config(model.config)
    again = GPT(plain)
    again.load_state_dict(state, assign=True)
    return texts_of(again.eval())


OWN_CODE = {  # the model's own modules run: every modification is computed
    "a cache": by(cache=nanogpt.DynamicCache),
    "prompt lookup": by(draft=nanogpt.PromptLookup()),
    "serve": served(ModuleBackend),
}
PATHS = OWN_CODE | {
    "Uncached": by(engine=nanogpt.Uncached),
    "PerHead": by(engine=nanogpt.PerHead),
    "Batched": by(engine=nanogpt.Batched),
    "Flat": by(engine=nanogpt.Flat),
    "Native": by(engine=nanogpt.Native),
    "a draft": as_a_draft(None),
    "a draft of Native": as_a_draft(nanogpt.Native),
    "serve natively": served(NativeBackend),
    "exact mode": exactly,
    "save and load": saved,
    "pack": converted,
    "export": exported,
    "export, lecture": exported_for_the_lecture,
}
# Engines that run the modules of a model of this form, whatever they compute.
RUN = {HEADS: ("Uncached", "PerHead"), GENERAL: ("Batched",)}
LECTURE_ONLY = ("PerHead", "pack", "export", "export, lecture")  # they refuse all that is beyond it


def modified(row: str, form: str, stack: ExitStack) -> LanguageModel:
    """A new modified model; the stack undoes what is not the model's own."""
    change = MODIFIED[row].do
    model = copy.deepcopy(small_model(form))
    around = (stack,) if change.__code__.co_argcount == 2 else ()
    return change(model, *around) or model


ROWS = [(row, form) for row, change in MODIFIED.items() for form in change.forms]


@pytest.mark.parametrize(("row", "form"), ROWS)
def test_a_modified_model_gives_its_own_tokens_or_is_refused_on_every_path(row, form, tmp_path):
    change = MODIFIED[row]
    faults = []
    for path, texts in PATHS.items():
        (tmp_path / path).mkdir()
        with ExitStack() as stack:
            model = modified(row, form, stack)
            right = texts_of(model)
            try:
                found = texts(model, tmp_path / path)
            except ValueError as error:
                beyond = form == GENERAL and path in LECTURE_ONLY
                needed = path in (*OWN_CODE, *RUN[form]) and not change.refused
                if needed or (change.plain and not beyond) or "\n" in str(error):
                    faults.append(f"{path}: refused: {error}")
            else:
                if found != right:
                    faults.append(f"{path}: {found} instead of {right}")
    assert faults == []


# FSDP frees shards like this; here native code crashed. Torch itself crashes on such a weight, so
# no path is tried that calls the model's own modules.
@pytest.mark.parametrize("form", EITHER)
@pytest.mark.parametrize("path", ["Flat", "Native", "serve natively", "save and load", "pack"])
def test_a_weight_without_memory_is_refused(path, form, tmp_path):
    model = copy.deepcopy(small_model(form))
    first_layer(model).weight.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="numbers are not in memory|the lecture's model has no"):
        PATHS[path](model, tmp_path)


# ------------------------------------------------------------------ a forgotten nn.ModuleList
# Witness: a learner's model whose text was wrong with a cache, without an error. Torch does not
# find modules in a plain list, so no cache would be switched on in them, and each step would see
# only its own token.


class PlainBlocks(GPT):
    """A GPT as a beginner may write it."""

    def __init__(self, config):
        super().__init__(config)
        del self.blocks
        self.blocks = [Block(config) for _ in range(config.n_layer)]


def own_class():
    return PlainBlocks(small_model(HEADS).config).eval()


def blocks_in_place():
    """The package's own class, changed after it was built."""
    model = copy.deepcopy(small_model(HEADS))
    blocks = list(model.blocks)
    del model.blocks
    model.blocks = blocks
    return model


def heads_in_place():
    """The heads of one block in a plain list."""
    model = copy.deepcopy(small_model(HEADS))
    attention = model.blocks[1].sa
    heads = list(attention.heads)
    del attention.heads
    attention.heads = heads
    return model


def by_hand(model, tmp_path):
    with kv_cache(model, nanogpt.StaticCache):
        pass


def compared(model, tmp_path):
    nanogpt.compare(model, prompt_of(5, 1), N_NEW, None, nanogpt.DynamicCache)


CACHED = OWN_CODE | {
    "a loop by hand": by_hand,
    "compare": compared,
    "a sliding window": by(past_block="slide"),
    "the referee": lambda model, tmp_path: nanogpt.referee(model),
    "exact mode": exactly,
}


@pytest.mark.parametrize("make", [own_class, blocks_in_place, heads_in_place], ids=name)
@pytest.mark.parametrize("path", CACHED)
def test_attention_in_a_plain_list_is_refused_on_every_path_with_a_cache(path, make, tmp_path):
    model = make()
    with pytest.raises(ValueError, match="use nn.ModuleList instead of a plain list$"):
        CACHED[path](model, tmp_path)
    assert not_standard(model), "so every path that reads the weights refuses it, too"


def test_a_model_without_blocks_is_refused():
    model = copy.deepcopy(small_model(HEADS))
    model.blocks = nn.ModuleList()
    with pytest.raises(ValueError, match="no module of this GPT has a `cache`"), kv_cache(model):
        pass


# ------------------------------------------------------------------ training


TEXT = "".join(CHARS[(i * i + i // 7) % 5] for i in range(1200))


def scaled_gradient(model):
    first_layer(model).weight.register_hook(lambda gradient: 0 * gradient)


TRAINED = {  # what the packed copy that is trained must not lose, and what is not packed
    "nothing": lambda model: None,
    "tied weights of heads": tie_heads,
    "frozen embeddings": frozen,
    "a hook on a gradient": scaled_gradient,
    "a wrapped layer": wrapped,
    "a Head of the reader": own_heads(LectureHead),
}


@pytest.mark.parametrize("row", TRAINED)
def test_training_leaves_the_model_that_it_reports(row, tmp_path):
    """The losses of the model itself, and weights that were frozen as they were."""
    corpus = Corpus(TEXT, "letters", "0" * 64)
    config = TrainConfig(steps=6, batch_size=4, eval_every=3, eval_batches=2, warmup=0)
    tokenizer = CharTokenizer(CHARS)
    model = copy.deepcopy(small_model(HEADS))
    model = TRAINED[row](model) or model
    if row == "a wrapped layer":
        with pytest.raises(ValueError, match="this model has .*Scaled.*: pass zero_init=False"):
            train(copy.deepcopy(model), corpus, config, tokenizer=tokenizer)
        config = replace(config, zero_init=False)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    still = {"frozen embeddings": "token_embedding_table.weight"}
    still |= {"a hook on a gradient": "blocks.0.ffwd.net.0.weight"}
    device = pick_device("cpu")
    history = train(model, corpus, config, tokenizer=tokenizer, device=device, out=tmp_path / "run")
    _, val = split(tokenizer.encode(TEXT), model.config.block_size)
    assert full_loss(model.eval(), val) == pytest.approx(history["full_val"], rel=1e-5)
    after = model.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in [still.get(row)] if key)
    assert not torch.equal(before["ln_f.weight"], after["ln_f.weight"])


def test_training_refuses_a_model_whose_weights_are_all_frozen():
    model = copy.deepcopy(small_model(HEADS)).requires_grad_(False)
    corpus = Corpus(TEXT, "letters", "0" * 64)
    with pytest.raises(ValueError, match="all weights are frozen: set requires_grad"):
        train(model, corpus, TrainConfig(steps=1), tokenizer=CharTokenizer(CHARS))


# ------------------------------------------------------------------ modes of torch


@pytest.mark.parametrize("cache", ["StaticCache", "RollingCache", "PagedCache"])
@pytest.mark.parametrize("first", [True, False], ids=["begun inside", "begun outside"])
def test_a_generation_goes_on_in_another_inference_mode(cache, first):
    """Buffers that were made in one mode are written in the other."""
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


@pytest.mark.parametrize("engine", [nanogpt.Native, nanogpt.Compiled])
def test_a_compiled_engine_is_refused_under_autocast(engine):
    """Nothing is built for it."""
    autocast = torch.autocast("cpu", torch.bfloat16)
    words = "is compiled, and torch.autocast is on.*or use Flat"
    with autocast, pytest.raises(ValueError, match=words):
        generate(small_model(HEADS), prompt_of(3, 1), 2, engine=engine)
