"""One step of training: parts, precision, stages, initialization, optimizers."""

import math
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
import torch
from conftest import FORMS, name, seeded, tokens
from shapes import DECODERS, ROPE, SMALL, model_of
from training_fixtures import CPU, fresh, weights

from nanogpt.attention import attention_weights, visible
from nanogpt.data import split
from nanogpt.decoder.config import DecoderConfig
from nanogpt.decoder.model import Decoder
from nanogpt.decoder.pack import as_decoder, build_model
from nanogpt.device import Device
from nanogpt.training.epochs import Epochs
from nanogpt.training.first_weights import previous_token_init, zero_init
from nanogpt.training.loop import train
from nanogpt.training.optimizers import Muon, make_optimizers
from nanogpt.training.recipes import MODERN, TrainConfig, recipe_for
from nanogpt.training.trainer import Trainer

HALF = Device(torch.device("cpu"), torch.float16, "tests")
ADAM = TrainConfig(
    steps=8, batch_size=8, warmup=2, lr=3e-3, muon_lr=None, eval_every=4, eval_batches=1
)


@pytest.fixture
def build(corpus):
    """Builds a small model without dropout, the same each time."""
    return partial(fresh, corpus, dropout=0.0)


@pytest.fixture
def steps(corpus, tokenizer):
    """Trains a model for some steps. Returns the trainer and the losses."""
    data, _ = split(tokenizer.encode(corpus.text), 8)

    def go(model, config, n=8, device=CPU):
        one = Trainer(model.train(), data, config, seeded(config.seed), device)
        return one, [float(one.step(step)) for step in range(n)]

    return go


# ------------------------------------------------------------------ however it is computed


