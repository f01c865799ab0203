"""A real model for a notebook, or a small random one of the same architecture in its place."""

from __future__ import annotations

import string
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..data import CharTokenizer
from ..decoder.config import Activation, DecoderConfig, Norm, Positions
from ..decoder.model import Decoder
from ..pretrained.families import LLAMA_NAMES
from ..pretrained.fetch import SMOLLM2
from ..pretrained.load import AnyTokenizer, load_pretrained
from ..pretrained.needs import PretrainedError

# Its letters are those of English prompts: the stand-in reads what the real model reads.
LETTERS = "".join(sorted(string.ascii_letters + string.digits + string.punctuation + " \n"))
# The architecture of SmolLM2-135M: grouped keys, gates, RMSNorm, rotations, a tied head.
SMALL = DecoderConfig(
    vocab_size=len(LETTERS),
    block_size=8192,
    n_layer=3,
    n_head=6,
    n_kv_head=2,
    n_embd=48,
    ffn_dim=128,
    positions=Positions.ROTARY,
    rope_base=100_000.0,
    norm=Norm.RMS,
    activation=Activation.SILU,
    gated=True,
    proj_bias=False,
    ffn_bias=False,
    head_bias=False,
    tied=True,
)
# The fields that all models of the family share; rope_scaling is left out here.
LLAMA = (
    *("positions", "rope_scaling", "norm", "norm_weights", "embed_norm", "qk_norm", "activation"),
    *("gated", "qkv_bias", "proj_bias", "ffn_bias", "head_bias", "window", "logit_softcap"),
)


@dataclass(frozen=True)
class RealModel:
    """A model for notebook 13; `real` is False for the stand-in, and `note` says which it is."""

    model: Decoder
    tokenizer: AnyTokenizer
    real: bool
    note: str

    def __str__(self) -> str:
        return self.note


def real_model(source: str = "auto", *, brief: bool = False) -> RealModel:
    """SmolLM2-135M if it is here or can be fetched, else a small random model; or the one named.

    `source` is "auto", "small" for the random one, or what `load_pretrained` takes. With `brief`,
    "auto" is the random one, and no network is asked. Raises as `load_pretrained` does for a source
    that is named.
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
    return RealModel(model, tokenizer, True, f"{note}{model.config.block_size:,}")


def _stand_in(reason: str) -> RealModel:
    model = Decoder(SMALL).eval()
    with torch.no_grad():  # louder than the embedding, which as a tied head would repeat its token
        for weight in model.blocks.parameters():
            weight.mul_(20 if weight.ndim == 2 else 1)
    note = (
        f"NOT A REAL MODEL, because {reason}: {model.n_params:,} random weights of the same "
        f"architecture, which write no English. What this page measures is of this small model, "
        f"and its findings are left out."
    )
    return RealModel(model, CharTokenizer(LETTERS), False, note)


def to_transformers(model: Decoder) -> Any:
    """The same weights in transformers' LlamaForCausalLM, which computes with its own code.

    Raises ValueError for a model that is no Llama, and ModuleNotFoundError without transformers.
    """
    for name in LLAMA:
        if getattr(model.config, name) != getattr(SMALL, name):
            raise ValueError(
                f"transformers' Llama has {name}={getattr(SMALL, name)}, and this model has "
                f"{getattr(model.config, name)}: choose a model of that family"
            )
    with warnings.catch_warnings():  # one asks for widgets, for bars that no page shows
        warnings.simplefilter("ignore")
        import transformers

    c = model.config
    config = transformers.LlamaConfig(
        vocab_size=c.vocab_size,
        hidden_size=c.n_embd,
        intermediate_size=c.hidden,
        num_hidden_layers=c.n_layer,
        num_attention_heads=c.n_head,
        num_key_value_heads=c.kv_heads,
        head_dim=c.head_size,
        rms_norm_eps=c.norm_eps,
        max_position_embeddings=c.block_size,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope_base},
        tie_word_embeddings=c.tied,
        bos_token_id=None,
        eos_token_id=None,
    )
    theirs = transformers.LlamaForCausalLM(config)
    theirs.load_state_dict(_named_for_transformers(model), assign=True)
    theirs.tie_weights()
    return theirs.float().eval()


def _named_for_transformers(model: Decoder) -> dict[str, Tensor]:
    """The weights of a Llama under transformers' names; what is stacked here is several there."""
    c = model.config
    sizes = {
        "qkv": [c.n_head * c.head_size, c.kv_heads * c.head_size, c.kv_heads * c.head_size],
        "up": [c.hidden, c.hidden],
    }
    state = model.state_dict()
    named = {}
    for ours, theirs in LLAMA_NAMES.modules.items():
        for i in range(c.n_layer if "{i}" in ours else 1):
            weight = state.get(f"{ours.format(i=i)}.weight")
            if weight is None:  # a part that this family does not have
                continue
            parts = weight.split(sizes.get(ours.rpartition(".")[2], [len(weight)]))
            for name, part in zip(theirs, parts, strict=True):
                named[f"{name.format(i=i)}.weight"] = part
    return named
