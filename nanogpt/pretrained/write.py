"""Write a model as a folder of its family: transformers, vLLM and `load_pretrained` load it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from ..data import CharTokenizer
from ..decoder.checkpoint import Checkpoint
from ..decoder.model import Decoder
from ..files import OURS, atomic_path, check_replaceable, real_path, write_json, write_whole
from .form import ExportError, family_form
from .hub import HUB_FILES
from .tokenizer import PretrainedTokenizer

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
PRETRAINED_CARD = """\
---
library_name: transformers
pipeline_tag: text-generation
---
# A {config[model_type]} model

{model.n_params:,} parameters, {c.n_layer} layers of {c.n_head} heads, width {c.n_embd}, context
{c.block_size}. Made of `{source}` by nanoGPT notebooks as `{config[architectures][0]}`; the license
is that of its weights.
"""
_Files = dict[str, str | dict[str, Any]]  # text, or data for JSON, by name


def write_folder(saved: Checkpoint, folder: Path) -> dict[str, Any]:
    """Export a checkpoint into `folder` and return its config.json.

    Replaces an earlier export there, each file atomically. Raises ExportError for a model that has
    no counterpart, and OSError.
    """
    config, tensors = family_form(saved.model)
    origin = {key: saved.meta[key] for key in ("config", "vocabulary", "corpus", "step", "losses")}
    nothing = {key: None for key in config if key.endswith("_token_id")}
    block = saved.model.config.block_size
    files: _Files = {
        "config.json": config,
        "generation_config.json": {**nothing, "max_length": block},
        **_tokenizer_files(saved.tokenizer, block),
        "README.md": CARD.format(saved=saved, c=saved.model.config, config=config),
    }
    _write(folder, origin | {"sha256": saved.sha256}, tensors, files)
    return config


def write_pretrained(
    model: Decoder, tokenizer: PretrainedTokenizer | CharTokenizer, folder: Path, source: str
) -> dict[str, Any]:
    """Write a model that was loaded, in its dtype, and return its config.json.

    `source` says where the model came from. Replaces an earlier export there, each file atomically.
    Raises ExportError for a shape that fits no family, and for a folder with files of another
    model; and OSError.
    """
    config, tensors = family_form(model)
    ids = list(tokenizer.stop) if isinstance(tokenizer, PretrainedTokenizer) else []
    config["eos_token_id"] = ids or None
    files: _Files = {
        "config.json": config,
        **_tokenizer_files(tokenizer, model.config.block_size),
        "generation_config.json": {k: v for k, v in config.items() if k.endswith("_token_id")},
        "README.md": PRETRAINED_CARD.format(
            model=model, c=model.config, config=config, source=source
        ),
    }
    _write(folder, {"source": source}, tensors, files)
    return config


def _write(folder: Path, origin: dict[str, Any], tensors: dict[str, Tensor], files: _Files) -> None:
    """Write an export, the mark first: a folder that is not whole is still known as ours."""
    folder = real_path(folder)
    # 1. Check all before writing the first. What a program would read beside them is another
    # model's, such as the shards of an earlier one.
    for name in (EXPORT_MARK, EXPORT_WEIGHTS, *files):
        check_replaceable(folder / name)
    read = {path.name for pattern in HUB_FILES for path in folder.glob(pattern)}
    others = sorted(read - {EXPORT_WEIGHTS, *files})
    if others:
        raise ExportError(
            f"{folder} has {others[0]} of another model, which would be read with this one: "
            f"remove it, or name a new folder"
        )
    # 2. Write.
    write_json(folder / EXPORT_MARK, {"format": EXPORT_FORMAT, **origin})
    with atomic_path(folder / EXPORT_WEIGHTS) as temporary:
        try:
            own = {name: tensor.clone() for name, tensor in tensors.items()}  # they share memory
            save_file(own, temporary, metadata={"format": "pt"})
        except SafetensorError as error:  # not an OSError, even for a full disk
            raise OSError(f"{folder} could not be written ({error}): make room") from error
    for name, data in files.items():
        text = data if isinstance(data, str) else json.dumps(data, indent=2, ensure_ascii=False)
        write_whole(folder / name, (text.rstrip("\n") + "\n").encode())


def _tokenizer_files(
    tokenizer: PretrainedTokenizer | CharTokenizer, block_size: int
) -> dict[str, dict[str, Any]]:
    """tokenizer.json and tokenizer_config.json, with the chat template if any."""
    about: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": block_size,
    }
    if isinstance(tokenizer, CharTokenizer):
        return {
            "tokenizer.json": character_tokenizer(tokenizer.chars),
            "tokenizer_config.json": about,
        }
    about |= tokenizer.specials
    if tokenizer.tokenizer.encode_special_tokens:  # their names in a text are ordinary text
        about["split_special_tokens"] = True
    if tokenizer.template is not None:
        about["chat_template"] = tokenizer.template
    made = json.loads(tokenizer.tokenizer.to_str())
    return {"tokenizer.json": made, "tokenizer_config.json": about}


def character_tokenizer(chars: str) -> dict[str, Any]:
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
