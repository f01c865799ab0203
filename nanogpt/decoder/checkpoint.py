"""Checkpoints as safetensors and JSON, written atomically. Nothing is ever unpickled.

A weights file says itself what it holds: its header has the metadata and a digest of metadata and
tensors, so one rename replaces all of it, and loading notices a damaged bit. Nothing else is stored
about it; `Checkpoint.sha256` is computed from the file, and is what `sha256sum` prints.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .. import files
from ..config import LARGEST, GPTConfig, ParameterError, check_int, check_number, check_type
from ..data import CharTokenizer
from ..model import LanguageModel
from .config import DecoderConfig, RopeScaling
from .identify import identify
from .own_code import computes_as_standard, own_classes
from .pack import build_model
from .standard import first_difference

FORMAT = f"{files.OURS} checkpoint 1"
TRAINING_STATE = f"{files.OURS} training state"  # of any version; training/resume.py has the number


class CheckpointError(ValueError):
    """A checkpoint that is missing, damaged, or not one of ours; the message says what to do."""


def save_checkpoint(path: str | Path, model: LanguageModel, meta: dict[str, Any]) -> None:
    """Write `<path>.safetensors` and, for human readers, `<path>.json`, each atomically.

    The weights are stored under the model's own names. The same metadata is in the header of the
    weights file, with a digest of both, so a single rename replaces everything and loading detects
    a damaged bit. Raises TypeError and ValueError for a model that load_checkpoint would reject or
    load as another function, and if a file that is not a checkpoint is in the way; and OSError.
    """
    check_type("model", model, LanguageModel)
    check_type("meta", meta, dict)
    path = check_path("path", path)
    check_checkpoint(path)
    difference = not_restored(model)
    if difference:
        raise ValueError(
            f"not saved: load_checkpoint builds a new model from the config, but this one has "
            f"{difference}. "
            f"Save its tensors instead, with torch.save(model.state_dict(), path)"
        )
    write_checkpoint(path, model, meta)


def check_checkpoint(path: Path) -> None:
    """Raise ValueError if a file at this path (a stem) is not one of our checkpoints."""
    weights = path.with_name(f"{path.name}.safetensors")
    about = path.with_name(f"{path.name}.json")
    files.check_file(weights, is_written(weights, FORMAT))
    files.check_file(about, files.is_marked(about))


def write_checkpoint(path: Path, model: LanguageModel, meta: dict[str, Any]) -> None:
    """Write both files, also for a model of your own classes, which is marked as one in them.

    Raises ValueError for metadata and numbers that load_checkpoint would reject.
    """
    # 1. What the file is to say, and whether load_checkpoint would accept it.
    state = model.state_dict()
    difference = not_restored(model)
    if difference:  # a plain GPT with these weights would compute another function
        meta = {**meta, "own_classes": own_classes(model) or [difference]}
    else:
        if getattr(model.config, "tied", False):
            del state["lm_head.weight"]
        _check_saved(path, model.config, state, meta)
    json.dumps(meta, ensure_ascii=False, allow_nan=False).encode()  # fail before writing a file
    # 2. The weights with the metadata in their header, then the same metadata for human readers.
    write_tensors(path.with_name(path.name + ".safetensors"), state, meta)
    files.write_json(path.with_name(path.name + ".json"), meta)


def not_restored(model: LanguageModel) -> str | None:
    """How the model differs from a new model with its config and weights; None if it does not.

    Your own classes may compute the same as the package's, which is tested.
    """
    parts = (model.lm_head, model.token_embedding_table)
    head, tokens = (getattr(part, "weight", None) for part in parts)
    if getattr(model.config, "tied", False) and head is not tokens:
        return "a head with its own weights, although its config is tied"
    difference = first_difference(model)
    return None if difference is None or computes_as_standard(model) else difference


@dataclass
class Checkpoint:
    """A trained model, its tokenizer, and where both came from."""

    model: LanguageModel
    tokenizer: CharTokenizer
    meta: dict[str, Any]
    sha256: str  # of the weights file, by which certificates and published results name it
    origin: str

    def __str__(self) -> str:
        c = self.model.config
        losses = self.meta["losses"]
        val = losses.get("full_val", losses["val"])  # on the whole validation text, if known
        return (
            f"{self.origin}: {self.model.n_params:,} parameters, block {c.block_size}, "
            f"trained for {self.meta['step']:,} steps on {self.meta['corpus']['name']}, "
            f"val loss {val:.3f}, sha256 {self.sha256[:12]}…"
        )


def load_checkpoint(path: str | Path = files.KEEPER, *, origin: str | None = None) -> Checkpoint:
    """Load a checkpoint: `path` with or without `.safetensors`; by default the bundled model.

    Raises CheckpointError if the file is missing, damaged or foreign, or if its tensors do not
    match its config.
    """
    # 1. The file as it was written, or an error: the digest covers every byte that is used.
    path = find_weights(path)
    state, meta = read_tensors(path)
    # 2. Its config, and tensors that fit it.
    config = _checked_config(path, meta)
    tied = isinstance(config, DecoderConfig) and config.tied
    count = sum(tensor.numel() for tensor in state.values())
    try:
        if count != config.n_params:  # a header may claim any size: do not build such a model
            raise RuntimeError(f"\n{count:,} numbers, it has {config.n_params:,}")
        _check_numbers(path, state)
        # 3. A new model with these tensors, each in its own dtype.
        model = build_model(config)
        if tied:  # the file has the weights of the head once, as the embeddings
            state["lm_head.weight"] = state["token_embedding_table.weight"]
        model.load_state_dict(state, assign=True)
        if tied:
            model.lm_head.weight = model.token_embedding_table.weight  # one parameter again
    except RuntimeError as error:
        # The first line of load_state_dict names the class; the second, if any, what is wrong.
        detail = str(error).splitlines()[:2][-1].strip()
        raise CheckpointError(f"{path}: its tensors do not fit its config ({detail})") from error
    tokenizer = CharTokenizer(meta["vocabulary"])
    return Checkpoint(model.eval(), tokenizer, meta, files.sha256(path), origin or path.name)


def find_weights(path: str | Path) -> Path:
    """The weights file that `path` names, with or without `.safetensors`.

    Raises CheckpointError if there is none, saying what is there instead.
    """
    check_type("path", path, (str, Path))
    given = files.user_path(path)
    found: Path | None
    if str(path) and given.is_dir() and not _weights_of(given).is_file():
        found = given
    else:
        weights = _weights_of(check_path("path", path))
        if weights.is_file():
            return weights
        found = next((x for x in (weights, given) if os.path.lexists(x)), None)
        if found is None:
            raise CheckpointError(
                f"no checkpoint at {weights}: train one (notebook 01), or correct the path"
            )
    what, cure = identify(found)
    raise CheckpointError(f"{found} is {what or 'another file'}, not a checkpoint of ours: {cure}")


def _weights_of(path: Path) -> Path:
    """The weights file of a stem."""
    return path.parent / f"{stem(path).name}.safetensors"


def write_tensors(path: Path, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
    """Write tensors and JSON metadata as one safetensors file. Raises OSError.

    The header contains a digest of both, so reading detects a damaged bit.
    """
    tensors = _apart({name: t.detach().cpu().contiguous() for name, t in tensors.items()})
    meta = {**meta, "digest": _digest(json.dumps(meta), tensors)}
    with files.atomic_path(path) as temporary:
        try:
            save_file(tensors, temporary, metadata={"nanogpt": json.dumps(meta)})
        except SafetensorError as error:  # not an OSError, even for a full disk
            raise OSError(f"{path} could not be written ({error}): make room") from error


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors, with copies of those that share memory, such as tied weights."""
    seen = set()
    apart = {}
    for name, tensor in tensors.items():
        memory = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if memory in seen else tensor
        seen.add(memory)
    return apart


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a file of write_tensors. Raises CheckpointError for a damaged or any other file."""
    # 1. Is it a safetensors file?
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        what, cure = identify(path)
        if what:
            raise CheckpointError(f"{path} is {what}, not a checkpoint of ours: {cure}") from error
        raise CheckpointError(
            f"{path} is damaged or not a safetensors file ({error}): "
            f"delete it, or fetch it or train again"
        ) from error
    # 2. Did we write it?
    try:
        meta = dict(json.loads(header["nanogpt"]))
        digest = meta.pop("digest")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise _foreign(path, error) from error
    # 3. Is it as we wrote it?
    if digest != _digest(json.dumps(meta), tensors):
        raise CheckpointError(
            f"{path} is damaged: its contents do not match its digest; "
            f"delete it, or fetch it or train again"
        )
    return tensors, meta


def is_written(path: Path, kind: str) -> bool:
    """Whether this is an undamaged file of write_tensors whose format starts with `kind`."""
    if not path.is_file():
        return False
    try:
        return str(read_tensors(path)[1].get("format")).startswith(kind)
    except CheckpointError:
        return False


def check_path(name: str, value: str | Path) -> Path:
    """The stem of a file's path. Raises TypeError, and ValueError if it names a folder."""
    check_type(name, value, (str, Path))
    path = stem(files.user_path(value))
    if path.name in ("", "..") or not os.path.basename(value).startswith(path.name):
        raise ParameterError(f"{name}={str(value)!r}: name a file, without its suffix", name)
    return path


