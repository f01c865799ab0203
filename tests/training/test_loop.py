"""Training: it learns, it repeats to the bit, it says where it is, and it moves nothing but its own."""

import json
import math
from dataclasses import asdict, replace

import pytest
import torch
from conftest import FORMS, count_updates, name, seeded, tiny_model, tokens

from nanogpt.cache.attach import cache_owners, kv_cache
from nanogpt.config import SIZES, GPTConfig, TrainConfig
from nanogpt.data.batches import random_batch, split
from nanogpt.data.corpus import Corpus, CorpusError
from nanogpt.data.tokenizer import CharTokenizer
from nanogpt.decoding.generate import complete
from nanogpt.model.checkpoint import CheckpointError, load_checkpoint
from nanogpt.model.convert import pack_heads, unpack_heads
from nanogpt.model.gpt import GPT
from nanogpt.system.device import Device
from nanogpt.training import evaluate, loop, optimizers, trainer
from nanogpt.training.evaluate import estimate_loss, fixed_batches, full_loss
from nanogpt.training.loop import train
from nanogpt.training.optimizers import make_optimizers
from nanogpt.training.pretrained import load_or_train

CPU = Device(torch.device("cpu"), torch.float32, "tests")
QUICK = TrainConfig(steps=12, batch_size=8, eval_every=5, eval_batches=2, warmup=2)


@pytest.fixture(autouse=True)
def plain_lines(monkeypatch):
    monkeypatch.setattr(loop, "headless", lambda: True)


@pytest.fixture
def fresh(tokenizer):
    """Builds a small untrained model, the same each time."""

    def build(per_head=True, dropout=0.1, **sizes):
        shape = {
            "vocab_size": len(tokenizer),
            "block_size": 8,
            "n_layer": 2,
            "n_head": 2,
            "n_embd": 16,
        }
        model = GPT(GPTConfig(**(shape | sizes), dropout=dropout))
        return model if per_head else pack_heads(model)

    return build


def same_weights(a, b):
    return all(torch.equal(t, b.state_dict()[key]) for key, t in a.state_dict().items())


# ------------------------------------------------------------------ it learns, and repeats


@pytest.mark.parametrize("per_head", FORMS, ids=name)
@pytest.mark.parametrize(
    "recipe", [{}, {"muon_lr": None}, {"zero_init": False}, {"decay": False}], ids=str
)
def test_a_few_steps_lower_the_loss(fresh, corpus, per_head, recipe):
    model = fresh(per_head)
    history = train(model, corpus, replace(QUICK, steps=40, eval_every=40, **recipe), device=CPU)
    assert history["val"][-1] < history["val"][0] - 0.5
    assert history["train"][-1] < history["train"][0] - 0.5
    _, val = split(CharTokenizer(corpus.text).encode(corpus.text), 8)
    assert history["full_val"] == pytest.approx(full_loss(model, val), abs=1e-5), (
        "the model kept no weights"
    )


def test_bfloat16_trains_too(fresh, corpus):
    device = Device(torch.device("cpu"), torch.bfloat16, "tests")
    model = fresh()
    history = train(model, corpus, replace(QUICK, steps=40), device=device)
    assert history["val"][-1] < history["val"][0] - 0.5
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_training_begins_at_the_loss_of_a_fair_guess(fresh, corpus, tokenizer):
    history = train(fresh(), corpus, QUICK, device=CPU)
    assert (
        history["train"][0]
        == history["val"][0]
        == pytest.approx(math.log(len(tokenizer)), abs=1e-6)
    )


def test_zero_init_makes_every_block_the_identity(fresh):
    model = fresh(per_head=False)
    optimizers.zero_init(model, seeded(1))
    x = torch.randn(2, 8, 16, generator=seeded(2))
    for block in model.blocks:
        assert torch.equal(block.eval()(x, torch.arange(8)), x)
    assert not model(tokens(1, 8))[0].any()
    for table in (model.token_embedding_table, model.position_embedding_table):
        assert 0.25 < table.weight.std() < 0.35


