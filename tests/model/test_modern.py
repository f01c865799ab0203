"""What newer models do: no cache, form, engine or file changes what they compute."""

import itertools
from dataclasses import replace

import pytest
import torch
from checkpoint_fixtures import CHARS, meta_of
from conftest import CACHES, FORMS, name, seeded, tiny_model, tokens
from model_fixtures import all_logits, plain_text

from nanogpt.cache.attach import kv_cache, measured_bytes
from nanogpt.config import MODERN, NGRAM_ROWS, RECIPES, GPTConfig
from nanogpt.decoding.generate import complete, generate
from nanogpt.engines.compiled import Compiled
from nanogpt.engines.cuda_graph import Graph
from nanogpt.engines.eager import Batched, Flat, PerHead, Static, Uncached
from nanogpt.engines.int8 import Native8
from nanogpt.engines.native import Native
from nanogpt.model.attention import rotate
from nanogpt.model.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from nanogpt.model.convert import convert_state, lecture_state_dict, pack_heads, unpack_heads
from nanogpt.model.exact import exact
from nanogpt.model.gpt import GPT, norm
from nanogpt.training import optimizers
from nanogpt.verify.compare import forced_logits

BLOCK = 12
SINGLE = [
    {"rms_norm": True},
    {"rope": True},
    {"rope": True, "rope_base": 100.0},
    {"qk_norm": True},
    {"relu2": True},
    {"bias": False},
    {"ngrams": 2},
    {"ngrams": 3},
]
TOGETHER = [MODERN, {**MODERN, "ngrams": 2}, {**MODERN, "ngrams": 3}]
FIELDS = SINGLE + TOGETHER


def label(fields) -> str:
    short = [key if value is True else f"{key}={value}" for key, value in fields.items()]
    return " ".join(short) if len(short) < 3 else f"modern {fields.get('ngrams', '')}".strip()


def build(fields, per_head=True, dtype=torch.float32, **sizes) -> GPT:
    return tiny_model(per_head, dtype, **({"block_size": BLOCK} | fields | sizes))


every_field = pytest.mark.parametrize("fields", FIELDS, ids=label)
both_forms = pytest.mark.parametrize("per_head", FORMS, ids=name)


# ------------------------------------------------------------------ caches


@pytest.mark.slow
@both_forms
@every_field
def test_a_cache_changes_no_token(fields, per_head):
    heads = build(fields)
    model = heads if per_head else pack_heads(heads)
    for length in (1, 5, BLOCK):
        prompt, new = tokens(3, length), BLOCK + 1 - length
        text = plain_text(heads, prompt, new, seed=42)
        for cache in (None, *CACHES):
            got = complete(model, prompt, new, cache=cache, generator=seeded(42))
            assert torch.equal(got, text)


@both_forms
@every_field
def test_a_text_in_chunks_gives_the_logits_of_the_text_in_one(fields, per_head):
    model, idx = build(fields, per_head, torch.float64), tokens(3, BLOCK)
    whole = all_logits(model, idx)
    for cache, chunks in itertools.product(CACHES, ([5, 1, 6], 1, BLOCK)):
        got = all_logits(model, idx, cache, chunks)
        torch.testing.assert_close(got, whole, rtol=0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "width", "n_head", "dtype"),
    [(TOGETHER[2], 60, 5, torch.float32), (TOGETHER[0], 16, 2, torch.bfloat16)],
    ids=["width 60", "width 16"],
)
def test_in_exact_mode_every_way_gives_the_same_bits(fields, width, n_head, dtype):
    heads, idx = build(fields, True, dtype, n_embd=width, n_head=n_head), tokens(3, BLOCK)
    with exact(heads), torch.no_grad():
        expected = heads(idx)[0]
        for model in (heads, pack_heads(heads)):
            assert torch.equal(model(idx)[0], expected)
            assert torch.equal(model(idx[:, :5])[0], expected[:, :5])
            for cache, chunks in zip(CACHES, ([5, 1, 6], 1), strict=True):
                assert torch.equal(all_logits(model, idx, cache, chunks), expected)
                assert torch.equal(all_logits(model, idx[1:2], cache, chunks), expected[1:2])


