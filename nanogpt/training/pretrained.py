"""A trained model for a notebook: loaded where one fits, else trained now."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from ..config.shapes import SIZES
from ..config.training import TrainConfig
from ..data.corpus import Corpus
from ..data.tokenizer import CharTokenizer
from ..model.checkpoint import Checkpoint, CheckpointError, load_checkpoint
from ..model.gpt import GPT
from ..system.device import Device
from ..system.files import WEIGHTS
from .loop import train


def load_or_train(
    corpus: Corpus,
    config: TrainConfig,
    *,
    size: str,
    checkpoint: str,
    keep: Sequence[Path],
    device: Device,
) -> Checkpoint:
    """A trained model for a notebook, on the device, in float32, in eval mode.

    The first of these that there is: the file that `checkpoint` names (where it is "auto", the one
    that NANOGPT_CHECKPOINT names), the published weights of this corpus, a model of this corpus at
    one of the paths `keep` (without suffix), a model that is trained now and kept at the first of
    them. Prints nothing: print the result. Raises CheckpointError for a file that is damaged, and
    for one that is named and does not fit.
    """
    named = os.environ.get("NANOGPT_CHECKPOINT") if checkpoint == "auto" else checkpoint
    if named:
        origin = "weights of this run" if checkpoint == "auto" else "your checkpoint"
        found = load_checkpoint(named, origin=origin)
        if found.tokenizer.chars != CharTokenizer(corpus.text).chars:
            raise CheckpointError(
                f"{named} has other characters than {corpus.name}: train on this text first"
            )
    else:
        found = _found(size, keep, corpus)
    if found is None:
        shape = replace(SIZES[size], vocab_size=len(CharTokenizer(corpus.text)))
        model = GPT(shape, generator=torch.Generator().manual_seed(config.seed))
        train(model, corpus, config, out=keep[0], device=device)
        found = load_checkpoint(keep[0], origin="trained just now")
    found.model.to(device.device).eval()
    return found


def _found(size: str, keep: Sequence[Path], corpus: Corpus) -> Checkpoint | None:
    """The model of this text that ships (the practice corpus borrows it), or one that is kept."""
    places = [(WEIGHTS / size, "published weights"), *((path, "trained before") for path in keep)]
    for path, origin in places:
        if path.with_name(f"{path.name}.safetensors").is_file():
            try:
                found = load_checkpoint(path, origin=origin)
            except CheckpointError as error:
                raise CheckpointError(f"{error}: delete it to train a model again") from error
            same_characters = found.tokenizer.chars == CharTokenizer(corpus.text).chars
            borrowed = same_characters and not corpus.real and path.parent == WEIGHTS
            if borrowed or found.meta["corpus"].get("sha256") == corpus.sha256:
                return found
    return None
