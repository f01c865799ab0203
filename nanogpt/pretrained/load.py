"""`load_pretrained`: one entry point for all supported model formats."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from ..config import check_type
from ..data import CharTokenizer
from ..decoder.config import DecoderConfig
from ..decoder.identify import identify
from ..decoder.model import Decoder
from ..files import user_path
from .assemble import assemble
from .configs import config_from_hf
from .families import Names
from .fetch import SMOLLM2, fetch_smollm2
from .folder_tokenizer import tokenizer_of_folder
from .gguf_config import config_from_gguf
from .gguf_file import MAGIC, read_gguf
from .gguf_tokenizer import tokenizer_of_gguf
from .hub import fetch_from_hub, hub_name
from .karpathy import open_checkpoint
from .needs import PretrainedError, shown_value
from .stored import LARGEST_HEADER, Tensors, read_json, tensors_of_folder, to_safetensors
from .tokenizer import PretrainedTokenizer

ADAPTER = "adapter_config.json"  # of peft
AnyTokenizer = PretrainedTokenizer | CharTokenizer
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def load_pretrained(
    source: str | Path = SMOLLM2,
    *,
    dtype: torch.dtype = torch.float32,
    tokenizer: AnyTokenizer | str | Path | None = None,
) -> tuple[Decoder, AnyTokenizer]:
    """Load a language model that other people trained, in eval mode on the CPU, and its tokenizer.

        model, tokenizer = load_pretrained("smollm2")
        prompt = tokenizer.encode("The capital of France is")[None]
        for text in tokenizer.stream(generate(model, prompt, 20)):
            print(text, end="", flush=True)

    The stream ends where the model ends its text; so does complete(…, stop=tokenizer.stop).

    `source` is a transformers folder (config.json, *.safetensors, tokenizer.json), a .gguf file, a
    checkpoint of nanoGPT, build-nanogpt, nanochat or the lecture (.pt), or a name or address on the
    hub: "owner/name", or "owner/name:Q4_K_M" for a GGUF file of that type. "smollm2" is
    SmolLM2-135M-Instruct from the Python package index. The model may be a Llama, GPT-2, Qwen 2,
    Qwen 3, OPT or nanochat; its logits equal those of transformers up to rounding. Weights are
    converted to `dtype`; with bfloat16, weights stored in bfloat16 are unchanged. `tokenizer`
    replaces the model's own: pass a tokenizer, or the folder of a tokenizer.json. A model may have
    more ids than its tokenizer; `without_spare_tokens` keeps it from sampling those.

    Raises PretrainedError, a ValueError with a one-line message: for a file that is missing,
    damaged or of another kind, for a config field that a Decoder does not compute exactly, for
    tensors that do not fit, and for a model larger than the available memory. Warns of config
    fields that it does not know. Only tensors and plain data are ever unpickled.
    """
    check_type("source", source, (str, Path))
    check_type("tokenizer", tokenizer, (PretrainedTokenizer, CharTokenizer, str, Path, type(None)))
    check_type("dtype", dtype, torch.dtype)
    if dtype not in _DTYPES:
        known = ", ".join(str(one) for one in _DTYPES)
        raise ValueError(f"dtype={dtype!r:.40}: must be one of {known}")
    if isinstance(tokenizer, (str, Path)):
        tokenizer = tokenizer_of_folder(user_path(tokenizer))
    opened = _open(find(source))
    c = opened.config
    if tokenizer is None:
        tokenizer = opened.tokenizer()
    if len(tokenizer) > c.vocab_size:
        raise PretrainedError(
            f"{opened.where}: the tokenizer has {len(tokenizer):,} tokens, the model has "
            f"{c.vocab_size:,}: they do not belong together"
        )
    return assemble(c, opened.names, opened.tensors, dtype, opened.where), tokenizer


def find(source: str | Path) -> Path:
    """The folder or file named by a source, downloaded if needed. Raises PretrainedError."""
    if source == SMOLLM2:
        return fetch_smollm2()
    path = user_path(source)
    if path.exists() and str(source):
        return path
    named = hub_name(source) if isinstance(source, str) else None
    if named is not None:
        return fetch_from_hub(named)
    raise PretrainedError(
        f"source={shown_value(str(source))}: no model there; choose a folder with a config.json, a "
        f".gguf file, nanoGPT's ckpt.pt, a name on the hub (owner/name), or {SMOLLM2}"
    )


class Opened(NamedTuple):
    """A model whose headers have been read, but not its tensors."""

    where: str
    config: DecoderConfig
    names: Names
    tensors: Tensors
    tokenizer: Callable[[], PretrainedTokenizer]  # reads the model's own tokenizer


def _open(path: Path) -> Opened:
    if path.is_dir():
        return _open_folder(path)
    if not path.is_file():
        raise PretrainedError(f"{path} is {identify(path)[0] or 'no file'}: name another")
    if path.suffix == ".json":
        raise PretrainedError(f"{path} is one file of a model: name its folder, {path.parent}")
    if path.suffix == ".bin" and path.with_name("config.json").is_file():
        raise PretrainedError(f"{path} is a pickle of transformers: {to_safetensors(path.parent)}")
    named_gguf = path.suffix.lower() == ".gguf"
    return _open_gguf(path) if named_gguf or _is_gguf(path) else _open_pt(path)


def _is_gguf(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise PretrainedError(f"{path} cannot be read ({error.strerror}): name another") from error


def _open_folder(folder: Path) -> Opened:
    path = folder / "config.json"
    if (folder / ADAPTER).is_file():
        raise PretrainedError(
            f"{folder} has {ADAPTER}: it is an adapter for a base model; merge the two with peft's "
            f"merge_and_unload(), save the model, and pass its folder"
        )
    if not path.is_file():
        files = [*sorted(folder.glob("*.gguf")), *sorted(folder.glob("*.pt"))]
        cure = f"name a file in it, such as {files[0]}" if files else "name the folder of one model"
        raise PretrainedError(f"{folder} has no config.json: {cure}")
    family, config = config_from_hf(read_json(path, LARGEST_HEADER), str(path))
    tensors = tensors_of_folder(folder)
    return Opened(str(folder), config, family.names, tensors, partial(tokenizer_of_folder, folder))


def _open_gguf(path: Path) -> Opened:
    where = str(path)
    file = read_gguf(path)
    names, config = config_from_gguf(file.metadata, file.tensors, path)
    tokenizer = partial(tokenizer_of_gguf, file.metadata, where)
    return Opened(where, config, names, file.tensors, tokenizer)


def _open_pt(path: Path) -> Opened:
    """A checkpoint has no tokenizer: pass one, or put a tokenizer.json next to it."""
    if path.suffix == ".safetensors":
        raise PretrainedError(
            f"{path} is one file of a model: name its folder; if this project wrote it, it is a "
            f"checkpoint: load_checkpoint, or --checkpoint"
        )
    found = open_checkpoint(path)
    tokenizer = partial(tokenizer_of_folder, path.parent)
    return Opened(str(path), found.config, found.names, found.tensors, tokenizer)