@pytest.mark.parametrize("mode", [True, False])
def test_dropout_acts_while_training_whatever_mode_the_model_came_in(fresh, corpus, mode):
    config = replace(QUICK, steps=1, zero_init=False)
    losses = [
        train(fresh(False, dropout).train(mode), corpus, config, device=CPU)["batch_loss"]
        for dropout in (0.0, 0.5)
    ]
    assert losses[0] != losses[1]


@pytest.mark.parametrize("per_head", FORMS, ids=name)
def test_the_same_seed_gives_the_same_bits(fresh, corpus, per_head):
    runs = []
    for seed in (1, 1, 2):
        model = fresh(per_head, dropout=0.2)
        runs.append((model, train(model, corpus, replace(QUICK, seed=seed), device=CPU)))
    (first, history), (second, again), (third, other) = runs
    assert same_weights(first, second)
    assert history == again
    assert not same_weights(first, third)
    assert history["batch_loss"] != other["batch_loss"]


def test_the_random_state_is_neither_read_nor_moved(fresh, corpus):
    weights = []
    for state in (1, 2):
        torch.manual_seed(state)
        before = torch.random.get_rng_state()
        model = fresh(dropout=0.2)
        train(model, corpus, QUICK, device=CPU)
        assert torch.equal(torch.random.get_rng_state(), before)
        weights.append(model)
    assert same_weights(*weights)


def test_a_per_head_model_is_trained_in_its_batched_form(fresh, corpus):
    heads, batched = fresh(), fresh(per_head=False)
    a, b = (train(model, corpus, QUICK, device=CPU) for model in (heads, batched))
    assert a == b
    assert same_weights(heads, unpack_heads(batched))
    assert not same_weights(heads, fresh())


