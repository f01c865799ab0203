"""A model that somebody changed decodes to its own tokens on every path, or is refused by name.

The model as it stands is the reference: its whole text through `model(...)` for every token. What
somebody may change is a row of CHANGES, a way to the tokens a row of PATHS. A path gives the tokens
of the reference or raises ValueError, in one line. It never gives others, crashes, or lets an error
of torch through. To add a change or a path, add a row.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from unittest.mock import patch

import pytest
import torch
import torch.nn as nn
from conftest import seeded
from decoding_fixtures import V, build
from torch import Tensor
from torch.nn.utils import parametrizations, prune

import nanogpt
from nanogpt import GPT, CausalSelfAttention, Request, SamplingParams, attention, generate
from nanogpt.cache import kv_cache
from nanogpt.data import CharTokenizer, Corpus, split
from nanogpt.decoder.checkpoint import CheckpointError
from nanogpt.decoder.pack import pack_heads, unpack_heads
from nanogpt.device import pick_device
from nanogpt.export.huggingface import ExportError, exported
from nanogpt.export.lecture import lecture_state_dict
from nanogpt.serving.modules import ModuleBackend
from nanogpt.serving.native_steps import NativeBackend
from nanogpt.training.loop import train
from nanogpt.training.recipes import TrainConfig
from nanogpt.training.trainer import full_loss

N_NEW = 5
PROMPTS = [(5, 1), (9, 3)]  # length and seed
HEADS = "heads"
PACKED = "packed"
BOTH = (HEADS, PACKED)


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


def own_heads(kind: type) -> Callable[[GPT], GPT]:
    """The model with another class of heads, over the same weights."""

    def change(model):
        changed = GPT(model.config, head=kind)
        changed.load_state_dict(model.state_dict())
        return changed.to(model.lm_head.weight.dtype).eval()

    return change


def own_attention(model):
    changed = GPT(model.config, attention=OddNeighbours)
    changed.load_state_dict(model.state_dict())
    return changed.to(model.lm_head.weight.dtype).eval()


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


def wider_feed_forward(model):
    net = model.blocks[0].ffwd.net
    net[0] = linear(net[0], n_out=48)
    net[2] = linear(net[2], n_in=48)


def bias_of_queries(model):
    attn = model.blocks[0].sa
    layer = attn.qkv if hasattr(attn, "qkv") else attn.heads[1].query
    layer.bias = nn.Parameter(torch.linspace(-1, 1, layer.out_features, dtype=layer.weight.dtype))


def bias_registered_nowhere(model):
    layer = model.blocks[0].ffwd.net[0]
    values = torch.linspace(-1, 1, layer.out_features, dtype=layer.weight.dtype)
    del layer.bias
    layer.bias = values


def halved_attend(q, k, v, mask, dropout=0.0):
    return 0.5 * attention.attend_shared(q, k, v, mask, dropout)


def near_visible(q_pos, k_pos, window=None, sinks=0):
    return attention.visible(q_pos, k_pos, 3, 0)


def set_on_attention(name, value):
    return lambda model: setattr(model.blocks[0].sa, name, value)


def hooked(register: str, where: Callable[[GPT], nn.Module], hook: Callable, **settings):
    return lambda model: getattr(where(model), register)(hook, **settings) and None


def feed_forward(model) -> nn.Module:
    return model.blocks[0].ffwd


def first_layer(model) -> nn.Linear:
    return model.blocks[0].ffwd.net[0]


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
    model.blocks[0].ffwd.net[1] = nn.GELU()


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
    inner.forward = lambda x: 0.5 * inner.net(x)


def own_embed(model):
    original = model.embed
    model.embed = lambda idx, pos: 0.5 * original(idx, pos)


def shorter_table(model):
    table = model.position_embedding_table
    table.weight = nn.Parameter(table.weight[:24].detach().clone())


def other_config(model):
    model.blocks[0].sa.config = replace(model.config, rope=True, qk_norm=True, rope_base=100.0)


def other_config_of_a_head(model):
    model.blocks[0].sa.heads[0].config = replace(model.config, qk_norm=True)


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


def frozen(model):
    model.token_embedding_table.requires_grad_(False)


@dataclass(frozen=True)
class Change:
    """What somebody did, and the forms of the model on which they can do it."""

    do: Callable
    forms: tuple[str, ...] = BOTH
    plain: bool = False  # the lecture's arithmetic still: no path but a compiled one may refuse
    refused: bool = False  # `generate` itself may refuse it
    paths: tuple[str, ...] = ()  # those that keep what the change relies on; none: all of them


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
WHOLE_PROMPTS += ("serve", "serve in chunks", "serve natively", "exact mode", "save and load")

CHANGES = {
    "nothing": Change(lambda model: None, plain=True),
    "an attribute that nobody reads": Change(extra_attribute, plain=True),
    "in training mode": Change(in_training, plain=True),
    "compiled in place": Change(compiled_in_place),
    "frozen embeddings": Change(frozen, plain=True),
    "a transposed head": Change(transposed_head, plain=True),
    "tied weights": Change(tie_weights, plain=True),
    "tied weights of heads": Change(tie_heads, (HEADS,), plain=True),
    "in float64": Change(in_double),
    "a norm in float64": Change(half_of_it_in_double),
    "a norm without bias": Change(layer_norm(bias=False)),
    "a norm without weights": Change(layer_norm(elementwise_affine=False)),
    "a norm of another epsilon": Change(layer_norm(eps=0.1)),
    "an RMSNorm": Change(lambda model: setattr(model, "ln_f", nn.RMSNorm(16, eps=1e-3))),
    "a head without bias": Change(lambda model: setattr(model.lm_head, "bias", None)),
    "a projection without bias": Change(lambda m: setattr(m.blocks[0].sa.proj, "bias", None)),
    "a bias of queries": Change(bias_of_queries),
    "a bias that is no parameter": Change(bias_registered_nowhere),
    "a wider feed-forward": Change(wider_feed_forward),
    "GELU": Change(gelu),
    "a wrapped layer": Change(wrapped),
    "a module in a plain list": Change(mirrored),
    "an attend of its own": Change(set_on_attention("attend", halved_attend), (PACKED,)),
    "a rule of its own": Change(set_on_attention("visible", near_visible), (PACKED,)),
    "a window of its own": Change(set_on_attention("window", 3), (PACKED,)),
    "a class of attention": Change(own_attention, (PACKED,)),
    "a Head of the reader": Change(own_heads(LectureHead), (HEADS,)),
    "a Head that sees three positions": Change(own_heads(NearHead), (HEADS,)),
    "a Head for whole prompts": Change(own_heads(WholePromptHead), (HEADS,), paths=WHOLE_PROMPTS),
    "a Head that counts by its cache": Change(own_heads(CountingHead), (HEADS,)),
    "another config of an attention": Change(other_config, (PACKED,)),
    "another config of a Head": Change(other_config_of_a_head, (HEADS,)),
    "a forward hook": Change(hooked("register_forward_hook", feed_forward, halve_output)),
    "a forward hook of the model": Change(
        hooked("register_forward_hook", lambda m: m.lm_head, halve_output)
    ),
    "a forward pre-hook": Change(hooked("register_forward_pre_hook", first_layer, halve_input)),
    "a global hook": Change(global_hook),
    "weight_norm": Change(weight_norm),
    "weight_norm by hooks": Change(old_weight_norm),
    "spectral_norm": Change(lambda m: parametrizations.spectral_norm(first_layer(m)) and None),
    "pruned weights": Change(pruned),
    "a block used twice": Change(use_twice),
    "an attention used twice": Change(share_attention),
    "a feed-forward used twice": Change(share_feed_forward),
    "a layer less": Change(drop_a_layer),
    "a layer more": Change(another_block),
    "a forward of its own": Change(own_forward, refused=True),
    "an embed of its own": Change(own_embed, refused=True),
    "a shorter position table": Change(shorter_table),
    "an embedding that renormalises": Change(renormalised_embedding),
    "a patched forward of a class": Change(
        patched(nanogpt.model.FeedForward, "forward", lambda self, x: 0.5 * self.net(x))
    ),
    "a patched function": Change(patched(nanogpt.model, "visible", near_visible), (HEADS,)),
    "a patched rule of the class": Change(
        patched(CausalSelfAttention, "visible", staticmethod(near_visible)), (PACKED,)
    ),
}


# ------------------------------------------------------------------ ways to the tokens


@torch.no_grad()
def reference(model: GPT, prompt: Tensor, seed: int) -> list[int]:
    """The lecture's loop: the whole text again for every token, by the model's own call."""
    training = {module: module.training for module in model.modules()}
    model.eval()
    noise = nanogpt.draw_noise(N_NEW, 1, V, seeded(seed))
    text = prompt
    for row in noise:
        probs = model(text)[0][:, -1].softmax(-1)
        text = torch.cat([text, (probs / row).argmax(-1, keepdim=True)], dim=1)
    for module, mode in training.items():
        module.training = mode
    return text[0, prompt.shape[1] :].tolist()


def texts_of(model: GPT) -> list[list[int]] | None:
    """The texts that every path must give; None for a model that does not run."""
    try:
        return [reference(model, prompt_of(length, seed), seed) for length, seed in PROMPTS]
    except RuntimeError:
        return None


def small_model() -> GPT:
    return build(torch.float32, n_head=2, n_embd=16)


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


CHARS = "abcdefghijklm"
META = {
    "format": nanogpt.decoder.checkpoint.FORMAT,
    "step": 1,
    "losses": {"train": 1.0, "val": 1.0},
    "corpus": {"name": "letters"},
    "vocabulary": CHARS,
}


def saved(model, tmp_path):
    """Saved and loaded. A refusal leaves no file."""
    has = model.config
    meta = {**META, "config": vars(replace(has, per_head=has.has_heads))}
    path = tmp_path / "saved"
    try:
        nanogpt.save_checkpoint(path, model, meta)
    except ValueError:
        assert not list(tmp_path.iterdir())
        raise
    loaded = nanogpt.load_checkpoint(path).model
    assert loaded.lm_head.weight.dtype == model.lm_head.weight.dtype
    return by(cache=nanogpt.DynamicCache)(loaded, tmp_path)


def converted(model, tmp_path):
    other = pack_heads(model) if model.config.per_head else unpack_heads(model)
    return by(cache=nanogpt.DynamicCache)(other, tmp_path)


def exactly(model, tmp_path):
    """In exact mode cached logits are the bits of uncached ones."""
    model.eval()
    idx = prompt_of(12, 4)
    with nanogpt.exact(model), torch.no_grad():
        whole = model(idx)[0]
        with kv_cache(model, nanogpt.StaticCache):
            parts = torch.arange(12).split([5, 1, 4, 1, 1])
            pieces = torch.cat([model(idx[:, pos], pos=pos)[0] for pos in parts], dim=1)
        assert torch.equal(whole, pieces)
        return by(cache=nanogpt.DynamicCache)(model, tmp_path)


def export_of(model, tmp_path):
    """What is exported computes what the model computes: its tensors make the same model again."""
    exported(model)
    lecture = lecture_state_dict(model)
    plain = GPT(replace(model.config, per_head=True)).to(model.lm_head.weight.dtype)
    plain.load_state_dict(lecture)
    return by(cache=nanogpt.DynamicCache)(plain, tmp_path)


def lecture_export_of(model, tmp_path):
    plain = GPT(replace(model.config, per_head=True)).to(model.lm_head.weight.dtype)
    plain.load_state_dict(lecture_state_dict(model))
    return by(cache=nanogpt.DynamicCache)(plain, tmp_path)


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
COMPILER = ("Native", "a draft of Native", "serve natively")
OWN_CODE = (  # the model's own modules run: every change is computed
    *("no cache", "DynamicCache", "StaticCache", "RollingCache", "PagedCache", "prompt lookup"),
    *("serve", "serve in chunks", "serve in little memory"),
)


@dataclass
class Outcome:
    """What a path did with a model."""

    kind: str  # equal, refused, other tokens, or the name of a raw error
    detail: str = ""


def changed(name: str, form: str, stack: ExitStack) -> GPT:
    """A new model with this change, which the stack undoes where it is not the model's own."""
    change = CHANGES[name].do
    model = copy.deepcopy(small_model())
    model = unpack_heads(model) if form == HEADS else model
    around = (stack,) if change.__code__.co_argcount == 2 else ()
    return change(model, *around) or model


