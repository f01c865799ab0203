"""Tensors in files: their headers, and how to read one; JSON and safetensors."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..console import first_line
from ..decoder.identify import identify
from .families import embedding_names
from .needs import PretrainedError, shown, shown_value

INDEX = "model.safetensors.index.json"
# In bytes. A hostile file takes 15 times its size in memory.
LARGEST_JSON = 64 * 2**20  # tokenizers take up to 20 MB
LARGEST_HEADER = 16 * 2**20  # of safetensors; also a config or an index: DeepSeek-V3's has 9 MB
AGAIN = "fetch it again"
# What wrappers of PyTorch put anywhere into the names of a model's tensors: torch.compile, FSDP and
# activation checkpointing.
_WRAPPERS = frozenset(["_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"])
_ADAPTER = (".lora_", ".base_layer.", ".modules_to_save.")  # peft's, beside the weights it adapts


@dataclass(frozen=True)
class Stored:
    """One tensor of a file: its header, and how to read its values."""

    name: str
    shape: tuple[int, ...]
    kind: str  # the file's own name for the dtype, such as BF16 or Q4_1
    floating: bool  # whether it holds real numbers, quantized or not
    read: Callable[[], Tensor]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


Tensors = dict[str, Stored]


def without_wrappers(tensors: Tensors, where: str) -> Tensors:
    """The tensors by the names that they had before the model was wrapped.

    A model inside another module has that module's name before all of its own: module. of
    DistributedDataParallel, base_model.model. of peft, model. of Lightning, _forward_module. of
    DeepSpeed, pretrained_model. of trl, language_model. and llm. of models with images. The name of
    the embedding shows where its own names begin.

    Raises PretrainedError for an adapter that is not merged, and for names that become one.
    """
    for name in tensors:
        if any(part in name for part in _ADAPTER):
            raise PretrainedError(
                f"{where} has {shown(name)}: it is a model with an adapter; merge the two with "
                f"peft's merge_and_unload(), save the model, and pass its folder"
            )
    names = {
        name: ".".join(part for part in name.split(".") if part not in _WRAPPERS)
        for name in tensors
    }
    prefix = _common_prefix(names.values())
    names = {name: plain.removeprefix(prefix) for name, plain in names.items()}
    if len({*names.values()}) < len(names):
        raise PretrainedError(
            f"{where} has tensors whose names differ only by the wrappers of torch.compile or "
            f"FSDP: save the unwrapped model"
        )
    return {names[name]: stored for name, stored in tensors.items()}


def _common_prefix(names: Collection[str]) -> str:
    """What precedes the embedding's name and all others, or nothing."""
    for embedding in embedding_names():
        for name in names:
            prefix = name.removesuffix(embedding)
            if name.endswith(f".{embedding}") and all(one.startswith(prefix) for one in names):
                return prefix
            if name == embedding:
                return ""
    return ""


def read_json(path: Path, largest: int = LARGEST_JSON) -> dict[str, Any]:
    """Read the object in a JSON file of at most that many bytes. Raises PretrainedError."""
    try:
        size = path.stat().st_size
        if size > largest:
            raise PretrainedError(
                f"{path} has {size:,} bytes, and the limit is {largest:,}: {AGAIN}"
            )
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, PretrainedError):
            raise
        reason = why_no_json(path, error)
        raise PretrainedError(f"{path} cannot be read ({reason}): {AGAIN}") from error
    if not isinstance(data, dict):
        raise PretrainedError(f"{path} is a JSON {type(data).__name__}, not an object: {AGAIN}")
    return data


def why_no_json(path: Path, error: BaseException) -> str:
    """What a file is instead of JSON, such as a web page; otherwise the parser's message."""
    what = identify(path)[0]
    return f"it is {what}" if what and what != "JSON" else first_line(error)


# ------------------------------------------------------------------ safetensors