@both_forms
@pytest.mark.parametrize("fields", [{"ngrams": 3}, *TOGETHER], ids=label)
@pytest.mark.filterwarnings("ignore:past block_size")
def test_past_the_block_the_tokens_are_the_same(fields, per_head):
    """With a position table the window slides; with rotary positions the text just goes on."""
    heads, prompt = build(fields), tokens(2, 5)
    model, ways = heads if per_head else pack_heads(heads), {"past_block": "slide"}
    if fields.get("rope"):
        text = complete(heads, prompt, 14, cache=None, generator=seeded(1))
    else:
        text = plain_text(heads, prompt, 14, seed=1)
    for design in CACHES:
        assert torch.equal(
            complete(model, prompt, 14, cache=design, generator=seeded(1), **ways), text
        )


@both_forms
@pytest.mark.parametrize("fields", [{}, *TOGETHER], ids=label)
def test_the_bytes_of_a_cache_are_known_before(fields, per_head):
    for dtype, batch in ((torch.float32, 1), (torch.bfloat16, 3)):
        model = build(fields, per_head, dtype)
        for design, rows in zip(
            CACHES, (7, BLOCK), strict=True
        ):  # a static cache holds all its rows at once
            with kv_cache(model, design), torch.no_grad():
                assert measured_bytes(model) == 0
                model(tokens(batch, 7), pos=torch.arange(7))
                assert measured_bytes(model) == model.cache_bytes(rows, batch)


# ------------------------------------------------------------------ forms and engines


@every_field
def test_both_forms_are_one_function_and_packing_loses_no_bit(fields):
    heads = build(fields, dtype=torch.float64)
    batched = pack_heads(heads)
    torch.testing.assert_close(
        batched(tokens(3, BLOCK))[0], heads(tokens(3, BLOCK))[0], rtol=0, atol=1e-10
    )
    back = unpack_heads(batched)
    assert back.config == heads.config
    assert list(back.state_dict()) == list(heads.state_dict())
    assert all(torch.equal(t, back.state_dict()[key]) for key, t in heads.state_dict().items())


@pytest.mark.parametrize("fields", TOGETHER, ids=label)
def test_both_forms_have_the_same_gradients(fields):
    heads = build(fields, dtype=torch.float64, dropout=0.0).train()
    batched = pack_heads(heads)
    for model in (heads, batched):
        model(tokens(2, 9), tokens(2, 9, seed=1))[1].backward()
    grads = {key: p.grad for key, p in batched.named_parameters()}
    for key, grad in convert_state(grads, batched.config, per_head=True).items():
        torch.testing.assert_close(grad, heads.get_parameter(key).grad, rtol=0, atol=1e-11, msg=key)


@pytest.mark.slow
@both_forms
@every_field
def test_engines_of_the_models_own_modules_give_the_same_tokens(fields, per_head):
    model, prompt = build(fields, per_head), tokens(3, 5)
    text = plain_text(build(fields), prompt, 8, seed=1)
    for engine in (Uncached, PerHead, Batched):
        assert torch.equal(complete(model, prompt, 8, engine=engine, generator=seeded(1)), text)


ONE_ARCHITECTURE = [Static, Flat, Compiled, Native, Native8, Graph]


@pytest.mark.parametrize(
    ("engine", "fields"),
    [(Flat, fields) for fields in FIELDS] + [(engine, MODERN) for engine in ONE_ARCHITECTURE],
    ids=lambda x: label(x) if isinstance(x, dict) else x.__name__,
)
def test_engines_of_the_lecture_refuse_before_they_build(fields, engine, monkeypatch):
    """The class, or an engine that was built for a lecture model of the same sizes."""
    monkeypatch.setattr(engine, "build", lambda self: None)
    model, lecture = build(fields), engine(build({}).config)
    monkeypatch.setattr(engine, "build", lambda self: pytest.fail("it began to build"))
    other = next(key for key in fields if key != "rope_base")
    with pytest.raises(
        ValueError, match=f"{engine.__name__} computes the lecture's .*{other}=.*use Batched"
    ):
        generate(model, tokens(1, 3), 2, engine=engine)
    with pytest.raises(
        ValueError, match=f"this {engine.__name__} was built for .* got .*{other}="
    ) as error:
        generate(model, tokens(1, 3), 2, engine=lecture)
    assert len(str(error.value).splitlines()) == 1


# ------------------------------------------------------------------ rotary positions


