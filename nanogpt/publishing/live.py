"""The page on which the model itself runs: one file, its weights inside, nothing loaded."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from ..config.shapes import GPTConfig
from ..system.files import ROOT
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
        with safe_open(folder / WEIGHTS, "numpy") as file:
            meta = json.loads(file.metadata()["nanogpt"])
            config = GPTConfig(**meta["config"])
            if config.beyond_lecture or config.n_params > LARGEST or config.n_embd % 4:
                return None
            weights = pack(file.get_tensor, config)
        facts = {"corpus": meta["corpus"]["name"], "val": float(meta["losses"]["val"])}
    except (OSError, SafetensorError, OverflowError, KeyError, TypeError, ValueError):
        return None
    shape = {name: getattr(config, name) for name in SHAPE}
    data = {"config": shape, "vocabulary": meta["vocabulary"], "weights": weights}
    return TEMPLATES.get_template("live.html.j2").render(
        facts,
        config=shape,
        parameters=config.n_params,
        checkpoint=_short(folder / WEIGHTS),
        data=json.dumps(data, ensure_ascii=False).replace("</", "<\\/"),
    )


def pack(tensor, config: GPTConfig) -> str:
    """The weights in base64: float16, little-endian, in the order in which a token meets them.

    `tensor` gives an array by its name in a checkpoint. Raises OverflowError for a weight that
    float16 cannot hold.
    """
    numbers = np.concatenate([tensor(name).ravel() for name in names(config)])
    if not np.abs(numbers).max() <= np.finfo(np.float16).max:
        raise OverflowError("a weight is beyond float16")
    return base64.b64encode(numbers.astype("<f2").tobytes()).decode("ascii")


def names(config: GPTConfig) -> list[str]:
    """The tensors of a checkpoint in the order in which a token meets them; live_model.js cuts so.

    The queries of all heads come first, then the keys, then the values.
    """

    def both(*layers: str) -> list[str]:
        return [f"{layer}.{part}" for layer in layers for part in ("weight", "bias")]

    found = ["token_embedding_table.weight", "position_embedding_table.weight"]
    for block in (f"blocks.{i}" for i in range(config.n_layer)):
        found += both(f"{block}.ln1")
        for part in ("query", "key", "value"):
            found += [f"{block}.sa.heads.{i}.{part}.weight" for i in range(config.n_head)]
        found += both(
            *(f"{block}.{name}" for name in ("sa.proj", "ln2", "ffwd.net.0", "ffwd.net.2"))
        )
    return [*found, *both("ln_f", "lm_head")]


def _short(weights: Path) -> str:
    """The path of a checkpoint as Python loads it from the repository's root."""
    path = weights.with_suffix("").resolve()
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else weights.stem
