"""A folder that transformers and vLLM load as one of their own models: whole, or not there."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file

from ..model.checkpoint import Checkpoint
from ..system.files import check_exchange, exchange, held, read_sealed, sealed, sha256, write_json
from .huggingface import exported

MARK = "nanogpt.json"  # says what was exported, and lists the other files with their digests
CARD = """\
---
license: mit
library_name: transformers
pipeline_tag: text-generation
---
# A character-level GPT

{parameters:,} parameters, {c.n_layer} layers of {c.n_head} heads, width {c.n_embd}, context
{c.block_size}. Trained for {meta[step]:,} steps on {meta[corpus][name]}; validation loss
{meta[losses][val]:.3f} nats a character.
Exported from nanoGPT notebooks as `{architecture}`.

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(".")
model = AutoModelForCausalLM.from_pretrained(".")
prompt = tokenizer("KING:", return_tensors="pt")
tokens = model.generate(**prompt, max_new_tokens=100, do_sample=False)
print(tokenizer.decode(tokens[0]))
```

- A token is a character. There is no token for a beginning, an end, or padding: id 0 is a
  character, so pass an attention mask, as above. A character that the model never saw raises an
  error.
- Prompt and answer together must fit into {c.block_size} characters.
- {note}
"""
FOLDED = (
    "The bias of the output layer was moved into the last norm (the softmax is the same); "
    "logits differ from the notebooks' by a constant, probabilities by rounding."
)
FLIPPED = "The rotation turns the other way here, and queries and keys were changed to match it."


def write_folder(saved: Checkpoint, folder: Path) -> dict:
    """Export a checkpoint into `folder` and return its config.json.

    An earlier export there is replaced, in one step and only when the new one is complete. Raises
    ExportError for a model that has no counterpart, ForeignFiles for a folder that holds anything
    but an export as it was written, and OSError.
    """
    config, tensors = exported(saved.model)
    folder = Path(folder).resolve()
    with held(folder.with_name(f".{folder.name}.lock"), f"to {folder}"):
        check_exchange(folder, written)
        _write(saved, config, tensors, folder)
    return config


def _write(saved: Checkpoint, config: dict, tensors: dict, folder: Path) -> None:
    new = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        try:
            save_file(tensors, new / "model.safetensors", metadata={"format": "pt"})
        except SafetensorError as error:  # not an OSError, even for a full disk
            raise OSError(f"{folder} could not be written ({error}): make room") from error
        for name, data in _files(saved, config).items():
            text = data if isinstance(data, str) else json.dumps(data, indent=2, ensure_ascii=False)
            (new / name).write_text(text.rstrip("\n") + "\n", encoding="utf-8")
        origin = ("config", "vocabulary", "corpus", "step", "losses")
        about = {key: saved.meta[key] for key in origin} | {"sha256": saved.sha256}
        about["files"] = {path.name: sha256(path) for path in sorted(new.iterdir())}
        write_json(new / MARK, sealed(about))
        new.chmod(0o755)
        exchange(new, folder, written)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def written(folder: Path) -> dict:
    """The SHA-256 of each file of an export, by name; {} where the folder holds none."""
    if about := read_sealed(folder / MARK):
        digests = {name: [digest] for name, digest in about.get("files", {}).items()}
        return digests | {MARK: [sha256(folder / MARK)]}
    return {}


def _files(saved: Checkpoint, config: dict) -> dict:
    """All files but the weights and the list, by name: text, or data for JSON."""
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
        "README.md": CARD.format(
            parameters=saved.model.n_params,
            c=saved.model.config,
            meta=saved.meta,
            architecture=config["architectures"][0],
            note=FLIPPED if config["model_type"] == "nanochat" else FOLDED,
        ),
    }


def tokenizer(chars: str) -> dict:
    """tokenizer.json: each character a word, joined without blanks; an unknown one is an error."""
    pattern = {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated"}
    vocabulary = {char: i for i, char in enumerate(chars)}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {**pattern, "invert": False},
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }
