"""Find a trained model for a notebook: named, kept, published, or trained now."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from ..config import SIZES
from ..data import CharTokenizer, Corpus
from ..decoder.checkpoint import Checkpoint, CheckpointError, load_checkpoint
from ..decoder.pack import unpack_heads
from ..device import Device
from ..files import LECTURE_FORM
from ..model import GPT
from ..training.loop import train
from ..training.recipes import TrainConfig


def load_or_train(
    corpus: Corpus,
    config: TrainConfig,
    *,
    size: str,
    checkpoint: str,
    keep: Sequence[Path],
    device: Device,
) -> Checkpoint:
    """A trained lecture model for a notebook, on the device, in float32, in eval mode.

    The first available of: the file `checkpoint` ("auto" means the one in NANOGPT_CHECKPOINT), a
    model that this run has trained on this corpus, at one of the paths `keep` (without suffix), the
    published weights for this corpus, a model that is trained now and kept at the first of those
    paths. Prints nothing: print the result, which says where it comes from. Raises CheckpointError
    for a damaged file, and for a named one that does not fit.
    """
    named = os.environ.get("NANOGPT_CHECKPOINT") if checkpoint == "auto" else checkpoint
    trained: Checkpoint | None
    if named:
        origin = "NANOGPT_CHECKPOINT" if checkpoint == "auto" else "your checkpoint"
        trained = load_checkpoint(named, origin=origin)
        if trained.tokenizer.chars != CharTokenizer(corpus.text).chars:
            raise CheckpointError(
                f"{named} has a different vocabulary from {corpus.name}: train on that text"
            )
        if not isinstance(trained.model, GPT):
            trained.model = _as_lecture(trained, named)
    else:
        trained = _earlier(keep, corpus)
    if trained is None:
        shape = replace(SIZES[size], vocab_size=len(CharTokenizer(corpus.text)))
        model = GPT(shape, generator=torch.Generator().manual_seed(config.seed))
        train(model, corpus, config, out=keep[0], device=device)
        trained = load_checkpoint(keep[0], origin="trained just now")
    trained.model.to(device.device).eval()
    return trained


def _as_lecture(trained: Checkpoint, named: str) -> GPT:
    """The model as a list of heads. Raises CheckpointError if it is not the lecture's."""
    try:
        return unpack_heads(trained.model)
    except ValueError as error:
        raise CheckpointError(
            f"{named}: {error}; use a checkpoint of the lecture's architecture, which the "
            "lessons are about"
        ) from error


def _earlier(keep: Sequence[Path], corpus: Corpus) -> Checkpoint | None:
    """The kept or bundled model for this text (the practice corpus borrows it)."""
    places = [(path, "the model that this run trained") for path in keep]
    for path, origin in [*places, (LECTURE_FORM, "published weights")]:
        if path.with_name(f"{path.name}.safetensors").is_file():
            try:
                trained = load_checkpoint(path, origin=origin)
            except CheckpointError as error:
                raise CheckpointError(f"{error}: delete it to train a model again") from error
            same_characters = trained.tokenizer.chars == CharTokenizer(corpus.text).chars
            borrowed = same_characters and not corpus.real and path == LECTURE_FORM
            if borrowed or trained.meta["corpus"].get("sha256") == corpus.sha256:
                return trained
    return None
