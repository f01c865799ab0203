"""What newer models do: no cache, chunk, form or file changes what they compute.

That their cached tokens are the uncached ones is tests/test_same_tokens.py.
"""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from checkpoint_fixtures import meta_of
from conftest import FORMS, name, seeded, tiny_model, tokens
from decoding_fixtures import build
from model_fixtures import all_logits

from nanogpt.attention import rotate, visible
from nanogpt.cache import DynamicCache, StaticCache, cache_owners, kv_cache, measured_bytes
from nanogpt.caches.paged import PagedCache
from nanogpt.caches.rolling import RollingCache
from nanogpt.config import GPTConfig
from nanogpt.decoder.checkpoint import load_checkpoint, save_checkpoint
from nanogpt.decoder.pack import convert_state, pack_heads, unpack_heads
from nanogpt.engines.eager import Batched, Flat
from nanogpt.engines.exact import exact
from nanogpt.export.lecture import lecture_state_dict
from nanogpt.generation import complete
from nanogpt.model import GPT, CausalSelfAttention
from nanogpt.training.recipes import MODERN

BLOCK = 32
WINDOW = 6
HAVE_HEADS = [
    *({"rms_norm": True}, {"rope": True}, {"rope": True, "rope_base": 100.0}, {"qk_norm": True}),
    *({"relu2": True}, {"bias": False}, MODERN),
]
HAVE_NONE = [
    *({"n_kv_head": 2}, {"window": WINDOW}, {"window": 1, "rope": True}),
    {"window": WINDOW, "full_every": 2, "rope": True, "n_kv_head": 1},
    {"window": WINDOW, "sinks": 2, "rope": True},
]
FIELDS = HAVE_HEADS + HAVE_NONE
CACHES = [DynamicCache, StaticCache, RollingCache, PagedCache]


def label(fields) -> str:
    return " ".join(key if value is True else f"{key}={value}" for key, value in fields.items())


every_field = pytest.mark.parametrize("fields", FIELDS, ids=label)
both_forms = pytest.mark.parametrize("per_head", FORMS, ids=name)


def close(got, expected, atol=1e-10):
    torch.testing.assert_close(got, expected, rtol=0, atol=atol)


# ------------------------------------------------------------------ caches


@pytest.mark.parametrize(
    ("fields", "per_head"),
    [(f, h) for f in [{}, *FIELDS] for h in FORMS if not (h and f in HAVE_NONE)],
)
def test_a_text_in_chunks_gives_the_logits_of_the_text_in_one(fields, per_head):
    model = build(per_head=per_head, **fields)
    idx = tokens(2, BLOCK)
    whole = model(idx)[0].detach()
    for cache in CACHES[:2] if per_head else CACHES:
        for chunks in ([5, 1, 26], 1, WINDOW, WINDOW + 1, BLOCK):
            close(all_logits(model, idx, cache, chunks), whole)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=name)
@pytest.mark.parametrize("fields", [MODERN, FIELDS[-2]], ids=["modern", "windows"])
def test_in_exact_mode_every_way_gives_the_same_bits(fields, dtype):
    idx = tokens(3, BLOCK)
    models = [build(dtype, **fields)]
    models += [unpack_heads(model) for model in models if model.config.has_heads]
    with exact(models[0]), torch.no_grad():
        expected = models[0](idx)[0]
        for model in models:
            assert torch.equal(model(idx[:, :5])[0], expected[:, :5])
            for cache, chunks in ((DynamicCache, [5, 1, 26]), (StaticCache, 1)):
                assert torch.equal(all_logits(model, idx, cache, chunks), expected)
                assert torch.equal(all_logits(model, idx[1:2], cache, chunks), expected[1:2])


def test_a_text_has_no_end_and_the_ring_does_not_grow():
    model = build(rope=True, window=WINDOW, sinks=1, n_kv_head=2)
    long = complete(model, tokens(1, 3), 200, cache=RollingCache, generator=seeded(1))
    plain = complete(model, tokens(1, 3), 200, cache=None, generator=seeded(1))
    assert torch.equal(long, plain)
    with kv_cache(model, RollingCache, capacity=10_000):
        sizes = set()
        for places in torch.arange(60).split(7):
            model(tokens(1, 60)[:, places], pos=places)
            sizes.add(measured_bytes(model))
    # K and V, layers, heads of keys, rows, size, bytes
    assert sizes == {2 * 2 * 2 * (WINDOW + 1) * 8 * 8}


def test_only_layers_with_a_window_get_a_ring_and_the_others_say_when_they_are_full():
    model = build(window=WINDOW, full_every=2, rope=True)
    idx = tokens(1, 40)
    for design, sizes in ((RollingCache, [WINDOW, BLOCK]), (StaticCache, [BLOCK, BLOCK])):
        with kv_cache(model, design):
            assert [owner.cache.capacity for owner in cache_owners(model)] == sizes
    with torch.no_grad(), pytest.raises(ValueError, match=r"StaticCache\(32\) holds positions"):
        all_logits(model, idx, RollingCache, 5)
    close(all_logits(model, idx, RollingCache, 5, capacity=40), all_logits(model, idx))


# ------------------------------------------------------------------ forms


@pytest.mark.parametrize("fields", [{}, *HAVE_HEADS], ids=label)
def test_both_forms_are_one_function_and_packing_loses_no_bit(fields):
    heads = tiny_model(dtype=torch.float64, n_head=4, dropout=0.0, **fields).train()
    batched = pack_heads(heads)
    close(batched(tokens(3, 24))[0], heads(tokens(3, 24))[0])
    for model in (heads, batched):
        model(tokens(2, 9), tokens(2, 9, seed=1))[1].backward()
    grads = {key: p.grad for key, p in batched.named_parameters()}
    for key, grad in convert_state(grads, batched.config, per_head=True).items():
        close(grad, heads.get_parameter(key).grad, 1e-11)
    back = unpack_heads(batched)
    assert back.config == heads.config
    assert list(back.state_dict()) == list(heads.state_dict())
    assert all(torch.equal(t, back.state_dict()[key]) for key, t in heads.state_dict().items())


# ------------------------------------------------------------------ rotary positions


def test_rotating_is_multiplying_by_a_complex_number():
    x = torch.randn(2, 7, 6, dtype=torch.float64, generator=seeded(0))
    pos = torch.arange(7) * 5
    turned = torch.complex(x[..., :3], x[..., 3:])
    for i in range(3):
        angle = pos.double() * 100.0 ** (-i / 3)
        turned[..., i] *= torch.polar(torch.ones(7, dtype=torch.float64), angle)
    close(rotate(x, pos, 100.0), torch.cat([turned.real, turned.imag], dim=-1), 1e-12)


@pytest.mark.parametrize("fields", [{"rope": True}, MODERN, *HAVE_NONE[:-1]], ids=label)
def test_without_a_position_table_a_text_reads_the_same_anywhere(fields):
    idx = tokens(2, 8)
    for rope, shift in ((True, 3), (True, 5000), (False, 3)):
        model = build(**fields | {"rope": rope})
        here, there = (model(idx, pos=torch.arange(8) + by)[0] for by in (0, shift))
        assert torch.allclose(here, there, rtol=0, atol=1e-9) is rope


# ------------------------------------------------------------------ shared keys and windows


@torch.no_grad()
@pytest.mark.parametrize("n_kv_head", [1, 2, 4])
def test_shared_keys_are_plain_attention_with_equal_keys(n_kv_head):
    """Written out: every head of queries with the weights of the keys that it shares."""
    shared = build(n_kv_head=n_kv_head)
    plain = deepcopy(build())
    idx = tokens(2, BLOCK)
    state = dict(shared.state_dict())
    for layer in range(2):
        weight = state[f"blocks.{layer}.sa.qkv.weight"]
        q, *kv = weight.split([32, 8 * n_kv_head, 8 * n_kv_head])
        kv = (x.view(n_kv_head, 8, 32).repeat_interleave(4 // n_kv_head, 0) for x in kv)
        state[f"blocks.{layer}.sa.qkv.weight"] = torch.cat([q, *(x.flatten(0, 1) for x in kv)])
    plain.load_state_dict(state)
    close(shared(idx)[0], plain(idx)[0])


@torch.no_grad()
def test_a_window_is_full_attention_up_to_its_length_and_sees_nothing_before_it():
    idx = tokens(2, BLOCK)
    wide = build(window=BLOCK)
    close(wide(idx)[0], build()(idx)[0])
    model = build(window=WINDOW, n_layer=1)
    other = idx.clone()
    other[:, 10] = (other[:, 10] + 1) % 13
    moved = (model(idx)[0] != model(other)[0]).any(-1)[0]
    assert moved.nonzero()[:, 0].tolist() == list(range(10, 10 + WINDOW))


def test_an_attention_of_ones_own_brings_its_pattern_cached_and_uncached_and_no_engine_takes_it():
    class Near(CausalSelfAttention):
        visible = staticmethod(lambda q_pos, k_pos, window, sinks: visible(q_pos, k_pos, WINDOW))

    full = build(rope=True)
    windowed = build(rope=True, window=WINDOW)
    own = GPT(full.config, attention=Near).double().eval()
    own.load_state_dict(windowed.state_dict())
    idx = tokens(2, 20)
    close(all_logits(own, idx), all_logits(windowed, idx), 1e-12)
    assert (all_logits(own, idx) - all_logits(full, idx)).abs().max() > 0.01
    for cache in (DynamicCache, StaticCache):
        close(all_logits(own, idx, cache, 3), all_logits(own, idx), 1e-9)
    assert torch.equal(
        complete(own, tokens(1, 3), 4, engine=Batched), complete(own, tokens(1, 3), 4)
    )
    with pytest.raises(ValueError, match="Near as blocks.0.sa, where"):
        complete(own, tokens(1, 3), 4, engine=Flat)


# ------------------------------------------------------------------ checkpoints, and the lecture


@every_field
def test_a_checkpoint_brings_it_back_to_the_bit(tmp_path, fields):
    model = build(torch.float32, **fields)
    config = replace(model.config, per_head=fields in HAVE_HEADS)
    save_checkpoint(tmp_path / "fox", model, meta_of(model, config=vars(config)))
    back = load_checkpoint(tmp_path / "fox").model
    expected = (unpack_heads(model) if config.per_head else model).state_dict()
    assert back.config == config
    assert list(back.state_dict()) == list(expected)
    assert all(torch.equal(t, expected[key]) for key, t in back.state_dict().items())
    names = ", ".join(key for key in model.config.beyond_lecture if key != "rope_base")
    with pytest.raises(ValueError, match=f"the lecture's class has no .*{names}: it cannot load"):
        lecture_state_dict(model)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope": True, "n_embd": 12}, "head size 3 must be even"),
        ({"n_embd": 10}, "n_embd=10 must be .* n_head=4"),
        ({"n_kv_head": 3}, "n_head=4 must be a multiple of n_kv_head=3"),
        ({"sinks": 2}, "set a window"),
        ({"full_every": 2}, "set a window"),
        ({"window": 4, "per_head": True}, "set per_head=False"),
        ({"n_kv_head": 1, "per_head": True}, "set per_head=False"),
    ],
)
def test_what_fits_no_model_is_refused(changes, message):
    """Fields together; each by itself is tests/test_fuzz.py."""
    with pytest.raises(ValueError, match=message):
        GPTConfig(**{"per_head": False} | changes)


def test_without_these_fields_the_model_is_the_lectures_to_the_bit():
    """Its names, and its weights: drawn one after another, in this order, from one generator."""
    config = GPTConfig(vocab_size=13, block_size=8, n_layer=1, n_head=2, n_embd=4)
    model = GPT(config, generator=seeded(7))
    heads = [f"blocks.0.sa.heads.{h}.{part}" for h in (0, 1) for part in ("key", "query", "value")]
    linear = ["blocks.0.sa.proj", "blocks.0.ffwd.net.0", "blocks.0.ffwd.net.2", "lm_head"]
    tables = ["token_embedding_table", "position_embedding_table"]
    drawn = [f"{layer}.weight" for layer in (*tables, *heads, *linear)]
    biases = [f"{layer}.bias" for layer in linear]
    norms = ["blocks.0.ln1", "blocks.0.ln2", "ln_f"]
    norms = [f"{layer}.{part}" for layer in norms for part in ("weight", "bias")]
    state = model.state_dict()
    generator = seeded(7)
    assert sorted(state) == sorted([*drawn, *biases, *norms])
    for key in drawn:
        expected = torch.empty_like(state[key]).normal_(std=0.02, generator=generator)
        assert torch.equal(state[key], expected), key
    assert not any(state[key].any() for key in biases)
    assert model.config.beyond_lecture == {}