def stem(path: str | Path) -> Path:
    """The path without its suffix: `x`, `x.safetensors` and `x.json` name one checkpoint."""
    return Path(str(path).removesuffix(".safetensors").removesuffix(".json"))


def _digest(meta: str, state: dict[str, Any]) -> str:
    """SHA-256 of the metadata and of every tensor's name, type, shape and bytes."""
    parts = [meta.encode()]
    for name in sorted(state):
        tensor = state[name].contiguous()
        parts.append(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        parts.append(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return files.sha256(b"\n".join(parts))


def _checked_config(path: Path, meta: dict[str, Any]) -> GPTConfig | DecoderConfig:
    """The config in a checkpoint's metadata; checks everything that is read from it later."""
    form = meta.get("format")
    if form != FORMAT and str(form).startswith(TRAINING_STATE):
        newest = path.name.removesuffix(".state.safetensors")
        raise CheckpointError(
            f"{path} is the state of a training run, not a checkpoint: name {newest} beside it, or "
            "resume the run"
        )
    if form != FORMAT:
        raise CheckpointError(
            f"{path} has format {form!r}, not {FORMAT!r}: name a checkpoint of ours, or train one"
        )
    try:
        config = config_from_json(meta["config"])
        chars = meta["vocabulary"]
        size = config.vocab_size
        if not isinstance(chars, str) or not len(chars) == len(set(chars)) == size:
            raise ValueError(f"the vocabulary must be a string of {size} different characters")
        check_int("step", meta["step"], 0)
        check_number("the validation loss", meta["losses"]["val"], 0, LARGEST)
        if not isinstance(meta["corpus"]["name"], str):
            raise ValueError("the corpus has no name")
    except (KeyError, TypeError, ValueError) as error:
        raise _foreign(path, error) from error
    others = meta.get("own_classes")
    if others:
        raise CheckpointError(
            f"{path} holds a model with custom classes, {others}: "
            f"build the model with them, and load its tensors"
        )
    return config


def config_to_json(config: GPTConfig | DecoderConfig) -> dict[str, Any]:
    """A config as plain data; the inverse of config_from_json."""
    return asdict(config)


def config_from_json(fields: dict[str, Any]) -> GPTConfig | DecoderConfig:
    """The config that these fields describe. Raises TypeError and ValueError."""
    fields = dict(fields)
    if "positions" not in fields:
        return GPTConfig(**fields)
    scaling = fields.pop("rope_scaling", None)
    return DecoderConfig(rope_scaling=None if scaling is None else RopeScaling(**scaling), **fields)


def _check_saved(
    path: Path, config: GPTConfig | DecoderConfig, state: dict[str, Any], meta: dict[str, Any]
) -> None:
    """Raise ValueError for anything that load_checkpoint would reject."""
    try:
        named = _checked_config(path, meta)
        _check_numbers(path, state)
    except CheckpointError as error:
        raise ValueError(f"not saved, because load_checkpoint would reject it: {error}") from error
    if named != config:
        raise ValueError(f"not saved: its metadata says {named}, but the model is {config}")


def _check_numbers(path: Path, state: dict[str, Tensor]) -> None:
    """Raise CheckpointError unless all tensors hold finite floating-point numbers."""
    for name, tensor in state.items():
        if not tensor.is_floating_point() or not tensor.float().isfinite().all():
            raise CheckpointError(f"{path}: {name} holds NaN, infinity or integers: train again")


def _foreign(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"{path} holds tensors but not our metadata ({error!r}): use a checkpoint that this "
        f"project wrote, or model.load_state_dict for the lecture's"
    )
