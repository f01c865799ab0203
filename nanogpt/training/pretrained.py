"""A trained model for a notebook: loaded where one fits, else trained now."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from ..config.shapes import SIZES
from ..config.training import TrainConfig
from ..data.corpus import Corpus
from ..data.tokenizer import CharTokenizer
from ..model.checkpoint import Checkpoint, CheckpointError, load_checkpoint
from ..model.gpt import GPT
from ..system.device import Device, pick_device
from ..system.files import PUBLISHED
from .loop import train


def load_or_train(
    corpus: Corpus,
    config: TrainConfig,
    *,
    size: str = "small",
    checkpoint: str = "auto",
    keep: Sequence[Path] = (),
    device: Device | None = None,
) -> Checkpoint:
    """A trained model for a notebook: the published weights when they fit the corpus, else train now.

    `checkpoint` may name a file of your own instead. NANOGPT_CHECKPOINT does the same for a whole
    run. `keep` are paths (without suffix) where a model of this corpus may lie; one that is trained
    now is kept at the first. The model is on the device, in float32, in eval mode. Prints nothing:
    print the result. Raises CheckpointError for a file that is named and does not fit.
    """
    device = device or pick_device()
    named = os.environ.get("NANOGPT_CHECKPOINT") if checkpoint == "auto" else checkpoint
    chars = CharTokenizer(corpus.text).chars
    if named:
        found = load_checkpoint(
            named, origin="your checkpoint" if checkpoint != "auto" else "weights of this run"
        )
        if found.tokenizer.chars != chars:
            raise CheckpointError(
                f"{named} knows other characters than {corpus.name}: train on this text first"
            )
    else:
        found = (
            _published(size, chars, corpus)
            or _kept(keep, corpus)
            or _trained(size, chars, corpus, config, keep, device)
        )
    found.model.to(device.device).eval()
    return found


def _published(size: str, chars: str, corpus: Corpus) -> Checkpoint | None:
    """The weights that ship, for the text they were trained on; the practice corpus borrows them."""
    path = PUBLISHED / "checkpoints" / f"{size}.safetensors"
    found = load_checkpoint(path, origin="published weights") if path.is_file() else None
    fits = found and found.tokenizer.chars == chars
    return (
        found
        if fits and (not corpus.real or found.meta["corpus"].get("sha256") == corpus.sha256)
        else None
    )


def _kept(keep: Sequence[Path], corpus: Corpus) -> Checkpoint | None:
    for path in keep:
        if path.with_name(f"{path.name}.safetensors").is_file():
            try:
                found = load_checkpoint(path, origin="trained before")
            except CheckpointError as error:
                raise CheckpointError(f"{error}: delete it to have a model trained anew") from error
            if found.meta["corpus"].get("sha256") == corpus.sha256:
                return found
    return None


def _trained(size, chars, corpus, config, keep, device) -> Checkpoint:
    generator = torch.Generator().manual_seed(config.seed)
    model = GPT(replace(SIZES[size], vocab_size=len(chars)), generator=generator)
    if keep:
        train(model, corpus, config, out=keep[0], device=device)
        return load_checkpoint(keep[0], origin="trained just now")
    with TemporaryDirectory() as folder:
        train(model, corpus, config, out=Path(folder, size), device=device)
        return load_checkpoint(Path(folder, size), origin="trained just now")
