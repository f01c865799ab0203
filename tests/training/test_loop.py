"""`train` lowers the loss, repeats bit for bit, reports, saves, and changes nothing else."""

import json
import math
import re
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from io import StringIO
from types import SimpleNamespace

import pytest
import torch
from conftest import FORMS, count_updates, name, seeded
from shapes import DECODERS, SMALL
from training_fixtures import CPU, fresh, log_of, stop_at, weights

from nanogpt.cache import cache_owners, kv_cache
from nanogpt.data import Corpus, CorpusError, split
from nanogpt.decoder.checkpoint import load_checkpoint
from nanogpt.decoder.config import DecoderConfig
from nanogpt.decoder.model import Decoder
from nanogpt.decoder.pack import build_model, pack_heads, unpack_heads
from nanogpt.generation import complete
from nanogpt.model import GPT
from nanogpt.training import loop
from nanogpt.training.evaluation import full_loss, mean_loss
from nanogpt.training.first_weights import zero_init
from nanogpt.training.folders import held_run
from nanogpt.training.loop import train
from nanogpt.training.recipes import RECIPES, TrainConfig, recipe_for
from nanogpt.training.trainer import Trainer

QUICK = TrainConfig(steps=12, batch_size=8, eval_every=5, eval_batches=2, warmup=2)


@pytest.fixture(scope="module")
def ran(corpus, tmp_path_factory):
    """One run of a Decoder with all that it left: model, history, printed lines, files."""
    model = fresh(corpus, False)
    out = tmp_path_factory.mktemp("ran") / "fox"
    said = StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(said):
        patch.setenv("TQDM_DISABLE", "1")
        history = train(model, corpus, QUICK, device=CPU, out=out)
    return SimpleNamespace(model=model, history=history, said=said.getvalue(), out=out)


# ------------------------------------------------------------------ it learns, and repeats


def test_a_few_steps_lower_the_loss(corpus, tokenizer):
    model = fresh(corpus)
    history = train(model, corpus, replace(QUICK, steps=40, eval_every=40), device=CPU)
    assert history["val"][-1] < history["val"][0] - 0.5
    _, val = split(tokenizer.encode(corpus.text), 8)
    full = full_loss(model, val)
    assert history["full_val"] == pytest.approx(full, abs=1e-5), "the model kept no weights"


@pytest.mark.parametrize("key", RECIPES)
def test_the_same_seed_gives_the_same_bits_with_every_recipe(corpus, key):
    """For any global random state, which stays unchanged."""
    runs = []
    for state, seed in enumerate((1, 1, 2)):
        config, shape = recipe_for(key, fresh(corpus).config)
        config = replace(config, steps=8, batch_size=4, eval_every=8, eval_batches=1, seed=seed)
        model = build_model(shape, seeded(1))
        torch.manual_seed(state)
        before = torch.random.get_rng_state()
        runs.append((train(model, corpus, config, device=CPU), weights(model)))
        assert torch.equal(torch.random.get_rng_state(), before)
    (history, first), (again, second), (other, third) = runs
    assert history == again
    assert torch.equal(first, second)
    assert history["batch_loss"] != other["batch_loss"]
    assert not torch.equal(first, third)


@pytest.mark.parametrize("zero", [True, False])
def test_train_computes_the_bits_of_a_plain_loop(corpus, tokenizer, zero):
    """The loop that a learner would write: batch, forward, backward, step.

    A list of heads is trained packed, and with dropout, whatever its mode was.
    """
    config = replace(QUICK, muon_lr=None, zero_init=zero, weight_decay=0.1)
    model = fresh(corpus)
    plain = fresh(corpus, False)
    history = train(model.eval(), corpus, config, device=CPU)
    torch.manual_seed(config.seed)  # of dropout, which draws from another source than batches
    generator = seeded(config.seed)
    if zero:
        zero_init(plain, generator)
    data, _ = split(tokenizer.encode(corpus.text), 8)
    losses = []
    settings = {"betas": (0.9, 0.99), "eps": 1e-10, "weight_decay": 0.1, "fused": True}
    optimizer = torch.optim.AdamW(plain.parameters(), **settings)
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
    assert torch.equal(weights(model), weights(unpack_heads(plain)))


# ------------------------------------------------------------------ what it says


