"""The page on which the model itself runs: one file, its weights inside, nothing loaded."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np

from ..model.checkpoint import load_checkpoint
from ..model.convert import pack_heads
from .html import TEMPLATES
from .publish import WEIGHTS

SHAPE = ("vocab_size", "block_size", "n_layer", "n_head", "n_embd")
LARGEST = 400_000  # parameters: about a megabyte in base64 of 16-bit numbers


def page(folder: Path) -> str | None:
    """The page for the model of an output folder; None where it cannot run in one.

    That is a checkpoint that is missing or damaged; a shape that is more than the lecture's, or a
    width that 4 does not divide; more than LARGEST parameters, or weights beyond float16's 65,504.
    """
    try:
        saved = load_checkpoint(folder / WEIGHTS)
        facts = {"corpus": saved.meta["corpus"]["name"], "val": float(saved.meta["losses"]["val"])}
    except (OSError, KeyError, TypeError, ValueError):
        return None
    config = saved.model.config
    if config.beyond_lecture or config.n_params > LARGEST or config.n_embd % 4:
        return None
    model = pack_heads(saved.model) if config.per_head else saved.model
    # In the order in which live_model.js cuts them; float16, little-endian.
    weights = np.concatenate([part.detach().numpy().ravel() for part in model.parameters()])
    if not np.abs(weights).max() <= np.finfo(np.float16).max:
        return None
    shape = {name: getattr(config, name) for name in SHAPE}
    packed = base64.b64encode(weights.astype("<f2").tobytes()).decode("ascii")
    data = {"config": shape, "vocabulary": saved.meta["vocabulary"], "weights": packed}
    return TEMPLATES.get_template("live.html.j2").render(
        facts,
        config=shape,
        parameters=config.n_params,
        checkpoint=saved.origin.removesuffix(".safetensors"),
        data=json.dumps(data, ensure_ascii=False).replace("</", "<\\/"),
    )
