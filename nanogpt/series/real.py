"""A real model for a notebook, or a small random stand-in of the same architecture."""

from __future__ import annotations

import string
import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..bench.shapes import SMOLLM2_SHAPE
from ..data import CharTokenizer
from ..decoder.model import Decoder
from ..pretrained.fetch import SMOLLM2
from ..pretrained.form import family_form
from ..pretrained.load import AnyTokenizer, load_pretrained
from ..pretrained.needs import PretrainedError

# It has the letters of English prompts, so that the stand-in can read the real model's prompts.
_LETTERS = "".join(sorted(string.ascii_letters + string.digits + string.punctuation + " \n"))
# SmolLM2-135M's architecture, small.
SMALL = replace(
    SMOLLM2_SHAPE,
    vocab_size=len(_LETTERS),
    n_layer=3,
    n_head=6,
    n_kv_head=2,
    n_embd=48,
    ffn_dim=128,
)


@dataclass(frozen=True)
class RealModel:
    """A model for notebook 13; `real` is False for the stand-in, and `note` says why it is used."""

    name: str
    model: Decoder
    tokenizer: AnyTokenizer
    real: bool
    note: str

    def __str__(self) -> str:
        return self.note


def real_model(source: str = "auto", *, brief: bool = False) -> RealModel:
    """SmolLM2-135M if available or downloadable, otherwise a small random model; or the named one.

    `source` is "auto", "small" for the random one, or a source for `load_pretrained`. With `brief`,
    "auto" is the random one, and nothing is downloaded. Raises the errors of `load_pretrained` for
    a named source.
    """
    if source == "small":
        return _stand_in("it was asked for")
    if source != "auto":
        return _loaded(source)
    if brief:
        return _stand_in("this run is a short one")
    try:
        return _loaded(SMOLLM2)
    except (PretrainedError, ModuleNotFoundError, OSError) as error:
        return _stand_in(f"{error}")


def _loaded(source: str) -> RealModel:
    model, tokenizer = load_pretrained(source)
    name = "SmolLM2-135M-Instruct" if source == SMOLLM2 else source
    note = f"{name}: {model.n_params:,} parameters, {len(tokenizer):,} tokens, a context of "
    return RealModel(name, model, tokenizer, True, f"{note}{model.config.block_size:,}")


def _stand_in(reason: str) -> RealModel:
    model = Decoder(SMALL).eval()
    with torch.no_grad():  # must outweigh the embedding: as a tied head, it would repeat its token
        for weight in model.blocks.parameters():
            weight.mul_(20 if weight.ndim == 2 else 1)
    note = (
        f"NOT A REAL MODEL, because {reason}: {model.n_params:,} random weights of the same "
        "architecture, which generate no English. This notebook's measurements are of the small "
        "model, and its findings are left out."
    )
    return RealModel("random weights", model, CharTokenizer(_LETTERS), False, note)


def to_transformers(model: Decoder) -> Any:
    """The same weights in the family's transformers model, which runs transformers' own code.

    Raises ExportError for a shape that fits no family, ModuleNotFoundError without transformers.
    """
    with warnings.catch_warnings():  # about missing widgets for progress bars
        warnings.simplefilter("ignore")
        import transformers

    fields, tensors = family_form(model)
    theirs = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**fields)
    )
    if model.config.tied:  # one tensor serves as both
        tensors["lm_head.weight"] = model.lm_head.weight.detach()
    theirs.load_state_dict(tensors, assign=True)
    theirs.tie_weights()
    return theirs.float().eval()