def test_a_compiled_step_is_the_same_step(build, steps, monkeypatch):
    """As in nanoGPT's train.py. PyTorch runs here what torch.compile traced."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    plain, compiled = build(False), build(False)
    config = replace(ADAM, stages=((0.5, 4), (1.0, 8)))
    _, expected = steps(plain, config)
    trainer, losses = steps(compiled, replace(config, compile=True))
    assert trainer.net is not compiled
    assert losses == pytest.approx(expected, rel=1e-4)
    assert list(compiled.state_dict()) == list(plain.state_dict()), "saved under the same names"


@pytest.mark.parametrize(("fields", "parts"), [({}, 4), (MODERN, 2), (MODERN, 8)], ids=str)
def test_a_batch_in_parts_is_the_same_step(build, steps, fields, parts):
    whole, model = (build(False, dtype=torch.float64, **fields) for _ in range(2))
    sizes = []
    model.register_forward_pre_hook(lambda module, given: sizes.append(len(given[0])))
    _, expected = steps(whole, ADAM)
    _, losses = steps(model, replace(ADAM, accumulate=parts))
    assert sizes == [8 // parts] * 8 * parts
    assert losses == pytest.approx(expected, abs=1e-10)
    torch.testing.assert_close(weights(model), weights(whole), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["fast", "sprint", "keeper"])
def test_every_weight_is_trained(corpus, name):
    config, shape = recipe_for(name, fresh(corpus).config)
    config = replace(config, steps=20, batch_size=4, eval_every=20, eval_batches=1, warmup=3)
    model = build_model(shape)
    before = {key: t.clone() for key, t in model.state_dict().items()}
    train(model, corpus, config, device=CPU)
    assert [key for key, t in model.state_dict().items() if torch.equal(t, before[key])] == []


# ------------------------------------------------------------------ short windows first


def test_stages_have_shorter_windows_and_the_same_number_of_characters(build, steps):
    model = build(False)
    sizes = []
    model.register_forward_pre_hook(lambda module, given: sizes.append(tuple(given[0].shape)))
    steps(model, replace(ADAM, steps=8, stages=((0.5, 2), (0.8, 4))))
    assert sizes == [(32, 2)] * 4 + [(16, 4)] * 3 + [(8, 8)]


def test_a_stage_longer_than_the_models_block_is_refused(build, steps):
    with pytest.raises(ValueError, match="a stage has block 16, the model 8"):
        steps(build(False), replace(ADAM, stages=((0.5, 16),)))


def test_an_epoch_reads_every_window_once_and_depends_on_the_step_alone(build, corpus, tokenizer):
    data, _ = split(tokenizer.encode(corpus.text), 8)
    size = (len(data) - 8) // 8  # windows of an epoch
    places = torch.arange(len(data))

    def starts(first, n):
        return Epochs(places, seed=1).batch(0, 8, first, n)[0][:, 0].tolist()

    whole = starts(0, size)
    assert len(set(whole)) == size
    assert {later - sooner for sooner, later in pairwise(sorted(whole))} == {8}
    assert starts(5, 7) == whole[5:12], "it needs no memory of what was drawn before"
    later = starts(size - 2, size + 2)
    assert later[:2] == whole[-2:]
    assert sorted(later[2:]) != sorted(whole), "the next epoch cuts at other places"
    assert max(later) + 8 < len(data)
    config = replace(ADAM, epochs=True, stages=((0.5, 4),))
    trainer = Trainer(build(False), data, config, seeded(1), CPU)
    first, again = ([trainer.batch(step)[0] for step in order] for order in (range(8), range(8)))
    assert all(map(torch.equal, first, again))
    assert not torch.equal(first[6], first[7])


# ------------------------------------------------------------------ bfloat16 in the linear layers


@pytest.mark.parametrize("fields", [{}, MODERN], ids=str)
def test_linear_layers_in_bfloat16_change_only_their_digits(build, steps, fields):
    models = [build(False, **fields) for _ in range(2)]
    (_, plain), (_, rounded) = (
        steps(model, replace(ADAM, muon_lr=0.02, bf16=on))
        for model, on in zip(models, (False, True), strict=True)
    )
    assert rounded != plain
    assert rounded == pytest.approx(plain, abs=0.05)
    assert {p.dtype for p in models[1].parameters()} == {torch.float32}


# ------------------------------------------------------------------ the start and the optimizers


@pytest.mark.parametrize("per_head", FORMS, ids=name)
def test_zero_init_makes_every_block_the_identity(build, per_head):
    model = build(per_head)
    zero_init(model, seeded(1))
    x = torch.randn(2, 8, 16, generator=seeded(2))
    for block in model.blocks:
        assert torch.equal(block.eval()(x, torch.arange(8)), x)
    assert not model(tokens(1, 8))[0].any()
    for table in (model.token_embedding_table, model.position_embedding_table):
        assert 0.25 < table.weight.std() < 0.35


def test_zero_init_leaves_tied_embeddings_and_frozen_weights():
    for freeze in (False, True):
        model = Decoder(DecoderConfig(**SMALL, tied=not freeze))
        if freeze:
            model.token_embedding_table.requires_grad_(False)
            model.blocks[1].ffwd.down.requires_grad_(False)
        before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
        zero_init(model, seeded(1))
        after = model.state_dict()
        same = {key for key in before if torch.equal(before[key], after[key])}
        assert "token_embedding_table.weight" in same
        assert ("blocks.1.ffwd.down.weight" in same) is freeze
        assert "blocks.0.ffwd.down.weight" not in same
        assert "position_embedding_table.weight" not in same


def test_muon_has_the_matrices_of_the_blocks_and_adamw_the_rest(build):
    model = build(False)
    made = make_optimizers(model, TrainConfig(lr=0.1, muon_lr=0.2, weight_decay=0.3))
    adam, muon = ({id(p) for p in opt.param_groups[0]["params"]} for opt in made)
    names = {id(p): name for name, p in model.named_parameters()}
    matrices = {i for i, p in names.items() if p.startswith("blocks.") and "weight" in p}
    assert muon == {i for i in matrices if model.get_parameter(names[i]).ndim == 2}
    assert adam == set(names) - muon
    settings = [(opt.param_groups[0]["lr"], opt.param_groups[0]["weight_decay"]) for opt in made]
    assert settings == [(0.1, 0.0), (0.2, 0.3)], "beside Muon only its matrices decay"


def test_muon_computes_pytorchs_updates_and_state():
    made = []
    shapes = [(12, 4), (4, 12), (12, 4), (6, 6)]
    for kind in (Muon, torch.optim.Muon):
        parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
        optimizer = kind(parameters, lr=0.1, weight_decay=0.01)
        generator = seeded(1)
        gradients = [torch.randn(3, *shape, generator=generator) for shape in shapes]
        for step in range(3):
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient[step].clone()
            optimizer.step()
        made.append((parameters, optimizer.state_dict()))
    (ours, one), (theirs, two) = made
    for a, b in zip(ours, theirs, strict=True):
        cosine = torch.nn.functional.cosine_similarity(a.flatten(), b.flatten(), dim=0)
        assert cosine > 0.999
        assert 0.99 < a.norm() / b.norm() < 1.01
    assert one["param_groups"] == two["param_groups"]
    for index, state in two["state"].items():
        torch.testing.assert_close(one["state"][index], state)


# ------------------------------------------------------------------ float16


@pytest.mark.parametrize("muon", [None, 0.02])
def test_a_float16_overflow_skips_the_update_and_halves_the_scale(build, steps, muon):
    model = build()
    one, _ = steps(model, replace(ADAM, muon_lr=muon), n=2, device=HALF)
    one.scaler.update(2.0**40)
    before = weights(model)
    assert math.isfinite(one.step(2))
    assert torch.equal(weights(model), before)
    assert one.scaler.get_scale() == 2.0**39
    one.scaler.update(2.0**10)
    one.step(3)
    assert not torch.equal(weights(model), before)


FORMS_OF_HEADS = {  # a list of heads, and decoders of both kinds of positions
    "a list of heads": (True, {}),
    "table": (False, {}),
    "table, shared keys": (False, {"n_kv_head": 2}),
    "rotary": (False, MODERN),
    "rotary, shared keys": (False, {**MODERN, "n_kv_head": 2}),
    "RMSNorm with weights": (False, {**ROPE, "norm": "rms", "qkv_bias": True}),
    "table, wide heads": (False, {"head_dim": 64}),
}


@pytest.mark.parametrize("kind", FORMS_OF_HEADS)
def test_previous_token_init_attends_to_previous_characters(kind):
    """Head h of the first block attends h + 1 characters back, in each form of the model."""
    per_head, fields = FORMS_OF_HEADS[kind]
    shape = {"block_size": 64, "n_head": 4, "n_embd": 128, "n_layer": 2}
    model = model_of(packed=not per_head, **shape, **fields)
    zero_init(model, seeded(1))
    previous_token_init(model)
    text = torch.randint(65, (8, 64), generator=seeded(2))
    looks = first_weights(model, text)  # (8, 4, 64, 64)
    for h in range(4):
        peak = looks[:, h, 16:].mean(0).argmax(-1)  # over texts: what a character adds averages out
        assert (peak == torch.arange(16, 64) - h - 1).float().mean() > 0.95


@torch.no_grad()
def first_weights(model, text):
    """The weights of each head of the first block.  (B, T) -> (B, H, T, T)"""
    model = as_decoder(model)
    attention = model.blocks[0].sa
    met = []

    def attend(q, k, v, *others):
        met.append((q, k))
        return type(attention).attend(attention, q, k, v, *others)

    attention.attend = attend
    model(text)
    q, k = met[0]
    pos = torch.arange(text.shape[1])
    k = k.repeat_interleave(model.config.group, dim=1)
    return attention_weights(q, k, visible(pos, pos))


@pytest.mark.parametrize("row", DECODERS)
def test_initialized_blocks_are_the_identity_in_every_decoder(row):
    model = Decoder(DecoderConfig(**SMALL | DECODERS[row])).eval()
    zero_init(model, seeded(1))
    previous_token_init(model)
    x = torch.randn(2, 8, model.config.n_embd, generator=seeded(2))
    for block in model.blocks:
        assert torch.equal(block(x, torch.arange(8)), x)
    with torch.no_grad():
        logits, loss = model(tokens(2, 30), tokens(2, 30, seed=1))
    guess = math.log(model.config.vocab_size)
    if model.config.tied:
        assert abs(loss - guess) < 0.1
    else:
        assert not logits.any()
        assert float(loss) == pytest.approx(guess, abs=1e-6)


@pytest.mark.parametrize("fields", [{}, ROPE], ids=["table", "rotary"])
@pytest.mark.parametrize("what", ["token_embedding_table", "blocks.0.sa.qkv"])
def test_previous_token_init_leaves_a_model_with_frozen_weights(what, fields):
    model = Decoder(DecoderConfig(**SMALL | fields))
    model.get_submodule(what).weight.requires_grad_(False)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    previous_token_init(model)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


@pytest.mark.parametrize("fields", [{}, ROPE], ids=["table", "rotary"])
def test_short_windows_begin_anywhere_in_the_block(corpus, fields):
    """Every row of a position table is trained while windows are short."""
    model = fresh(corpus, per_head=False, **fields)
    config = TrainConfig(steps=40, batch_size=2, stages=((0.9, 2),), previous_token_init=False)
    data = torch.zeros(99, dtype=torch.int64)
    trainer = Trainer(model, data, config, torch.Generator(), CPU)
    found = [trainer.positions(2, step) for step in range(36)]
    if fields:  # a rotation depends on distances alone
        assert found == [None] * 36
        return
    assert {int(pos[0]) for pos in found} == set(range(7))
    assert all(torch.equal(pos, pos[0] + torch.arange(2)) for pos in found)
    assert torch.equal(trainer.positions(2, 5), found[5])
    assert trainer.positions(8, 39) is None


def test_positions_of_short_windows_with_the_largest_seed(build, steps):
    """A seed of time.time_ns() once ended the first step: the product had more than 64 bits."""
    config = replace(ADAM, seed=2**63 - 1)
    trained, losses = steps(build(True), config, n=1)
    assert all(map(math.isfinite, losses))
    assert len(trained.positions(2, 0)) == 2