@pytest.mark.parametrize("zero_init", [True, False])
def test_the_loop_is_the_plain_loop(fresh, corpus, tokenizer, zero_init):
    """What a learner would write: draw, measure, step back through it, move, forget the gradient."""
    config = replace(QUICK, muon_lr=None, zero_init=zero_init, weight_decay=0.1)
    model, plain = fresh(dropout=0.0), fresh(per_head=False, dropout=0.0)
    history = train(model, corpus, config, device=CPU)
    generator = seeded(config.seed)
    if zero_init:
        optimizers.zero_init(plain, generator)
    data, _ = split(tokenizer.encode(corpus.text), 8)
    losses = []
    optimizer = torch.optim.AdamW(
        plain.parameters(), betas=(0.9, 0.99), eps=1e-10, weight_decay=0.1, fused=True
    )
    for step in range(config.steps):
        starts = torch.randint(len(data) - 8, (config.batch_size,), generator=generator)
        x = torch.stack([data[s : s + 8] for s in starts])
        y = torch.stack([data[s + 1 : s + 9] for s in starts])
        loss = plain(x, y)[1]
        losses.append(loss.item())
        optimizer.param_groups[0]["lr"] = config.lr * config.scale(step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert history["batch_loss"] == losses
    assert same_weights(model, unpack_heads(plain))


def test_the_batches_are_those_of_the_seed_whatever_else_is_drawn(fresh, corpus, monkeypatch):
    """Dropout draws as well, more or less of it by the model's size: not from the same source."""
    seen = []

    def watched(data, block_size, batch, generator):
        seen.append(random_batch(data, block_size, batch, generator)[0].tolist())
        return torch.tensor(seen[-1]), torch.tensor(seen[-1])

    for model in (fresh(dropout=0.0), fresh(dropout=0.2), fresh(dropout=0.2, n_layer=1)):
        monkeypatch.setattr(trainer, "random_batch", watched)
        train(model, corpus, replace(QUICK, zero_init=False), device=CPU)
        monkeypatch.setattr(trainer, "random_batch", random_batch)
    third = len(seen) // 3
    assert seen[:third] == seen[third : 2 * third] == seen[2 * third :]
    assert seen[third - 1] != seen[third - 2]


def test_both_kinds_of_optimizer_share_all_parameters(fresh):
    model = fresh(per_head=False)
    adam, muon = make_optimizers(model, TrainConfig(lr=0.1, muon_lr=0.2, weight_decay=0.3))
    first, second = ({id(p) for g in opt.param_groups for p in g["params"]} for opt in (adam, muon))
    assert first.isdisjoint(second)
    assert first | second == {id(p) for p in model.parameters()}
    matrices = [k for k, p in model.named_parameters() if k.startswith("blocks.") and p.ndim == 2]
    assert second == {id(model.get_parameter(key)) for key in matrices}
    assert [opt.param_groups[0]["lr"] for opt in (adam, muon)] == [0.1, 0.2]
    assert [opt.param_groups[0]["weight_decay"] for opt in (adam, muon)] == [0.3, 0.3]
    (alone,) = make_optimizers(model, TrainConfig(muon_lr=None))
    assert sum(len(g["params"]) for g in alone.param_groups) == len(list(model.parameters()))


def test_every_step_has_the_rate_of_the_schedule(fresh, corpus, monkeypatch):
    seen = []

    def watched(model, config):
        optimizers = make_optimizers(model, config)
        for opt in optimizers:
            opt.register_step_pre_hook(lambda opt, *_: seen.append(opt.param_groups[0]["lr"]))
        return optimizers

    monkeypatch.setattr(optimizers, "make_optimizers", watched)
    history = train(fresh(), corpus, QUICK, device=CPU)
    scales = [QUICK.scale(step) for step in range(12)]
    assert history["lr_scale"] == scales
    expected = [rate * scale for scale in scales for rate in (QUICK.lr, QUICK.muon_lr)]
    assert seen == pytest.approx(expected)


# ------------------------------------------------------------------ what it says


def test_the_history_is_plain_data(fresh, corpus):
    history = train(fresh(), corpus, QUICK, device=CPU)
    assert json.loads(json.dumps(history, allow_nan=False)) == history
    assert history["step"] == [0, 5, 10, 12]
    assert [len(history[key]) for key in ("train", "val", "lr_scale", "batch_loss")] == [
        4,
        4,
        12,
        12,
    ]
    assert history["block_size"] == 8
    assert history["batch_loss"][0] == pytest.approx(history["train"][0], abs=1e-4)


@pytest.mark.parametrize(
    ("steps", "every", "expected"), [(3, 5, [0, 3]), (10, 5, [0, 5, 10]), (2, 1, [0, 1, 2])]
)
def test_the_last_step_is_evaluated_once(fresh, corpus, steps, every, expected):
    config = replace(QUICK, steps=steps, eval_every=every)
    assert train(fresh(), corpus, config, device=CPU)["step"] == expected


def test_headless_prints_one_plain_line_for_each_evaluation(fresh, corpus, capsys):
    history = train(fresh(), corpus, QUICK, device=CPU)
    out, err = capsys.readouterr()
    assert err == ""
    assert out.splitlines() == [
        f"step {step:5d} of 12 | train {a:.4f} | val {b:.4f}"
        for step, a, b in zip(history["step"], history["train"], history["val"], strict=True)
    ]


def test_on_a_terminal_a_bar_moves_below_the_lines(fresh, corpus, capsys, monkeypatch):
    monkeypatch.setattr(loop, "headless", lambda: False)
    train(fresh(), corpus, QUICK, device=CPU)
    out, err = capsys.readouterr()
    assert out.count("| train ") == 4
    assert "train: 100%" in err
    assert "12/12" in err


# ------------------------------------------------------------------ evaluation


def test_the_loss_estimate_is_the_mean_over_all_characters():
    """Not over batches: the last batch of a text is smaller than the others."""
    model = tiny_model()
    batches = [(tokens(4, 9), tokens(4, 9, seed=1)), (tokens(1, 5, seed=2), tokens(1, 5, seed=3))]
    losses = [float(model(x, y)[1].detach()) for x, y in batches]
    assert estimate_loss(model, batches) == pytest.approx(
        (36 * losses[0] + 5 * losses[1]) / 41, abs=1e-6
    )


@pytest.mark.parametrize("mode", [True, False])
def test_the_loss_estimate_runs_in_eval_mode_and_puts_the_mode_back(mode):
    model = tiny_model().train(mode)
    batches = [(tokens(4, 9), tokens(4, 9, seed=1))]
    assert estimate_loss(model, batches) == estimate_loss(model, batches), "dropout was on"
    assert model.training is mode
    assert all(p.grad is None for p in model.parameters())
    with pytest.raises(ValueError, match="block_size"):
        estimate_loss(model, [(tokens(1, 25), tokens(1, 25))])
    assert model.training is mode


def test_every_evaluation_reads_the_same_batches_whatever_the_seed(fresh, corpus, monkeypatch):
    seen = []

    def watched(model, batches):
        if len(batches) == 3:  # not the loss over the whole text, at the end
            seen.append([(x.tolist(), y.tolist()) for x, y in batches])
        return estimate_loss(model, batches)

    monkeypatch.setattr(evaluate, "estimate_loss", watched)
    for seed in (1, 2):
        torch.manual_seed(seed)
        train(fresh(), corpus, replace(QUICK, seed=seed, eval_batches=3), device=CPU)
    on_train, on_val = seen[0::2], seen[1::2]
    assert len(on_train) == len(on_val) == 2 * 4
    assert all(batches == on_train[0] for batches in on_train)
    assert all(batches == on_val[0] for batches in on_val)
    assert on_train[0] != on_val[0]
    assert on_train[0][0] != on_train[0][1]


def test_validation_never_reads_what_was_trained_on(fresh, monkeypatch):
    """The last tenth of this text has characters of its own."""
    text = "abcd" * 200 + "wxyz" * 25
    seen = {"train": set(), "val": set()}
    decode = CharTokenizer(text).decode

    def watched(data, block_size, n, device, batch=16):
        batches = fixed_batches(data, block_size, n, device, batch)
        which = "val" if len(data) < 200 else "train"
        for x, y in batches:
            seen[which] |= set(decode(x) + decode(y))
        return batches

    monkeypatch.setattr(evaluate, "fixed_batches", watched)
    train(fresh(vocab_size=8), Corpus(text, "ends", "0", "tests"), QUICK, device=CPU)
    assert seen["val"] <= set("wxyz")
    assert seen["train"] <= set("abcd")


@pytest.mark.parametrize("n", [26, 49, 50, 72, 73, 500])
def test_the_full_loss_reads_every_window_once(n):
    model, data = tiny_model(), tokens(n, seed=4)
    total, count = 0.0, 0
    for start in range(0, n, 24):
        row = data[start : start + 25]
        if len(row) == 25:
            logits = model(row[None, :-1])[0][0].detach().double().log_softmax(-1)
            total -= sum(float(logits[t, row[t + 1]]) for t in range(24))
            count += 24
    assert full_loss(model, data) == pytest.approx(total / count, abs=1e-5)


# ------------------------------------------------------------------ caches stay away


@pytest.mark.parametrize("per_head", FORMS, ids=name)
def test_training_while_a_cache_is_on_never_touches_it(fresh, corpus, per_head):
    """Both forms train as if there were none."""
    expected = fresh(per_head)
    train(expected, corpus, QUICK, device=CPU)
    model = fresh(per_head)
    with kv_cache(model):
        calls = count_updates(model)
        train(model, corpus, QUICK, device=CPU)
        assert same_weights(model, expected)
        assert calls == []
        assert all(owner.cache.k is None for owner in cache_owners(model))


# ------------------------------------------------------------------ checkpoints


def scripted(monkeypatch, values):
    """Makes the validation losses those given, in turn; the training loss is 1."""
    turns = iter([x for value in values for x in (1.0, value)])
    monkeypatch.setattr(evaluate, "estimate_loss", lambda model, batches: next(turns))
    monkeypatch.setattr(evaluate, "full_loss", lambda model, data: 1.0)


@pytest.mark.parametrize(
    ("values", "best"), [([3, 1, 2, 1.5], 5), ([4, 3, 2, 1], 12), ([1, 1, 1, 1], 0)]
)
def test_the_best_and_the_last_checkpoint_are_kept(
    fresh, corpus, tmp_path, monkeypatch, values, best
):
    scripted(monkeypatch, values)
    model = fresh()
    train(model, corpus, QUICK, device=CPU, out=tmp_path / "fox")
    found, last = load_checkpoint(tmp_path / "fox"), load_checkpoint(tmp_path / "fox-last")
    assert (found.meta["step"], found.meta["losses"]["val"]) == (best, min(values))
    assert (last.meta["step"], last.meta["losses"]["val"]) == (12, values[-1])
    assert same_weights(last.model, model)
    assert same_weights(found.model, model) is (best == 12)
    names = {"fox.json", "fox.safetensors", "fox-last.json", "fox-last.safetensors"}
    names |= {"fox-last.state.safetensors", "fox.jsonl"}
    assert {p.name for p in tmp_path.iterdir()} == names


@pytest.mark.parametrize("per_head", FORMS, ids=name)
def test_a_checkpoint_says_where_it_comes_from(fresh, corpus, tokenizer, tmp_path, per_head):
    model = fresh(per_head)
    history = train(model, corpus, QUICK, device=CPU, out=tmp_path / "fox")
    meta = load_checkpoint(tmp_path / "fox-last").meta
    assert meta["config"] == {**asdict(model.config), "per_head": True}
    assert meta["vocabulary"] == tokenizer.chars
    assert meta["corpus"] == {"name": "fox", "sha256": corpus.sha256}
    assert meta["train"] == asdict(QUICK)
    assert meta["losses"] == {"train": history["train"][-1], "val": history["val"][-1]}
    assert meta["versions"]["torch"] == torch.__version__


def test_writing_checkpoints_changes_no_bit_of_the_training(fresh, corpus, tmp_path):
    a, b = fresh(), fresh()
    assert train(a, corpus, QUICK, device=CPU) == train(
        b, corpus, QUICK, device=CPU, out=tmp_path / "fox"
    )
    assert same_weights(a, b)


# ------------------------------------------------------------------ what cannot be trained


@pytest.mark.parametrize("which", ["train", "val"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_stops_and_keeps_the_checkpoint_before(
    fresh, corpus, tmp_path, monkeypatch, which, value
):
    turns = iter([2.0, 2.0, value if which == "train" else 2.0, value])
    monkeypatch.setattr(evaluate, "estimate_loss", lambda model, batches: next(turns))
    with pytest.raises(
        FloatingPointError, match=f"{value} at step 5: try half the learning rate .lr=0.004"
    ):
        train(fresh(), corpus, QUICK, device=CPU, out=tmp_path / "fox")
    assert load_checkpoint(tmp_path / "fox-last").meta["step"] == 0


def test_a_learning_rate_beyond_all_reason_is_noticed(fresh, corpus):
    with pytest.raises(FloatingPointError, match="try half the learning rate"):
        train(fresh(), corpus, replace(QUICK, lr=1e30, muon_lr=None, warmup=0), device=CPU)


def test_a_vocabulary_of_another_size_is_refused_before_anything_changes(fresh, corpus, tokenizer):
    model = fresh(vocab_size=5)
    before = {key: t.clone() for key, t in model.state_dict().items()}
    with pytest.raises(
        ValueError, match=rf"the model has 5 .* GPTConfig\(vocab_size={len(tokenizer)}\)"
    ):
        train(model, corpus, QUICK, device=CPU)
    assert all(torch.equal(t, before[key]) for key, t in model.state_dict().items())


def test_a_text_of_few_characters_trains_with_a_larger_vocabulary(fresh, tokenizer):
    corpus = Corpus("the fox\n" * 100, "short", "0", "tests")
    history = train(fresh(), corpus, QUICK, tokenizer=tokenizer, device=CPU)
    assert history["val"][-1] < history["val"][0]


def test_a_corpus_too_short_for_the_block_is_refused_before_anything_changes(fresh, corpus):
    model = fresh(block_size=200)
    before = {key: t.clone() for key, t in model.state_dict().items()}
    with pytest.raises(CorpusError, match="too few for windows of block_size=200"):
        train(model, corpus, QUICK, device=CPU)
    assert all(torch.equal(t, before[key]) for key, t in model.state_dict().items())


# ------------------------------------------------------------------ a model for a notebook


@pytest.fixture
def place(monkeypatch, tmp_path):
    """No published weights yet, and a size that trains in no time."""
    monkeypatch.setattr(loop, "PUBLISHED", tmp_path)
    monkeypatch.delenv("NANOGPT_CHECKPOINT", raising=False)
    monkeypatch.setitem(SIZES, "small", GPTConfig(block_size=8, n_layer=1, n_head=2, n_embd=16))
    return tmp_path


def published(place, fresh, corpus, to="checkpoints/small"):
    model = fresh()
    train(model, corpus, QUICK, device=CPU, out=place / to)
    return place / f"{to}.safetensors"


def test_without_published_weights_it_trains_now_and_says_so(place, corpus, tokenizer, capsys):
    found, again = (load_or_train(corpus, QUICK, device=CPU) for _ in range(2))
    assert str(found).startswith("trained just now: ")
    assert "trained for 12 steps on fox, val loss " in str(found)
    assert not found.model.training
    assert found.tokenizer.chars == tokenizer.chars
    assert found.sha256 == again.sha256
    assert same_weights(found.model, again.model)
    other = load_or_train(corpus, replace(QUICK, seed=2), device=CPU)
    assert other.sha256 != found.sha256


def test_published_weights_are_taken_when_they_know_the_characters(place, fresh, corpus, capsys):
    path = published(place, fresh, corpus)
    capsys.readouterr()
    found = load_or_train(corpus, QUICK, device=CPU)
    assert str(found).startswith("published weights: ")
    assert same_weights(found.model, load_checkpoint(path).model)
    assert not found.model.training
    assert capsys.readouterr().out == "", "a notebook prints the result, not the loading"
    other = Corpus("another text.\n" * 200, "other", "0", "tests")
    assert load_or_train(other, QUICK, device=CPU).origin == "trained just now"


@pytest.mark.parametrize("by", ["argument", "environment"])
def test_a_checkpoint_that_is_named_is_taken_or_is_an_error(place, fresh, corpus, monkeypatch, by):
    path = published(place, fresh, corpus, to="mine")

    def load(named, text):
        if by == "environment":
            monkeypatch.setenv("NANOGPT_CHECKPOINT", str(named))
            return load_or_train(text, QUICK, device=CPU)
        return load_or_train(text, QUICK, checkpoint=str(named), device=CPU)

    assert same_weights(load(path, corpus).model, load_checkpoint(path).model)
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        load(place / "absent", corpus)
    with pytest.raises(
        CheckpointError, match="knows other characters than other: train on this text"
    ):
        load(path, Corpus("another text.\n" * 200, "other", "0", "tests"))


def test_damaged_published_weights_are_an_error_and_no_reason_to_train(place, fresh, corpus):
    path = published(place, fresh, corpus)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(CheckpointError, match="is damaged"):
        load_or_train(corpus, QUICK, device=CPU)


def test_the_model_of_a_notebook_generates(place, corpus):
    found = load_or_train(corpus, QUICK, device=CPU)
    text = complete(found.model, found.tokenizer.encode("the")[None], 5, generator=seeded(1))
    assert len(found.tokenizer.decode(text)) == 8