def test_rotating_is_multiplying_by_a_complex_number():
    x, pos = torch.randn(2, 7, 6, dtype=torch.float64, generator=seeded(0)), torch.arange(7) * 5
    turned = torch.complex(x[..., :3], x[..., 3:])
    for i in range(3):
        angle = pos.double() * 100.0 ** (-i / 3)
        turned[..., i] *= torch.polar(torch.ones(7, dtype=torch.float64), angle)
    expected = torch.cat([turned.real, turned.imag], dim=-1)
    torch.testing.assert_close(rotate(x, pos, 100.0), expected, rtol=0, atol=1e-12)


def test_rotating_keeps_lengths_and_leaves_place_0_as_it_is():
    x, pos = torch.randn(3, 9, 8, generator=seeded(0)), torch.arange(9)
    turned = rotate(x, pos, 10_000.0)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    assert torch.equal(turned[:, 0], x[:, 0])
    assert not torch.isclose(turned[:, 1:], x[:, 1:]).all(-1).any()


def test_a_product_depends_on_the_distance_alone():
    q, k = torch.randn(2, 1, 8, dtype=torch.float64, generator=seeded(0)).unbind(0)

    def product(i, j):
        return float(
            rotate(q, torch.tensor([i]), 10_000.0) @ rotate(k, torch.tensor([j]), 10_000.0).mT
        )

    assert product(5, 2) == pytest.approx(product(1003, 1000), abs=1e-9)
    assert abs(product(5, 2) - product(5, 3)) > 1e-3


@both_forms
@pytest.mark.parametrize("fields", [{"rope": True}, *TOGETHER], ids=label)
def test_without_a_position_table_a_text_reads_the_same_anywhere(fields, per_head):
    idx = tokens(2, 8)
    for fields_, same in ((fields, True), (fields | {"rope": False}, False)):
        model = build(fields_, per_head, torch.float64)
        here, there = (model(idx, pos=torch.arange(8) + shift)[0] for shift in (0, 3))
        assert torch.allclose(here, there, rtol=0, atol=1e-9) is same


def test_a_far_position_is_turned_as_exactly_as_a_near_one():
    """In float32 the angle itself would be wrong by then: 2**24 + 1 is no float32."""
    x, far = torch.randn(1, 2, dtype=torch.float64, generator=seeded(0)), torch.tensor([2**24 + 1])
    expected = rotate(x, far, 10_000.0)
    torch.testing.assert_close(
        rotate(x.float(), far, 10_000.0).double(), expected, rtol=0, atol=1e-6
    )


# ------------------------------------------------------------------ norms


def test_a_norm_without_weights_knows_no_scale():
    layer = norm(GPTConfig(rms_norm=True))
    x = torch.randn(5, 64, generator=seeded(0))
    assert not list(layer.parameters())
    for scale in (10, 1e3):
        torch.testing.assert_close(layer(scale * x), layer(x))
    torch.testing.assert_close(layer(x).square().mean(-1), torch.ones(5))


@both_forms
def test_with_qk_norm_the_scale_of_queries_and_keys_changes_nothing(per_head):
    model, idx = build({"qk_norm": True}, per_head, torch.float64), tokens(2, 9)
    before, C = model(idx)[0].detach(), model.config.n_embd
    with torch.no_grad():
        for block in model.blocks:
            if per_head:
                for head in block.sa.heads:
                    head.query.weight.mul_(7), head.key.weight.mul_(0.3)
            else:
                block.sa.qkv.weight[:C] *= 7  # the queries' rows
                block.sa.qkv.weight[C : 2 * C] *= 0.3  # the keys'
        torch.testing.assert_close(model(idx)[0], before, rtol=0, atol=1e-9)
        (block.sa.heads[0].value if per_head else block.sa.qkv).weight.mul_(7)
        assert not torch.allclose(model(idx)[0], before, rtol=0, atol=1e-3), (
            "the values do have a scale"
        )


def test_with_rms_norm_the_scale_of_the_embeddings_changes_nothing():
    model, idx = build({"rms_norm": True, "ngrams": 3}, dtype=torch.float64), tokens(2, 9)
    before = model(idx)[0].detach()
    with torch.no_grad():
        for table in (m for m in model.modules() if isinstance(m, torch.nn.Embedding)):
            table.weight.mul_(9)
    torch.testing.assert_close(model(idx)[0], before, rtol=0, atol=1e-9)


# ------------------------------------------------------------------ look-up tables


def rows_by_hand(text: list[int], vocab: int) -> list[tuple[int, int]]:
    """For each place the rows of its pair and its triple; before the text stands character 0."""
    padded = [0, 0, *text]
    triples = zip(padded, padded[1:], padded[2:], strict=False)
    return [
        ((b * vocab + c) % NGRAM_ROWS, (a * vocab**2 + b * vocab + c) % NGRAM_ROWS)
        for a, b, c in triples
    ]


@pytest.mark.parametrize("vocab", [3, 13, 65, 150])
@pytest.mark.parametrize("ngrams", [2, 3])
def test_the_tables_are_read_at_the_rows_counted_by_hand(vocab, ngrams):
    tables = build({"ngrams": ngrams}, vocab_size=vocab).ngrams
    assert tables.pairs.num_embeddings == min(vocab**2, NGRAM_ROWS)
    idx = tokens(2, BLOCK, vocab=vocab, seed=3)
    got = tables(idx, torch.arange(BLOCK))
    for text, found in zip(idx.tolist(), got, strict=True):
        for (pair, triple), row in zip(rows_by_hand(text, vocab), found, strict=True):
            third = tables.triples.weight[triple] if ngrams == 3 else 0
            assert torch.equal(row, tables.pairs.weight[pair] + third)


def test_before_a_text_stands_character_0():
    tables = build({"ngrams": 3}).ngrams
    text = torch.tensor([[0, 0, 5, 7]])
    whole, cut = tables(text, torch.arange(4)), tables(text[:, 2:], torch.arange(2))
    assert torch.equal(whole[:, 2:], cut)


@both_forms
@pytest.mark.parametrize("fields", TOGETHER[1:], ids=label)
def test_a_character_moves_nothing_that_stands_before_it(fields, per_head):
    model, idx = build(fields, per_head), tokens(1, BLOCK)
    logits, added = model(idx)[0], model.ngrams(idx, torch.arange(BLOCK))
    for t in range(BLOCK):
        other = idx.clone()
        other[0, t] = (other[0, t] + 1) % 13
        same = (model(other)[0] == logits).all(-1)[0]
        assert same[:t].all()
        assert not same[t]
        moved = (
            (model.ngrams(other, torch.arange(BLOCK)) != added)
            .any(-1)[0]
            .nonzero()
            .flatten()
            .tolist()
        )
        assert moved == list(range(t, min(t + fields["ngrams"], BLOCK)))


def test_the_tables_start_empty_and_the_loss_at_that_of_a_fair_guess():
    model = build(TOGETHER[2]).train()
    optimizers.zero_init(model, seeded(1))
    assert not any(p.any() for p in model.ngrams.parameters())
    assert not model(tokens(2, 9))[0].any()


@pytest.mark.parametrize("design", CACHES, ids=name)
def test_a_vocabulary_with_more_pairs_than_rows_shares_them(design):
    model, prompt = build(TOGETHER[2], vocab_size=150), tokens(2, 5, vocab=150)
    text = plain_text(model, prompt, 7, seed=3)
    assert torch.equal(complete(model, prompt, 7, cache=design, generator=seeded(3)), text)


@pytest.mark.parametrize("vocab", [13, 2000])
def test_a_prompt_of_small_integers_is_the_same_prompt(vocab):
    """The number of a triple of 2000 characters exceeds int32, and the cache takes one dtype."""
    model, prompt = build(TOGETHER[2], vocab_size=vocab), tokens(2, 5, vocab=vocab)
    expected = complete(model, prompt, 7, generator=seeded(3))
    assert torch.equal(complete(model, prompt.int(), 7, generator=seeded(3)), expected)


def test_the_characters_before_are_forgotten_with_the_keys():
    model = build(TOGETHER[2], dtype=torch.float64)
    first, second = tokens(1, 9), tokens(1, 9, seed=5)
    forced_logits(model, first, 4, CACHES[0])
    after = forced_logits(model, second, 4, CACHES[0])
    torch.testing.assert_close(after, forced_logits(model, second, 4, None), rtol=0, atol=1e-10)
    assert model.ngrams.cache is None


# ------------------------------------------------------------------ checkpoints


