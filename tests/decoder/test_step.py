"""Decoder and `step` compute what is written out below, for every field and in every chunk."""

import math
from dataclasses import replace

import pytest
import torch
from conftest import seeded, tokens
from decoding_fixtures import decoder
from model_fixtures import all_logits
from shapes import DECODERS, SMALL
from torch.nn.functional import cross_entropy, linear

from nanogpt.cache import DynamicCache, StaticCache, kv_cache
from nanogpt.config import GPTConfig
from nanogpt.decoder.config import DecoderConfig
from nanogpt.decoder.model import Decoder
from nanogpt.decoder.pack import flatten, pack_heads
from nanogpt.decoder.standard import not_standard
from nanogpt.decoder.step import buffers, from_names, named_tensors, read, rotations, step
from nanogpt.model import GPT

LENGTH = 37
CHUNKS = [5, 1, 13, 18]
every_decoder = pytest.mark.parametrize("row", DECODERS)


def model_in(row: str) -> Decoder:
    return decoder(**DECODERS[row])


def close(found, expected, atol=1e-12):
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


# ------------------------------------------------------------------ written out

ACTIVATIONS = {
    "relu": lambda x: x.clamp(min=0),
    "relu2": lambda x: x.clamp(min=0) ** 2,
    "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + ((x + 0.044715 * x**3) * math.sqrt(2 / math.pi)).tanh()) / 2,
    "silu": lambda x: x / (1 + (-x).exp()),
}


def normalised(x, state, name, c, rms=False):
    """x as the norm of that name makes it; `rms`: of queries and keys, whatever the others are."""
    eps = torch.finfo(x.dtype).eps if c.norm_eps is None else c.norm_eps
    if not rms and c.norm == "layer":
        x = x - x.mean(-1, keepdim=True)
    x = x / (x.square().mean(-1, keepdim=True) + eps).sqrt()
    return x * state.get(f"{name}.weight", 1.0) + state.get(f"{name}.bias", 0.0)


def speed_of(pair, c):
    """Radians a position, as in Hugging Face's `rope_type: llama3`."""
    speed = c.rope_base ** (-2 * pair / c.head_size)
    s = c.rope_scaling
    if s is None:
        return speed
    length = 2 * math.pi / speed  # positions of one turn
    if length < s.original_context / s.high_freq_factor:
        return speed
    if length > s.original_context / s.low_freq_factor:
        return speed / s.factor
    share = s.original_context / length - s.low_freq_factor
    share /= s.high_freq_factor - s.low_freq_factor
    return (1 - share) * speed / s.factor + share * speed


def rotated(x, c):
    """Each number of the first half and its partner in the second turn as a complex number."""
    half = c.head_size // 2
    turned = torch.complex(x[..., :half], x[..., half:])
    for pair in range(half):
        angles = torch.arange(x.shape[-2]).double() * speed_of(pair, c)
        turned[..., pair] *= torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], dim=-1)


def sees(query, key, layer, c):
    """Whether the query at one position sees the key at another."""
    if key > query:
        return False
    windowed = c.window is not None
    if c.full_every and (layer + 1) % c.full_every == 0:
        windowed = False
    return not windowed or query - key < c.window or key < c.sinks


def written_out(model, idx):
    """The logits, from the model's named tensors alone: one head after another."""
    c = model.config
    state = model.state_dict()
    B, T = idx.shape

    def affine(x, name):
        return linear(x, state[f"{name}.weight"], state.get(f"{name}.bias"))

    x = state["token_embedding_table.weight"][idx]
    if c.positions == "learned":
        x = x + state["position_embedding_table.weight"][:T]
    if c.embed_norm:
        x = normalised(x, state, "embed_norm", c)
    for layer in range(c.n_layer):
        block = f"blocks.{layer}"
        mask = torch.tensor([[sees(t, s, layer, c) for s in range(T)] for t in range(T)])
        heads = affine(normalised(x, state, f"{block}.ln1", c), f"{block}.sa.qkv")
        heads = heads.split(c.head_size, dim=-1)  # queries, then keys, then values
        found = []
        for h in range(c.n_head):
            shared = h * c.kv_heads // c.n_head
            q = heads[h]
            k = heads[c.n_head + shared]
            v = heads[c.n_head + c.kv_heads + shared]
            if c.qk_norm:
                q = normalised(q, state, f"{block}.sa.query_norm", c, rms=True)
                k = normalised(k, state, f"{block}.sa.key_norm", c, rms=True)
            if c.positions == "rotary":
                q, k = rotated(q, c), rotated(k, c)
            scores = (q @ k.mT / math.sqrt(c.head_size)).masked_fill(~mask, -math.inf)
            found.append(scores.softmax(-1) @ v)
        x = x + affine(torch.cat(found, dim=-1), f"{block}.sa.proj")
        h = affine(normalised(x, state, f"{block}.ln2", c), f"{block}.ffwd.up")
        act = ACTIVATIONS[c.activation]
        if c.gated:
            gate, h = h[..., : c.hidden], h[..., c.hidden :]
            h = act(gate) * h
        else:
            h = act(h)
        x = x + affine(h, f"{block}.ffwd.down")
    logits = affine(normalised(x, state, "ln_f", c), "lm_head")
    return (
        logits if c.logit_softcap is None else c.logit_softcap * (logits / c.logit_softcap).tanh()
    )


@every_decoder
def test_every_decoder_computes_what_is_written_out(row):
    model = model_in(row)
    assert not_standard(model) is None
    idx = tokens(2, LENGTH)
    close(model(idx)[0], written_out(model, idx))


# ------------------------------------------------------------------ one text, however it is read


@every_decoder
def test_a_text_in_chunks_has_the_logits_of_the_text_in_one(row):
    model = model_in(row)
    c = model.config
    idx = tokens(2, LENGTH)
    whole = model(idx)[0]
    for cache in (DynamicCache, StaticCache):
        close(all_logits(model, idx, cache, CHUNKS), whole)
    weights = flatten(model)
    caches = buffers(c, 2, LENGTH, dtype=torch.float64)
    starts = [sum(CHUNKS[:i]) for i in range(len(CHUNKS))]
    parts = [idx[:, start : start + n] for start, n in zip(starts, CHUNKS, strict=True)]
    found = [read(weights, caches, x, start, c) for start, x in zip(starts, parts, strict=True)]
    close(torch.cat(found, dim=1), whole)


@every_decoder
def test_a_step_of_one_token_of_each_text_needs_no_dimension_of_time(row):
    """(B,) tokens, and an attention that the caller brings: all keys of a growing list."""
    model = model_in(row)
    c = model.config
    idx = tokens(3, 9)
    weights = flatten(model)
    held = [[] for _ in range(c.n_layer)]

    def attend(i, q, k, v):  # (B, H, hs), (B, Hkv, hs) twice
        held[i].append((k, v))
        now = len(held[i]) - 1
        kept = [pair for s, pair in enumerate(held[i]) if sees(now, s, i, c)]
        keys, values = (torch.stack(part, dim=2) for part in zip(*kept, strict=True))
        keys, values = (x.repeat_interleave(c.group, dim=1) for x in (keys, values))
        scores = (keys @ q[..., None])[..., 0] / math.sqrt(c.head_size)  # (B, H, S)
        return (scores.softmax(-1)[..., None, :] @ values).flatten(1)

    found = [step(weights, idx[:, t], weights.positions[t], attend, c) for t in range(9)]
    close(torch.stack(found, dim=1), model(idx)[0])


@every_decoder
def test_texts_of_a_batch_may_be_at_positions_of_their_own(row):
    model = model_in(row)
    idx = tokens(3, 4)
    pos = torch.tensor([[0, 1, 2, 3], [5, 6, 9, 10], [20, 21, 22, 38]])
    alone = [model(idx[i : i + 1], pos=pos[i])[0] for i in range(3)]
    close(model(idx, pos=pos)[0], torch.cat(alone))


