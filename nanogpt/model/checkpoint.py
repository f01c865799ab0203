"""Checkpoints: safetensors and JSON, each whole or absent. Nothing is ever unpickled."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..config.shapes import GPTConfig
from ..data.tokenizer import CharTokenizer
from ..system.files import ROOT, atomic_path, sha256, write_json
from .convert import convert_state, own_classes
from .gpt import GPT

FORMAT = "nanogpt-notebooks checkpoint 1"


class CheckpointError(ValueError):
    """A checkpoint that is missing, damaged, or not one of ours; the message says what to do."""


def save_checkpoint(path: str | Path, model: GPT, meta: dict) -> None:
    """Write `<path>.safetensors` and, for readers, `<path>.json`; each is whole or not written.

    The weights are stored per Head, under the lecture's names. The same metadata stands in the
    header of the weights' own file, with a digest of both, so that one rename replaces all together
    and a damaged bit is noticed when it is read.
    """
    path = stem(path)
    state = model.state_dict()
    if not model.config.per_head and model.config.has_heads:
        state = convert_state(state, model.config, per_head=True)
    if own := own_classes(model):  # whoever loads it must know that a plain GPT is another function
        meta = {**meta, "own_classes": own}
    digest = write_tensors(path.with_name(path.name + ".safetensors"), state, meta)
    write_json(path.with_name(path.name + ".json"), {**meta, "sha256": digest})


@dataclass
class Checkpoint:
    """A trained model, its characters, and where both came from."""

    model: GPT
    tokenizer: CharTokenizer
    meta: dict
    sha256: str
    origin: str

    def __str__(self) -> str:
        c, losses = self.model.config, self.meta["losses"]
        return (
            f"{self.origin}: {self.model.n_params:,} parameters, block {c.block_size}, trained for "
            f"{self.meta['step']:,} steps on {self.meta['corpus']['name']}, val loss {losses['val']:.3f}, "
            f"sha256 {self.sha256[:12]}…"
        )


def load_checkpoint(path: str | Path, *, origin: str | None = None) -> Checkpoint:
    """Read a checkpoint; `path` with or without `.safetensors`. Nothing is unpickled. The model is float32.

    Raises CheckpointError when it is missing, damaged, foreign, or its tensors do not fit its config.
    """
    path = stem(path)
    path = path.with_name(path.name + ".safetensors")
    if not path.is_file():
        raise CheckpointError(
            f"no checkpoint at {path}: train one with notebook 01, or correct the path"
        )
    header, state = _read(path)
    meta, config, tokenizer = _understood(path, header)
    if own := meta.get("own_classes"):
        raise CheckpointError(
            f"{path} holds a model with {own}, and a plain GPT is another function: build the model with "
            f"that class, and load its tensors with safetensors.torch.load_file"
        )
    held = sum(tensor.numel() for tensor in state.values())
    if held != config.n_params:  # before a model is built of a size that only a header names
        raise CheckpointError(
            f"{path}: its tensors do not fit its own config ({held:,} numbers, not {config.n_params:,})"
        )
    digest = meta.pop("digest", None)
    if digest != _digest(json.dumps(meta), state):
        raise CheckpointError(
            f"{path} is damaged: its contents do not match its digest; fetch it again or retrain"
        )
    model = GPT(config)
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise CheckpointError(
            f"{path}: its tensors do not fit its own config ({str(error).splitlines()[1].strip()})"
        ) from error
    where = origin or _short(path)
    return Checkpoint(model.eval(), tokenizer, meta, sha256(path), where)


def write_tensors(path: Path, tensors: dict[str, Tensor], meta: dict) -> str:
    """Write tensors and JSON metadata as one safetensors file, whole or not at all; returns its SHA-256.

    A digest of both stands in the header, so that a damaged bit is noticed when it is read.
    """
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    digest = _digest(json.dumps(meta), tensors)
    with atomic_path(path) as temporary:
        try:
            save_file(
                tensors, temporary, metadata={"nanogpt": json.dumps({**meta, "digest": digest})}
            )
        except SafetensorError as error:  # its own kind, for a full disk too
            raise OSError(
                f"{path} could not be written whole ({error}): make room and try again"
            ) from error
        return sha256(temporary)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict]:
    """What write_tensors wrote. Raises CheckpointError when it is damaged, or not from there."""
    header, tensors = _read(path)
    try:
        meta = json.loads(header["nanogpt"])
        digest = meta.pop("digest")
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{path} holds tensors but not our metadata ({error!r}): delete it"
        ) from error
    if digest != _digest(json.dumps(meta), tensors):
        raise CheckpointError(f"{path} is damaged: its contents do not match its digest; delete it")
    return tensors, meta


def _read(path: Path) -> tuple[dict, dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} is damaged or no safetensors file ({error}): delete it, or fetch it or train again"
        ) from error


def stem(path: str | Path) -> Path:
    """The path without its suffix: `x`, `x.safetensors` and `x.json` name one checkpoint."""
    return Path(str(path).removesuffix(".safetensors").removesuffix(".json"))


def _digest(meta: str, state: dict) -> str:
    """SHA-256 of the metadata and of every tensor's name, type, shape and bytes."""
    parts = [meta.encode()]
    for name in sorted(state):
        tensor = state[name].contiguous()
        parts += [f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode()]
        parts += [tensor.flatten().view(torch.uint8).numpy().tobytes()]
    return sha256(b"\n".join(parts))


def _understood(path: Path, header: dict) -> tuple[dict, GPTConfig, CharTokenizer]:
    """The metadata in a header, once every part that is read later has proved to be there and usable."""
    try:
        meta = json.loads(header["nanogpt"])
        known = meta["format"] == FORMAT
        if known:
            config, chars = GPTConfig(**meta["config"]), meta["vocabulary"]
            if (
                not isinstance(chars, str)
                or len(set(chars)) != len(chars)
                or len(chars) != config.vocab_size
            ):
                raise ValueError(f"a vocabulary of {config.vocab_size} characters is needed")
            f"{meta['losses']['val']:.3f} {meta['step']:,} {meta['corpus']['name']}"
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        RecursionError,
        OverflowError,
    ) as error:
        raise CheckpointError(
            f"{path} holds weights but not our metadata ({error!r}): load it with model.load_state_dict if "
            f"it is the lecture's, or take a checkpoint that this project wrote"
        ) from error
    if not known:
        raise CheckpointError(
            f"{path} has format {meta['format']!r}, this version reads {FORMAT!r}: retrain"
        )
    return meta, config, CharTokenizer(chars)


def _short(path: Path) -> str:
    path = path.resolve()
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name