def test_the_history_is_plain_data(ran, tokenizer):
    history = ran.history
    assert json.loads(json.dumps(history, allow_nan=False)) == history
    assert history["step"] == [0, 5, 10, 12]
    lengths = [len(history[key]) for key in ("train", "val", "lr_scale", "batch_loss")]
    assert lengths == [4, 4, 12, 12]
    assert history["lr_scale"] == [QUICK.scale(step) for step in range(12)]
    meta = load_checkpoint(f"{ran.out}-last").meta
    assert meta["config"] == json.loads(json.dumps(asdict(ran.model.config)))
    assert meta["train"] == json.loads(json.dumps(asdict(QUICK)))
    losses = {"train": history["train"][-1], "val": history["val"][-1]}
    assert meta["losses"] == {**losses, "full_val": history["full_val"]}
    fair_guess = pytest.approx(math.log(len(tokenizer)), abs=1e-6)
    assert history["train"][0] == history["val"][0] == fair_guess
    assert history["batch_loss"][0] == pytest.approx(history["train"][0], abs=1e-4)


def test_each_evaluation_prints_a_line_and_logs_one_with_the_speed(corpus, tmp_path, ran, capsys):
    lines = [
        f"step {step:5d} of 12 | train {a:.4f} | val {b:.4f}"
        for step, a, b in zip(*(ran.history[key] for key in ("step", "train", "val")), strict=True)
    ]
    assert ran.said.splitlines() == lines
    train(fresh(corpus, False), corpus, QUICK, out=tmp_path / "fox", device=CPU, speed=True)
    for line, said in zip(lines, capsys.readouterr().out.splitlines(), strict=True):
        assert re.fullmatch(re.escape(line) + r" \| .* chars/s", said)
    first, *others = rows = log_of(tmp_path / "fox")
    for key in ("step", "train", "val"):
        assert [row[key] for row in rows] == ran.history[key]
    assert first["chars_per_second"] is None
    assert all(row["chars_per_second"] > 0 for row in others)


def test_watch_gets_the_model_and_may_sample_from_it(corpus, ran):
    watched = []

    def watch(step, model):
        watched.append((step, model.training, complete(model, torch.zeros(1, 3).long(), 5).shape))
        model.eval()
        torch.rand(3)

    model = fresh(corpus, False)
    assert train(model, corpus, QUICK, device=CPU, watch=watch) == ran.history
    assert torch.equal(weights(model), weights(ran.model))
    assert watched == [(step, True, (1, 8)) for step in (0, 5, 10, 12)]


# ------------------------------------------------------------------ evaluation, and caches


def test_every_evaluation_reads_the_same_windows_of_its_own_split(monkeypatch):
    """For any seed. The last tenth of this text, the validation split, has other characters."""
    text = "abcd" * 200 + "wxyz" * 25
    measured = []

    def watched(model, batches):
        measured.append(torch.stack([x for x, _ in batches]))
        return mean_loss(model, batches)

    monkeypatch.setattr(loop, "mean_loss", watched)
    corpus = Corpus(text, "ends", "0")
    for seed in (1, 2):
        torch.manual_seed(seed)
        train(fresh(corpus), corpus, replace(QUICK, seed=seed, eval_batches=3), device=CPU)
    for batches, characters in ((measured[0::2], [0, 1, 2, 3]), (measured[1::2], [4, 5, 6, 7])):
        assert len(batches) == 2 * 4
        assert all(torch.equal(one, batches[0]) for one in batches)
        assert not torch.equal(batches[0][0], batches[0][1])
        assert batches[0].unique().tolist() == characters


@pytest.mark.parametrize("per_head", FORMS, ids=name)
def test_training_does_not_use_an_attached_cache(corpus, ran, per_head):
    model = fresh(corpus, per_head)
    with kv_cache(model):
        calls = count_updates(model)
        assert train(model, corpus, QUICK, device=CPU) == ran.history
        assert calls == []
        assert all(owner.cache.k is None for owner in cache_owners(model))


# ------------------------------------------------------------------ checkpoints


def evaluations_return(monkeypatch, values):
    turns = iter(torch.tensor(values).double())
    monkeypatch.setattr(loop, "mean_loss", lambda model, batches: next(turns))


@pytest.mark.parametrize(
    ("values", "best"), [([3, 1, 2, 1.5], 5), ([4, 3, 2, 1], 12), ([1, 1, 1, 1], 0)]
)
def test_the_best_and_the_last_checkpoint_are_kept(corpus, tmp_path, monkeypatch, values, best):
    evaluations_return(monkeypatch, [x for value in values for x in (1.0, value)])  # training: 1
    model = fresh(corpus)
    train(model, corpus, QUICK, device=CPU, out=tmp_path / "fox")
    found = load_checkpoint(tmp_path / "fox")
    last = load_checkpoint(tmp_path / "fox-last")
    assert (found.meta["step"], found.meta["losses"]["val"]) == (best, min(values))
    assert (last.meta["step"], last.meta["losses"]["val"]) == (12, values[-1])
    assert torch.equal(weights(last.model), weights(model))
    assert torch.equal(weights(found.model), weights(model)) is (best == 12)
    names = {"fox.json", "fox.safetensors", "fox-last.json", "fox-last.safetensors"}
    names |= {"fox-last.state.safetensors", "fox.jsonl"}
    assert {p.name for p in tmp_path.iterdir()} == names


