"""Export our architectures as Hugging Face transformers models: a config, and named tensors.

The lecture's architecture is OPT (Zhang et al. 2022, arXiv 2205.01068) with zero biases for
queries, keys and values. The recipe `sprint` uses NanoChat's, Karpathy's later model, which rotates
in the opposite direction. An exported folder is complete or absent. Nothing here needs
transformers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from ..config import GPTConfig
from ..decoder.checkpoint import Checkpoint
from ..decoder.config import DecoderConfig, beyond_lecture, decoder_config
from ..decoder.pack import pack_state
from ..decoder.standard import check_standard
from ..files import (
    OURS,
    atomic_path,
    check_replaceable,
    real_path,
    write_json,
    write_whole,
)
from ..model import GPT, LanguageModel
from ..training.recipes import MODERN

RESIDUAL = 1e-9  # of a fold that is exact up to rounding, in float64
EXPORT_MARK = "nanogpt.json"  # the origin of an export; marks the folder as ours
EXPORT_WEIGHTS = "model.safetensors"
EXPORT_FORMAT = f"{OURS} export"
CARD = """\
---
license: mit
library_name: transformers
pipeline_tag: text-generation
---
# A character-level GPT

{saved.model.n_params:,} parameters, {c.n_layer} layers of {c.n_head} heads, width {c.n_embd},
context {c.block_size}. Trained for {saved.meta[step]:,} steps on {saved.meta[corpus][name]};
validation loss {saved.meta[losses][val]:.3f} nats a character.
Exported from nanoGPT notebooks as `{config[architectures][0]}`.

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(".")
model = AutoModelForCausalLM.from_pretrained(".")
prompt = tokenizer("KING:", return_tensors="pt")
tokens = model.generate(**prompt, max_new_tokens=100, do_sample=False)
print(tokenizer.decode(tokens[0]))
```

- A token is a character. There are no tokens for beginning, end, or padding: id 0 is a character,
  so pass an attention mask, as above. A character outside the vocabulary raises an error.
- Prompt and continuation together must fit into {c.block_size} characters.
"""

_State = dict[str, Tensor]
Exported = tuple[dict[str, Any], _State]  # config.json, and the tensors


class ExportError(ValueError):
    """A model or a folder that cannot be used; the message names the obstacle."""


def form_of(config: GPTConfig | DecoderConfig) -> Callable[[_State, DecoderConfig], Exported]:
    """`opt` or `nanochat`, whichever fits. Raises ExportError, naming the fields that do not."""
    more = beyond_lecture(config)
    free = {name: x for name, x in more.items() if name not in {*MODERN, "rope_base", "n_kv_head"}}
    if not more:
        return opt
    if not free and all(getattr(config, name) == value for name, value in MODERN.items()):
        return nanochat
    fields = ", ".join(f"{name}={value}" for name, value in (free or more).items())
    raise ExportError(f"{fields}: neither the lecture's architecture nor that of `sprint` has it")


def exported(model: LanguageModel) -> Exported:
    """config.json and the tensors, float32 on the CPU. Raises ExportError if nothing fits."""
    check_standard(model)
    form = form_of(model.config)
    state = {name: w.detach().cpu().float() for name, w in model.state_dict().items()}
    if isinstance(model, GPT):
        state = pack_state(state, model.config)
    if form is opt:
        d = fold_head_bias(state["lm_head.weight"], state["lm_head.bias"])
        state["ln_f.bias"] = (state["ln_f.bias"] + d).float()
    c = decoder_config(model.config)
    own, tensors = form(state, c)
    config = {
        **own,
        "vocab_size": c.vocab_size,
        "hidden_size": c.n_embd,
        "num_hidden_layers": c.n_layer,
        "num_attention_heads": c.n_head,
        "max_position_embeddings": c.block_size,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "tie_word_embeddings": False,
        "dtype": "float32",
    }
    return config, {name: w.contiguous().clone() for name, w in tensors.items()}


def fold_head_bias(weight: Tensor, bias: Tensor) -> Tensor:
    """The vector d that moves the head's bias into the norm before it.  (V, C), (V,) -> (C,)

    OPT has no bias in its head. The head's input is norm(x) · g + b, so adding d to b adds W d to
    the logits. Softmax ignores a constant, so W d = bias + λ1 is enough. That has a solution for
    any bias if V <= C + 1. Raises ExportError if there is no solution up to rounding. float64.
    """
    V, C = weight.shape
    target = bias.double()
    system = torch.cat([weight.double(), -torch.ones(V, 1, dtype=torch.float64)], dim=1)
    found = torch.linalg.lstsq(system, target[:, None], driver="gelsd")
    solution: Tensor = found.solution[:, 0]
    residual = float((system @ solution - target).abs().max())
    if residual > RESIDUAL * max(1.0, float(solution.abs().max())):
        raise ExportError(
            f"the head's bias cannot be moved into the last norm: logits would be {residual:.2g} "
            f"off; it can with {C + 1} characters at most, not {V}"
        )
    return solution[:C]


def _norm(ours: str, theirs: str, state: _State) -> _State:
    return {f"{theirs}.{part}": state[f"{ours}.{part}"] for part in ("weight", "bias")}


def opt(state: _State, c: DecoderConfig) -> Exported:
    """OPTForCausalLM. Its table of positions begins with two rows that no token uses."""
    table = state["position_embedding_table.weight"]
    top = "model.decoder"
    out = {
        f"{top}.embed_tokens.weight": state["token_embedding_table.weight"],
        f"{top}.embed_positions.weight": torch.cat([torch.zeros(2, c.n_embd), table]),
        "lm_head.weight": state["lm_head.weight"],
        **_norm("ln_f", f"{top}.final_layer_norm", state),
    }
    for i in range(c.n_layer):
        ours = f"blocks.{i}"
        theirs = f"{top}.layers.{i}"
        for name, rows in zip("qkv", state[f"{ours}.sa.qkv.weight"].chunk(3), strict=True):
            out[f"{theirs}.self_attn.{name}_proj.weight"] = rows
            out[f"{theirs}.self_attn.{name}_proj.bias"] = torch.zeros(c.n_embd)
        out |= _norm(f"{ours}.sa.proj", f"{theirs}.self_attn.out_proj", state)
        out |= _norm(f"{ours}.ln1", f"{theirs}.self_attn_layer_norm", state)
        out |= _norm(f"{ours}.ln2", f"{theirs}.final_layer_norm", state)
        out |= _norm(f"{ours}.ffwd.up", f"{theirs}.fc1", state)
        out |= _norm(f"{ours}.ffwd.down", f"{theirs}.fc2", state)
    config = {
        "architectures": ["OPTForCausalLM"],
        "model_type": "opt",
        "dropout": 0.0,
        "ffn_dim": 4 * c.n_embd,
    }
    return config, out


def nanochat(state: _State, c: DecoderConfig) -> Exported:
    """NanoChatForCausalLM, without its soft cap on logits.

    It rotates by -θ where we rotate by θ. Negating the second coordinate of each pair, in queries
    and keys alike, turns one into the other.
    """
    half = c.head_size // 2
    flip = torch.cat([torch.ones(half), -torch.ones(half)])
    heads = (c.n_head, c.kv_heads, c.kv_heads)
    out = {
        "model.embed_tokens.weight": state["token_embedding_table.weight"],
        "lm_head.weight": state["lm_head.weight"],
    }
    for i in range(c.n_layer):
        ours = f"blocks.{i}"
        theirs = f"model.layers.{i}"
        parts = state[f"{ours}.sa.qkv.weight"].split([n * c.head_size for n in heads])
        for name, rows, n in zip("qkv", parts, heads, strict=True):
            signs = flip.repeat(n)[:, None] if name != "v" else 1.0
            out[f"{theirs}.self_attn.{name}_proj.weight"] = rows * signs
        out[f"{theirs}.self_attn.o_proj.weight"] = state[f"{ours}.sa.proj.weight"]
        out[f"{theirs}.mlp.fc1.weight"] = state[f"{ours}.ffwd.up.weight"]
        out[f"{theirs}.mlp.fc2.weight"] = state[f"{ours}.ffwd.down.weight"]
    config = {
        "architectures": ["NanoChatForCausalLM"],
        "model_type": "nanochat",
        "intermediate_size": 4 * c.n_embd,
        "num_key_value_heads": c.kv_heads,
        "rms_norm_eps": torch.finfo(torch.float32).eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": c.rope_base},
        "final_logit_softcapping": None,
    }
    return config, out


# ------------------------------------------------------------------ the folder


def write_folder(saved: Checkpoint, folder: Path) -> dict[str, Any]:
    """Export a checkpoint into `folder` and return its config.json.

    Replaces an earlier export there, each file atomically. Raises ExportError for a model that has
    no counterpart, and OSError.
    """
    config, tensors = exported(saved.model)
    folder = real_path(folder)
    origin = {key: saved.meta[key] for key in ("config", "vocabulary", "corpus", "step", "losses")}
    others = _files(saved, config)
    for name in (EXPORT_MARK, EXPORT_WEIGHTS, *others):
        check_replaceable(folder / name)  # check all before writing the first
    write_json(folder / EXPORT_MARK, {"format": EXPORT_FORMAT, **origin, "sha256": saved.sha256})
    with atomic_path(folder / EXPORT_WEIGHTS) as temporary:
        try:
            save_file(tensors, temporary, metadata={"format": "pt"})
        except SafetensorError as error:  # not an OSError, even for a full disk
            raise OSError(f"{folder} could not be written ({error}): make room") from error
    for name, data in others.items():
        text = data if isinstance(data, str) else json.dumps(data, indent=2, ensure_ascii=False)
        write_whole(folder / name, (text.rstrip("\n") + "\n").encode())
    return config


def _files(saved: Checkpoint, config: dict[str, Any]) -> dict[str, str | dict[str, Any]]:
    """All files except the weights and the list, by name: text, or data for JSON."""
    block = saved.model.config.block_size
    nothing = {key: None for key in config if key.endswith("_token_id")}
    return {
        "config.json": config,
        "generation_config.json": {**nothing, "max_length": block},
        "tokenizer.json": tokenizer(saved.tokenizer.chars),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "model_max_length": block,
        },
        "README.md": CARD.format(saved=saved, c=saved.model.config, config=config),
    }


def tokenizer(chars: str) -> dict[str, Any]:
    """tokenizer.json: each character is a token, joined without spaces; others are an error."""
    pattern = {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated"}
    vocabulary = {char: i for i, char in enumerate(chars)}
    return {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {**pattern, "invert": False},
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }
