"""A trained model for a notebook: published, named, kept or trained now, and it says which."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from training_fixtures import CPU, fresh, weights

from nanogpt.config import SIZES, GPTConfig
from nanogpt.data import Corpus
from nanogpt.decoder.checkpoint import (
    CheckpointError,
    config_to_json,
    load_checkpoint,
    save_checkpoint,
)
from nanogpt.decoder.model import Decoder
from nanogpt.decoder.pack import pack_heads
from nanogpt.series import weights as pretrained
from nanogpt.series.weights import load_or_train
from nanogpt.training.loop import train
from nanogpt.training.recipes import TrainConfig

SHORT = TrainConfig(steps=4, batch_size=8, eval_every=4, eval_batches=1, warmup=2)
OURS = "the model that this run trained"
OTHER = Corpus("another text.\n" * 200, "other", "0")


def load(corpus, config, checkpoint="auto", keep=None):
    with TemporaryDirectory() as folder:
        paths = keep or [Path(folder, "small")]
        options = {"size": "small", "checkpoint": checkpoint, "keep": paths, "device": CPU}
        return load_or_train(corpus, config, **options)


@pytest.fixture
def place(monkeypatch, tmp_path):
    """No published weights yet, and a size that trains in no time."""
    monkeypatch.setattr(pretrained, "LECTURE_FORM", tmp_path / "checkpoints" / "medium")
    monkeypatch.delenv("NANOGPT_CHECKPOINT", raising=False)
    monkeypatch.setitem(SIZES, "small", GPTConfig(block_size=8, n_layer=1, n_head=2, n_embd=16))
    return tmp_path


@pytest.fixture
def checkpoint(place, corpus):
    """A model of the corpus, where the published one would be."""
    train(fresh(corpus), corpus, SHORT, device=CPU, out=place / "checkpoints" / "medium")
    return place / "checkpoints" / "medium.safetensors"


def test_without_published_weights_it_trains_now_and_says_so(place, corpus, tokenizer):
    found, again = (load(corpus, SHORT) for _ in range(2))
    assert str(found).startswith("trained just now: ")
    assert "trained for 4 steps on fox, val loss " in str(found)
    assert not found.model.training
    assert found.tokenizer.chars == tokenizer.chars
    assert found.sha256 == again.sha256 != load(corpus, replace(SHORT, seed=2)).sha256


def test_published_weights_are_taken_for_the_text_that_they_know(checkpoint, corpus, capsys):
    capsys.readouterr()
    found = load(corpus, SHORT)
    assert str(found).startswith("published weights: ")
    assert torch.equal(weights(found.model), weights(load_checkpoint(checkpoint).model))
    assert capsys.readouterr().out == "", "a notebook prints the result, not the loading"
    assert load(OTHER, SHORT).origin == "trained just now"
    backwards = Corpus(corpus.text[::-1], "the same characters", "0")
    assert load(backwards, SHORT).origin == "trained just now"
    assert load(replace(backwards, real=False), SHORT).origin == "published weights"


def test_a_model_trained_now_is_kept_and_found_again(place, corpus):
    keep = [place / "mine", place / "earlier"]
    found, again = (load(corpus, SHORT, keep=keep) for _ in range(2))
    assert [found.origin, again.origin] == ["trained just now", OURS]
    assert found.sha256 == again.sha256
    assert load(corpus, SHORT, keep=keep[::-1]).origin == OURS
    assert load(OTHER, SHORT, keep=keep).origin == "trained just now"


def test_a_model_of_this_run_goes_before_what_ships(checkpoint, place, corpus):
    keep = [place / "mine", place / "series"]
    assert load(corpus, SHORT, keep=keep).origin == "published weights"
    train(fresh(corpus), corpus, replace(SHORT, steps=2), device=CPU, out=keep[1])
    found = load(corpus, SHORT, keep=keep)
    assert str(found).startswith(f"{OURS}: ")
    assert "trained for 2 steps" in str(found)
    practice = replace(corpus, real=False, sha256="1")
    assert load(practice, SHORT, keep=keep).origin == "published weights", "of this text alone"
    assert load(corpus, SHORT, keep=keep, checkpoint=str(checkpoint)).origin == "your checkpoint"


@pytest.mark.parametrize("origin", ["your checkpoint", "NANOGPT_CHECKPOINT"])
def test_a_checkpoint_that_is_named_is_taken_or_is_an_error(
    checkpoint, corpus, monkeypatch, origin
):
    """By the argument, or by the environment."""

    def named(path, text):
        if origin == "your checkpoint":
            return load(text, SHORT, checkpoint=str(path))
        monkeypatch.setenv("NANOGPT_CHECKPOINT", str(path))
        return load(text, SHORT)

    assert named(checkpoint, corpus).origin == origin
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        named(checkpoint.with_name("absent"), corpus)
    with pytest.raises(CheckpointError, match="has a different vocabulary from other"):
        named(checkpoint, OTHER)


def test_a_decoder_is_unpacked_or_is_an_error(checkpoint, corpus):
    lecture = load_checkpoint(checkpoint)
    packed = pack_heads(lecture.model)
    meta = lecture.meta | {"config": config_to_json(packed.config)}
    stem = checkpoint.with_name("packed")
    save_checkpoint(stem, packed, meta)
    found = load(corpus, SHORT, checkpoint=str(stem)).model
    assert torch.equal(weights(found), weights(lecture.model))
    newer = Decoder(replace(packed.config, window=4))
    save_checkpoint(stem, newer, meta | {"config": config_to_json(newer.config)})
    with pytest.raises(CheckpointError, match="no window=4: .*use a checkpoint of the lecture's"):
        load(corpus, SHORT, checkpoint=str(stem))


@pytest.mark.parametrize("published", [True, False])
def test_a_damaged_model_is_an_error_and_no_reason_to_train(checkpoint, corpus, published):
    """Neither where the published one is, nor where one of an earlier run is kept."""
    keep = [] if published else [checkpoint.with_name("kept")]
    path = checkpoint if published else checkpoint.with_name("kept.safetensors")
    checkpoint.rename(path)
    path.write_bytes(path.read_bytes()[:-1])
    before = {p.name: p.read_bytes() for p in path.parent.iterdir()}
    words = "is damaged" if published else "is damaged .*delete it to train"
    with pytest.raises(CheckpointError, match=words):
        load(corpus, SHORT, keep=keep)
    assert {p.name: p.read_bytes() for p in path.parent.iterdir()} == before
    path.unlink()
    assert load(corpus, SHORT, keep=keep).origin == "trained just now"