def right_texts(name: str, form: str) -> list[list[int]] | None:
    with ExitStack() as stack:
        return texts_of(changed(name, form, stack))


def outcome(name: str, form: str, path: str, right, tmp_path) -> Outcome:
    with ExitStack() as stack:
        model = changed(name, form, stack)
        try:
            found = PATHS[path](model, tmp_path)
        except (ValueError, CheckpointError, ExportError) as error:
            words = str(error)
            assert words
            assert "\n" not in words
            return Outcome("refused", words)
        except RuntimeError as error:
            # Where its own code does not run, what torch says of it is a refusal.
            return Outcome("RuntimeError" if right else "refused", str(error))
        except Exception as error:
            return Outcome(type(error).__name__, str(error))
        return Outcome("equal" if found == right else "other tokens", f"{found} for {right}")


def faults(name: str, form: str, paths, tmp_path) -> list[str]:
    """Each path that does what it must not, in words."""
    change = CHANGES[name]
    right = right_texts(name, form)
    found = []
    for path in paths:
        (tmp_path / path).mkdir()
        got = outcome(name, form, path, right, tmp_path / path)
        wrong = got.kind not in ("equal", "refused")
        if got.kind == "refused" and "mixed dtype" not in got.detail:
            own_code = path in OWN_CODE and not change.refused
            wrong = own_code or (change.plain and path not in COMPILER)
        if wrong:
            found.append(f"{path}: {got.kind}: {got.detail}")
    return found


ROWS = [(name, form) for name, change in CHANGES.items() for form in change.forms]


@pytest.mark.parametrize(("name", "form"), ROWS)
def test_a_changed_model_gives_its_own_tokens_or_is_refused(name, form, tmp_path):
    paths = CHANGES[name].paths or QUICK
    assert faults(name, form, [path for path in paths if path in QUICK], tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(("name", "form"), ROWS)
def test_so_it_does_on_every_path(name, form, tmp_path):
    paths = CHANGES[name].paths or PATHS
    assert faults(name, form, [path for path in paths if path not in QUICK], tmp_path) == []


# ------------------------------------------------------------------ training


TEXT = "".join(CHARS[(i * i + i // 7) % 5] for i in range(1200))


def scaled_gradient(model):
    model.blocks[0].ffwd.net[0].weight.register_hook(lambda gradient: 0 * gradient)


TRAINED = {
    "nothing": lambda model: None,
    "tied weights": tie_weights,
    "tied weights of heads": tie_heads,
    "a block used twice": use_twice,
    "a feed-forward used twice": share_feed_forward,
    "frozen embeddings": frozen,
    "a hook on a gradient": scaled_gradient,
    "a norm without bias": layer_norm(bias=False),
    "a bias of queries": bias_of_queries,
    "a wider feed-forward": wider_feed_forward,
    "GELU": gelu,
    "a forward hook": CHANGES["a forward hook"].do,
    "a wrapped layer": wrapped,
    "weight_norm": weight_norm,
    "a Head of the reader": own_heads(LectureHead),
    "a Head that sees three positions": own_heads(NearHead),
}


@pytest.mark.parametrize("name", TRAINED)
def test_training_leaves_the_model_that_it_reports(name, tmp_path):
    """The losses of the model itself, weights that were frozen as they were, and a resumed run."""
    corpus = Corpus(TEXT, "letters", "0" * 64)
    config = TrainConfig(steps=4, batch_size=4, eval_every=2, eval_batches=2, lr=0.01)
    if name == "a wrapped layer":
        model = unpack_heads(copy.deepcopy(small_model()))
        wrapped(model)
        with pytest.raises(ValueError, match="this model has .*Scaled.*: pass zero_init=False"):
            train(model, corpus, config, tokenizer=CharTokenizer(CHARS))
        config = replace(config, zero_init=False)
    model = unpack_heads(copy.deepcopy(small_model()))
    model = TRAINED[name](model) or model
    before = {key: value.clone() for key, value in model.state_dict().items()}
    still = [key for key, weight in model.named_parameters() if not weight.requires_grad]
    still += ["blocks.0.ffwd.net.0.weight"] * (name == "a hook on a gradient")
    tokenizer = CharTokenizer(CHARS)
    settings = {"tokenizer": tokenizer, "device": pick_device("cpu"), "out": tmp_path / "run"}
    history = train(model, corpus, config, **settings)
    _, val = split(tokenizer.encode(TEXT), model.config.block_size)
    assert full_loss(model.eval(), val) == pytest.approx(history["full_val"], rel=1e-5)
    after = model.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in still)
    assert not torch.equal(before["ln_f.weight"], after["ln_f.weight"])
    assert history["full_val"] != pytest.approx(history["val"][0], rel=1e-3)


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