@both_forms
@every_field
def test_a_model_comes_back_to_the_bit(tmp_path, fields, per_head):
    model = build(fields, per_head)
    save_checkpoint(tmp_path / "fox", model, meta_of(model))
    back = load_checkpoint(tmp_path / "fox").model
    expected = (model if per_head else unpack_heads(model)).state_dict()
    assert back.config == replace(model.config, per_head=True)
    assert list(back.state_dict()) == list(expected)
    assert all(torch.equal(t, expected[key]) for key, t in back.state_dict().items())


def test_a_file_from_before_these_fields_is_the_lectures(tmp_path):
    model = tiny_model()
    meta = meta_of(model)
    new = {*RECIPES["sprint+"].model, "rope_base", "n_kv_head", "window", "sinks", "full_every"}
    meta["config"] = {key: value for key, value in meta["config"].items() if key not in new}
    assert len(meta["config"]) == 7
    save_checkpoint(tmp_path / "old", model, meta)
    back = load_checkpoint(tmp_path / "old").model
    assert back.config == model.config
    assert torch.equal(back(tokens(1, 9))[0], model(tokens(1, 9))[0])


@pytest.mark.parametrize("fields", SINGLE, ids=label)
def test_a_file_whose_config_is_of_another_size_is_refused(tmp_path, fields):
    model = build({})
    meta = meta_of(model, config={**meta_of(model)["config"], **fields}, vocabulary=CHARS)
    save_checkpoint(tmp_path / "fox", model, meta)
    if fields.keys() & {"qk_norm", "relu2"}:  # no number more or less
        assert load_checkpoint(tmp_path / "fox").model.config.beyond_lecture == fields
        return
    with pytest.raises(CheckpointError, match="its tensors do not fit its own config"):
        load_checkpoint(tmp_path / "fox")


@both_forms
@every_field
def test_the_lectures_own_class_is_offered_no_weights_that_it_cannot_hold(fields, per_head):
    names = ", ".join(key for key in fields if key != "rope_base")
    with pytest.raises(ValueError, match=f"the lecture's class has no {names}: it cannot load"):
        lecture_state_dict(build(fields, per_head))


# ------------------------------------------------------------------ configs, and the lecture


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"rope": True, "n_embd": 12, "n_head": 4},
            "rope=True rotates pairs.*head size 3 must be even",
        ),
        ({"ngrams": 4}, r"ngrams=4: must be an integer in \[1, 3\]"),
        ({"ngrams": 0}, "ngrams=0: must be an integer"),
        ({"ngrams": True}, "ngrams=True: must be an integer"),
        ({"rope_base": 0.5}, r"rope_base=0.5: must be a number in \[1, "),
        ({"rms_norm": 1}, "rms_norm=1: must be True or False"),
        ({"bias": None}, "bias=None: must be True or False"),
    ],
)
def test_what_fits_no_model_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        GPTConfig(**changes)
    if "rope" in changes:
        assert not GPTConfig(**changes | {"rope": False}).beyond_lecture


def test_without_these_fields_the_model_is_the_lectures_to_the_bit():
    """Its names, and its weights: drawn one after another, in this order, from one generator."""
    model = GPT(
        GPTConfig(vocab_size=13, block_size=8, n_layer=1, n_head=2, n_embd=4), generator=seeded(7)
    )
    heads = [
        f"blocks.0.sa.heads.{h}.{part}.weight" for h in (0, 1) for part in ("key", "query", "value")
    ]
    drawn = [
        "token_embedding_table.weight",
        "position_embedding_table.weight",
        *heads,
        "blocks.0.sa.proj.weight",
        "blocks.0.ffwd.net.0.weight",
        "blocks.0.ffwd.net.2.weight",
        "lm_head.weight",
    ]
    biases = [
        "blocks.0.sa.proj.bias",
        "blocks.0.ffwd.net.0.bias",
        "blocks.0.ffwd.net.2.bias",
        "lm_head.bias",
    ]
    norms = [
        f"{layer}.{part}"
        for layer in ("blocks.0.ln1", "blocks.0.ln2", "ln_f")
        for part in ("weight", "bias")
    ]
    state, generator = model.state_dict(), seeded(7)
    assert sorted(state) == sorted([*drawn, *biases, *norms])
    for key in drawn:
        assert torch.equal(
            state[key], torch.empty_like(state[key]).normal_(std=0.02, generator=generator)
        ), key
    assert not any(state[key].any() for key in biases)
    assert model.config.beyond_lecture == {}