def tensors_of_folder(folder: Path) -> Tensors:
    """The tensors of a folder: model.safetensors, its index's shards, or the only such file.

    The first of them that is there, as in transformers: people save a model into the folder of an
    earlier one, whose shards and index stay beside it. Raises PretrainedError for a folder without
    any, and for a missing or damaged file.
    """
    index = folder / INDEX
    whole = folder / "model.safetensors"
    if not whole.is_file() and index.is_file():
        return without_wrappers(_tensors_of_shards(folder, index), str(folder))
    found = sorted(folder.glob("*.safetensors"))
    if whole in found:
        found = [whole]
    if not found:
        pickled = any(folder.glob("*.bin"))
        cure = to_safetensors(folder) if pickled else "fetch the whole folder"
        raise PretrainedError(f"{folder} has no .safetensors file: {cure}")
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:3])
        raise PretrainedError(f"{folder} has {len(found)} files ({names}) and no {INDEX}: add it")
    return without_wrappers(tensors_of_file(found[0]), str(folder))


def to_safetensors(folder: Path) -> str:
    """What to do about a folder with .bin files: a command that adds model.safetensors to it."""
    code = (
        f"from transformers import AutoModelForCausalLM as M; x = {json.dumps(str(folder))}; "
        f"M.from_pretrained(x).save_pretrained(x)"
    )
    return f"run `python -c {shlex.quote(code)}`, and name {folder}"


def _tensors_of_shards(folder: Path, index: Path) -> Tensors:
    """The tensors of all files listed in an index. Each must be in the file of its entry."""
    placed = read_json(index, LARGEST_HEADER).get("weight_map")
    if not isinstance(placed, dict) or not placed:
        raise PretrainedError(f"{index} has no weight_map: {AGAIN}")
    tensors: Tensors = {}
    for file in sorted({str(value) for value in placed.values()}):
        if Path(file).name != file or not file.endswith(".safetensors") or len(file) > 200:
            raise PretrainedError(
                f"{index} names {shown_value(file)}, which is not a file next to it: {AGAIN}"
            )
        if not (folder / file).is_file():
            raise PretrainedError(f"{folder} lacks {shown(file)}, which {INDEX} names: fetch it")
        for name, tensor in tensors_of_file(folder / file).items():
            if placed.get(name) != file:
                where = placed.get(name, "nowhere")
                raise PretrainedError(
                    f"{file} has {shown(name)}, and {index} puts it in {where!r:.80}: {AGAIN}"
                )
            tensors[name] = tensor
    lost = sorted(placed.keys() - tensors.keys())
    if lost:
        raise PretrainedError(
            f"{shown(placed[lost[0]])} has no {shown(lost[0])}, which {index} puts there: {AGAIN}"
        )
    return tensors


def tensors_of_file(path: Path) -> Tensors:
    """The tensors of a safetensors file, from its header. Raises PretrainedError."""
    try:
        with open(path, "rb") as plain:
            start = plain.read(9)
        size = int.from_bytes(start[:8], "little")
        if start[8:] == b"{" and size > LARGEST_HEADER:
            limit = f"{LARGEST_HEADER:,}"
            raise PretrainedError(
                f"{path} has a header of {size:,} bytes, and the limit is {limit}: {AGAIN}"
            )
        with safe_open(path, framework="pt") as file:
            headers = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            shapes = {name: tuple(header.get_shape()) for name, header in headers.items()}
            kinds = {name: str(header.get_dtype()) for name, header in headers.items()}
    except PretrainedError:
        raise
    except (SafetensorError, OSError, ValueError) as error:
        what = identify(path)[0]
        reason = f"is {what}" if what else f"is damaged ({first_line(error)})"
        raise PretrainedError(f"{path} {reason}, not a safetensors file: {AGAIN}") from error
    floating = ("F64", "F32", "F16", "BF16")
    return {
        name: Stored(name, shape, kinds[name], kinds[name] in floating, partial(_read, path, name))
        for name, shape in shapes.items()
    }


def _read(path: Path, name: str) -> Tensor:
    """Read the values of one tensor."""
    try:
        with safe_open(path, framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
            return tensor
    except (SafetensorError, OSError, ValueError) as error:
        raise PretrainedError(
            f"{path}: {shown(name)} cannot be read ({first_line(error)})"
        ) from error