@pytest.mark.parametrize("per_head", FORMS, ids=name)
def test_checkpoints_and_the_model_keep_their_class(corpus, tmp_path, ran, per_head):
    """A GPT is trained packed: the run and the weights are those of a Decoder."""
    model = fresh(corpus, per_head)
    assert train(model, corpus, QUICK, device=CPU, out=tmp_path / "fox") == ran.history
    assert type(model) is (GPT if per_head else Decoder)
    found = load_checkpoint(tmp_path / "fox-last").model
    assert type(found) is type(model)
    assert found.config == model.config
    assert torch.equal(weights(found), weights(model))
    packed = pack_heads(model) if per_head else model
    assert torch.equal(weights(packed), weights(ran.model))


@pytest.mark.parametrize("row", ["tied", "Gemma 2", "all at once", "head_dim=5 n_embd=30"])
def test_decoders_of_other_shapes_learn(corpus, tmp_path, row):
    fields = SMALL | DECODERS[row] | {"vocab_size": len(set(corpus.text))}
    model = Decoder(DecoderConfig(**fields))
    config = replace(QUICK, steps=30, eval_every=30, epochs=True, previous_token_init=True)
    history = train(model, corpus, config, device=CPU, out=tmp_path / "fox")
    assert history["val"][-1] < history["val"][0] - 0.3
    assert torch.equal(weights(load_checkpoint(tmp_path / "fox-last").model), weights(model))
    assert model.n_params == model.config.n_params


# ------------------------------------------------------------------ what cannot be trained


def test_an_infinite_validation_loss_stops_and_keeps_the_earlier_checkpoint(
    corpus, tmp_path, monkeypatch
):
    evaluations_return(monkeypatch, [2.0, 2.0, 2.0, math.inf])
    with pytest.raises(FloatingPointError, match="inf at step 5: .*lr=0.004"):
        train(fresh(corpus), corpus, QUICK, device=CPU, out=tmp_path / "fox")
    assert load_checkpoint(tmp_path / "fox-last").meta["step"] == 0


def test_a_nan_batch_loss_stops_at_its_step(corpus, tmp_path, monkeypatch):
    """Not at the next evaluation: by then every weight is NaN, and the step is unknown."""
    model = fresh(corpus, per_head=False)
    spoilt = []

    def spoil(module, args, out):
        return (out[0], out[1] * math.nan) if module.training and spoilt else out

    model.register_forward_hook(spoil)
    stop_at(monkeypatch, 6, lambda: spoilt.append(True))
    with pytest.raises(FloatingPointError, match="nan at step 6: .*muon_lr=0.01"):
        train(model, corpus, QUICK, out=tmp_path / "run", device=CPU)


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"vocab_size": 5}, ValueError, r"the model has 5 .* GPTConfig\(vocab_size=\d+\)"),
        ({"block_size": 200}, CorpusError, "too short for block_size=200"),
    ],
)
def test_a_wrong_vocabulary_or_block_changes_nothing(corpus, fields, error, words):
    model = fresh(corpus, **fields)
    before = weights(model)
    with pytest.raises(error, match=words):
        train(model, corpus, QUICK, device=CPU)
    assert torch.equal(weights(model), before)


@pytest.mark.parametrize(
    "error", [RuntimeError("DefaultCPUAllocator: can't allocate memory"), torch.OutOfMemoryError()]
)
def test_out_of_memory_says_which_settings_need_less(corpus, monkeypatch, error):
    def full(*words):
        raise error

    monkeypatch.setattr(Trainer, "step", full)
    with pytest.raises(MemoryError, match="a batch of 8 windows in parts of 4: .*accumulate=8$"):
        train(fresh(corpus), corpus, replace(QUICK, accumulate=2), device=CPU)


def test_another_run_into_the_same_files_is_refused(tmp_path):
    out = tmp_path / "fox"
    refused = pytest.raises(ValueError, match="another run is writing to .*fox: wait for")
    with held_run(out), refused, held_run(out):
        pass
    assert not list(tmp_path.glob(".*"))
    with held_run(out):
        pass