@every_decoder
def test_the_last_logits_alone_are_the_last_of_all(row):
    model = model_in(row)
    idx = tokens(2, 9)
    whole = model(idx)[0]
    for n in (1, 4, 9):
        close(model(idx, last=n)[0], whole[:, -n:])
    for n in (0, -1, 10, 1.0, True):
        with pytest.raises(ValueError, match=rf"last={n}: must be an integer in \[1, 9\]"):
            model(idx, last=n)
    with kv_cache(model):
        model(idx[:, :5], pos=torch.arange(5), last=1)
        close(model(idx[:, 5:], pos=torch.arange(5, 9), last=1)[0], whole[:, -1:])


def test_the_loss_is_the_cross_entropy_of_the_logits():
    model = model_in("Gemma 2")
    idx, targets = tokens(2, 9), tokens(2, 9, seed=1)
    logits, loss = model(idx, targets)
    close(loss, cross_entropy(logits.flatten(0, 1), targets.flatten()))
    assert model(idx)[1] is None


# ------------------------------------------------------------------ a limit of the logits


@pytest.mark.parametrize("cap", [0.5, 3.0, 1e30])
def test_a_soft_cap_bounds_the_logits_and_keeps_their_order(cap):
    free = model_in("plain")
    capped = Decoder(replace(free.config, logit_softcap=cap)).double()
    capped.load_state_dict(free.state_dict())
    idx = tokens(2, LENGTH)
    raw = free(idx)[0]
    logits = capped(idx)[0]
    assert logits.abs().max() < cap
    assert torch.equal(logits.argsort(-1), raw.argsort(-1))
    close(logits, cap * (raw / cap).tanh())
    if cap == 1e30:
        close(logits, raw)


# ------------------------------------------------------------------ tied weights


def test_a_tied_head_is_the_token_embeddings_after_a_load_too():
    model = model_in("tied")
    state = model.state_dict()
    assert "lm_head.weight" in state
    other = Decoder(model.config).double()
    other.load_state_dict(state)
    assert other.lm_head.weight is other.token_embedding_table.weight
    assert other.n_params == model.n_params == model.config.n_params
    assert all(torch.equal(t, state[name]) for name, t in other.state_dict().items())
    close(other.eval()(tokens(2, 9))[0], model(tokens(2, 9))[0])
    assert flatten(other).head.weight.data_ptr() == flatten(other).tokens.data_ptr()


def test_a_tied_head_and_its_embeddings_learn_together():
    config = DecoderConfig(**SMALL, tied=True)
    model = Decoder(config)
    with torch.enable_grad():
        model(tokens(2, 9), tokens(2, 9, seed=1))[1].backward()
        torch.optim.SGD(model.parameters(), lr=1.0).step()
    assert model.lm_head.weight is model.token_embedding_table.weight
    first = Decoder(config).lm_head.weight
    moved = (model.lm_head.weight != first).any(-1)
    assert moved.all(), "the gradient of the head reaches every row, that of the table only some"


# ------------------------------------------------------------------ plain tensors


@every_decoder
def test_the_plain_tensors_are_the_model_s_own_and_have_names(row):
    model = model_in(row)
    weights = flatten(model)
    named = named_tensors(weights)
    own = {p.data_ptr() for p in model.parameters()}
    table = {"positions"} if model.config.rotary else set()
    assert {t.data_ptr() for name, t in named.items() if name not in table} == own
    again = from_names(named, model.config.n_layer)
    assert named_tensors(again).keys() == named.keys()
    assert all(tensor is named[name] for name, tensor in named_tensors(again).items())
    assert not any(t.requires_grad for t in named.values())


def test_a_list_of_heads_has_the_plain_tensors_of_its_packed_form():
    model = GPT(GPTConfig(**SMALL), generator=seeded(1)).eval()
    named = named_tensors(flatten(model))
    packed = named_tensors(flatten(pack_heads(model)))
    assert named.keys() == packed.keys()
    assert all(torch.equal(named[name], packed[name]) for name in named)


@pytest.mark.parametrize("row", ["positions=rotary", "Llama 3"])
def test_rotations_are_kept_for_the_next_caller(row):
    c = model_in(row).config
    kind = (torch.float32, torch.device("cpu"))
    first = rotations(9, c, *kind)
    assert first.shape == (9, 2 * c.head_size)
    assert rotations(9, c, *kind) is first
    assert torch.equal(rotations(12, c, *kind)[:9], first)
